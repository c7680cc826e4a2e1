"""Code shared by the commands that listen on a port: ``--ready-fd``, and serving until a signal."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from streamco.cli.ui.control_characters import print_plain
from streamco.errors import ConfigError

__all__ = ["check_descriptor", "curl_line", "serve_until_stopped", "tune_collector"]

YOUNG_OBJECTS = 200_000  # unfreed new containers after which the collector looks for cycles; a thousand streams have 170,000


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


def tune_collector() -> None:
    """Make the garbage collector run less often in a process that only serves.

    Objects that exist already aren't checked again. The young objects belong to answers in progress, because finished answers are freed
    without the collector. Checking them finds nothing, and holds up all answers. Cycles that other code leaves are found later than
    usual.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def curl_line(base_url: str, *, model: str = "", key: str = "") -> str:
    """Return a curl command that asks a server a question.

    Args:
        base_url: its base URL, which ends in ``/v1``.
        model: the model to name, or "" for none.
        key: a placeholder for the key, such as ``$VARIABLE``, or "" if none is needed.
    """
    authorization = f' -H "Authorization: Bearer {key}"' if key else ""
    named = f'"model": "{model}", ' if model else ""
    question = f'{{{named}"messages": [{{"role": "user", "content": "Why is the sky blue?"}}]}}'
    return f"curl {base_url}/chat/completions{authorization} -H 'Content-Type: application/json' -d '{question}'"


async def serve_until_stopped(
    server: AbstractAsyncContextManager[str],
    ready_fd: int | None,
    *,
    hints: Callable[[str], Sequence[str]] = lambda base_url: (),
    on_ready: Callable[[str], Awaitable[None]] | None = None,
) -> None:
    """Run a server, print its address on stdout, and stop it on SIGINT or SIGTERM. Hints and the stop message go to stderr.

    Args:
        server: a context that yields its base URL, which ends in ``/v1``.
        ready_fd: file descriptor, if any, that gets the address and is closed once the server is listening.
        hints: returns lines for people to read, given the base URL.
        on_ready: called with the address, without ``/v1``, once the server is listening.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        _on_signal(number, stopped.set, loop)
    async with server as base_url:
        address = base_url.removesuffix("/v1")
        print_plain(f"listening on {address}")
        for line in (*hints(base_url), "Ctrl-C stops it"):
            print_plain(line, sys.stderr)
        if ready_fd is not None:
            with os.fdopen(ready_fd, "w") as ready:
                ready.write(f"{address}\n")
        if on_ready is not None:
            await on_ready(address)
        tune_collector()
        await stopped.wait()
        print_plain("stopping: answers under way end with an error", sys.stderr)


def _on_signal(number: int, call: Callable[[], object], loop: asyncio.AbstractEventLoop) -> None:
    """Call a function on the loop when a signal arrives, even on Windows, where loops can't watch signals themselves."""
    try:
        loop.add_signal_handler(number, call)
    except NotImplementedError:
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(call))
