"""Learning the acceptance rate while the remote side streams alone: the device drafts, and the stream says what was right.

The papers' fused mode knows no way back, for nothing is judged in it. A draft compared with the stream costs no round and no second, only
the device's work, so there are fewer and fewer of them: each stretch without one is twice as long as the last. That holds where tokens are
chosen greedily; what is drawn says little about what else might have been, and isn't compared. Where drafting would lose even if all that
was seen of the rate had been bad luck, a draft is made only every few answers: it would be work for nothing, and on a shared processor it
slows the stream.

On the way back to drafting the device first has to read what the stream has said, which on a processor may take as long as writing it. So
it catches up while the stream goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamco.core.speculation.draft import DraftSequence
from streamco.core.speculation.draft_state import DraftState
from streamco.core.speculation.estimates import SpeculationEstimates

__all__ = ["ShadowDrafter"]

_FIRST, _LONGEST = 4, 64  # streamed tokens between two drafts
_HOPELESS = 256  # of those, over all answers, where drafting can't pay
_FURTHER = 4  # tokens beyond the usual window, to see whether longer drafts would be accepted
_NEAR = 6  # tokens that a draft may have to read first and still begin nearly at once


class ShadowDrafter:
    """Drafts that nobody asks about.

    Args:
        drafting: of the device.
        pair: is told what would have been accepted.
    """

    def __init__(self, drafting: DraftState, pair: SpeculationEstimates) -> None:
        self._drafting = drafting
        self._pair = pair
        self._line: DraftSequence | None = None
        self._at = 0  # length of the answer it stands behind
        self._pause = _FIRST
        self._next = _FIRST
        self._is_vain = False  # tokens are drawn

    def follow(self, settled: Sequence[int], tokens: int, *, now: float) -> None:
        """The stream gave the last ``tokens``: begin a draft if it is time for one, and compare one that the stream has passed."""
        line, length = self._line, len(settled)
        self._pair.unheard += tokens
        if line is not None and line is not self._drafting.trunk:
            self._line = line = None  # it was dropped
        if line is None:
            if length >= self._next and not self._is_vain and not self._drafting.is_out:
                self._begin_or_wait(settled, now)
        elif line.is_out_of_room and not line.tokens:
            self._drafting.is_full = True
        elif line.is_finished and length >= self._at + len(line.tokens):
            self._compare(line, settled)
            self._drafting.rest(now=now)
            self._line = None
            self._pause = min(_LONGEST, 2 * self._pause)
            self._next = length + self._pause

    def has_caught_up(self, settled: Sequence[int]) -> bool:
        """Return True if the device has read nearly all of the answer."""
        return not self._is_reading and len(settled) - self._drafting.held(settled) <= _NEAR

    def catch_up(self, settled: Sequence[int], *, now: float) -> None:
        """Read on, if it isn't at it already."""
        if not self._is_reading:
            self._begin(settled, now)

    @property
    def _is_reading(self) -> bool:
        return self._line is not None and self._line is self._drafting.trunk and not self._line.tokens and not self._line.is_finished

    def _begin_or_wait(self, settled: Sequence[int], now: float) -> None:
        """It is time for a draft, if one may be of use."""
        if self._pair.unheard >= _HOPELESS or self._pair.may_pay():
            self._begin(settled, now)
        else:
            self._next = len(settled) + _FIRST

    def _begin(self, settled: Sequence[int], now: float) -> None:
        self._at = len(settled)
        self._drafting.begin(settled, self._pair.reach(_FURTHER), now=now)
        self._line = self._drafting.trunk

    def _compare(self, line: DraftSequence, settled: Sequence[int]) -> None:
        self._is_vain = any(token.row is not None for token in line.tokens)
        if not self._is_vain:
            pairs = zip(line.ids, settled[self._at :], strict=False)
            right = next((place for place, (drafted, said) in enumerate(pairs) if drafted != said), len(line.tokens))
            self._pair.note_verdict([token.confidence for token in line.tokens], right, is_hit=None)
