"""The limit on an answer's silence: how long it may wait for the verifier and the stream together without a new token.

Each of the two has its own limits. One after the other, and each retried, they would leave the reader without a word for their sum.
"""

from __future__ import annotations

from streamco.core.speculation.answer import SpeculativeAnswer
from streamco.core.speculation.backpressure import Backpressure
from streamco.core.speculation.fallback_stream import RemoteStream
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.verification import VerifierChannel
from streamco.errors import EndpointTimeoutError

__all__ = ["SilenceLimit"]


class SilenceLimit:
    """Counts the seconds in which an answer waits for the verifier or the stream, since its last token.

    Nothing is counted while the reader has much left to read, or while only the device works.

    Args:
        options: ``first_silence`` before the first token and ``silence`` between two tokens.
        answer, verifier, remote, backpressure: the answer and what it waits for.
    """

    def __init__(
        self,
        options: SpeculationMachineOptions,
        *,
        answer: SpeculativeAnswer,
        verifier: VerifierChannel,
        remote: RemoteStream,
        backpressure: Backpressure,
    ) -> None:
        self._first, self._later = options.first_silence, options.silence
        self._answer, self._verifier, self._remote, self._backpressure = answer, verifier, remote, backpressure
        self._length = 0  # tokens of the answer at the last call
        self._counted = 0.0  # seconds of earlier waits since the last token
        self._since: float | None = None  # beginning of the current wait; None if the answer doesn't wait

    def watch(self, *, now: float) -> None:
        """Count until ``now``; called after each event."""
        if self._answer.length > self._length:
            self._length, self._counted, self._since = self._answer.length, 0.0, None
        is_waiting = (self._remote.is_open or self._verifier.round is not None) and not self._backpressure.is_requested
        if is_waiting and self._since is None:
            self._since = now
        elif not is_waiting and self._since is not None:
            self._counted += now - self._since
            self._since = None

    def deadline(self) -> float | None:
        """Return when the silence will have lasted too long, seconds, or None for never."""
        limit = self._limit
        return None if limit is None or self._since is None else self._since + limit - self._counted

    def give_up(self) -> None:
        """Stop using the verifier and the stream in this answer."""
        wanted, limit = "the next token" if self._length else "the first token", self._limit or 0.0
        text = f"expected {wanted} within {limit:g} s, got none"
        error = EndpointTimeoutError(text, phase="next_token" if self._length else "first_token", limit=limit)
        if self._remote.is_usable:
            self._remote.close()
            self._remote.record_failure(error)
        self._verifier.close()
        self._verifier.fail(error)

    @property
    def _limit(self) -> float | None:
        return self._later if self._length else self._first
