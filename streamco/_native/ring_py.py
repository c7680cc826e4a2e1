"""A bounded queue from one producer thread to one consumer thread. This is the specification and pure twin of ``ring.pyx``.

The producer pushes items and reads flags, and the consumer drains in batches. No call waits, since full and empty are return values.

- *One wake-up per burst.* A drain that empties the ring arms it. The first push into an armed ring disarms it and returns ``WAKE``. Later
  pushes return without it, because the consumer is already awake. A wake-up may be spurious (the consumer then drains nothing), but is
  never lost.
- *A full ring parks the producer.* The push that takes the last slot returns ``FILLED``. A push that finds too few slots returns ``FULL``
  and adds nothing. ``take_unpark`` then returns True to the consumer, once, when the ring is at or below its low-water mark again.
- *Either thread may leave.* The producer leaves with ``finish``, and items pushed before it can still be drained. The consumer leaves with
  ``close``, which drops all items, and every later push returns ``CLOSED``.

Threads: the native ring does each operation in one piece under the GIL. This one needs no lock either, because a deque's append and popleft
are atomic, and each thread writes its flag before it reads the other's (the comments give the order). On a build without a GIL the native
module isn't marked safe, so CPython turns the GIL back on when it is imported. To work without a GIL, the positions would need acquire and
release order, and arming the ring would need an atomic exchange.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

__all__ = ["ACCEPTED", "CLOSED", "FILLED", "FULL", "WAKE", "Ring"]

FULL = 0  # nothing was added, because there are too few free slots
ACCEPTED = 1  # all items were added
WAKE = 2  # the consumer may be asleep and must be woken
FILLED = 4  # all items were added, and no slot is left
CLOSED = 8  # nothing was added, because the consumer has left or the producer has finished

T = TypeVar("T")


class Ring(Generic[T]):
    """A fixed number of slots between one producer and one consumer.

    Args:
        capacity: maximum number of items, at least 1.
        low_water: a parked producer may continue at or below this number of items, 0 <= low_water < capacity. None for half the capacity.

    Raises:
        ValueError: ``capacity`` or ``low_water`` is out of range.
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
        """True once the consumer has closed the ring."""
        return self._closed

    @property
    def is_finished(self) -> bool:
        """True if the producer has finished and all its items have been drained."""
        return self._finished and not self._items

    def push(self, item: T, /) -> int:
        """Add one item and return flags. Only the producer may call this."""
        return self._push_all((item,))

    def push_many(self, items: Sequence[T], /) -> int:
        """Add a list or tuple of items and return flags. Only the producer may call this.

        Either all items are added, or none (``FULL``, ``CLOSED``). If the list is empty and the ring is open, this returns ``ACCEPTED``.

        Raises:
            ValueError: there are more items than the ring has slots.
            TypeError: ``items`` is neither a list nor a tuple.
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
            self._starved = True  # set before the second look, so that every later drain sees it
            if len(self._items) > limit:
                return FULL
        if not items:
            return ACCEPTED
        self._items.extend(items)
        flags = ACCEPTED
        if len(self._items) >= self.capacity:
            self._starved = True  # set before the arming is read: if a drain between the two arms the ring, it gets a wake-up
            flags |= FILLED
        if self._armed:
            self._armed = False
            flags |= WAKE
        return flags

    def finish(self) -> int:
        """End the producer's part, and return ``WAKE`` if the consumer must be woken, otherwise 0. This is idempotent."""
        if self._finished or self._closed:
            return 0
        self._finished = True
        if not self._armed:
            return 0
        self._armed = False
        return WAKE

    def drain(self, limit: int = 0, /) -> list[T]:
        """Take the oldest ``limit`` items, or all of them if it is 0. Only the consumer may call this. Remaining items cause no wake-up.

        Raises:
            ValueError: ``limit`` is negative.
        """
        if limit < 0:
            raise ValueError(f"ring drain: expected a limit of 0 (all) or more items, got {limit}")
        self._armed = True  # set before the items are counted, so that a later push is either counted or wakes
        count = len(self._items)
        if limit and count > limit:
            self._armed = False
            count = limit
        return [self._items.popleft() for _ in range(count)]

    def take_unpark(self) -> bool:
        """Return True once, when the ring has drained to its low-water mark after ``FILLED`` or ``FULL``. Only the consumer calls this."""
        if not self._starved or len(self._items) > self.low_water:
            return False
        self._starved = False
        return True

    def close(self) -> None:
        """Leave the ring and drop all items. Only the consumer may call this. It is idempotent."""
        self._closed = True
        self._items.clear()
