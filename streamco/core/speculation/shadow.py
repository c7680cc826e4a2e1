"""Lets the device draft while the remote stream generates alone, only to measure the acceptance rate (shadow drafting).

In the papers' fused mode nothing is verified, so no measurement ever leads back to drafting. Comparing a draft with the stream takes no
round and no time, only work on the device. To limit this work, each pause between two drafts is twice as long as the one before. Only
greedy tokens can be compared. A sampled token says little about the tokens that might have been sampled instead, so it isn't compared.

If drafting would lose even with an acceptance rate at its upper confidence bound, a draft is made only every few answers. More drafts would
be useless work, and on a shared processor they would slow the stream.

Before an answer returns to drafting, the device must read the text that the stream wrote. On a CPU that may take as long as writing it. So
the device catches up while the stream continues.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamco.core.speculation.draft import DraftSequence
from streamco.core.speculation.draft_state import DraftState
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.events import common_prefix_length

__all__ = ["ShadowDrafter"]

_FIRST_PAUSE, _MAX_PAUSE = 4, 64  # streamed tokens between two drafts
_HOPELESS_PAUSE = 256  # streamed tokens between two drafts, over all answers, while drafting can't pay
_FURTHER = 4  # tokens to add to the usual window, to see whether longer drafts would be accepted
_NEAR = 6  # if the device has no more committed tokens than this to read first, it can start a draft nearly at once


class ShadowDrafter:
    """Makes drafts that are compared with the remote stream and never sent.

    Args:
        draft_state: the device's drafts.
        estimates: records how many tokens would have been accepted.
    """

    def __init__(self, draft_state: DraftState, estimates: SpeculationEstimates) -> None:
        self._draft_state = draft_state
        self._estimates = estimates
        self._draft: DraftSequence | None = None
        self._position = 0  # length of the answer before the draft
        self._pause = _FIRST_PAUSE
        self._next_position = _FIRST_PAUSE
        self._is_sampled = False  # the device samples its tokens, so they can't be compared

    def follow(self, committed: Sequence[int], tokens: int, *, now: float) -> None:
        """Record that the stream produced the last ``tokens`` tokens. Start a draft if one is due, or compare one that it has passed."""
        draft, length = self._draft, len(committed)
        self._estimates.record_streamed(tokens)
        if draft is not None and draft is not self._draft_state.trunk:
            self._draft = draft = None  # it was dropped
        if draft is None:
            is_measuring = self._estimates.has_remote_step and self._estimates.is_remote_step_stale  # needs tokens without a draft
            if length >= self._next_position and not self._is_sampled and not self._draft_state.is_out and not is_measuring:
                self._start_if_useful(committed, now)
        elif self._is_full:
            self._draft_state.record_full()
        elif draft.is_finished and length >= self._position + len(draft.tokens):
            self._compare(draft, committed)
            self._draft_state.stop_trunk(now=now)
            self._draft = None
            self._pause = min(_MAX_PAUSE, 2 * self._pause)
            self._next_position = length + self._pause

    def take_trunk(self) -> None:
        """Use the draft for which the device is still reading the prompt. It is compared with the answer from the beginning."""
        self._position, self._draft = 0, self._draft_state.trunk

    @property
    def is_drafting(self) -> bool:
        """True from the start of a draft until it is compared. If device and server share memory, the stream is slower meanwhile."""
        return self._draft is not None and self._draft is self._draft_state.trunk

    def has_caught_up(self, committed: Sequence[int]) -> bool:
        """Return True if the device can draft and has read nearly all of the answer."""
        if self._is_full:
            self._draft_state.record_full()
        can_start = not self._draft_state.is_out and not self._is_reading
        return can_start and len(committed) - self._draft_state.common_length(committed) <= _NEAR

    def catch_up(self, committed: Sequence[int], *, now: float) -> None:
        """Make the device read the answer, if it can and isn't already reading."""
        if not self._is_reading and not self._draft_state.is_out:
            self._start(committed, now)

    @property
    def _is_full(self) -> bool:
        draft = self._draft
        return draft is not None and draft is self._draft_state.trunk and draft.is_context_full and not draft.tokens

    @property
    def _is_reading(self) -> bool:
        draft = self._draft
        return draft is not None and draft is self._draft_state.trunk and not draft.tokens and not draft.is_finished

    def _start_if_useful(self, committed: Sequence[int], now: float) -> None:
        if self._estimates.tokens_since_verdict >= _HOPELESS_PAUSE or self._estimates.can_pay():
            self._start(committed, now)
        else:
            self._next_position = len(committed) + _FIRST_PAUSE

    def _start(self, committed: Sequence[int], now: float) -> None:
        self._position = len(committed)
        self._draft_state.start(committed, self._estimates.window_with(_FURTHER), is_beside_stream=True, now=now)
        self._draft = self._draft_state.trunk

    def _compare(self, draft: DraftSequence, committed: Sequence[int]) -> None:
        self._is_sampled = any(token.row is not None for token in draft.tokens)
        if not self._is_sampled:
            accepted = common_prefix_length(draft.ids, committed[self._position :])
            self._estimates.record_verdict([token.confidence for token in draft.tokens], accepted, is_hit=None)
