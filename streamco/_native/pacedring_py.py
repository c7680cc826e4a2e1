"""Holds pieces of text on their way to a reader, each with the time when it is due. The specification and pure twin of ``pacedring.pyx``.

A piece takes the reader as long as ``amount`` tokens. Pieces go out in order, and three rules say when the oldest one is due:

- Not before the timeline: with a ``period``, the piece after an amount of n is due ``n * period`` after the first one, so lateness never
  adds up (DiSCo 4.3).
- Not before ``earliest``, when the piece that went out last has had its time, which is ``gap`` seconds for an amount of 1. A piece that
  arrives after that, while nothing is held, is due at once. The pieces after it follow ``gap`` apart until the timeline is reached again.
- At the piece's own ``latest`` time in any case.

The first piece is never held. A piece of amount 0 stays in order and is never delayed on its own.

One thread pushes and releases. ``now`` is in seconds on one monotonic clock. Only the compiled ring may be used by an item's finaliser.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Generic, TypeVar

__all__ = ["MAX_TOKENS", "PacedRing"]

MAX_TOKENS = 2**31 - 1  # of one piece

T = TypeVar("T")


class PacedRing(Generic[T]):
    """A queue of pieces with due times. It has no size limit, because its users limit how much they push.

    Args:
        period: seconds for an amount of 1 on the timeline, > 0 and finite; None for no timeline.
        gap: seconds for an amount of 1 between overdue pieces, at least 0 and at most ``period``.
        early: how many seconds before it is due a piece may go out, at least 0 and finite.
        late: if a piece goes out late, its time begins at most this many seconds earlier (at least 0; infinite to begin when it was due).

    Attributes:
        buffered: number of tokens held.
        amount: the amount held.
        released: number of pieces that have gone out.
        last: when the time of the piece that went out last began; only pieces with an amount count.
        earliest: see above. It and ``gap`` may be set at any time to change the speed; they aren't checked.

    Raises:
        ValueError: ``period``, ``gap``, ``early`` or ``late`` is out of range.
    """

    def __init__(self, period: float | None, gap: float, early: float = 0.0, late: float = inf) -> None:
        if period is not None and not 0.0 < period < inf:
            raise ValueError(f"paced ring period: expected more than 0 and finitely many seconds, got {period}")
        if not 0.0 <= gap <= (inf if period is None else period):
            raise ValueError(f"paced ring gap: expected 0 to {inf if period is None else period} seconds, got {gap}")
        if not 0.0 <= early < inf:
            raise ValueError(f"paced ring early: expected at least 0 and finitely many seconds, got {early}")
        if not late >= 0.0:
            raise ValueError(f"paced ring late: expected at least 0 seconds, got {late}")
        self.period = period or 0.0
        self.gap = gap
        self.early = early
        self.late = late
        self.buffered = 0
        self.amount = 0.0
        self.released = 0
        self.last = self.earliest = -inf
        self._slots: deque[tuple[int, float, float, T]] = deque()  # tokens, amount, latest, item
        self._held = 0  # pieces with an amount
        self._first: float | None = None  # when the first piece with an amount was pushed
        self._out = 0.0  # amount that has gone out

    def __len__(self) -> int:
        return len(self._slots)

    def push(self, tokens: int, item: T, now: float, amount: float | None = None, latest: float = inf, /) -> None:
        """Add a piece.

        Args:
            tokens: how many tokens it has, for ``buffered``.
            item: the piece.
            now: when it arrived.
            amount: how much of the reader's time it takes, finite, at least 0; None for ``tokens``.
            latest: when it is due at the latest.

        Raises:
            ValueError: ``tokens`` is not in 0..MAX_TOKENS, or ``amount`` is out of range.
        """
        if not 0 <= tokens <= MAX_TOKENS:
            raise ValueError(f"paced ring tokens: expected 0 to {MAX_TOKENS}, got {tokens}")
        if amount is None:
            amount = float(tokens)
        if not 0.0 <= amount < inf:
            raise ValueError(f"paced ring amount: expected at least 0 and finite, got {amount}")
        if amount:
            if self._first is None:
                self._first = now
            if not self._held:
                self.earliest = max(self.earliest, now)
            self._held += 1
        self._slots.append((tokens, amount, latest if amount else now, item))
        self.buffered += tokens
        self.amount += amount

    def hurry(self, now: float, /) -> None:
        """Make everything that is held due now."""
        self.earliest = max(self.earliest, now)
        slots, self._slots = self._slots, deque()
        self._slots.extend((tokens, amount, now, item) for tokens, amount, _, item in slots)

    def next_due(self) -> float | None:
        """Return when the oldest piece is due, or None if nothing is held."""
        if not self._slots:
            return None
        _, amount, latest, _ = self._slots[0]
        if not amount or self._first is None:
            return latest
        return min(max(self._first + self._out * self.period, self.earliest), latest)

    def release(self, now: float, /) -> list[T]:
        """Remove the pieces that are due, and return them in order."""
        out: list[T] = []
        while (due := self.next_due()) is not None and due <= now + self.early:
            tokens, amount, _, item = self._slots.popleft()
            if amount:
                self.last = max(due, now - self.late)
                self.earliest = self.last + amount * self.gap
                self._out += amount
                self.amount -= amount
                self._held -= 1
                if not self._held:
                    self.amount = 0.0  # exactly, after sums of fractions
            self.buffered -= tokens
            self.released += 1
            out.append(item)
        return out

    def flush(self) -> list[T]:
        """Remove all pieces, due or not, and return them. They count as released."""
        slots, self._slots = self._slots, deque()
        out = [item for _, _, _, item in slots]
        self._out += self.amount
        self.released += len(out)
        self.buffered = self._held = 0
        self.amount = 0.0
        return out
