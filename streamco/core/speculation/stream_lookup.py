"""Looks up, after each token of the remote stream, which tokens may follow. This takes no time.

Each lookup is compared with the tokens that the stream then produces. This shows how often matches of each length are right. If a lookup
promises more tokens than the stream produces in the time of a round, the answer leaves the stream for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamco.core.speculation.draft_state import DraftState
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import DraftToken

__all__ = ["StreamLookup"]


class StreamLookup:
    """The lookups of an answer while the remote stream generates it.

    Args:
        draft_state: makes the lookups.
        estimates: records which tokens would have been accepted.
    """

    def __init__(self, draft_state: DraftState, estimates: SpeculationEstimates) -> None:
        self._draft_state = draft_state
        self._estimates = estimates
        self._position = -1  # length of the answer before the current lookup

    def follow(self, committed: Sequence[int], *, now: float) -> None:
        """Compare the last lookup with the stream's new tokens, and look up which tokens may follow them."""
        trunk = self._draft_state.trunk
        if trunk is not None:
            self._estimates.record_compared(trunk.tokens, committed[self._position :])
        self._position = len(committed)
        self._draft_state.start(committed, self._estimates.window, is_beside_stream=True, now=now)

    def found(self, committed: Sequence[int]) -> Sequence[DraftToken]:
        """Return the tokens that were found to follow the committed ones. There are none if the lookup found nothing or isn't finished."""
        trunk = self._draft_state.trunk
        return trunk.tokens if trunk is not None and trunk.is_finished and self._position == len(committed) else ()
