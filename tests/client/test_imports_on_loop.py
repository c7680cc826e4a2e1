"""What is imported while an answer is under way is imported by other threads, so that no stream waits for it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Set as AbstractSet

import pytest

from streamco.testing import ScriptedServer, stream_answer

PROGRAM = """
import asyncio, sys, threading
import streamco

found, loop_thread, (kind, url) = [], threading.get_ident(), sys.argv[1:]

class Watch:
    def find_spec(self, name, path=None, target=None):
        if threading.get_ident() == loop_thread:
            found.append(name)

async def main():
    one, other = (streamco.OpenAIEndpoint("m", base_url=url, api_key="k", name=name) for name in ("one", "other"))
    client = streamco.Client(streamco.packaged_model() if kind == "device" else None, [one, other] if kind == "two" else one)
    async with client:
        sys.meta_path.insert(0, Watch())
        for _ in range(8):
            stream = await client.chat.completions.create(messages=[{"role": "user", "content": "hi"}], stream=True, max_tokens=4)
            async for _ in stream:
                pass
        sys.meta_path.pop(0)

asyncio.run(main())
print(*found)
"""


async def imported_on_loop(kind: str) -> AbstractSet[str]:
    """Return the modules that eight answers import on the event loop's thread, in a new process."""
    async with ScriptedServer(*[stream_answer(["one", " two"])] * 8) as server:
        command = (sys.executable, "-c", PROGRAM, kind, server.url)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
    return set(output.decode().split())


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("kind", ["one", "two", pytest.param("device", marks=pytest.mark.model)])
async def test_answers_import_nothing_of_weight_on_the_event_loop(kind: str) -> None:
    small = {"concurrent.futures.thread", "queue", "_queue"}  # of the standard library, a millisecond each
    assert await imported_on_loop(kind) <= small
