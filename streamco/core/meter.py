"""The quality of a delivery as numbers: the same code live and in the simulator.

A virtual reader begins with the first token and takes ``rate`` tokens per second. Token n is expected at ``t_first + n / rate``, and seen
then or on its delivery, whichever is later (DiSCo 2.2 and Table 3; the timeline of Andes). A token is delayed if it is delivered after it
is expected.
"""

from __future__ import annotations

from bisect import bisect_left

from msgspec import Struct

from streamco.config import READING

__all__ = ["FRAME", "Meter", "Quality"]

FRAME = 1 / 60  # seconds; a token that comes within one frame of a display is seen in time, and a timer is never exact


class Quality(Struct, frozen=True, kw_only=True):
    """Smoothness of one answer, as measured and at the virtual reader.

    Args:
        tbt_p50: median time between tokens at the virtual reader, seconds; None: fewer than two tokens. It is never below ``1 / rate``.
        tbt_p99: 99th percentile of the time between tokens at the virtual reader, seconds.
        delayed_tokens: tokens delivered later than expected, by more than a frame (``delay_num`` of Table 3).
        stalls: runs of delayed tokens, which is how often the reader had to wait.
        score: 1 minus the share of the reader's time lost to delay, in [0, 1]; 1: never waited.
        gap_p50: median of the measured time between two tokens as they were delivered, seconds; 0 between tokens of one batch; None: fewer
            than two tokens.
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
    """The record of one answer's deliveries, one entry a batch of any size.

    Args:
        rate: tokens per second of the virtual reader.
    """

    def __init__(self, rate: float = READING) -> None:
        self.rate = rate
        self.tokens = 0
        self._times: list[float] = []
        self._counts: list[int] = []

    def record(self, tokens: int, *, now: float) -> None:
        """Record that ``tokens`` were delivered at ``now`` (seconds, not before that of the last call)."""
        self.tokens += tokens
        self._times.append(now)
        self._counts.append(tokens)

    @property
    def first(self) -> float | None:
        """Time when the first token was delivered; None: none was."""
        return self._times[0] if self._times else None

    @property
    def last(self) -> float | None:
        """Time when the newest token was delivered; None: none was."""
        return self._times[-1] if self._times else None

    def delayed(self, start: int, stop: int | None = None) -> int:
        """Return how many tokens from position ``start`` on, up to ``stop``, were delivered later than expected."""
        count = position = 0
        for time, tokens in zip(self._times, self._counts, strict=True):
            for index in range(max(position, start), position + tokens if stop is None else min(position + tokens, stop)):
                count += time > self._times[0] + index / self.rate + FRAME
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
            for _ in range(count):
                expected = first + position * period
                is_late, moment = time > expected + FRAME, max(time, expected)
                if position:
                    gap = round(moment - seen, 9)
                    gaps[gap] = gaps.get(gap, 0) + 1
                if is_late:
                    delayed += 1
                    lost += time - expected
                    stalls += not was_late
                was_late, seen, position = is_late, moment, position + 1
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


def _quantile(gaps: dict[float, int], share: float) -> float | None:
    """Return the smallest gap that at least ``share`` of all gaps do not exceed."""
    if not gaps:
        return None
    values = sorted(gaps)
    totals = [0]
    for value in values:
        totals.append(totals[-1] + gaps[value])
    return values[bisect_left(totals, share * totals[-1], lo=1) - 1]
