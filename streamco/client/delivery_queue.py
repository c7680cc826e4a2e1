"""Where deliveries wait for the one who reads them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from streamco.client.driver import Batch
from streamco.errors import ConcurrentRead, StreamClosed, StreamcoError

__all__ = ["DeliveryQueue"]


class DeliveryQueue:
    """One answer's deliveries in order, and its end.

    Attributes:
        has_finished: nothing more will be put in.
        has_left: its reader is gone.
        error: what ends it; None: nothing went wrong.
        unread: chunks that wait.
    """

    def __init__(self) -> None:
        self.has_finished = False
        self.has_left = False
        self.error: StreamcoError | None = None
        self.unread = 0
        self._batches: deque[Batch] = deque()
        self._reader: asyncio.Future[None] | None = None

    def put(self, batches: Sequence[Batch]) -> None:
        """Deliver; nobody gets what comes behind the reader's leaving."""
        if not self.has_left:
            self._batches += batches
            self.unread += sum(len(chunks) for _, chunks, _ in batches)
            self._wake()

    def finish(self, error: StreamcoError | None = None) -> None:
        """The answer has come to its end, or to this error."""
        self.has_finished = True
        self.error = error
        self._wake()

    def leave(self) -> None:
        """The reader is gone; what was not read is dropped."""
        self.has_left = True
        self._batches.clear()
        self.unread = 0
        self._wake()

    async def next(self) -> Batch | None:
        """Wait for the next delivery; None: the answer is complete. Cancelling loses nothing.

        Raises:
            StreamcoError: the answer failed; everything that came before has been handed out.
            StreamClosed: its reader had left.
            ConcurrentRead: another task is waiting here.
        """
        await self._wait()
        if self._batches:
            batch = self._batches.popleft()
            self.unread -= len(batch[1])
            return batch
        self._check_end()
        return None

    async def peek(self) -> None:
        """Wait until something was delivered or the answer has ended, without taking it.

        Raises:
            StreamcoError: the answer failed before anything was delivered.
            StreamClosed: its reader had left.
            ConcurrentRead: another task is waiting here.
        """
        await self._wait()
        if not self._batches:
            self._check_end()

    def _check_end(self) -> None:
        if self.has_left:
            raise StreamClosed("expected an open stream, got a read after it was closed")
        if self.error is not None:
            raise self.error

    async def _wait(self) -> None:
        if self._reader is not None:
            raise ConcurrentRead("expected one reader at a time, got a second read while one waits")
        try:
            while not self._batches and not self.has_finished and not self.has_left:
                self._reader = asyncio.get_running_loop().create_future()
                await self._reader
        finally:
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
