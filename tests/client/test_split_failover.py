"""A real ``streamco serve --middle`` is killed in the middle of an answer, and the answer goes on: at another server, or where it was."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import pytest

import streamco
from streamco.core.report_parts import SplitFigures
from streamco.core.report_summary import summary
from streamco.engines.base import EngineOptions
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.model_parts import PartFiles, split_model
from tests.cli.test_serve import address_of, process
from tests.engines.split.local_link import CELLS

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")
pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

PROMPT = "Name three rivers in France."
TOKENS = 12
SERVE = "import sys; from streamco.cli.main import main; sys.exit(main(sys.argv[1:]))"


class Servers:
    """Processes with the middle layers, slow enough to be killed before an answer ends."""

    def __init__(self, files: PartFiles, stack: ExitStack) -> None:
        self.files = files
        self.stack = stack
        self.running: list[subprocess.Popen[str]] = []

    async def start(self, port: int = 0) -> str:
        """Start one; return its URL."""
        words = ("serve", "--model", str(self.files.middle), "--middle", "--port", str(port), "--threads", "1", "--context", str(CELLS))
        slow = ("--row-costs", "1:0.1,64:0.1", "--emulate-step", "0.1,0.0")
        self.running.append(self.stack.enter_context(process(SERVE, *words, *slow)))
        return await asyncio.to_thread(address_of, self.running[-1])

    async def kill(self) -> None:
        """End the first one by SIGKILL."""
        self.running[0].kill()
        await asyncio.to_thread(self.running[0].wait)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PartFiles:
    return split_model(packaged_model(), tmp_path_factory.mktemp("parts"))


@pytest.fixture(scope="module")
def expected(files: PartFiles) -> str:
    async def ask() -> str:
        device = streamco.DeviceEndpoint(packaged_model(), options=EngineOptions(threads=1, context_tokens=CELLS, exact=True))
        async with streamco.Client(device) as client:
            stream = client.stream(PROMPT, max_tokens=TOKENS, temperature=0)
            return "".join([token.text async for token in stream])

    return asyncio.run(ask())


async def answer(device: streamco.SplitEndpoint, break_off: Callable[[], Awaitable[object]]) -> tuple[str, streamco.reports.Report]:
    """Return the text and the report of an answer; ``break_off`` is called after its first token."""
    async with streamco.Client(mode=streamco.Split(device)) as client:
        stream, text = client.stream(PROMPT, max_tokens=TOKENS, temperature=0), ""
        async for token in stream:
            if not text:
                await break_off()
            text += token.text
        return text, stream.report


def figures_of(report: streamco.reports.Report) -> SplitFigures:
    assert report.split is not None
    assert (report.mode, report.ending, report.split.is_exact) == ("split", "complete", True)
    assert report.split.sessions == 2
    assert report.split.repeated_rows > 30, "the prompt's states at least went up again"
    assert report.split.rows_up > report.split.repeated_rows
    return report.split


@pytest.mark.long
async def test_another_server_goes_on_after_kill_9_and_the_report_says_so(files: PartFiles, expected: str) -> None:
    with ExitStack() as stack:
        servers = Servers(files, stack)
        first, second = await servers.start(), await servers.start()
        options = EngineOptions(threads=1, context_tokens=CELLS)
        device = streamco.SplitEndpoint(files.stem, [first, second], options=options, states="f32")
        text, report = await answer(device, servers.kill)
    assert text == expected
    names = [url.removeprefix("http://") for url in (first, second)]
    assert figures_of(report).servers == names
    assert f"went on at {names[1]} after a loss" in summary(report)


@pytest.mark.long
async def test_the_same_server_goes_on_when_it_is_started_again(files: PartFiles, expected: str) -> None:
    with ExitStack() as stack:
        servers = Servers(files, stack)
        url = await servers.start()

        async def restart() -> None:
            await servers.kill()
            await servers.start(int(url.rpartition(":")[2]))

        options = EngineOptions(threads=1, context_tokens=CELLS)
        device = streamco.SplitEndpoint(files.stem, url, options=options, states="f32", patience=240.0)
        text, report = await answer(device, restart)
    assert text == expected
    assert figures_of(report).servers == [url.removeprefix("http://")]
