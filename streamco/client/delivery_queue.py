"""Deliveries on their way from an answer's driver to its reader."""

from __future__ import annotations

import asyncio
from collections import deque

from streamco.client.driver import Batch
from streamco.client.error_translation import raisable
from streamco.errors import ConcurrentRead, StreamClosed, StreamcoError

__all__ = ["DeliveryQueue"]


class DeliveryQueue:
    """The queue of one answer's deliveries, which also says how the answer ended. The answer's driver owns it.

    Attributes:
        batches: deliveries that wait for the reader.
        unread: number of tokens in ``batches``, where a chunk without known tokens counts as one.
        in_hand: number of tokens in the delivery that the reader took last; 0 once it asks for the next one.
        is_reading: True while a task waits for a delivery.
        has_finished: True if nothing more will be put in.
        has_left: True if the reader has left.
        error: the error that the answer ended with, or None.
    """

    __slots__ = ("_reader", "_sizes", "batches", "error", "has_finished", "has_left", "in_hand", "is_reading", "unread")

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self._sizes: deque[int] = deque()  # sizes of the batches
        self.unread = 0
        self.in_hand = 0
        self.is_reading = False
        self.has_finished = False
        self.has_left = False
        self.error: StreamcoError | None = None
        self._reader: asyncio.Future[None] | None = None

    @property
    def was_broken_off(self) -> bool:
        """True if the reader left before the end."""
        return self.has_left and not self.has_finished

    # The driver's side

    def put(self, batch: Batch) -> None:
        """Deliver a batch, or drop it if the reader has left."""
        if not self.has_left:
            size = _size(batch)
            self.batches.append(batch)
            self._sizes.append(size)
            self.unread += size
            self.wake()

    def finish(self, error: StreamcoError | None = None) -> None:
        """End the answer, with an error if there is one."""
        self.has_finished = True
        self.error = error
        self.wake()

    def leave(self) -> None:
        """Drop all unread deliveries, and any that come later."""
        self.has_left = True
        self.batches.clear()
        self._sizes.clear()
        self.unread = self.in_hand = 0
        self.wake()

    def wake(self) -> None:
        """Wake the reader if it is waiting."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def put_back(self, batch: Batch) -> None:
        """Put a batch back that was taken, so that the reader gets it next."""
        if not self.has_left:
            size = _size(batch)
            self.batches.appendleft(batch)
            self._sizes.appendleft(size)
            self.unread += size
            self.in_hand = 0

    # The reader's side

    async def next(self) -> Batch | None:
        """Wait for the next delivery; None means that the answer is complete. Cancelling loses nothing.

        Raises:
            StreamcoError: the answer failed, and everything before the failure has been read.
            StreamClosed: the reader has already left.
            ConcurrentRead: another task is already waiting.
        """
        await self.wait()
        return self.take()

    async def peek(self) -> None:
        """Wait until there is a delivery or the answer has ended, without taking anything.

        Raises:
            StreamcoError: the answer failed before anything was delivered.
            StreamClosed: the reader has already left.
            ConcurrentRead: another task is already waiting.
        """
        await self.wait()
        if not self.batches:
            self.check_end()

    def take(self) -> Batch | None:
        """Return the oldest delivery without waiting; None means that there is none, because the answer is complete.

        Raises:
            StreamcoError: the answer failed.
            StreamClosed: the reader has already left.
        """
        if self.batches:
            batch = self.batches.popleft()
            self.in_hand = self._sizes.popleft()
            self.unread -= self.in_hand
            return batch
        self.check_end()
        return None

    def check_end(self) -> None:
        """Raise the error that ended the answer, if there was one.

        Raises:
            StreamcoError: the answer failed.
            StreamClosed: the reader has already left.
        """
        if self.error is not None:
            raise raisable(self.error)
        if self.has_left:
            raise StreamClosed("the stream is closed")

    async def wait(self) -> None:
        """Wait until there is a delivery or the answer has ended.

        Raises:
            ConcurrentRead: another task is already waiting.
        """
        self.begin_reading()
        try:
            while not self.batches and not self.has_finished and not self.has_left:
                await self.wait_for_wake()
        finally:
            self.is_reading = False

    def begin_reading(self) -> None:
        """Register the calling task as the one that waits; it must reset ``is_reading`` when it stops waiting.

        Raises:
            ConcurrentRead: another task is already waiting.
        """
        if self.is_reading:
            raise ConcurrentRead("expected one reader at a time, got a second read while one waits")
        self.is_reading = True

    async def wait_for_wake(self) -> None:
        """Wait until ``wake`` is called: by a delivery, at the end of the answer, or by the driver."""
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None


def _size(batch: Batch) -> int:
    """Return the number of tokens in a delivery; a chunk without token ids counts as one."""
    chunks = batch[1]
    size = len(chunks)
    for chunk in chunks:
        if (choices := chunk.choices) and (ids := choices[0].token_ids):
            size += len(ids) - 1
    return size
