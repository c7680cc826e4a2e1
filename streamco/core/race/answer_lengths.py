"""Estimates the remaining length of an answer in tokens, over a sliding window of answers (l_remaining of DiSCo equation 5).

Answers that the reader, a failure or ``max_tokens`` cut off are *right-censored*: they would have become longer. If they were dropped, or
counted as complete, answers would look shorter than they are, and long ones most of all. So the curve is estimated by the product-limit
method (``core.race.estimators``). The method needs cut-offs that are independent of the length the answer would have had.

A prior counts as a number of additional answers, distributed like the prior. It hardly matters at lengths that many answers of this client
have reached, and it alone decides beyond the longest of them. It would be wrong to make two curves and mix them: samples that were nearly
all cut off early would count as much for the tail as samples that were seen to their end.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import accumulate, pairwise

from streamco.core.race.estimators import product_limit
from streamco.errors import UsageError
from streamco.lazy_numpy import np
from streamco.profiles import RemainingLength

__all__ = ["QUANTILES", "TYPICAL", "AnswerLengths", "RemainingLength"]

QUANTILES = (
    (0, 7),
    (0.05, 39),
    (0.1, 50),
    (0.15, 60),
    (0.2, 71),
    (0.25, 80),
    (0.3, 87),
    (0.35, 92),
    (0.4, 97),
    (0.45, 104),
    (0.5, 115),
    (0.55, 134),
    (0.6, 159),
    (0.65, 193),
    (0.7, 375),
    (0.75, 393),
    (0.8, 397),
    (0.85, 410),
    (0.9, 421),
    (0.95, 447),
    (0.98, 538),
    (0.99, 598),
    (0.999, 939),
    (0.9995, 1000),
)
"""Quantiles of answer lengths, as pairs of a share of answers and the length in tokens that this share doesn't exceed.

``bench/data/make_answer_lengths.py`` made them from 13,828 answers of a conversation service, cut off at 1000 tokens.

Source: github.com/Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv, commit b469a113, November 2023, CC-BY 4.0 (Patel et al.,
"Splitwise: Efficient Generative LLM Inference Using Phase Splitting", ISCA 2024).
"""

_POINTS = 8  # equally likely lengths between two quantiles
_TAIL_STEPS = 20  # half an octave each, up to a million tokens


def _typical() -> RemainingLength:
    """Return the curve through the quantiles, interpolated linearly, with a Pareto tail of index 2 beyond 1000 tokens."""
    weights: dict[int, float] = {}
    for (share, tokens), (next_share, next_tokens) in pairwise(QUANTILES):
        for point in range(_POINTS):
            length = round(tokens + (next_tokens - tokens) * ((point + 0.5) / _POINTS))
            weights[length] = weights.get(length, 0.0) + (next_share - share) / _POINTS
    lengths = sorted(weights)
    survival = [1.0 - upto for upto in accumulate(weights[length] for length in lengths)]
    last_share, last = QUANTILES[-1]
    tail = [last * 2.0 ** (step / 2) for step in range(_TAIL_STEPS)]
    beyond = [(1.0 - last_share) * (last / length) ** 2 / math.sqrt(2.0) for length in tail]  # of each step's middle
    return RemainingLength((*lengths, *map(round, tail)), (*survival, *beyond))


TYPICAL = _typical()


class AnswerLengths:
    """Estimates remaining answer lengths from the latest answers, including answers that were cut off.

    Args:
        window: number of answers kept.
        prior: the curve to begin with; None for ``TYPICAL``.
        prior_weight: number of answers that the prior counts as.
    """

    def __init__(self, window: int = 1000, *, prior: RemainingLength | None = None, prior_weight: float = 20.0) -> None:
        self._prior = prior or TYPICAL
        self._prior_weight = prior_weight
        self._tokens: deque[int] = deque(maxlen=window)
        self._is_censored: deque[bool] = deque(maxlen=window)
        self._estimate: RemainingLength | None = None

    def __len__(self) -> int:
        return len(self._tokens)

    def observe(self, tokens: int, *, is_censored: bool = False) -> None:
        """Add the length of an answer. ``is_censored`` says that the answer was cut off at this length.

        Raises:
            UsageError: the length is below zero.
        """
        if tokens < 0:
            raise UsageError(f"answer length: expected tokens >= 0, got {tokens!r}")
        self._tokens.append(tokens)
        self._is_censored.append(is_censored)
        self._estimate = None

    def estimate(self) -> RemainingLength:
        """Return the current curve. It is computed again only after new answers (0.3 ms for 1000 answers)."""
        if self._estimate is None:
            self._estimate = self._make() if self._tokens else self._prior
        return self._estimate

    def remaining(self, position: float, *, limit: float | None = None) -> float:
        """Return how many more tokens to expect from an answer that has reached ``position``. ``limit`` is its ``max_tokens``."""
        return self.estimate().expected(position, limit)

    def _make(self) -> RemainingLength:
        tokens, was_censored = np.array(self._tokens, dtype=np.float64), np.array(self._is_censored)
        weights = np.ones(tokens.size)
        if self._prior_weight:
            steps = np.array(self._prior.lengths, dtype=np.float64)
            left = np.array(self._prior.survival)
            shares = np.append(-np.diff(left, prepend=1.0), left[-1])  # the rest counts as cut off at the end
            tokens = np.concatenate((tokens, steps, steps[-1:]))
            was_censored = np.concatenate((was_censored, np.zeros(steps.size, dtype=np.bool_), [True]))
            has_weight = np.append(np.ones(len(self), dtype=np.bool_), shares > 0)
            weights = np.append(weights, shares * self._prior_weight)
            tokens, was_censored, weights = tokens[has_weight], was_censored[has_weight], weights[has_weight]
        lengths, survival = product_limit(tokens, was_censored, weights)
        longest = tokens.max()
        if not lengths.size or longest > lengths[-1]:  # the longest were all cut off, so no end was seen beyond
            lengths, survival = np.append(lengths, longest), np.append(survival, survival[-1:] if survival.size else 1.0)
        return RemainingLength(tuple(lengths.astype(np.int64).tolist()), tuple(survival.tolist()))
