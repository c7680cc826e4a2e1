"""What a pool knows about one of its verifiers: whether it can be used, and how long its queue is."""

from __future__ import annotations

from streamco.core.verifier.events import FULL_QUEUE
from streamco.endpoints.verifiers.base import Verifier

__all__ = ["PoolMember"]

_QUEUE_SECONDS = 5.0  # seconds for which a reported queue length is used
_BUSY_SECONDS = 5.0  # seconds for which a verifier that refused a session is skipped


class PoolMember:
    """One verifier of a pool, and what the pool knows about it.

    Args:
        verifier: the verifier.

    Attributes:
        verifier: the verifier.
        problem: why the pool leaves it out, or "" if it doesn't.
        answers: number of this client's answers that it is serving.
    """

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self.problem = "it was not probed yet"
        self.answers = 0
        self._queue, self._queue_at = 0, -_QUEUE_SECONDS
        self._busy_until = 0.0

    @property
    def name(self) -> str:
        """Name of the verifier."""
        return self.verifier.name

    def record_queue(self, utilisation: float, *, now: float) -> None:
        """Record the length of its queue, 0 to 1, as reported with a verdict."""
        self._queue, self._queue_at = round(utilisation * FULL_QUEUE), now
        self._busy_until = 0.0

    def record_busy(self, *, now: float) -> None:
        """Record that it isn't accepting sessions at the moment."""
        self._busy_until = now + _BUSY_SECONDS

    def is_free(self, *, now: float) -> bool:
        """Return True if it isn't left out and hasn't just refused a session."""
        return not self.problem and self._busy_until <= now

    def load(self, *, now: float) -> int:
        """Return the number of verifications that it last reported as waiting, plus this client's own answers there."""
        return self.answers + (self._queue if now - self._queue_at < _QUEUE_SECONDS else 0)
