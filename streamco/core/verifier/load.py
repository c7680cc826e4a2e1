"""Estimates of a verifier's load: step times, the pace of prompts, and how many sessions it can serve in time."""

from __future__ import annotations

import math
from collections import deque
from heapq import heapify, heappop, heappush
from statistics import median

from streamco.policies.serving.batching import CHUNK, StepSeconds

__all__ = ["MeasuredStep", "PrefillPace", "SessionLimit"]

_RATIOS = 33  # recent batches; their times correct the model
_DECAY = 0.9  # a prefill step's weight against the next one's
_VERDICTS = 128  # verdicts in a period, a share of which may be late; after it one more session is tried
_FLAWLESS = 32  # verdicts; if none of these is late, and none of
_EACH = 2  # verdicts for each session in use, one more session is tried sooner
_PATIENCE = 10.0  # seconds after which the limit may be lowered again although more sessions are still in use
_BACK_OFF = 0.9
_ENDS = 9  # last sessions that ended; their intervals estimate when the next one ends
_UNKNOWN_GAP = 1.0  # seconds
_EARLY = 0.01  # seconds by which a retry may come too soon, because clocks differ and frames have milliseconds
_RECENT = 60.0  # seconds in which ends count
_MAX_WAITING = 1024  # refused sessions that are remembered,
_MAX_EACH = 64  # and how many of one device


class MeasuredStep:
    """A model of step times, scaled by the median ratio of measured to predicted times. Implements ``StepSeconds``.

    Args:
        model: returns how many seconds a batch takes, from its tokens and their context.
    """

    def __init__(self, model: StepSeconds) -> None:
        self._model = model
        self._ratios: deque[float] = deque(maxlen=_RATIOS)
        self._scale = 1.0

    def __call__(self, tokens: int, context: int) -> float:
        """Return how many seconds a batch takes."""
        return self._scale * self._model(tokens, context)

    def alone(self, tokens: int, context: int) -> float:
        """Return the seconds that a verification takes without other load: its chunks, one after the other."""
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
    """The seconds that a prompt token takes, including interleaved batches of verifications.

    Args:
        expected: seconds per token, used before the first measurement.
    """

    def __init__(self, expected: float) -> None:
        self._seconds = expected
        self._tokens = 1.0
        self._since: float | None = None

    @property
    def seconds_per_token(self) -> float:
        """Recent mean of the seconds that a prompt token takes."""
        return self._seconds / self._tokens

    def begin(self, *, now: float) -> None:
        """Record that prompts are waiting again."""
        self._since = now

    def observe(self, tokens: int, *, waits_on: bool, now: float) -> None:
        """Record that a step has read ``tokens``; ``waits_on`` is True if more prompts are waiting."""
        if self._since is not None:
            self._seconds = _DECAY * self._seconds + now - self._since
            self._tokens = _DECAY * self._tokens + tokens
        self._since = now if waits_on else None


class SessionLimit:
    """Limit on the sessions in use, by additive increase and multiplicative decrease: one more while verdicts are in time, 0.9 when late.

    A lower limit ends no session, so only drafts count that came once it was observed. Otherwise the late verdicts of many devices that
    came at once would lower it to 1.

    Args:
        late_share: tolerated share of late verdicts, 0..1.
    """

    def __init__(self, late_share: float) -> None:
        self._max_late = late_share * _VERDICTS + math.sqrt(late_share * _VERDICTS)  # one standard deviation, because late verdicts cluster
        self._limit = math.inf
        self._verdicts = self._late = self._most = 0  # verdicts that count, late ones among them, and the most sessions in use
        self._changed = -math.inf
        self._kept_since: float | None = -math.inf  # drafts that came before don't count; None if the limit is not kept yet
        self._retries: list[tuple[float, str]] = []  # times at which refused sessions ask again, and their devices, a heap
        self._ended: deque[float] = deque(maxlen=_ENDS)

    @property
    def limit(self) -> float:
        """Number of sessions; inf until verdicts have been late."""
        return self._limit

    def observe(self, *, is_late: bool, present: int, asked: float, now: float) -> None:
        """Record a verdict on a draft that came at ``asked``, sent while ``present`` sessions were in use."""
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
        """Record the end of a session."""
        self._ended.append(now)

    def leave(self, device: str) -> None:
        """Stop counting the sessions of a device that is gone as waiting."""
        self._retries = [retry for retry in self._retries if retry[1] != device]
        heapify(self._retries)

    def wait(self, present: int, *, device: str, now: float, max_wait: float = math.inf) -> float | None:
        """Return the seconds until one more session of this device may come, at most ``max_wait``, or None if it may come now.

        That is the time in which all refused sessions that still wait are expected to be admitted. A session that asks again in time no
        longer counts as waiting, so it is counted once.
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
        """Lower the limit, except for a single session, which is late by itself and wouldn't be helped by keeping others out."""
        is_lowered = self._most > 1
        if is_lowered:
            self._limit = max(1, math.floor(_BACK_OFF * min(self._limit, self._most)))
            self._changed = now
        self._begin(kept_since=None if is_lowered else now)

    def _begin(self, *, kept_since: float | None) -> None:
        """Count verdicts from here on."""
        self._verdicts = self._late = self._most = 0
        self._kept_since = kept_since

    def _gap(self, now: float) -> float:
        """Return the seconds between two ends of sessions, estimated from the recent ones."""
        while self._ended and self._ended[0] < now - _RECENT:
            self._ended.popleft()
        gaps = len(self._ended) - 1
        return (self._ended[-1] - self._ended[0]) / gaps if gaps > 0 else _UNKNOWN_GAP
