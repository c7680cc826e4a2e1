"""Lets endpoints that have failed rest for a while. Others are asked first, and after the rest, one answer at a time tries them again.

This is a circuit breaker: failures open it, the end of the rest half-opens it, and an answer closes it. A resting endpoint isn't refused,
though: it is asked if no other one can answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamco.errors import (
    EndpointError,
    EndpointProtocolError,
    EndpointStatusError,
    EngineError,
    StreamcoError,
    is_out_of_time,
    is_refusal,
)

__all__ = ["Breaker", "rests_after"]

_FIRST = 1.0  # seconds of rest after the first failure in a row, doubled after each further one
_LONGEST = 30.0
_LONGEST_ASKED = 300.0  # longest rest in seconds that a server may request with Retry-After
_BUSY = frozenset({408, 409, 425, 429})


def rests_after(error: EndpointError) -> bool:
    """Return True if an endpoint that failed with this error will probably fail again: it is unreachable, silent, busy or broken.

    Errors about one request (other 4xx), one run of a model (an engine's error), or one caller's limits and mistakes say nothing about the
    next answer. Configuration errors do make the next answers fail too, but each of these answers must report the error.
    """
    match error:
        case EngineError():
            return False
        case EndpointStatusError(status=status):
            return status >= 500 or status in _BUSY
        case EndpointProtocolError(is_limit=True):
            return False
    is_callers = isinstance(error.__cause__, StreamcoError) and not isinstance(error.__cause__, EndpointError)
    return not (is_callers or is_refusal(error) or is_out_of_time(error))


@dataclass
class Breaker:
    """Tracks whether one endpoint rests because it has failed. Times are in seconds, and may come from any clock that is used throughout.

    Attributes:
        failures: failures in a row.
        until: when the rest ends; then one answer tries the endpoint.
        kind: the last failure, in a few words.
        failed: when that failure happened.
        is_tried: True while an answer is trying the endpoint after its rest.
    """

    failures: int = 0
    until: float = 0.0
    kind: str = ""
    failed: float = 0.0
    is_tried: bool = False

    def is_resting(self, *, now: float) -> bool:
        """Return True if other endpoints should be asked first."""
        return self.failures > 0 and (now < self.until or self.is_tried)

    def begin(self, *, now: float) -> bool:
        """Record that the endpoint is asked for an answer, and return True if this is the answer that tries it after its rest."""
        is_trial = self.failures > 0 and now >= self.until and not self.is_tried
        self.is_tried = self.is_tried or is_trial
        return is_trial

    def end_trial(self) -> None:
        """Record that no answer is trying the endpoint any more."""
        self.is_tried = False

    def record_failure(self, error: EndpointError, kind: str, *, now: float) -> None:
        """Record a failure, after which the endpoint rests. If several answers fail at the same time, they count as one failure."""
        if now >= self.until:
            self.failures += 1
        asked = error.retry_after if isinstance(error, EndpointStatusError) else None
        rest = min(_LONGEST, _FIRST * 2.0 ** min(self.failures - 1, 10)) if asked is None else min(asked, _LONGEST_ASKED)
        self.kind, self.failed, self.until = kind, now, max(self.until, now + rest)

    def record_answer(self) -> None:
        """Record that the endpoint has answered a request that it got after its last failure."""
        self.failures, self.until, self.is_tried = 0, 0.0, False
