"""A bounded hand-over from one producer thread to one consumer thread: the specification of ``ring.pyx``, and its stand-in.

The producer pushes and reads flags, the consumer drains in batches; nobody waits in here, and full and empty are answers, not spins.

- *One wake-up a burst.* A drain that empties the ring arms it; the first push into an armed ring disarms it and answers ``WAKE``. Further
  pushes answer without it: the consumer is on its way. A wake-up may be spurious (the consumer then drains nothing), never lost.
- *Full parks the producer.* The push that takes the last slot answers ``FILLED``, one that finds no slot ``FULL``, keeping nothing. The
  consumer learns from ``take_unpark``, once, that a producer saw either and that the ring is at or below its low-water mark again.
- *Either side may leave.* ``finish`` is the producer's end: what was pushed can still be drained. ``close`` is the consumer's: items are
  dropped, and every later push answers ``CLOSED``.

Threads: the native ring does each operation under the GIL, in one piece. This one needs no lock either: a deque's append and popleft are
atomic, and each side writes its flag before it reads the other's (the order is the argument, see the comments). On a build without a GIL
the native module isn't marked safe, so CPython turns the GIL back on when it is imported; to do without, the positions need acquire and
release order and the arming an atomic exchange.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

__all__ = ["ACCEPTED", "CLOSED", "FILLED", "FULL", "WAKE", "Ring"]

FULL = 0  # nothing kept: no room
ACCEPTED = 1  # kept
WAKE = 2  # the consumer may be asleep: wake it
FILLED = 4  # kept, and no room is left
CLOSED = 8  # nothing kept: the consumer left, or the producer had finished

T = TypeVar("T")


class Ring(Generic[T]):
    """A fixed number of slots between one producer and one consumer.

    Args:
        capacity: items it holds, at least 1.
        low_water: items at or below which a parked producer may go on; None: half the capacity. 0 <= low_water < capacity.

    Raises:
        ValueError: either is out of range.
    """

    __slots__ = ("_armed", "_closed", "_finished", "_items", "_starved", "capacity", "low_water")

    def __init__(self, capacity: int, low_water: int | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"ring capacity: expected at least 1 item, got {capacity}")
        mark = capacity // 2 if low_water is None else low_water
        if not 0 <= mark < capacity:
            raise ValueError(f"ring low_water: expected 0 to {capacity - 1} items, got {mark}")
        self.capacity = capacity
        self.low_water = mark
        self._items: deque[T] = deque()
        self._armed = True
        self._starved = False
        self._finished = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def is_closed(self) -> bool:
        """The consumer left."""
        return self._closed

    @property
    def is_finished(self) -> bool:
        """The producer finished and everything it pushed has been drained."""
        return self._finished and not self._items

    def push(self, item: T, /) -> int:
        """Producer: add one item; the flags say what became of it."""
        return self._push_all((item,))

    def push_many(self, items: Sequence[T], /) -> int:
        """Producer: add a list or tuple of items, all of them or (``FULL``, ``CLOSED``) none; no items: ``ACCEPTED``.

        Raises:
            ValueError: more items than the ring has slots.
            TypeError: neither a list nor a tuple.
        """
        if not isinstance(items, (list, tuple)):
            raise TypeError(f"ring push_many: expected a list or tuple, got {type(items).__name__}")
        if len(items) > self.capacity:
            raise ValueError(f"ring push_many: expected at most {self.capacity} items, got {len(items)}")
        return self._push_all(items)

    def _push_all(self, items: Sequence[T]) -> int:
        if self._closed or self._finished:
            return CLOSED
        limit = self.capacity - len(items)
        if len(self._items) > limit:
            self._starved = True  # said before looking again: a drain from here on finds it
            if len(self._items) > limit:
                return FULL
        if not items:
            return ACCEPTED
        self._items.extend(items)
        flags = ACCEPTED
        if len(self._items) >= self.capacity:
            self._starved = True  # said before the arming is read: a drain that came between has armed the ring, and is called back
            flags |= FILLED
        if self._armed:
            self._armed = False
            flags |= WAKE
        return flags

    def finish(self) -> int:
        """Producer: nothing will follow; ``WAKE`` when the consumer must be told, else 0. Idempotent."""
        if self._finished or self._closed:
            return 0
        self._finished = True
        if not self._armed:
            return 0
        self._armed = False
        return WAKE

    def drain(self, limit: int = 0, /) -> list[T]:
        """Consumer: take all items, or the oldest ``limit`` of them (0: all). What is left needs no wake-up: the consumer knows of it.

        Raises:
            ValueError: a negative limit.
        """
        if limit < 0:
            raise ValueError(f"ring drain: expected a limit of 0 (all) or more items, got {limit}")
        self._armed = True  # said before the items are counted: a push from here on either is counted or wakes
        count = len(self._items)
        if limit and count > limit:
            self._armed = False
            count = limit
        return [self._items.popleft() for _ in range(count)]

    def take_unpark(self) -> bool:
        """Consumer: True once after a push was answered ``FILLED`` or ``FULL`` and the ring is at or below its low-water mark."""
        if not self._starved or len(self._items) > self.low_water:
            return False
        self._starved = False
        return True

    def close(self) -> None:
        """Consumer: leave; what was not drained is dropped. Idempotent."""
        self._closed = True
        self._items.clear()
