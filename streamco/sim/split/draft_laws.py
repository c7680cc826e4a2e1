"""Computes how many tokens are drafted and accepted, for drafts that end at a threshold and for trees (HAT, sections 3.4, 3.5 and 4.1).

A recorded or drawn answer says for each position whether the draft layer's token is the model's, how confident it is, and which of its
choices is the model's (``sim.workload``). After a wrong token, the record continues with the right text, which affects only the draft's
length.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from streamco.sim.workload.workload import SimulatedRequest

__all__ = ["DraftSpan", "draft_length", "predrafted", "tree_probability", "draw_tree", "verify_draft"]


class DraftSpan(NamedTuple):
    """A draft: the position of its first token in the answer, and the number of its tokens."""

    start: int
    tokens: int


def draft_length(request: SimulatedRequest, start: int, *, threshold: float, max_draft: int) -> int:
    """Return the number of tokens in a draft that begins at a position of the answer (equation 5).

    The first token with a probability below the threshold is the draft's last. The answer's last token is never drafted, because the round
    gives it anyway.
    """
    limit = min(max_draft, request.output_tokens - start - 1)
    for index in range(limit):
        if request.confidences and request.confidences[start + index] < threshold:
            return index + 1
    return max(0, limit)


def verify_draft(request: SimulatedRequest, draft: DraftSpan) -> int:
    """Return how many tokens of a draft are the model's own."""
    wrong = request.accepted.find(0, draft.start, draft.start + draft.tokens)
    return draft.tokens if wrong < 0 else wrong - draft.start


def predrafted(request: SimulatedRequest, draft: DraftSpan, accepted: int, *, steps: int, branches: int) -> int:
    """Return how many tokens of the next draft were drafted while the verdict was pending (section 3.5).

    The branches begin with the likeliest candidates for the draft's last token. If that token is corrected to a candidate, that
    candidate's branch is the next draft. If all tokens are accepted, the verdict also gives the token after them, and the first candidate's
    branch is used if it guessed that token.
    """
    last = draft.start + draft.tokens - 1
    if not draft.tokens or not branches:
        return 0
    if accepted == draft.tokens:
        is_guessed = last + 1 < request.output_tokens and request.accepted[last + 1] == 1
        return max(0, steps - 1) if is_guessed else 0
    is_candidate = accepted == draft.tokens - 1 and bool(request.ranks) and request.ranks[last] < branches
    return steps if is_candidate else 0


def tree_probability(accept: float, heads: int) -> float:
    """Return the probability q of each further token such that a round has ``accept`` tokens on average: 1 + q + q^2 + ... = accept."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**power for power in range(heads + 1)) < accept:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def draw_tree(probability: float, heads: int, rng: Random) -> int:
    """Draw how many tokens of a tree are accepted."""
    accepted = 0
    while accepted < heads and rng.random() < probability:
        accepted += 1
    return accepted
