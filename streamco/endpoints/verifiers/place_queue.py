"""The answers of one device that wait for a place at busy servers, the first one first."""

from __future__ import annotations

import asyncio
from contextlib import suppress

__all__ = ["PlaceQueue"]


class PlaceQueue:
    """A queue, as a context manager: inside it an answer has its turn to ask for a place. Belongs to the event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()  # which is given in the order in which it was asked for
        self._freed = asyncio.Event()
        self._length = 0

    @property
    def is_empty(self) -> bool:
        """True if no answer waits."""
        return not self._length

    async def __aenter__(self) -> None:
        """Wait for the turn; safe to cancel."""
        self._length += 1
        try:
            await self._turn.acquire()
        except BaseException:
            self._length -= 1
            raise

    async def __aexit__(self, *_error: object) -> None:
        """Give the turn to the next answer."""
        self._length -= 1
        self._turn.release()

    async def wait(self, seconds: float) -> None:
        """Wait until ``report_free`` is called, at most so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._freed.wait()

    def report_free(self) -> None:
        """Wake the answer that waits in its turn: another one has ended."""
        freed, self._freed = self._freed, asyncio.Event()
        freed.set()
