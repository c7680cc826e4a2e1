"""An answer whose words nobody knows: at each place only whether the draft model agrees with the target is recorded (DSD section 3.2).

Tokens are numbered by their place, so that the live machines can compare and count them: the target's token at a place is one number, the
draft model's wrong ones are others. A draft token's fate depends on its place alone. Behind a wrong token the record says what the draft
model does behind the right one; that changes nothing, for a verdict ends with the first wrong token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamco.core.speculation.events import DraftToken
from streamco.sim.workload.workload import SimulatedRequest

__all__ = ["END", "RecordedAnswer", "prompt_ids"]

END = 0
_STRIDE = 8  # numbers a place has: the target's token and the draft model's wrong ones
_SECOND_IS_RIGHT = 0.55  # where ranks weren't recorded; what the packaged traces have, docs/workloads.md
_UNKNOWN = 0.7  # confidence of draft tokens where it wasn't recorded
_MIN_CONFIDENCE, _MAX_CONFIDENCE = 0.02, 0.995  # confidences a draft token can have
_PROMPTS: list[tuple[int, ...]] = [()]


def prompt_ids(length: int) -> tuple[int, ...]:
    """Ids of a prompt; what they are doesn't matter, so prompts of one length share them."""
    longest = _PROMPTS[0]
    if len(longest) < length:
        _PROMPTS[0] = longest = tuple(range(-1, -2 * length - 1, -1))
    return longest[:length]


class RecordedAnswer:
    """What target and draft model say at each place of one answer; its last token ends the text.

    Args:
        request: with the record.

    Attributes:
        tokens: of the answer.
    """

    __slots__ = ("_drafted", "request", "tokens")

    def __init__(self, request: SimulatedRequest) -> None:
        self.request = request
        self.tokens = request.output_tokens
        self._drafted: list[DraftToken | None] = [None] * self.tokens

    def right(self, position: int) -> int:
        """Return the target's token."""
        return position * _STRIDE + 1 if position + 1 < self.tokens else END

    def verify(self, draft: Sequence[int], position: int) -> tuple[int, int]:
        """Return how many tokens of a draft that begins at ``position`` are the target's, and the target's behind them."""
        accepted = 0
        for token in draft:
            if token != self.right(position + accepted):
                break
            accepted += 1
        return accepted, self.right(position + accepted)

    def draft(self, ids: Sequence[int]) -> Mapping[int, float]:
        """Return what the draft model says behind these ids of the answer."""
        return dict(self.write(ids).alternatives)

    def write(self, ids: Sequence[int]) -> DraftToken:
        """Return the draft model's token behind these ids of the answer."""
        position = min(len(ids), self.tokens - 1)
        token = self._drafted[position]
        if token is None:
            token = self._drafted[position] = self._draft(position)
        return token

    def _draft(self, position: int) -> DraftToken:
        right, wrong = self.right(position), position * _STRIDE + 2
        choices = [wrong, wrong + 1, wrong + 2]
        rank = self._rank(position)
        if rank < len(choices):
            choices[rank] = right
        shares = self._shares(position)
        return DraftToken(choices[0], shares[0], tuple(zip(choices, shares, strict=True)))

    def _shares(self, position: int) -> tuple[float, float, float]:
        """Probabilities of the draft model's first three choices; what wasn't recorded is guessed."""
        request = self.request
        confidence = request.confidences[position] if request.confidences else _UNKNOWN
        sure = min(_MAX_CONFIDENCE, max(_MIN_CONFIDENCE, confidence))
        left = 1.0 - sure
        second = min(request.runners_up[position], sure, left) if request.runners_up else min(0.6 * left, 0.9 * sure)
        return sure, second, min(0.5 * second, left - second)

    def _rank(self, position: int) -> int:
        """Return the place of the target's token among the draft model's choices; 3: further behind."""
        request = self.request
        if request.accepted[position]:
            return 0
        if request.ranks:
            return max(1, request.ranks[position])
        shuffled = ((request.number * 2_654_435_761 + position * 40_503) >> 4) % 1000  # a share of the places, the same in every run
        return 1 if shuffled < 1000 * _SECOND_IS_RIGHT else 3
