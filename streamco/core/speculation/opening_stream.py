"""Begins a lossless answer without a draft while the device is still reading the prompt (not in the papers).

A small processor takes seconds to read a long prompt, and in this time the verifier could write part of the answer. So if the device hasn't
drafted anything one round's time after the answer began, the verifier is asked for one token without a draft. Once it has answered, it has
read the prompt, and its plain stream, which finds the prompt in memory, continues the answer. Drafting starts when the device has caught
up.
"""

from __future__ import annotations

from streamco.core.speculation.answer import SpeculativeAnswer
from streamco.core.speculation.backpressure import Backpressure
from streamco.core.speculation.draft_state import DraftState
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.fallback_stream import RemoteStream, TimeAccount
from streamco.core.speculation.options import SpeculationMachineOptions

__all__ = ["OpeningStream"]


class OpeningStream:
    """Decides when to begin an answer without a draft, and when to let the stream continue it."""

    def __init__(
        self,
        estimates: SpeculationEstimates,
        options: SpeculationMachineOptions,
        *,
        answer: SpeculativeAnswer,
        draft_state: DraftState,
        remote: RemoteStream,
        time_account: TimeAccount,
        backpressure: Backpressure,
    ) -> None:
        self._estimates = estimates
        self._answer = answer
        self._draft_state = draft_state
        self._remote = remote
        self._time_account = time_account
        self._backpressure = backpressure
        self._may_open = options.may_begin_by_stream and options.is_adaptive and estimates.is_lossless
        self._has_asked = False

    def due(self) -> float | None:
        """Return when to ask the verifier for a token without a draft, in seconds, or None if that isn't needed."""
        if self._has_asked or self._time_account.has_begun or self._remote.is_open or not self._is_possible:
            return None
        return self._time_account.started_at + self._estimates.wait

    def record_asked(self) -> None:
        """Record that a token without a draft was requested."""
        self._has_asked = True

    def open(self, *, now: float) -> bool:
        """Open the stream if a token was requested and the device is still reading, and return True if it was opened."""
        if not self._has_asked or not self._is_possible:
            return False
        self._answer.report.why_remote = "the device reads the prompt"
        self._draft_state.resume_trunk()
        self._remote.open(self._answer.ids, self._answer.free_tokens)
        self._time_account.record_opened(is_charged=False, now=now)
        return True

    @property
    def _is_possible(self) -> bool:
        is_reading = self._may_open and self._draft_state.is_reading_prompt
        return is_reading and self._remote.is_usable and not self._backpressure.is_requested
