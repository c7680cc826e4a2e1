"""Estimates a verifier's load: how long steps and prompts take, and how many sessions it can serve in time."""

from __future__ import annotations

import math
from collections import deque
from heapq import heapify, heappop, heappush
from statistics import median

from streamco.policies.serving.batching import CHUNK, StepSeconds

__all__ = ["MeasuredStep", "PrefillPace", "SessionLimit"]

_RATIOS = 33  # recent batches, whose times correct the model
_DECAY = 0.9  # weight of a prefill step relative to the next one
_VERDICTS = 128  # verdicts in a period, a share of which may be late; after it one more session is tried
_FLAWLESS = 32  # if none of this many verdicts is late,
_EACH = 2  # and at least this many verdicts per session in use, one more session is tried sooner
_PATIENCE = 10.0  # seconds after which the limit may be lowered again although more sessions are still in use
_BACK_OFF = 0.9
_ENDS = 9  # sessions that ended last; the intervals between them show when the next one may end
_UNKNOWN_GAP = 1.0  # seconds
_EARLY = 0.01  # seconds by which a retry may arrive too soon, because clocks differ and frames have milliseconds
_RECENT = 60.0  # seconds; only sessions that ended within them count
_MAX_WAITING = 1024  # how many refused sessions are remembered,
_MAX_EACH = 64  # and how many of one device


class MeasuredStep:
    """A model of step times, scaled by the median ratio of measured to predicted times. It implements ``StepSeconds``.

    Args:
        model: returns how many seconds a batch takes, given its tokens and their context.
    """

    def __init__(self, model: StepSeconds) -> None:
        self._model = model
        self._ratios: deque[float] = deque(maxlen=_RATIOS)
        self._scale = 1.0

    def __call__(self, tokens: int, context: int) -> float:
        """Return how many seconds a batch takes."""
        return self._scale * self._model(tokens, context)

    def alone(self, tokens: int, context: int) -> float:
        """Return how many seconds a verification takes without other load, when its chunks are computed one after the other."""
        seconds = 0.0
        while tokens > CHUNK:
            seconds += self(CHUNK, context)
            tokens -= CHUNK
            context += CHUNK
        return seconds + self(tokens, context)

    def observe(self, tokens: int, context: int, seconds: float) -> None:
        """Record that a batch took ``seconds``."""
        expected = self._model(tokens, context)
        if expected > 0:
            self._ratios.append(seconds / expected)
            self._scale = median(self._ratios)


class PrefillPace:
    """Measures how many seconds a prompt token takes, including the batches of verifications in between.

    Args:
        expected: seconds per token, used before the first measurement.
    """

    def __init__(self, expected: float) -> None:
        self._seconds = expected
        self._tokens = 1.0
        self._since: float | None = None

    @property
    def seconds_per_token(self) -> float:
        """How many seconds a prompt token takes, as a mean over recent steps."""
        return self._seconds / self._tokens

    def begin(self, *, now: float) -> None:
        """Record that prompts are waiting again, so that time counts from now on."""
        self._since = now

    def observe(self, tokens: int, *, waits_on: bool, now: float) -> None:
        """Record that a step has read ``tokens`` tokens. ``waits_on`` says whether more prompts are waiting."""
        if self._since is not None:
            self._seconds = _DECAY * self._seconds + now - self._since
            self._tokens = _DECAY * self._tokens + tokens
        self._since = now if waits_on else None


class SessionLimit:
    """Limits the sessions in use. The limit rises by one while verdicts are in time, and falls by a tenth when they are late.

    This is additive increase and multiplicative decrease. A lower limit ends no session, so only drafts that arrive once enough sessions
    have ended count. Otherwise, if many devices arrived at once, their late verdicts would lower the limit to 1.

    Args:
        late_share: tolerated share of late verdicts, 0..1.
    """

    def __init__(self, late_share: float) -> None:
        self._max_late = late_share * _VERDICTS + math.sqrt(late_share * _VERDICTS)  # one standard deviation, because late verdicts cluster
        self._limit = math.inf
        self._verdicts = self._late = self._most = 0  # verdicts that count, late ones among them, and the most sessions in use
        self._changed = -math.inf
        self._kept_since: float | None = -math.inf  # drafts that arrived before don't count; None if the limit is not kept yet
        self._retries: list[tuple[float, str]] = []  # when refused sessions will ask again, and their devices, as a heap
        self._ended: deque[float] = deque(maxlen=_ENDS)

    @property
    def limit(self) -> float:
        """Maximum number of sessions in use; inf until verdicts have been late."""
        return self._limit

    def observe(self, *, is_late: bool, present: int, asked: float, now: float) -> None:
        """Record a verdict on a draft that arrived at ``asked``. ``present`` sessions were in use when the verdict was sent."""
        if self._kept_since is None:
            if present > self._limit and now < self._changed + _PATIENCE:
                return
            self._kept_since = now
        if asked < self._kept_since:
            return
        self._verdicts += 1
        self._late += is_late
        self._most = max(self._most, present)
        if self._late > self._max_late:
            self._back_off(now)
        elif self._verdicts >= (_VERDICTS if self._late else max(_FLAWLESS, _EACH * present)):
            if present + 1 >= self._limit:
                self._limit += 1
            self._begin(kept_since=now)

    def record_end(self, *, now: float) -> None:
        """Record that a session has ended."""
        self._ended.append(now)

    def leave(self, device: str) -> None:
        """Stop counting a device's refused sessions as waiting, because the device is gone."""
        self._retries = [retry for retry in self._retries if retry[1] != device]
        heapify(self._retries)

    def wait(self, present: int, *, device: str, now: float, max_wait: float = math.inf) -> float | None:
        """Return how many seconds this device should wait to open one more session, at most ``max_wait``, or None if it may do so now.

        By then, all refused sessions that are still waiting should have been admitted. A session that asks again in time no longer counts
        as waiting, so no session is counted twice.
        """
        while self._retries and self._retries[0][0] <= now + _EARLY:
            heappop(self._retries)
        if present < self._limit:
            return None
        seconds = min(max_wait, self._gap(now) * (len(self._retries) + 1))
        if len(self._retries) < _MAX_WAITING and sum(each == device for _, each in self._retries) < _MAX_EACH:
            heappush(self._retries, (now + seconds, device))
        return seconds

    def _back_off(self, now: float) -> None:
        """Lower the limit, unless only one session is in use. That one is late by itself, so keeping others out wouldn't help."""
        is_lowered = self._most > 1
        if is_lowered:
            self._limit = max(1, math.floor(_BACK_OFF * min(self._limit, self._most)))
            self._changed = now
        self._begin(kept_since=None if is_lowered else now)

    def _begin(self, *, kept_since: float | None) -> None:
        """Start counting verdicts again from 0."""
        self._verdicts = self._late = self._most = 0
        self._kept_since = kept_since

    def _gap(self, now: float) -> float:
        """Estimate the number of seconds between the ends of two sessions from the sessions that ended recently."""
        while self._ended and self._ended[0] < now - _RECENT:
            self._ended.popleft()
        gaps = len(self._ended) - 1
        return (self._ended[-1] - self._ended[0]) / gaps if gaps > 0 else _UNKNOWN_GAP
