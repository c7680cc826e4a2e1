"""A ratio of two sums over texts, and how far chance may have moved it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["ratio"]


def ratio(counts: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Return the tokens of all rounds by their number, and the standard error if other texts of the same kind had been drawn.

    Args:
        counts: tokens and rounds of each text.
    """
    tokens, rounds = np.array(counts, dtype=float).reshape(-1, 2).T
    whole = max(float(rounds.sum()), 1.0)
    mean = float(tokens.sum()) / whole
    spread = float(np.square(tokens - mean * rounds).sum()) * len(counts) / max(len(counts) - 1, 1)
    return mean, float(spread**0.5 / whole)
