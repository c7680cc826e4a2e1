"""How a command runs: its event loop, its log, and the spinner while it waits."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TextIO, TypeVar

from streamco.cli.ui.control_characters import PlainFormatter, print_plain, printable
from streamco.cli.ui.status_line import SPINNER, SPINS

__all__ = ["run_async", "set_up_log", "waiting"]

T = TypeVar("T")


def run_async(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a command until it ends, on uvloop if it is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())


def set_up_log(verbosity: int) -> None:
    """Log warnings to stderr. With ``-v``, also log what happens, and with ``-vv`` everything, including tracebacks."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)]
    style = "%(asctime)s %(levelname)s %(name)s: %(message)s" if verbosity else "%(name)s: %(message)s"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter(style))
    logging.basicConfig(level=level, handlers=[handler])


@asynccontextmanager
async def waiting(text: object, file: TextIO | None = None) -> AsyncIterator[None]:
    """Say on stderr that something takes a while, with a spinner on a terminal and one line elsewhere.

    Args:
        text: what takes a while. ``str`` is called on it for each drawing, so it may change.
        file: the file to write to, by default stderr.
    """
    err = file or sys.stderr
    if not err.isatty():
        print_plain(f"{text} ...", err)
        yield
        return
    spinning = asyncio.create_task(_spin(text, err))
    try:
        yield
    finally:
        spinning.cancel()
        with suppress(asyncio.CancelledError):
            await spinning
        err.write("\r\x1b[K")
        err.flush()


async def _spin(text: object, err: TextIO) -> None:
    began = time.monotonic()
    while True:
        spent = time.monotonic() - began
        err.write(f"\r{SPINNER[int(spent * SPINS) % len(SPINNER)]} {printable(str(text))} · {spent:.1f} s\x1b[K")
        err.flush()
        await asyncio.sleep(1 / SPINS)
