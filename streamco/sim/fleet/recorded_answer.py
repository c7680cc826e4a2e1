"""A recorded answer: at each position it is known whether the draft model agrees with the target model, but not the text (DSD section 3.2).

Tokens are numbered by their position, so that the live machines can compare and count them. The target's token at a position is one number,
and the draft model's wrong tokens have other numbers. Whether a draft token is accepted depends only on its position. After a wrong token,
the record still has the draft model's tokens for the right text. This makes no difference: a verdict ends with the first wrong token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamco.core.speculation.events import DraftToken
from streamco.errors import ConfigError
from streamco.policies.drafts.tree_acceptance import path_to, verify_tree_greedy
from streamco.sim.workload.workload import SimulatedRequest

__all__ = ["END", "RecordedAnswer", "prompt_ids"]

END = 0
_STRIDE = 8  # numbers per position, for the target's token and the draft model's wrong ones
_SECOND_IS_RIGHT = 0.55  # used if ranks weren't recorded; the share in the packaged traces (docs/workloads.md)
_UNKNOWN = 0.7  # confidence of draft tokens if it wasn't recorded
_MIN_CONFIDENCE, _MAX_CONFIDENCE = 0.02, 0.995  # confidences a draft token can have
_PROMPTS: list[tuple[int, ...]] = [()]


def prompt_ids(length: int) -> tuple[int, ...]:
    """Return the ids of a prompt. Their values don't matter, so prompts of the same length share them."""
    longest = _PROMPTS[0]
    if len(longest) < length:
        _PROMPTS[0] = longest = tuple(range(-1, -2 * length - 1, -1))
    return longest[:length]


class RecordedAnswer:
    """The target's and the draft model's tokens at each position of one answer. Its last token ends the text.

    Args:
        request: the request, which contains the record.

    Attributes:
        tokens: tokens of the answer.
        parents: parents of the draft that is being verified, if it is a tree.
    """

    __slots__ = ("_drafted", "parents", "request", "tokens")

    def __init__(self, request: SimulatedRequest) -> None:
        self.request = request
        self.tokens = request.output_tokens
        self.parents: Sequence[int] = ()
        self._drafted: list[DraftToken | None] = [None] * self.tokens

    def right(self, position: int) -> int:
        """Return the target's token at a position."""
        return position * _STRIDE + 1 if position + 1 < self.tokens else END

    def verify(self, draft: Sequence[int], position: int, parents: Sequence[int] = ()) -> tuple[int, int]:
        """Return how many tokens of a draft that begins at ``position`` are the target's, and the target's token after them.

        With ``parents`` the draft is a tree, and the first value is the last node that is the target's
        (``policies.drafts.tree_acceptance``).
        """
        if parents:
            nodes = range(len(draft) + 1)
            verdict = verify_tree_greedy(draft, parents, [self.right(position + len(path_to(parents, node))) for node in nodes])
            return verdict.accepted, verdict.token
        accepted = 0
        for token in draft:
            if token != self.right(position + accepted):
                break
            accepted += 1
        return accepted, self.right(position + accepted)

    def draft(self, ids: Sequence[int]) -> Mapping[int, float]:
        """Return the draft model's distribution of the token after these ids of the answer."""
        return dict(self.write(ids).alternatives)

    def write(self, ids: Sequence[int]) -> DraftToken:
        """Return the draft model's next token after these ids of the answer.

        The text ends with the record, even if the draft model's last recorded token doesn't end it; otherwise a device without a verifier
        would never end.
        """
        position = len(ids)
        if position >= self.tokens:
            return DraftToken(END, _MAX_CONFIDENCE, ((END, _MAX_CONFIDENCE),))
        token = self._drafted[position]
        if token is None:
            token = self._drafted[position] = self._draft(position)
        return token

    def importance(self, start: int, count: int) -> float | None:
        """Return the mean importance of a draft's first ``count`` tokens, as ``policies.importance.draft_importance`` computes it live.

        The newest token has no row yet, because its row comes with the token after it. The result is None if there is no row, or if
        attention wasn't recorded.

        Args:
            start: position of the draft's first token.
            count: number of tokens that the draft has.

        Raises:
            ConfigError: the draft is longer than the recorded attention.
        """
        attention, rows = self.request.attention, count - 1
        if not attention or rows < 1:
            return None
        depth = len(attention) // self.tokens
        if rows > depth:
            raise ConfigError(f"trace: expected drafts of at most {depth + 1} tokens, as far as attention was recorded, got {count}")
        positions = (min(start + row, self.tokens - 1) for row in range(rows))
        return sum(attention[position * depth + row] for row, position in enumerate(positions)) / (255 * rows)

    def _draft(self, position: int) -> DraftToken:
        right, wrong = self.right(position), position * _STRIDE + 2
        choices = [wrong, wrong + 1, wrong + 2]
        rank = self._rank(position)
        if rank < len(choices):
            choices[rank] = right
        shares = self._shares(position)
        return DraftToken(choices[0], shares[0], tuple(zip(choices, shares, strict=True)))

    def _shares(self, position: int) -> tuple[float, float, float]:
        """Return the probabilities of the draft model's first three choices. Probabilities that weren't recorded are estimated."""
        request = self.request
        confidence = request.confidences[position] if request.confidences else _UNKNOWN
        sure = min(_MAX_CONFIDENCE, max(_MIN_CONFIDENCE, confidence))
        left = 1.0 - sure
        second = min(request.runners_up[position], sure, left) if request.runners_up else min(0.6 * left, 0.9 * sure)
        return sure, second, min(0.5 * second, left - second)

    def _rank(self, position: int) -> int:
        """Return the rank of the target's token among the draft model's choices, counted from 0, where 3 means fourth or later."""
        request = self.request
        if request.accepted[position]:
            return 0
        if request.ranks:
            return max(1, request.ranks[position])
        shuffled = ((request.number * 2_654_435_761 + position * 40_503) >> 4) % 1000  # picks the same share of the positions in every run
        return 1 if shuffled < 1000 * _SECOND_IS_RIGHT else 3
