"""How long does a new program take until the first word: import, client, answer?

Each round starts a new process for each contender, as a command or a restarted service does. Its script imports what it needs, makes a
client, asks one question and stops at the first piece of text; the times count from the moment at which the process is started, so the
interpreter's own start is in all of them. The server is a bare HTTP server over loopback that answers at once. The device's model is the
packaged one: streamco with it alone, streamco with both, and llama-cpp-python's own streaming if it is installed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from importlib.util import find_spec
from textwrap import dedent

from bench.report import Row, add_arguments, emit, summarise
from bench.timed.stream import server
from streamco.engines.llamacpp.bundled_model import packaged_model

BENCH = "first"
STAGES = ("imported", "client made", "first word")
HEAD = """
import sys, time
URL, MODEL = sys.argv[1:]
QUESTION = [{"role": "user", "content": "Say something."}]
def mark(stage):
    print(stage, time.monotonic(), time.process_time(), flush=True)
"""

STREAMCO = """
    import asyncio
    import streamco
    streamco.Client
    mark("imported")
    async def main():
        async with streamco.Client({sides}) as client:
            mark("client made")
            async for chunk in await client.chat.completions.create(messages=QUESTION, stream=True):
                if chunk.choices and chunk.choices[0].delta.content:
                    break
            mark("first word")
    asyncio.run(main())
"""
OPENAI = """
    import asyncio
    from openai import AsyncOpenAI
    mark("imported")
    async def main():
        async with AsyncOpenAI(base_url=URL, api_key="none") as client:
            mark("client made")
            async for chunk in await client.chat.completions.create(model="drip-20", messages=QUESTION, stream=True):
                if chunk.choices and chunk.choices[0].delta.content:
                    break
            mark("first word")
    asyncio.run(main())
"""
AIOHTTP = """
    import asyncio, json
    import aiohttp
    mark("imported")
    async def main():
        async with aiohttp.ClientSession() as session:
            mark("client made")
            body = {"model": "drip-20", "messages": QUESTION, "stream": True}
            async with session.post(URL + "/chat/completions", json=body) as response:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        choices = json.loads(line[6:])["choices"]
                        if choices and choices[0]["delta"].get("content"):
                            break
            mark("first word")
    asyncio.run(main())
"""
LLAMA = """
    from llama_cpp import Llama
    mark("imported")
    model = Llama(MODEL, n_ctx=0, verbose=False)
    mark("client made")
    for chunk in model.create_chat_completion(messages=QUESTION, stream=True):
        if chunk["choices"][0]["delta"].get("content"):
            break
    mark("first word")
    import os
    os._exit(0)
"""
SERVER = 'server=streamco.OpenAIEndpoint("drip-20", base_url=URL)'
LOOPBACK, DEVICE, BOTH = "a server over loopback", "a model on the device", "both: whichever is first"
SCRIPTS = {  # by case and contender
    (LOOPBACK, "streamco"): STREAMCO.replace("{sides}", SERVER),
    (LOOPBACK, "openai-python"): OPENAI,
    (LOOPBACK, "aiohttp + json"): AIOHTTP,
    (DEVICE, "streamco"): STREAMCO.replace("{sides}", "device=MODEL"),
    (DEVICE, "llama-cpp-python"): LLAMA,
    (BOTH, "streamco"): STREAMCO.replace("{sides}", f"device=MODEL, {SERVER}"),
}
NEEDS = {"openai-python": "openai", "llama-cpp-python": "llama_cpp"}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    options = parser.parse_args()
    scripts = {key: HEAD + dedent(script) for key, script in SCRIPTS.items() if find_spec(NEEDS.get(key[1], "streamco"))}
    samples: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    with server() as port:
        for turn in range(4 if options.quick else 16):
            for (case, contender), script in scripts.items():
                for stage, *times in _run(script, f"http://127.0.0.1:{port}/v1"):
                    if turn:  # the first run compiles modules and reads files from the disk
                        samples.setdefault((case, contender, stage), []).append((times[0], times[1]))
    emit(list(_rows(samples)), options.json)


def _run(script: str, url: str) -> list[tuple[str, float, float]]:
    """Run a script in a new process: seconds since its start and of processor time, at each stage."""
    began = time.monotonic()
    words = [sys.executable, "-c", script, url, str(packaged_model())]
    found = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    lines = [line.rsplit(maxsplit=2) for line in found.stdout.splitlines()]
    if [line[0] for line in lines] != list(STAGES):
        raise SystemExit(f"expected the stages {', '.join(STAGES)}, got {found.stdout!r}; {found.stderr[-2000:]}")
    return [(stage, float(at) - began, float(spent)) for stage, at, spent in lines]


def _rows(samples: dict[tuple[str, str, str], list[tuple[float, float]]]) -> list[Row]:
    rows = []
    for (case, contender, stage), values in samples.items():
        share = {"bench": BENCH, "case": case, "contender": contender, "unit": "ms"}
        rows.append(summarise([1e3 * wall for wall, _ in values], metric=f"from the start to: {stage}", **share))
        if stage == "first word":
            rows.append(summarise([1e3 * spent for _, spent in values], metric="processor time until then", **share))
    return rows


if __name__ == "__main__":
    main()
