"""Verification: which draft tokens are accepted, and which token follows them.

There are three rules, and each gives a ``Verdict``:

- ``verify_greedy`` accepts the tokens that the target model would have chosen itself. The answer is the target's own, token for token.
- ``verify_sampled`` is speculative sampling (Leviathan et al., Chen et al., 2023; Synera figure 3). It accepts x with probability
  min(1, p(x) / q(x)), and draws the correction from max(0, p - q), normalised. The answer has the target's distribution p, whatever the
  draft's distribution q is.
- ``verify_threshold`` accepts tokens that the target finds good enough. It accepts more tokens, but the answer is no longer the target's.
  Selective mode uses it. No paper has this rule.

Only the likeliest ids of a distribution are sent. That changes nothing if no other ids could be drawn, as after top-k sampling.
``Verdict.is_exact`` says whether that was so.

The acceptance rate alpha follows from the mean number of tokens that a round gives (Synera section 5). DSD's equation 1 calls the same
number "accepted draft tokens", but that number includes the correction or bonus token, so it is 1 at alpha 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import IntEnum
from random import Random
from typing import Annotated, Protocol, assert_never

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import ArrayLike, NDArray

from streamco.config import check_share
from streamco.errors import ConfigError

__all__ = [
    "UNCHANGED",
    "Distribution",
    "Rule",
    "RuleKind",
    "TargetRow",
    "Verdict",
    "expected_tokens",
    "residual",
    "solve_acceptance",
    "verify",
    "verify_greedy",
    "verify_sampled",
    "verify_threshold",
]

_WHOLE = 1e-6  # how far a sum may be from 1 by rounding
_ROUNDS = 60  # of bisection

_Share = Annotated[float, Meta(ge=0, le=1)]
_Count = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]


class RuleKind(IntEnum):
    """The rule by which draft tokens are accepted."""

    GREEDY = 0
    SAMPLE = 1
    THRESHOLD = 2


class Rule(Struct, frozen=True, array_like=True):
    """How a session's drafts are verified, and how the token after them is sampled.

    ``GREEDY`` accepts a token if it is the target's likeliest. ``SAMPLE`` is speculative sampling against the distribution that the draft
    carries. ``THRESHOLD`` accepts a token if it is at least ``threshold`` times as likely as the target's best, which is also the
    correction.
    """

    kind: RuleKind = RuleKind.GREEDY
    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.0  # of the target's distribution, before the filters; above 0 for SAMPLE
    top_k: _Count = 0  # 0 for all
    top_p: _Share = 1.0
    min_p: _Share = 0.0
    threshold: _Share = 0.0
    seed: _Count | None = None  # if None, the server draws at random


UNCHANGED = Rule(RuleKind.SAMPLE, temperature=1.0)
"""The rule that leaves the model's distribution unchanged, with temperature 1 and nothing cut off."""


class Verdict(Struct, frozen=True):
    """The verdict on a draft.

    Args:
        accepted: number of draft tokens accepted, counted from the first.
        token: the token after them, which is the correction, or the bonus token if all are accepted.
        is_exact: True if the answer has the target's distribution, False if rows were cut or the rule is ``THRESHOLD``.
    """

    accepted: int
    token: int
    is_exact: bool = True


class Distribution:
    """The ids that may be drawn at one position, with their probabilities.

    Args:
        ids: distinct ids. None means the whole vocabulary in order, which needs no check (0.2 ms instead of 6 for 49,152 ids).
        probabilities: shares of the whole vocabulary, same shape as ``ids``. Their sum is below 1 if only the likeliest are known.

    Raises:
        ConfigError: there are no ids, an id occurs twice, the number of probabilities differs, a probability is negative, or their sum is 0
            or above 1.
    """

    __slots__ = ("ids", "is_whole", "probabilities")

    def __init__(self, ids: ArrayLike | None, probabilities: ArrayLike) -> None:
        self.probabilities: NDArray[np.float64] = np.asarray(probabilities, dtype=np.float64)
        self.ids: NDArray[np.int64] = np.arange(self.probabilities.size) if ids is None else np.asarray(ids, dtype=np.int64)
        if self.ids.ndim != 1 or not self.ids.size or self.ids.shape != self.probabilities.shape:
            raise ConfigError(f"distribution: expected as many probabilities as ids, got {self.probabilities.shape} and {self.ids.shape}")
        total = float(self.probabilities.sum())
        if not (self.probabilities >= 0.0).all() or not 0.0 < total <= 1.0 + _WHOLE:
            raise ConfigError(f"distribution: expected probabilities of 0 to 1 with a sum of at most 1, got a sum of {total}")
        if ids is not None and not np.diff(np.sort(self.ids)).all():
            raise ConfigError(f"distribution: expected different ids, got one twice among {self.ids.size}")
        self.is_whole = total >= 1.0 - _WHOLE

    def probability(self, token: int) -> float:
        """Return the probability of one id, or 0 if it isn't listed."""
        return float(self.probabilities[self.ids == token].sum())

    def reweighted(self, weights: NDArray[np.float64]) -> Distribution:
        """Return a distribution over the same ids in proportion to other weights. The ids aren't checked again, because that is slow.

        Args:
            weights: the same shape as ``ids``, 0 or more, with a sum above 0.
        """
        other = Distribution.__new__(Distribution)
        other.ids, other.probabilities, other.is_whole = self.ids, weights / weights.sum(), True
        return other

    def draw(self, rng: Random) -> int:
        """Return a random id, in proportion to the known probabilities."""
        return _draw(self.ids, self.probabilities, rng)

    @property
    def best(self) -> int:
        """The likeliest id, the first one among equals."""
        return int(self.ids[self.probabilities.argmax()])


class TargetRow(Protocol):
    """The target's logits at one position, in whatever form a verifier has them."""

    @property
    def best(self) -> int:
        """The target's likeliest id."""
        ...

    def distribution(self, rule: Rule, /) -> Distribution:
        """Return p, the target's distribution after the temperature and the filters of ``rule``."""
        ...


def verify(rule: Rule, draft: Sequence[int], drafted_from: Sequence[Distribution], rows: Sequence[TargetRow], rng: Random) -> Verdict:
    """Return the verdict that ``rule`` gives on a draft.

    Args:
        rule: how tokens are accepted.
        draft: ids, shape (window,).
        drafted_from: q at each position of the draft, shape (window,). Only ``SAMPLE`` reads it.
        rows: the target's row at each position of the draft and after it, shape (window + 1,).
        rng: random source for ``SAMPLE``. The other rules draw nothing.

    Raises:
        ConfigError: the shapes don't fit, or a draft token can't have been drawn from its q.
    """
    match rule.kind:
        case RuleKind.GREEDY:
            return verify_greedy(draft, [row.best for row in rows])
        case RuleKind.SAMPLE:
            return verify_sampled(draft, drafted_from, [row.distribution(rule) for row in rows], rng)
        case RuleKind.THRESHOLD:
            return verify_threshold(draft, [row.distribution(UNCHANGED) for row in rows], rule.threshold)
        case _ as never:
            assert_never(never)


def verify_greedy(draft: Sequence[int], choices: Sequence[int]) -> Verdict:
    """Accept tokens up to the first one that the target would not have chosen.

    Args:
        draft: ids, shape (window,).
        choices: the target's argmax at each position of the draft and after it, shape (window + 1,).

    Raises:
        ConfigError: the shapes don't fit.
    """
    _check_rows(draft, len(choices), "choices")
    accepted = next((position for position, token in enumerate(draft) if token != choices[position]), len(draft))
    return Verdict(accepted, choices[accepted])


def verify_sampled(
    draft: Sequence[int], drafted_from: Sequence[Distribution], target: Sequence[Distribution], rng: Random, *, bonus: int | None = None
) -> Verdict:
    """Accept tokens so that the answer has the target's distribution (Leviathan et al., 2023, algorithm 1).

    The result is exact if every row is whole. So q must be the distribution from which the draft was actually drawn (cut, rounded and
    normalised to 1 before the draw, not after it), and p must contain every id that the target could draw (its top_k within the ids that
    were sent). If a row of p is cut, the correction and the bonus token come only from the listed ids. If a row of q is cut, its missing
    ids count as 0 in the residual.

    Args:
        draft: ids, shape (window,).
        drafted_from: q at each position of the draft, shape (window,).
        target: p at each position and after the draft, shape (window + 1,), or (window,) with ``bonus``.
        rng: used once for each token that is neither certain nor impossible, and once for the correction or bonus token.
        bonus: token that the target itself drew after the draft. If None, it is drawn here.

    Raises:
        ConfigError: the shapes don't fit, or a draft token can't have been drawn from its q.
    """
    if len(drafted_from) != len(draft):
        raise ConfigError(f"verdict: expected a distribution for each of {len(draft)} draft tokens, got {len(drafted_from)}")
    _check_rows(draft, len(target) + (bonus is not None), "target distributions, the bonus counted")
    is_exact = all(row.is_whole for row in (*drafted_from, *target))
    for position, token in enumerate(draft):
        wanted, offered = target[position].probability(token), drafted_from[position].probability(token)
        if offered <= 0.0:
            raise ConfigError(f"verdict: expected draft token {position} to be in its distribution, got id {token} with probability 0")
        # Accept x with probability min(1, p(x) / q(x)).
        if wanted < offered and (wanted <= 0.0 or rng.random() >= wanted / offered):
            return Verdict(position, _correct(target[position], drafted_from[position], token, rng), is_exact)
    return Verdict(len(draft), target[-1].draw(rng) if bonus is None else bonus, is_exact)


def verify_threshold(draft: Sequence[int], target: Sequence[Distribution], threshold: float) -> Verdict:
    """Accept tokens that are at least ``threshold`` times as likely as the target's best token, which is also the correction.

    The papers have no such rule. It follows min-p sampling: because it compares with the best token, it is lenient where many words fit.
    With threshold 1 it is ``verify_greedy`` except for ties, and with 0 it accepts everything.

    Args:
        draft: ids, shape (window,).
        target: p at each position and after the draft, shape (window + 1,). An id that isn't listed has probability 0.
        threshold: 0..1.

    Raises:
        ConfigError: the shapes don't fit, or the threshold is outside 0..1.
    """
    check_share("threshold", threshold)
    _check_rows(draft, len(target), "target distributions")
    for position, token in enumerate(draft):
        row = target[position]
        if row.probability(token) < threshold * float(row.probabilities.max()):
            return Verdict(position, row.best, is_exact=False)
    return Verdict(len(draft), target[-1].best, is_exact=False)


def expected_tokens(acceptance: float, window: int) -> float:
    """Return the mean number of tokens that a round gives, with the correction or bonus token: E = (1 - alpha^(gamma + 1)) / (1 - alpha).

    Source: Synera section 5, DSD equation 1. The sum form below is also defined at alpha 1.

    Args:
        acceptance: alpha, 0..1.
        window: gamma, number of draft tokens, 0 or more.
    """
    return math.fsum(acceptance**position for position in range(window + 1))


def solve_acceptance(rounds: Iterable[tuple[int, int]]) -> float | None:
    """Estimate alpha from past rounds: the rate at which these windows are expected to yield as many tokens as they did.

    Args:
        rounds: (window, tokens) of each round: how many tokens it drafted, and how many it gave with the correction or bonus token.

    Returns:
        alpha, 0..1, or None if no round drafted anything.

    Raises:
        ConfigError: a round gave fewer than 1 or more than window + 1 tokens.
    """
    counts: dict[int, int] = {}
    tokens = 0
    for window, given in rounds:
        if not 1 <= given <= window + 1:
            raise ConfigError(f"acceptance: expected rounds of 1 to window + 1 tokens, got {given} from a window of {window}")
        if window:
            counts[window] = counts.get(window, 0) + 1
            tokens += given
    if not counts:
        return None
    low, high = 0.0, 1.0
    for _ in range(_ROUNDS):
        middle = (low + high) / 2.0
        is_low = sum(count * expected_tokens(middle, window) for window, count in counts.items()) < tokens
        low, high = (middle, high) if is_low else (low, middle)
    return (low + high) / 2.0


def _check_rows(draft: Sequence[int], rows: int, name: str) -> None:
    if rows != len(draft) + 1:
        raise ConfigError(f"verdict: expected {len(draft) + 1} {name} for {len(draft)} draft tokens, got {rows}")


def residual(target: Distribution, drafted_from: Distribution, rejected: int) -> Distribution | None:
    """Return max(0, p - q), normalised, from which the correction is drawn after ``rejected`` was rejected, or None if nothing is left.

    Args:
        target: p, the target's distribution.
        drafted_from: q, from which the rejected token was drawn.
        rejected: a token with p < q, which therefore can't be drawn.
    """
    order = np.argsort(drafted_from.ids)
    shared = np.flatnonzero(np.isin(target.ids, drafted_from.ids))
    left = target.probabilities.copy()
    left[shared] -= drafted_from.probabilities[order[np.searchsorted(drafted_from.ids, target.ids[shared], sorter=order)]]
    left = np.maximum(left, 0.0)
    if left.sum() <= 0.0:  # p was cut, and is below q at every id that both list
        left = np.where(target.ids == rejected, 0.0, target.probabilities)
    return target.reweighted(left) if left.sum() > 0.0 else None


def _correct(target: Distribution, drafted_from: Distribution, rejected: int, rng: Random) -> int:
    left = residual(target, drafted_from, rejected)
    return target.best if left is None else left.draw(rng)


def _draw(ids: NDArray[np.int64], weights: NDArray[np.float64], rng: Random) -> int:
    sums = weights.cumsum()
    return int(ids[min(int(sums.searchsorted(rng.random() * sums[-1], side="right")), ids.size - 1)])
