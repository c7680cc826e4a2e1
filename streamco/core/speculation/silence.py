"""Limits an answer's silence, which is the time it waits for the verifier and the stream together without a new token.

Each of the two has its own limits. But if they fail one after the other, with retries, the reader would wait for the sum of these limits
without seeing a word.
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
    """Counts how many seconds an answer has waited for the verifier or the stream since its last token.

    Nothing is counted while the reader has much left to read, or while only the device is working.

    Args:
        options: the limits ``first_silence`` before the first token and ``silence`` between two tokens.
        answer, verifier, remote, backpressure: the answer, the parts that it waits for, and the reader's backpressure.
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
        """Count the time until ``now``. This is called after each event."""
        if self._answer.length > self._length:
            self._length, self._counted, self._since = self._answer.length, 0.0, None
        is_waiting = (self._remote.is_open or self._verifier.round is not None) and not self._backpressure.is_requested
        if is_waiting and self._since is None:
            self._since = now
        elif not is_waiting and self._since is not None:
            self._counted += now - self._since
            self._since = None

    def deadline(self) -> float | None:
        """Return when the silence will have lasted too long, in seconds, or None if there is no limit or no wait."""
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
