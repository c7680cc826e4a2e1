"""Measures the rate at which text arrives, whether token by token or in bursts.

Arrivals within one display frame count together, because a burst may take several reads. Text that arrives after an interval may belong
to that interval or to the next one. So two rates are computed, one without the oldest text of the window and one without the newest, and
the smaller one is used.
"""

from __future__ import annotations

from collections import deque
from math import inf

from msgspec import Struct

from streamco.core.meter import FRAME

__all__ = ["ArrivalRate"]

_WINDOW = 1.0  # seconds


class _Slot(Struct):
    """The text that arrived within one display frame; ``times`` counts the different moments at which it arrived."""

    begin: float
    end: float
    times: int = 0
    amount: float = 0.0


class ArrivalRate:
    """Measures the rate at which the text of one answer arrives, and how much of the held text was not needed recently.

    Args:
        pause: seconds without text after which the rate counts as unknown.

    Attributes:
        rate: tokens per second over the last second; 0 at the beginning and after a pause, when it isn't known.
        burst: mean number of tokens that arrived together.
        interval: mean number of seconds between two arrivals; 0 if not known.
        standing: the fewest tokens that were held at any arrival in the last ``pause`` seconds.
    """

    def __init__(self, *, pause: float) -> None:
        self._pause = pause
        self.rate = 0.0
        self.burst = 1.0
        self.interval = 0.0
        self.standing = 0.0
        self._slots: deque[_Slot] = deque()
        self._amount = 0.0  # of all slots except the oldest, which marks the beginning of the time
        self._times = 0  # the same
        self._lows: deque[tuple[float, float]] = deque()  # (time, held) of arrivals at which less was held than at any later one

    def record(self, amount: float, *, held: float, now: float) -> bool:
        """Record that text arrived, and return True if it is the first text or the first after a pause.

        Args:
            amount: how many tokens arrived, > 0.
            held: how many tokens were held before.
            now: the time in seconds, not earlier than in the last call.
        """
        slots = self._slots
        is_first = not slots or now - slots[-1].end > self._pause
        if is_first:
            slots.clear()
            self._amount = self.rate = 0.0
            self._times = 0
        if is_first or now - slots[-1].begin > FRAME:
            slots.append(_Slot(now, -inf))
        newest = slots[-1]
        times, newest.end = int(now > newest.end), now
        newest.times += times
        newest.amount += amount
        if len(slots) > 1:
            self._amount += amount
            self._times += times
        while slots[0].end < now - _WINDOW:
            slots.popleft()
            self._amount -= slots[0].amount
            self._times -= slots[0].times
        if len(slots) > 1:
            oldest = slots[0]
            without_newest = (oldest.amount + self._amount - newest.amount) / (newest.begin - oldest.begin)
            self.rate = min(self._amount / (now - oldest.end), without_newest)
            self.burst, self.interval = self._amount / self._times, (now - oldest.end) / self._times
        self.standing = self._lowest(held, now)
        return is_first

    def _lowest(self, held: float, now: float) -> float:
        """Return the fewest tokens that were held at any arrival in the last ``pause`` seconds, including this one."""
        lows = self._lows
        while lows and lows[-1][1] >= held:
            lows.pop()
        lows.append((now, held))
        while lows[0][0] < now - self._pause:
            lows.popleft()
        return lows[0][1]
