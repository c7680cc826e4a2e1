"""Draws a token from a row of logits.

Temperature comes first, then top_k, top_p and min_p, as in OpenAI, vLLM and transformers. So the same numbers mean the same thing on both
sides of a race. llama.cpp's own chain divides by the temperature last.

From 49,152 logits, the compiled extension draws a token in 12 us (29 us without top_k) and lists the likeliest in 21 us. Without it numpy
is used, which takes 53, 830 and 70 us. The extension's Python twin takes 13 ms and is only there to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from streamco import _native
from streamco.config import SamplingOptions
from streamco.errors import ConfigError, EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Logits = NDArray[np.float32]

__all__ = ["MAX_TOP_K", "MIN_P", "MIN_TOP_P", "Constraint", "Sampler", "TEMPERATURE", "TOP_K", "TOP_P", "candidates", "top_probabilities"]

# llama.cpp's defaults (common_params_sampling), which small quantised models need against their flat tails
TEMPERATURE = 0.8
TOP_K = 40
TOP_P = 0.95
MIN_P = 0.05

MAX_PENALTY = 2.0  # as in OpenAI's API
MAX_BIAS = 100.0  # as in OpenAI's API; -100 and 100 forbid and force a token
NEAR = 64  # tokens that are tried before all are, which takes about 0.04 ms
MAX_TOP_K = (1 << 31) - 1  # the leaf takes a C int; no vocabulary is that large
MIN_TOP_P = 1e-9  # the first token alone reaches it


def candidates(
    logits: Logits, *, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the tokens that may be drawn, best first, and their probabilities, which sum to 1.

    Args:
        logits: one row, float32, shape (vocabulary,).
        temperature: above 0.
        top_k: number of best tokens that are kept; 0 for all.
        top_p: keep only as many of the likeliest tokens as it takes for their probabilities to add up to this.
        min_p: keep only tokens whose probability is at least this share of the best token's.

    Raises:
        EngineError: the logits are not numbers.
    """
    import numpy as np

    size = logits.shape[0]
    best = _highest(logits)
    if 0 < top_k < size:
        ids = _largest(logits, best, top_k)
    elif min_p > 0.0 and top_p >= 1.0:
        # this float32 comparison keeps slightly too many; the exact one follows below
        ids = _sorted(logits, np.flatnonzero(logits >= best + temperature * np.log(min_p) - 0.01))
    else:
        ids = np.arange(size)
    weights = np.exp((logits[ids].astype(np.float64) - best) / temperature)
    weights /= weights.sum()
    if len(ids) == size:
        order = _nucleus(weights, top_p)
        ids, weights = ids[order], weights[order]
    keep = len(ids)
    if top_p < 1.0:
        keep = int(np.searchsorted(np.cumsum(weights), top_p)) + 1
    if min_p > 0.0:
        keep = min(keep, int(np.searchsorted(-weights, -min_p * weights[0], side="right")))
    ids, weights = ids[: max(1, keep)], weights[: max(1, keep)]
    return ids, weights / weights.sum()


def _highest(logits: Logits) -> float:
    best = float(logits.max())  # NaN if any of them is
    if not abs(best) < float("inf"):
        raise EngineError(f"logits: expected finite numbers, got {best} as the largest")
    return best


def _largest(logits: Logits, best: float, count: int) -> NDArray[np.int64]:
    """Return the ids of the ``count`` largest logits, largest first, equal ones by id.

    Partitioning the whole row takes 0.4 ms; finding the few that are close to the best one takes a fifteenth of that.
    """
    import numpy as np

    for reach in (4.0, 8.0, 16.0):
        near = np.flatnonzero(logits >= best - reach)
        if len(near) >= count:
            break
    else:
        near = np.arange(logits.shape[0])
    values = logits[near]
    if len(near) > count:
        minimum = np.partition(values, len(near) - count)[len(near) - count]
        near = near[values >= minimum]
    return _sorted(logits, near)[:count]


def _nucleus(weights: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Return the likeliest indices that together reach ``top_p``, likeliest first. Sorting only candidates saves up to 5 ms."""
    import numpy as np

    best = weights.max()
    for share in (1e-2, 1e-4, 1e-6, 0.0) if top_p < 1.0 else (0.0,):
        near = np.flatnonzero(weights >= share * best)
        if weights[near].sum() >= top_p:
            break
    ordered: NDArray[np.int64] = near[np.argsort(-weights[near], kind="stable")]
    return ordered


def _sorted(logits: Logits, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    import numpy as np

    ordered: NDArray[np.int64] = ids[np.argsort(-logits[ids], kind="stable")]  # ids are in ascending order, which equal logits keep
    return ordered


def top_probabilities(logits: Logits, count: int, token: int | None = None) -> tuple[tuple[int, float], ...]:
    """Return the ``count`` likeliest tokens with the model's own probabilities (temperature 1, nothing cut off), best first.

    Args:
        logits: one row, float32, shape (vocabulary,).
        count: number of tokens.
        token: added after them if it isn't among them; None to add none.

    Raises:
        EngineError: the logits are not numbers.
    """
    top = _likeliest(logits, count)
    if token is None or any(token == each for each, _ in top):
        return top
    best, highest = top[0]
    return (*top, (token, highest * exp(float(logits[token]) - float(logits[best]))))


def _likeliest(logits: Logits, count: int) -> tuple[tuple[int, float], ...]:
    import numpy as np

    best = _highest(logits)
    if _native.HAS_NATIVE:
        return _native.top_k(logits, count)
    ids = _largest(logits, best, min(count, logits.shape[0]))
    shares = np.exp(logits[ids].astype(np.float64) - best) / float(np.exp(logits - np.float32(best)).sum(dtype=np.float64))
    return tuple((token, share) for token, share in zip(ids.tolist(), shares.tolist(), strict=True) if share > 0)


class Adjustments:
    """Applies one answer's penalties and biases to its logits, as in OpenAI's API, where tokens of the prompt don't count.

    Source: OpenAI API reference, chat/create; logit -= count * frequency_penalty + (count > 0) * presence_penalty.
    """

    def __init__(self, options: SamplingOptions) -> None:
        self._frequency = options.frequency_penalty or 0.0
        self._presence = options.presence_penalty or 0.0
        self._biases = dict(options.logit_bias)
        self._counts: dict[int, int] = {}

    def apply(self, logits: Logits) -> Logits:
        """Return a changed copy of the row; the engine's row stays as it is.

        Raises:
            EngineError: a bias is for a token that the vocabulary doesn't have.
        """
        adjusted = logits.copy()
        for token, bias in self._biases.items():
            if not 0 <= token < len(logits):
                raise EngineError(f"logit_bias: expected token ids below {len(logits)}, got {token}")
            adjusted[token] += bias
        for token, count in self._counts.items():
            adjusted[token] -= count * self._frequency + self._presence
        return adjusted

    def record(self, token: int) -> None:
        """Count a token that was drawn."""
        if self._frequency or self._presence:
            self._counts[token] = self._counts.get(token, 0) + 1


class Constraint(Protocol):
    """The tokens that may come next in one text (``llamacpp.grammar.TokenGrammar``)."""

    def fits(self, ids: NDArray[np.integer[Any]], /) -> NDArray[np.bool_]:
        """Return an array that says for each token whether it may come next."""
        ...

    def allowed(self) -> NDArray[np.integer[Any]]:
        """Return all tokens that may come next, in ascending order."""
        ...

    def accept(self, token: int, /) -> None:
        """Add a token that fits."""
        ...

    @property
    def is_over(self) -> bool:
        """True if only an end token may follow."""
        ...


class Sampler:
    """Draws the tokens of one sequence; the same seed and the same logits give the same tokens.

    Temperature 0 (or ``top_k`` 1) is greedy: it chooses the largest logit, or the first of several equal ones.

    With a constraint, tokens are drawn as if every token that doesn't fit had a logit of -inf. Usually it is enough to check the likeliest
    tokens; otherwise the whole row is checked.

    Args:
        options: how tokens are drawn.
        constraint: the tokens that may be drawn; None for all.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(self, options: SamplingOptions, constraint: Constraint | None = None) -> None:
        _check(options)
        self._constraint = constraint
        self._temperature = TEMPERATURE if options.temperature is None else options.temperature
        self._top_k = TOP_K if options.top_k is None else max(0, options.top_k)
        self._top_p = TOP_P if options.top_p is None else options.top_p
        self._min_p = MIN_P if options.min_p is None else options.min_p
        self._rng = Random(options.fixed_seed)
        self._adjustments = Adjustments(options) if options.adjustments() else None
        self.is_greedy = self._temperature == 0 or self._top_k == 1

    def draw(self, logits: Logits) -> int:
        """Return the next token.

        Raises:
            EngineError: the logits are not numbers.
        """
        adjustments, constraint = self._adjustments, self._constraint
        row = logits if adjustments is None else adjustments.apply(logits)
        token = self._draw(row) if constraint is None else self._draw_fitting(row, constraint)
        if adjustments is not None:
            adjustments.record(token)
        if constraint is not None:
            constraint.accept(token)
        return token

    @property
    def is_over(self) -> bool:
        """True if the constraint lets only an end token follow."""
        return self._constraint is not None and self._constraint.is_over

    def _draw_fitting(self, logits: Logits, constraint: Constraint) -> int:
        import numpy as np

        count = 1 if self.is_greedy else self._top_k
        likely = _largest(logits, _highest(logits), min(max(NEAR, 2 * count), len(logits)))
        ids: NDArray[np.integer[Any]] = likely[constraint.fits(likely)]
        if not 0 < count <= len(ids):  # less likely tokens may be drawn as well
            ids = constraint.allowed()
        masked = np.full_like(logits, -np.inf)
        masked[ids] = logits[ids]
        if not len(ids) or not (masked > -np.inf).any():
            raise EngineError("response_format: expected a token that fits, got none in this vocabulary")
        return self._draw(masked)

    def _draw(self, logits: Logits) -> int:
        if self.is_greedy:
            best = int(logits.argmax())
            _highest(logits[best : best + 1])
            return best
        if _native.HAS_NATIVE:
            _highest(logits)
            return _native.sample_row(logits, self._temperature, self._top_k, self._top_p, self._min_p, self._rng.random())
        return self.draw_from(*self._candidates(logits))

    def distribution(self, logits: Logits) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the tokens that may be drawn, best first, and their probabilities; only one token when greedy.

        Raises:
            EngineError: the logits are not numbers.
        """
        import numpy as np

        if self._adjustments is not None:
            raise AssertionError("penalties depend on what was drawn before, which a distribution does not record")
        if self.is_greedy:
            return np.array([self._draw(logits)]), np.ones(1)
        return self._candidates(logits)

    def _candidates(self, logits: Logits) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return candidates(logits, temperature=self._temperature, top_k=self._top_k, top_p=self._top_p, min_p=self._min_p)

    def draw_from(self, ids: NDArray[np.int64], weights: NDArray[np.float64]) -> int:
        """Return the next token, drawn from the ids and probabilities that ``distribution`` returned."""
        if self.is_greedy:
            return int(ids[0])
        index = int(weights.cumsum().searchsorted(self._rng.random(), side="right"))
        last = int(weights.nonzero()[0][-1])  # rounding may leave the sum below the random number
        return int(ids[min(index, last)])

    def draw_weighted(self, ids: Sequence[int], weights: Sequence[int]) -> int:
        """Return the next token, drawn with whole numbers as weights, so that its distribution is exact."""
        left = self._rng.randrange(sum(weights))
        for token, weight in zip(ids, weights, strict=True):
            left -= weight
            if left < 0:
                return token
        raise AssertionError("the random number is below the sum of the weights")


def _check(options: SamplingOptions) -> None:
    endless = float("inf")
    ranges = (
        ("temperature", options.temperature, 0.0, endless, "at least 0"),
        ("top_k", options.top_k, -1, MAX_TOP_K, f"from -1 to {MAX_TOP_K} (0 and -1: all)"),
        ("top_p", options.top_p, MIN_TOP_P, 1.0, f"from {MIN_TOP_P} to 1"),
        ("min_p", options.min_p, 0.0, 1.0, "from 0 to 1"),
        ("max_tokens", options.max_tokens, 0, endless, "at least 0"),
        ("frequency_penalty", options.frequency_penalty, -MAX_PENALTY, MAX_PENALTY, "from -2 to 2"),
        ("presence_penalty", options.presence_penalty, -MAX_PENALTY, MAX_PENALTY, "from -2 to 2"),
        *((f"logit_bias: token {token}", bias, -MAX_BIAS, MAX_BIAS, "from -100 to 100") for token, bias in options.logit_bias),
    )
    for name, value, minimum, maximum, wanted in ranges:
        if value is not None and (not minimum <= value <= maximum or value == endless):
            raise ConfigError(f"{name}: expected None or a number {wanted}, got {value}")
