"""Chooses siblings for a draft: other tokens for its positions, which the draft model knows without another step.

A drafted chain is rejected at one position at most, and then the verdict gives the target's token there. If that token is in the tree as a
sibling, it is accepted, and the verdict also gives the token after it. So a sibling is worth one token, with the probability that the chain
is rejected exactly there and the target chooses this token. It costs a row of the verification. ``choose_siblings`` weighs the two by the
verifier's price list. Rows are nearly free on a GPU, and also on a CPU if they fill a stair of the row costs.
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
    """Return the siblings that together gain the most time, likeliest first, or none if they gain no time.

    Args:
        forecast: the draft's rejection forecast.
        draft: the draft's ids, shape (window,).
        candidates: the draft model's likeliest tokens at each position of the draft as (id, probability), best first.
        row_seconds: returns how many seconds a verification takes, given its number of rows: the draft's tokens, the siblings and one more.
        token_seconds: seconds that one more token is worth, which is how long a token takes at present.
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
