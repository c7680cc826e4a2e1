"""The lines of a pipe, read without blocking the event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from typing import TextIO

__all__ = ["lines_of"]


async def lines_of(file: TextIO | None = None) -> AsyncIterator[str]:
    """Lines of ``file`` (stdin), stripped, empty ones left out.

    A daemon thread reads, because an event loop can't watch plain files, and a thread of a pool would keep the program from ending while
    it waits for a line.
    """
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str | None] = asyncio.Queue()
    thread = threading.Thread(target=_read, args=(file or sys.stdin, loop, lines), name="streamco-stdin", daemon=True)
    thread.start()
    while (line := await lines.get()) is not None:
        if line.strip():
            yield line.strip()


def _read(file: TextIO, loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str | None]) -> None:
    try:
        for line in file:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)
    except RuntimeError:  # the loop is gone: nobody waits for more
        return
