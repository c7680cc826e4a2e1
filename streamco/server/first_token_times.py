"""The times to first token of a server's latest answers, which it reports to its callers (DiSCo, Appendix C)."""

from __future__ import annotations

from collections import deque

from streamco.core.quantiles import equally_likely

__all__ = ["FIELD", "HEADER", "FirstTokenTimes"]

FIELD = "first_token_times"  # of the model in ``/v1/models``
HEADER = "X-Streamco-First-Token-Times"

_WINDOW = 100  # answers
_MAX_AGE_S = 600.0  # older ones say nothing about the current load
_QUANTILES = 10


class FirstTokenTimes:
    """The times of the latest answers, in seconds from the request to the first token, including the wait for a free place."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, float]] = deque(maxlen=_WINDOW)  # when each was recorded, and its seconds

    def record(self, seconds: float, *, now: float) -> None:
        """Add the time of an answer. ``now`` is a monotonic time in seconds."""
        self._times.append((now, seconds))

    def quantiles(self, *, now: float) -> list[float]:
        """Return ten equally likely times of the last 100 answers within ten minutes, ascending, or all if there are fewer than ten."""
        while self._times and now - self._times[0][0] > _MAX_AGE_S:
            self._times.popleft()
        times = sorted(seconds for _, seconds in self._times)
        return [round(seconds, 3) for seconds in equally_likely(times, _QUANTILES)]
