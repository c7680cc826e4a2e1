"""What the commands that listen on a port share: ``--ready-fd``, and serving until a signal."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AbstractAsyncContextManager

from streamco.cli.ui.control_characters import print_plain
from streamco.errors import ConfigError

__all__ = ["check_descriptor", "serve_until_stopped"]


def check_descriptor(number: int | None) -> None:
    """Check ``--ready-fd`` before a model is loaded, so that a wrong number doesn't look like a network error.

    Raises:
        ConfigError: the file descriptor isn't open.
    """
    try:
        if number is not None:
            os.fstat(number)
    except OSError as error:
        raise ConfigError(f"ready-fd: expected an open file descriptor, got {number}") from error


async def serve_until_stopped(server: AbstractAsyncContextManager[str], ready_fd: int | None) -> None:
    """Run a server, print its address on stdout, and stop it on SIGINT or SIGTERM.

    Args:
        server: a context that yields its base URL, which ends in ``/v1``.
        ready_fd: file descriptor that gets the address and is closed once the server listens; None: none.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with server as base_url:
        address = base_url.removesuffix("/v1")
        print_plain(f"listening on {address}")
        if ready_fd is not None:
            with os.fdopen(ready_fd, "w") as ready:
                ready.write(f"{address}\n")
        await stopped.wait()
