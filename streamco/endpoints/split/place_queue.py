"""The queue of a device's answers that wait for a place at busy servers. Answers that have begun go before those that haven't."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

__all__ = ["PlaceQueue"]


class PlaceQueue:
    """A queue in which only the first answer asks the servers for a place. It belongs to one event loop.

    Attributes:
        frees: how many places have become free so far.
    """

    def __init__(self) -> None:
        self.frees = 0
        self._numbers = count()
        self._tickets: list[tuple[bool, int]] = []  # tickets of the waiting answers, in order
        self._moved = asyncio.Event()
        self._freed = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """True if no answer is waiting."""
        return not self._tickets

    @contextmanager
    def ticket(self, *, has_begun: bool) -> Iterator[tuple[bool, int]]:
        """Join the queue at its end or, if this answer has begun, ahead of all answers that haven't."""
        ticket = (not has_begun, next(self._numbers))
        insort(self._tickets, ticket)
        try:
            yield ticket
        finally:
            self._tickets.remove(ticket)
            moved, self._moved = self._moved, asyncio.Event()
            moved.set()

    def is_first(self, ticket: tuple[bool, int]) -> bool:
        """Return True if it is this answer's turn."""
        return self._tickets[0] == ticket

    async def turn(self, ticket: tuple[bool, int]) -> None:
        """Wait until it is this answer's turn."""
        while not self.is_first(ticket):
            await self._moved.wait()

    async def wait(self, seconds: float, frees: int) -> None:
        """Wait until ``report_free`` is called, at most ``seconds``.

        Args:
            seconds: the longest wait.
            frees: the value of ``frees`` before the servers were asked. If it has changed since, there is no wait.
        """
        if frees != self.frees:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._freed.wait()

    def report_free(self) -> None:
        """Wake the answer whose turn it is, because a place has become free."""
        self.frees += 1
        freed, self._freed = self._freed, asyncio.Event()
        freed.set()
