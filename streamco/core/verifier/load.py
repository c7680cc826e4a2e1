"""How busy a verifier is, from what its batches took and whether its verdicts were in time."""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush
from statistics import median

from streamco.policies.batching import CHUNK, StepSeconds

__all__ = ["MeasuredStep", "PrefillPace", "SessionLimit"]

_RATIOS = 33  # batches whose times correct the model
_DECAY = 0.9  # a prefill step's weight against the one behind it
_VERDICTS = 128  # of which a share may be late, and after which one session more is tried
_BACK_OFF = 0.9
_ENDS = 9  # sessions whose ends tell how often there is a place
_UNKNOWN_GAP = 1.0  # seconds
_EARLY = 0.01  # seconds by which who was told to wait may ask too soon: clocks differ, and frames have milliseconds
_WAITING = 1024  # sessions that are known to wait


class MeasuredStep:
    """A model of step times, corrected by the median of measured times over its own; itself such a function.

    Args:
        model: seconds from tokens and context.
    """

    def __init__(self, model: StepSeconds) -> None:
        self._model = model
        self._ratios: deque[float] = deque(maxlen=_RATIOS)
        self._scale = 1.0

    def __call__(self, tokens: int, context: int) -> float:
        """Seconds of a batch."""
        return self._scale * self._model(tokens, context)

    def alone(self, tokens: int, context: int) -> float:
        """Seconds of a verification when nobody else is there: its chunks, one behind the other."""
        seconds = 0.0
        while tokens > CHUNK:
            seconds += self(CHUNK, context)
            tokens -= CHUNK
            context += CHUNK
        return seconds + self(tokens, context)

    def observe(self, tokens: int, context: int, seconds: float) -> None:
        """A batch took ``seconds``."""
        expected = self._model(tokens, context)
        if expected > 0:
            self._ratios.append(seconds / expected)
            self._scale = median(self._ratios)


class PrefillPace:
    """Seconds a prompt token takes, the batches of others between included.

    Args:
        expected: seconds a token before anything was measured.
    """

    def __init__(self, expected: float) -> None:
        self._seconds = expected
        self._tokens = 1.0
        self._since: float | None = None

    @property
    def seconds_per_token(self) -> float:
        """The recent mean."""
        return self._seconds / self._tokens

    def begin(self, *, now: float) -> None:
        """Prompts wait again."""
        self._since = now

    def observe(self, tokens: int, *, waits_on: bool, now: float) -> None:
        """A step has read ``tokens``; ``waits_on``: prompts are left."""
        if self._since is not None:
            self._seconds = _DECAY * self._seconds + now - self._since
            self._tokens = _DECAY * self._tokens + tokens
        self._since = now if waits_on else None


class SessionLimit:
    """How many sessions may be in use: one more as long as verdicts are in time, a tenth fewer as they are late.

    Args:
        most: share of late verdicts that is borne.
    """

    def __init__(self, most: float) -> None:
        self._most = most * _VERDICTS + math.sqrt(most * _VERDICTS)  # one standard deviation: chance makes clusters
        self._limit = math.inf
        self._verdicts = self._late = 0
        self._told: list[float] = []  # when those who were told to wait come again, a heap
        self._ended: deque[float] = deque(maxlen=_ENDS)

    @property
    def limit(self) -> float:
        """Sessions; inf before verdicts were late."""
        return self._limit

    def observe(self, *, is_late: bool, present: int) -> None:
        """A verdict went out while ``present`` sessions were in use."""
        self._verdicts += 1
        self._late += is_late
        if self._late > self._most:
            self._limit = max(1.0, _BACK_OFF * min(self._limit, present))
        elif self._verdicts < _VERDICTS:
            return
        elif present + 1 >= self._limit:
            self._limit += 1
        self._verdicts = self._late = 0

    def record_end(self, *, now: float) -> None:
        """A session ended."""
        self._ended.append(now)

    def wait(self, present: int, *, now: float, most: float = math.inf) -> float | None:
        """Seconds until one more may come, ``most`` at most: so long as it takes for all who wait now to find a place; None: it may.

        Who asks again in time has stopped waiting by then, and is counted once.
        """
        while self._told and self._told[0] <= now + _EARLY:
            heappop(self._told)
        if present < self._limit:
            return None
        gaps = len(self._ended) - 1
        gap = (self._ended[-1] - self._ended[0]) / gaps if gaps > 0 else _UNKNOWN_GAP
        seconds = min(most, gap * (len(self._told) + 1))
        if len(self._told) < _WAITING:
            heappush(self._told, now + seconds)
        return seconds
