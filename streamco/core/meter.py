"""Measures the quality of a delivery, with the same code for real clients and in the simulator.

A virtual reader begins with the first token and reads ``rate`` tokens per second. Token n is expected at ``t_first + n / rate``, and is
seen then or when it is delivered, whichever is later (DiSCo 2.2 and Table 3; the timeline of Andes). A token is delayed if it is delivered
after it is expected.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from math import ceil

from msgspec import Struct

from streamco.config import READING

__all__ = ["FRAME", "Meter", "Quality"]

FRAME = 1 / 60  # seconds; a token that comes within one display frame is seen in time, and a timer is never exact


class Quality(Struct, frozen=True, kw_only=True):
    """How smoothly one answer was delivered, as measured and as the virtual reader sees it.

    Args:
        tbt_p50: median time between tokens at the virtual reader, seconds; None for fewer than two tokens. It is never below ``1 / rate``.
        tbt_p99: 99th percentile of the time between tokens at the virtual reader, seconds.
        delayed_tokens: tokens delivered later than expected, by more than a frame (``delay_num`` of Table 3).
        stalls: runs of delayed tokens, which is how often the reader had to wait.
        score: 1 minus the share of the reader's time lost to delay, in [0, 1]; 1 if they never waited.
        gap_p50: median of the measured time between two delivered tokens, seconds; None for fewer than two tokens. The time between
            tokens of one batch counts as 0.
        gap_p99: 99th percentile of the measured time between tokens, seconds.
    """

    tbt_p50: float | None
    tbt_p99: float | None
    delayed_tokens: int
    stalls: int
    score: float
    gap_p50: float | None = None
    gap_p99: float | None = None


class Meter:
    """Records the deliveries of one answer. Each batch is one entry, whatever its size.

    Args:
        rate: how many tokens per second the virtual reader reads.
    """

    __slots__ = ("_counts", "_times", "rate", "tokens")

    def __init__(self, rate: float = READING) -> None:
        self.rate = rate
        self.tokens = 0
        self._times = array("d")
        self._counts = array("Q")  # arrays, because the objects of a list are spread over memory, where each costs a cache line

    def record(self, tokens: int, *, now: float) -> None:
        """Record that ``tokens`` tokens were delivered at ``now`` (in seconds, not earlier than in the last call)."""
        self.tokens += tokens
        self._times.append(now)
        self._counts.append(tokens)

    @property
    def first(self) -> float | None:
        """Time when the first token was delivered, or None if none was."""
        return self._times[0] if self._times else None

    @property
    def last(self) -> float | None:
        """Time when the newest token was delivered, or None if none was."""
        return self._times[-1] if self._times else None

    def delayed(self, start: int, stop: int | None = None) -> int:
        """Return how many of the tokens from position ``start`` up to ``stop`` were delivered later than expected."""
        count = position = 0
        for time, tokens in zip(self._times, self._counts, strict=True):
            begin, end = max(position, start), position + tokens if stop is None else min(position + tokens, stop)
            count += max(0, self._passed(time, begin, end, slack=FRAME) - begin)
            position += tokens
        return count

    def quality(self) -> Quality:
        """Return the quality of the deliveries so far."""
        gaps: dict[float, int] = {}
        measured: dict[float, int] = {}
        delayed = stalls = 0
        lost = 0.0
        if not self._times:
            return Quality(tbt_p50=None, tbt_p99=None, delayed_tokens=0, stalls=0, score=1.0)
        first, period = self._times[0], 1.0 / self.rate
        position, seen, was_late, before = 0, first, False, None
        for time, count in zip(self._times, self._counts, strict=True):
            if before is not None and count:
                measured[time - before] = measured.get(time - before, 0) + 1
            if count > 1:
                measured[0.0] = measured.get(0.0, 0) + count - 1
            before = time if count else before
            if not count:
                continue
            expected, end, late, at_once = first + position * period, position + count, position, position
            if time > expected:  # tokens before ``at_once`` are seen as soon as they come, tokens before ``late`` are late
                late, at_once = self._passed(time, position, end, slack=FRAME), self._passed(time, position, end)
            if position:
                _add_gap(gaps, max(time, expected) - seen)
            if count > 1:
                _add_gap(gaps, 0.0, at_once - position - 1)
                if position < at_once < end:
                    _add_gap(gaps, first + at_once * period - time)
                _add_gap(gaps, period, end - max(at_once, position) - 1)
            if late > position:
                delayed += late - position
                lost += (late - position) * (time - first) - period * (position + late - 1) * (late - position) / 2
                stalls += not was_late
            was_late, seen, position = late == end, max(time, first + (end - 1) * period), end
        # Andes: the area between the expected and the actual reading curve, over the area under the expected one up to the same end.
        whole = lost + period * position * (position - 1) / 2
        score = 1.0 - lost / whole if whole else 1.0
        return Quality(
            tbt_p50=_quantile(gaps, 0.5),
            tbt_p99=_quantile(gaps, 0.99),
            delayed_tokens=delayed,
            stalls=stalls,
            score=score,
            gap_p50=_quantile(measured, 0.5),
            gap_p99=_quantile(measured, 0.99),
        )

    def _passed(self, time: float, start: int, stop: int, *, slack: float = 0.0) -> int:
        """Return the first position in ``start`` .. ``stop`` whose expected time plus ``slack`` is at or after ``time``, else ``stop``."""
        first, period = self._times[0], 1.0 / self.rate
        if first + start * period + slack >= time:
            return start
        if start < stop and first + (stop - 1) * period + slack < time:
            return stop
        index = max(start, min(stop, ceil((time - slack - first) / period)))
        while index > start and first + (index - 1) * period + slack >= time:  # the division is rounded
            index -= 1
        while index < stop and first + index * period + slack < time:
            index += 1
        return index


def _add_gap(gaps: dict[float, int], gap: float, count: int = 1) -> None:
    if count > 0:
        gap = round(gap, 9)
        gaps[gap] = gaps.get(gap, 0) + count


def _quantile(gaps: dict[float, int], share: float) -> float | None:
    """Return the smallest gap such that at least ``share`` of all gaps are no longer than it, or None if there are no gaps."""
    if not gaps:
        return None
    values = sorted(gaps)
    totals = [0]
    for value in values:
        totals.append(totals[-1] + gaps[value])
    return values[bisect_left(totals, share * totals[-1], lo=1) - 1]
