"""Language models without weights for simulations and tests, as functions from the tokens so far to the probabilities of the next one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from random import Random

__all__ = ["DeterministicModel", "FakeDistribution", "TokenModel", "choose_token"]

TokenModel = Callable[[Sequence[int]], Mapping[int, float]]
"""Function from the ids so far to the ids that may come next, with their probabilities. All other ids share the rest of the probability."""


class FakeDistribution:
    """A model whose distributions are drawn from a seed, one for each pair of last ids.

    Two models with the same ``seed`` and different ``noise`` are a target and a draft model: the more noise, the less they agree.

    Args:
        seed: determines the distributions.
        size: ids go from 0 to ``size - 1``.
        noise: standard deviation of the noise that is added to the logits, or 0 for no noise.
        spread: standard deviation of the logits; the larger, the more confident the model.
    """

    def __init__(self, seed: int, size: int, *, noise: float = 0.0, spread: float = 2.0) -> None:
        self._seed = seed
        self._size = size
        self._noise = noise
        self._spread = spread

    def __call__(self, ids: Sequence[int]) -> dict[int, float]:
        """Return the distribution of the token after these ids."""
        key = f"{self._seed} {list(ids[-2:])}"
        rng, noise = Random(key), Random(f"noise {key}")
        logits = [self._spread * rng.gauss(0, 1) + self._noise * noise.gauss(0, 1) for _ in range(self._size)]
        weights = [math.exp(logit) for logit in logits]
        return {token: weight / sum(weights) for token, weight in enumerate(weights)}


class DeterministicModel:
    """A model that gives all probability to one token, which follows from the position, the token before it and the seed.

    Attributes:
        next_token: returns the token for (number of ids so far, last id or 0). A draft model can use it to agree or disagree on purpose.
    """

    def __init__(self, seed: int) -> None:
        @cache
        def next_token(length: int, last: int) -> int:
            return Random(f"{seed} {length} {last}").randrange(1, 1000)

        self.next_token = next_token

    def __call__(self, ids: Sequence[int]) -> Mapping[int, float]:
        """Return the next token with probability 1."""
        return {self.next_token(len(ids), ids[-1] if ids else 0): 1.0}


def choose_token(distribution: Mapping[int, float], rng: Random | None) -> int:
    """Return a token drawn from a distribution or, without ``rng``, the likeliest token (the lowest one if several are equal)."""
    if rng is None:
        return max(distribution, key=lambda token: (distribution[token], -token))
    return rng.choices(list(distribution), list(distribution.values()))[0]
