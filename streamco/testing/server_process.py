"""A server in a separate process that never outlives the command that started it.

The child reads its stdin, a pipe that nobody writes to. When the parent ends, for whatever reason, the pipe closes and the child stops.
The child has its own process group, so that Ctrl-C in the terminal stops an answer but not the server.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from streamco.endpoints.network.peer_timeout import PeerTimeout
from streamco.errors import EndpointConnectError

__all__ = ["ServerProcess", "running_server", "started_server"]

CHILD = "streamco.cli.child_server"
READY = b"listening on "
START_LIMIT = 120.0  # seconds; a busy machine with a cold disk takes long to load 100 MB
STOP_LIMIT = 5.0  # seconds between terminating and killing
LOG_TAIL = 2000  # characters of the child's log that an error quotes


class ServerProcess:
    """A running server.

    Attributes:
        url: its base URL.
    """

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self._process = process
        self.url = url

    def kill(self) -> None:
        """Kill it at once, as if its machine had failed. Anything that it was writing is cut off."""
        with suppress(ProcessLookupError):
            self._process.kill()


@asynccontextmanager
async def running_server(*options: str) -> AsyncIterator[str]:
    """Run ``streamco serve`` with these options inside the block, and yield its base URL.

    Raises:
        EndpointConnectError: the server ended, or wasn't listening within two minutes; the message includes the end of its log.
    """
    async with started_server(*options) as server:
        yield server.url


@asynccontextmanager
async def started_server(*options: str) -> AsyncIterator[ServerProcess]:
    """Run ``streamco serve`` as ``running_server`` does, and yield an object that can also kill it.

    Raises:
        EndpointConnectError: see ``running_server``.
    """
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", CHILD, *options),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=_environment(),
            start_new_session=True,
        )
        try:
            yield ServerProcess(process, f"{await _address(process, log)}/v1")
        finally:
            await _stop(process)


def _environment() -> dict[str, str]:
    """Return this process's environment, with this package's parent folder in ``PYTHONPATH``, and without the user's own server key."""
    folder = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH", "")
    ours = {name: value for name, value in os.environ.items() if name != "STREAMCO_API_KEY"}
    return {**ours, "PYTHONPATH": os.pathsep.join(filter(None, (folder, inherited)))}


async def _address(process: asyncio.subprocess.Process, log: BinaryIO) -> str:
    if process.stdout is None:
        raise AssertionError("stdout is a pipe")
    problem = "the end of its output"
    try:
        async with PeerTimeout(START_LIMIT):
            async for line in process.stdout:
                if line.startswith(READY):
                    return line.removeprefix(READY).decode().strip()
    except TimeoutError:
        problem = f"nothing in {START_LIMIT:g} s"
    raise EndpointConnectError(f"expected a server that listens, got {problem}{_tail(log)}", endpoint="server")


def _tail(log: BinaryIO) -> str:
    log.seek(0)
    text = log.read().decode(errors="replace").strip()[-LOG_TAIL:]
    return f"; its log: {text}" if text else ""


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Make sure that the process ends, even if this task is cancelled meanwhile."""
    stopping = asyncio.ensure_future(_terminate(process))
    try:
        await asyncio.shield(stopping)
    except asyncio.CancelledError:  # Ctrl-C while it is stopping: kill it at once
        with suppress(ProcessLookupError):
            process.kill()
        await stopping
        raise


async def _terminate(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_LIMIT):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
