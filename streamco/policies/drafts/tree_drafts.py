"""Siblings of a draft: other tokens for its positions, which the draft model knows without another step.

A drafted chain is rejected at most at one position, and then the verdict gives the target's token there. If that token is in the tree as a
sibling, it is accepted, and the verdict gives the token after it as well. So a sibling is worth one token, with the probability that the
chain is rejected exactly there and the target chooses this token. It costs a row of the verification. ``choose_siblings`` weighs the two by
the verifier's price list: rows are nearly free on a GPU, and on a CPU where they fill a step of the staircase.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from msgspec import Struct

from streamco.errors import ConfigError
from streamco.policies.rejection import RejectionForecast, rank_branches

__all__ = ["Sibling", "choose_siblings"]


class Sibling(Struct, frozen=True):
    """Another token for a position of the draft, with the probability that the verdict needs it, 0..1."""

    position: int
    token: int
    probability: float


def choose_siblings(
    forecast: RejectionForecast,
    draft: Sequence[int],
    candidates: Sequence[Sequence[tuple[int, float]]],
    *,
    row_seconds: Callable[[int], float],
    token_seconds: float,
    max_siblings: int,
) -> tuple[Sibling, ...]:
    """Return the siblings that together have the highest gain, likeliest first, or none if no number of them has a gain.

    Args:
        forecast: rejection forecast of the draft.
        draft: its ids, shape (window,).
        candidates: the draft model's likeliest (id, probability) at each position of it, best first.
        row_seconds: seconds that a verification takes, by number of rows: one for each token of the draft, one for each sibling, and one.
        token_seconds: seconds that one more token is worth, which are the seconds that one takes at present.
        max_siblings: maximum number of siblings.

    Raises:
        ConfigError: a token takes no time, or the number of siblings is negative.
    """
    if token_seconds <= 0.0 or max_siblings < 0:
        raise ConfigError(f"siblings: expected seconds above 0 and max_siblings >= 0, got {token_seconds} and {max_siblings}")
    window = len(draft)
    branches = rank_branches(forecast, draft, candidates, 0.0, alternatives=max_siblings)
    found = [
        Sibling(branch.position, branch.token, branch.probability)
        for branch in branches
        if branch.position < window and branch.token is not None
    ][:max_siblings]
    rows = window + 1
    alone = row_seconds(rows)
    hits = accumulate((sibling.probability for sibling in found), initial=0.0)
    gains = [hit * token_seconds - (row_seconds(rows + count) - alone) for count, hit in enumerate(hits)]
    best = max(range(len(gains)), key=lambda count: (gains[count], -count))
    return tuple(found[:best])
