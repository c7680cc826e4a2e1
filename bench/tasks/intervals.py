"""Intervals of the bootstrap: the questions are drawn again with replacement, and all figures are computed of the same draws.

So differences between contenders that answered the same questions are paired, and their intervals are narrower than the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["DRAWS", "Interval", "draw_weights", "interval_of", "mean_interval", "resample"]

DRAWS = 2000
Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """A value, and the bounds that 95 of 100 draws lie in."""

    value: float
    low: float
    high: float

    def show(self, digits: int = 3, *, sign: str = "") -> str:
        """Return the value with its bounds; ``sign``: "+" for one before each number."""
        value, low, high = (f"{each:{sign}.{digits}f}" for each in self)
        return f"{value} ({low} to {high})"


def draw_weights(count: int, rng: np.random.Generator, draws: int = DRAWS) -> Floats:
    """Return how often each of ``count`` questions is in each draw, shape (draws + 1, count); the first row has each once."""
    return np.vstack([np.ones(count), rng.multinomial(count, np.full(count, 1.0 / count), draws)])


def resample(scores: Sequence[Sequence[float]], *, draws: int = DRAWS, seed: int = 1) -> Floats:
    """Return the mean of each contender in each draw.

    Args:
        scores: one row for each contender, one column for each question; all contenders answered all questions.
        draws: number of draws.
        seed: of the draws.

    Returns:
        Array of shape (contenders, draws + 1); column 0 is the means of the questions themselves.

    Raises:
        ValueError: there is no question.
    """
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or not table.shape[1]:
        raise ValueError(f"scores: expected rows of at least one question, got shape {table.shape}")
    count = table.shape[1]
    weights = draw_weights(count, np.random.default_rng(seed), draws)[1:]
    return np.hstack([table.mean(axis=1, keepdims=True), table @ weights.T / count])


def interval_of(drawn: Floats) -> Interval:
    """Return the interval of a figure whose first value is that of the questions themselves, and the others those of the draws."""
    low, high = np.quantile(drawn[1:], [0.025, 0.975])
    return Interval(float(drawn[0]), float(low), float(high))


def mean_interval(scores: Sequence[float], *, draws: int = DRAWS, seed: int = 1) -> Interval:
    """Return the mean of one contender's scores, with its interval.

    Raises:
        ValueError: there is no score.
    """
    return interval_of(resample([scores], draws=draws, seed=seed)[0])
