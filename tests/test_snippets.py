"""The loops that pages show print each piece as it comes, in a terminal as a reader has it."""

from __future__ import annotations

import ast
import re
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from streamco.testing import DONE, chunk_event
from tests.cli.terminal import terminal

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
WORDS = ("The", " sky", " is", " blue", ".")
PATIENCE = 60.0  # s, for one piece; nothing waits this long unless the test fails

# A device that never answers, in place of the packaged model: the server's pieces come when the test says so.
QUIET_DEVICE = """
import streamco
from streamco.testing import FakeEngine
streamco.packaged_model = lambda: streamco.DeviceEndpoint(FakeEngine(mode="manual"))
"""
AROUND = """
import asyncio
import streamco


async def main():
    async with streamco.Client(server=streamco.OpenAIEndpoint("gpt-4o-mini")) as client:
        messages = [{"role": "user", "content": "Why is the sky blue?"}]
"""


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def readme() -> str:
    (block,) = [block for block in blocks("README.md") if "print(" in block]
    return QUIET_DEVICE + block.replace('device="qwen2.5-1.5b.gguf"', "device=streamco.packaged_model()")


def openai_page() -> str:
    (block,) = [block for block in blocks("docs/openai.md") if "async for chunk" in block and 'end=""' in block]
    return AROUND + textwrap.indent(block, " " * 8) + "\nasyncio.run(main())\n"


class SteppedServer(ThreadingHTTPServer):
    """Sends a word, and the next one only when the reader has seen it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StreamHandler)
        self.seen = [threading.Event() for _ in WORDS]
        self.order: list[str] = []


class StreamHandler(BaseHTTPRequestHandler):
    server: SteppedServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for word, seen in zip(WORDS, self.server.seen, strict=True):
            self.server.order.append(f"sent {word}")
            self.wfile.write(chunk_event(word))
            if not seen.wait(PATIENCE):
                return
        self.wfile.write(chunk_event(finish_reason="stop") + DONE)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@contextmanager
def stepped_server() -> Iterator[SteppedServer]:
    with SteppedServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            for seen in server.seen:
                seen.set()
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("program", [readme, openai_page])
def test_each_piece_is_on_the_terminal_before_the_next_one_is_sent(program: object) -> None:
    assert callable(program)
    with stepped_server() as server:
        host, port = server.server_address[:2]
        env = {"OPENAI_BASE_URL": f"http://{host!s}:{port}/v1", "OPENAI_API_KEY": "unused", "PYTHONUNBUFFERED": ""}
        with terminal("-c", program(), env=env) as shown:
            for word, seen in zip(WORDS, server.seen, strict=True):
                shown.expect(word, PATIENCE / 2)
                server.order.append(f"seen {word}")
                seen.set()
            assert shown.wait(PATIENCE) == 0, shown.raw
    assert server.order == [f"{what} {word}" for word in WORDS for what in ("sent", "seen")]


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda path: path.name)
def test_prints_that_leave_their_line_open_are_flushed(path: Path) -> None:
    sources = [path.read_text(encoding="utf-8")] if path.suffix == ".py" else blocks(str(path.relative_to(ROOT)))
    assert not [found for source in sources for found in unflushed(source)]


def unflushed(source: str) -> list[str]:
    """The calls of print in a source that end without a line break and may keep their text back."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # shell, or a fragment with await at its top
        tree = ast.parse("async def main():\n" + textwrap.indent(source, "    ") + "\n    pass\n")
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"]
    given = [(call, {each.arg for each in call.keywords}) for call in calls]
    return [ast.unparse(call) for call, names in given if "end" in names and not names & {"flush", "file"}]


def test_a_print_that_is_not_flushed_is_found() -> None:
    assert unflushed('print(await text(), end="")\n') == ["print(await text(), end='')"]
    assert unflushed('print("a", end="", flush=True)\nprint("b")\n') == []
