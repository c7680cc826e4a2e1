"""The beginning of a lossless answer while the device still reads the prompt: the target's own stream writes it (not in the papers).

A small processor reads a long prompt for seconds, in which the verifier could have written a part of the answer. So if the device has not
drafted anything a round's time after the answer has begun, the remote stream is opened, and drafting starts when the device has caught up.
The price: the target reads the prompt for the stream, too. A prompt that the device knows from the turn before costs nothing more.
"""

from __future__ import annotations

from streamco.core.speculation.backpressure import Backpressure
from streamco.core.speculation.draft_state import DraftState
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.fallback_stream import RemoteStream, TimeAccount
from streamco.core.speculation.options import SpeculationMachineOptions

__all__ = ["OpeningStream"]


class OpeningStream:
    """Decides when the remote stream begins an answer."""

    def __init__(
        self,
        estimates: SpeculationEstimates,
        options: SpeculationMachineOptions,
        *,
        draft_state: DraftState,
        remote: RemoteStream,
        time_account: TimeAccount,
        backpressure: Backpressure,
    ) -> None:
        self._estimates = estimates
        self._draft_state = draft_state
        self._remote = remote
        self._time_account = time_account
        self._backpressure = backpressure
        self._may_open = options.may_begin_by_stream and options.is_adaptive and estimates.is_lossless

    def due(self) -> float | None:
        """Return when to open the stream, seconds; None: it isn't needed."""
        is_begun = self._time_account.has_begun or self._remote.is_open or not self._draft_state.is_reading_prompt
        if not self._may_open or is_begun or not self._remote.is_usable or self._backpressure.is_requested:
            return None
        return self._time_account.started_at + self._estimates.wait
