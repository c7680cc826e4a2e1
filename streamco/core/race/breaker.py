"""Endpoints that have failed are left alone for a while: others are asked first, and one answer at a time tries them again.

This is a circuit breaker: ``failures`` opens it, the rest's end half-opens it, an answer closes it. Resting is no refusal: an endpoint that
rests is asked if no other one can answer.
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

_FIRST = 1.0  # seconds of rest after the first failure in a row; twice as many after each further one
_LONGEST = 30.0
_LONGEST_ASKED = 300.0  # seconds that a server may ask for by Retry-After
_BUSY = frozenset({408, 409, 425, 429})


def rests_after(error: EndpointError) -> bool:
    """Return True if an endpoint that failed so is likely to fail the next answer as well: it is out of reach, silent, busy or broken.

    What it says about one request (other 4xx) or one model's run (an engine's error) says nothing about the next answer, nor do the limits
    and mistakes of one caller. What is configuration fails the next answers, too, but they must say so.
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
    """Whether one endpoint rests, because it has failed. Times are seconds of any one clock.

    Attributes:
        failures: failures in a row.
        until: when the rest ends; then one answer tries the endpoint.
        kind: what happened last, in short.
        failed: when that was.
        is_tried: an answer is trying it after its rest.
    """

    failures: int = 0
    until: float = 0.0
    kind: str = ""
    failed: float = 0.0
    is_tried: bool = False

    def is_resting(self, *, now: float) -> bool:
        """Return True if others are to be asked first."""
        return self.failures > 0 and (now < self.until or self.is_tried)

    def begin(self, *, now: float) -> bool:
        """Record that an answer asks the endpoint; return True if this is the one that tries it after its rest."""
        is_trial = self.failures > 0 and now >= self.until and not self.is_tried
        self.is_tried = self.is_tried or is_trial
        return is_trial

    def end_trial(self) -> None:
        """Record that the answer that tried it is not at it any more."""
        self.is_tried = False

    def record_failure(self, error: EndpointError, kind: str, *, now: float) -> None:
        """Record a failure after which the endpoint rests; several answers that fail at the same time count once."""
        if now >= self.until:
            self.failures += 1
        asked = error.retry_after if isinstance(error, EndpointStatusError) else None
        rest = min(_LONGEST, _FIRST * 2.0 ** min(self.failures - 1, 10)) if asked is None else min(asked, _LONGEST_ASKED)
        self.kind, self.failed, self.until = kind, now, max(self.until, now + rest)

    def record_answer(self) -> None:
        """Record that the endpoint answers what it was asked after its last failure."""
        self.failures, self.until, self.is_tried = 0, 0.0, False
