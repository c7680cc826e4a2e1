from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from streamco.cli import child_server
from streamco.errors import EndpointConnectError
from streamco.testing import running_server
from streamco.testing import server_process as cloud
from tests.cli.terminal import ROOT


async def is_gone(pid: int) -> bool:
    """Whether the process ends within ten seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while True:
                try:
                    os.kill(pid, 0)
                except ProcessLookupError:
                    return True
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                        return True
                await asyncio.sleep(0.05)
    return False


def children() -> set[int]:
    """Process ids of our servers."""
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], text=True, capture_output=True, check=False)
    return {int(line.split()[0]) for line in listed.stdout.splitlines() if "streamco.cli.child_server" in line}


@pytest.mark.model
async def test_it_serves_until_the_block_is_left() -> None:
    async with running_server("--port", "0", "--threads", "1") as url:
        assert url.startswith("http://127.0.0.1:")
        (pid,) = children()
        models = await asyncio.to_thread(lambda: urllib.request.urlopen(f"{url}/models").read())
        assert b"SmolLM2" in models
    assert await is_gone(pid)


@pytest.mark.long
@pytest.mark.model
async def test_it_is_stopped_after_an_error_and_after_a_cancel() -> None:
    async def fail() -> None:
        async with running_server("--port", "0", "--threads", "1"):
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        await fail()
    assert not children()

    ready = asyncio.Event()

    async def wait() -> None:
        async with running_server("--port", "0", "--threads", "1"):
            ready.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(wait())
    await ready.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not children()


@pytest.mark.model
async def test_it_does_not_outlive_a_parent_that_was_killed() -> None:
    script = (
        "import asyncio\n"
        "from streamco.testing import running_server\n"
        "async def main():\n"
        "    async with running_server('--port', '0', '--threads', '1') as url:\n"
        "        print(url, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    assert (await parent.stdout.readline()).startswith(b"http://")
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent.pid)], text=True, capture_output=True, check=True)
    child = int(listed.stdout.split()[0])
    parent.kill()
    await parent.wait()
    assert await is_gone(child)


async def test_a_server_that_cannot_start_gives_the_end_of_its_log() -> None:
    with pytest.raises(EndpointConnectError, match=r"expected a server that listens, got the end of its output; its log: .*nosuch"):
        async with running_server("--port", "0", "--latency", "nosuch"):
            pass
    assert not children()


async def test_a_server_that_never_listens_is_given_up_and_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    silent = tmp_path / "silent.py"
    silent.write_text("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('hello', flush=True)\ntime.sleep(60)\n")
    create = asyncio.create_subprocess_exec

    async def create_silent(*command: str, **options: object) -> asyncio.subprocess.Process:
        return await create(sys.executable, str(silent), **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create_silent)
    monkeypatch.setattr(cloud, "START_LIMIT", 0.5)
    monkeypatch.setattr(cloud, "STOP_LIMIT", 0.2)
    with pytest.raises(EndpointConnectError, match=r"got nothing in 0\.5 s"):
        async with running_server():
            pass


def test_the_child_stops_when_nobody_is_left_who_could_tell_it_to(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    reads = [b"x", b""]
    monkeypatch.setattr(os, "read", lambda number, size: reads.pop(0))
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    child_server._stop_with_parent()
    assert killed == [(os.getpid(), signal.SIGTERM)]
