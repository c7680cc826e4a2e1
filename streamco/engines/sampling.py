"""From a row of logits to a token.

Temperature comes first, then top_k, top_p and min_p, as OpenAI, vLLM and transformers do it (llama.cpp's own chain divides by the
temperature last), so that both sides of a race understand the same numbers.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from streamco.config import SamplingOptions
from streamco.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Logits = NDArray[np.float32]

__all__ = ["MIN_P", "Sampler", "TEMPERATURE", "TOP_K", "TOP_P", "candidates", "top_probabilities"]

# llama.cpp's own defaults (common_params_sampling): small quantised models need them against their flat tails
TEMPERATURE = 0.8
TOP_K = 40
TOP_P = 0.95
MIN_P = 0.05


def candidates(
    logits: Logits, *, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The tokens that may be drawn and their probabilities, best first; they sum to 1.

    Args:
        logits: one row, float32, shape (vocabulary,).
        temperature: above 0.
        top_k: only this many best; 0: all.
        top_p: only the smallest set whose probability reaches this.
        min_p: only those at least this share of the best one's probability.

    Raises:
        EngineError: no logit is finite, or one is NaN.
    """
    import numpy as np

    size = logits.shape[0]
    ids = np.argpartition(logits, size - top_k)[size - top_k :] if 0 < top_k < size else np.arange(size)
    ids = ids[np.lexsort((ids, -logits[ids]))]
    scaled = logits[ids].astype(np.float64)
    if not np.isfinite(scaled[0]) or np.isnan(scaled[-1]):
        raise EngineError(f"logits: expected finite numbers, got {scaled[0]} as the largest")
    weights = np.exp((scaled - scaled[0]) / temperature)
    weights /= weights.sum()
    keep = size
    if top_p < 1.0:
        keep = int(np.searchsorted(np.cumsum(weights), top_p)) + 1
    if min_p > 0.0:
        keep = min(keep, int(np.searchsorted(-weights, -min_p * weights[0], side="right")))
    ids, weights = ids[: max(1, keep)], weights[: max(1, keep)]
    return ids, weights / weights.sum()


def top_probabilities(logits: Logits, count: int) -> tuple[tuple[int, float], ...]:
    """The ``count`` likeliest tokens with the model's own probabilities (temperature 1, nothing cut off), best first."""
    import numpy as np

    size = logits.shape[0]
    count = min(count, size)
    ids = np.argpartition(logits, size - count)[size - count :]
    ids = ids[np.lexsort((ids, -logits[ids]))]
    highest = logits[ids[0]]
    total = float(np.exp(logits - highest).sum(dtype=np.float64))
    return tuple((int(token), float(np.exp(np.float64(logits[token]) - highest)) / total) for token in ids)


class Sampler:
    """Draws one sequence's tokens; the same seed and the same logits give the same tokens.

    Temperature 0 (or ``top_k`` 1) is greedy: the first of the largest logits.
    """

    def __init__(self, options: SamplingOptions) -> None:
        self._temperature = TEMPERATURE if options.temperature is None else options.temperature
        self._top_k = TOP_K if options.top_k is None else options.top_k
        self._top_p = TOP_P if options.top_p is None else options.top_p
        self._min_p = MIN_P if options.min_p is None else options.min_p
        self._random = Random(options.seed)
        self.is_greedy = self._temperature == 0 or self._top_k == 1

    def draw(self, logits: Logits) -> int:
        """The next token.

        Raises:
            EngineError: the logits are not numbers.
        """
        if self.is_greedy:
            best = int(logits.argmax())
            if not abs(float(logits[best])) < float("inf"):
                raise EngineError(f"logits: expected finite numbers, got {logits[best]} as the largest")
            return best
        ids, weights = candidates(logits, temperature=self._temperature, top_k=self._top_k, top_p=self._top_p, min_p=self._min_p)
        at = int(weights.cumsum().searchsorted(self._random.random(), side="right"))
        return int(ids[min(at, len(ids) - 1)])
