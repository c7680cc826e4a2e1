"""Offloading: which draft chunks are sent to the verifier (Synera section 4.2).

Confidence is the coarse filter: a chunk of which the draft model is confident isn't sent (P_conf, ``confidence_probability``). Importance
is the fine filter: a chunk to which later tokens pay attention is sent (P_imp, ``importance_probability``). A chunk is sent with
probability P_conf P_imp (figure 10).

The budget is the share of draft tokens that are sent. ``Offload.plan`` solves for the importance threshold i_th so that the mean of
P_conf P_imp over measured chunks is the budget. It deviates from the paper in these points:

- The paper takes i_th at a percentile of the importances alone. That misses the budget, because P_conf holds chunks back and the sigmoid
  lets chunks below i_th through.
- If even i_th = 0 sends too little, because P_conf holds too many chunks back, the confidence threshold c_th rises too. So the least
  confident chunks are sent first. The rule ``confidence`` moves only c_th, in both directions.
- Both probabilities have steps (at i_th / 2, at i_th and at c_th). The part of the budget that a step leaves over is spread equally over
  all chunks, as ``spill``.

The paper has no mechanism that keeps the actual share at the budget. ``OffloadSteering`` does this: it plans again over the latest chunks
and makes up for the difference so far.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from streamco.config import check_share
from streamco.errors import ConfigError

__all__ = ["Offload", "OffloadDecision", "OffloadRule", "OffloadSteering", "confidence_probability", "importance_probability"]
__all__ += ["is_past_exit"]

OffloadRule = Literal["combined", "confidence", "importance", "random"]
Floats = NDArray[np.float64]

CONFIDENCE_THRESHOLD = 0.8  # c_th without a profile; the paper's range is 0.7 to 1, and its figure 4 shows that chunks at 0.8 are safe
STEEPNESS = 10.0  # k of P_conf (section 4.2)
SLOPE = -10.0  # theta of P_imp (section 4.2)
EXIT = 0.8  # share of the longest answer after which nothing is offloaded (section 4.3)

_ROUNDS = 60  # of bisection; a plan over 256 chunks takes 2.5 ms
_FAR = 1e3  # c_th so far below 0 that P_conf is 0 for every confidence
_WINDOW = 256  # chunks over which the steering plans
_REFRESH = 16  # chunks between two plans
_HORIZON = 64  # chunks within which to make up for a debt
_SLACK = 8  # chunks by which the share may differ from the budget before the rules are overruled


def confidence_probability(confidence: ArrayLike, threshold: float, steepness: float = STEEPNESS) -> Floats:
    """Return P_conf: 1 up to c_th, then 1 / (1 + exp(k norm(c))) with norm(c) = (c - c_th) / (1 - c_th) - 1/2.

    Args:
        confidence: c, mean probability that the draft model gives the chunk's tokens, 0..1, any shape.
        threshold: c_th, at most 1.
        steepness: k, above 0.
    """
    values = np.asarray(confidence, dtype=np.float64)
    norm = (values - threshold) / max(1.0 - threshold, math.ulp(1.0)) - 0.5  # section 4.2, norm(c)
    return np.where(values <= threshold, 1.0, _sigmoid(steepness * norm))


def importance_probability(importance: ArrayLike, threshold: float, slope: float = SLOPE) -> Floats:
    """Return P_imp: 0 up to i_th / 2, 1 above i_th, between them 1 / (1 + exp(theta norm(i))).

    Here norm(i) = (i - i_th/2) / (i_th/2) - 1/2.

    Args:
        importance: i, mean importance of the chunk's tokens (``importance.chunk_importance``), 0 or more, any shape.
        threshold: i_th, 0 or more. inf means that nothing is important.
        slope: theta, below 0.
    """
    values = np.asarray(importance, dtype=np.float64)
    half = threshold / 2.0
    norm = np.minimum(values, threshold) / half - 1.5 if 0.0 < half < math.inf else np.zeros_like(values)  # norm(i)
    return np.where(values <= half, 0.0, np.where(values > threshold, 1.0, _sigmoid(slope * norm)))


def is_past_exit(position: int, max_tokens: int | None, budget: float, share: float = EXIT) -> bool:
    """Return True if the answer is so long that nothing more is offloaded: t > 0.8 max_len, the sequence-wise early exit (section 4.3).

    Args:
        position: t, number of tokens in the answer so far.
        max_tokens: max_len in tokens. None means no limit and so no exit.
        budget: share of draft tokens that are sent, 0..1. With 1 there is no exit.
        share: share of max_len after which nothing is offloaded, 0..1.
    """
    return budget < 1.0 and max_tokens is not None and position > share * max_tokens


class OffloadDecision(Struct, frozen=True):
    """The decision whether a chunk is sent to the verifier.

    Args:
        is_offloaded: True if the chunk is sent.
        probability: the chunk's probability of being sent, which is 1 or 0 if the decision was not random.
        reason: the reason in a few words, for the report.
    """

    is_offloaded: bool
    probability: float
    reason: str


class Offload(Struct, frozen=True, tag="offload"):
    """The rule of section 4.2, planned for a budget.

    Args:
        budget: share of draft tokens that are sent, 0..1. 1 sends everything without asking the filters, and 0 sends nothing.
        rule: ``combined`` is the paper's rule. The others are its ablations, planned for the same budget.
        confidence_threshold: c_th.
        importance_threshold: i_th.
        steepness, slope: k and theta.
        spill: probability of sending a chunk that the filters hold back, 0..1.
        planned_share: mean probability over the chunks of the plan.
    """

    budget: float
    rule: OffloadRule = "combined"
    confidence_threshold: float = CONFIDENCE_THRESHOLD
    importance_threshold: float = 0.0
    steepness: float = STEEPNESS
    slope: float = SLOPE
    spill: float = 0.0
    planned_share: float = 0.0

    @classmethod
    def plan(
        cls,
        confidences: ArrayLike,
        importances: ArrayLike | None,
        budget: float,
        *,
        rule: OffloadRule = "combined",
        confidence_threshold: float = CONFIDENCE_THRESHOLD,
        weights: ArrayLike | None = None,
        steepness: float = STEEPNESS,
        slope: float = SLOPE,
    ) -> Offload:
        """Solve for the thresholds with which the budget's share of these chunks is sent.

        Args:
            confidences: c of measured chunks, shape (chunks,).
            importances: i of the same chunks. If None, they weren't measured, and confidence decides alone.
            budget: share of draft tokens to send, 0..1.
            rule: the filters to use.
            confidence_threshold: c_th from the profile. The rule ``confidence`` solves for it instead.
            weights: number of tokens in each chunk, or None if all are equal.
            steepness: k.
            slope: theta.

        Raises:
            ConfigError: the budget is outside 0..1, c_th is above 1, k isn't above 0, theta isn't below 0, or the arrays' lengths differ.
        """
        check_share("budget", budget)
        if confidence_threshold > 1.0 or steepness <= 0.0 or slope >= 0.0:
            raise ConfigError(f"offload: expected c_th <= 1, k > 0 and theta < 0, got {confidence_threshold}, {steepness} and {slope}")
        sure = np.asarray(confidences, dtype=np.float64)
        if importances is None and rule != "random":
            rule = "confidence"
        important = np.zeros_like(sure) if importances is None else np.asarray(importances, dtype=np.float64)
        tokens = np.ones_like(sure) if weights is None else np.asarray(weights, dtype=np.float64)
        if sure.ndim != 1 or sure.shape != important.shape or sure.shape != tokens.shape:
            sizes = f"{important.shape}, {tokens.shape} and {sure.shape}"
            raise ConfigError(f"offload: expected as many importances and weights as confidences, got {sizes}")
        if rule == "random" or not sure.size or not 0.0 < budget < 1.0:
            return cls(budget, rule, confidence_threshold, steepness=steepness, slope=slope, spill=budget, planned_share=budget)
        tokens = tokens / tokens.sum()

        def share(c_th: float, i_th: float) -> float:
            passes = np.ones_like(sure)
            if rule != "importance":
                passes = confidence_probability(sure, c_th, _moved(steepness, confidence_threshold, c_th))
            if rule != "confidence":
                passes = passes * importance_probability(important, i_th, slope)
            return float((tokens * passes).sum())

        c_th, i_th = confidence_threshold, 0.0
        if rule != "confidence" and share(c_th, 0.0) >= budget:
            i_th = abs(_highest(lambda below: share(c_th, -below), -2.0 * float(important.max()) - 1.0, 0.0, budget))
        elif rule != "importance":
            c_th = _highest(lambda threshold: share(threshold, 0.0), -_FAR if rule == "confidence" else c_th, 1.0, budget)
        planned = share(c_th, i_th)
        spill = max(0.0, (budget - planned) / (1.0 - planned))
        return cls(budget, rule, c_th, i_th, _moved(steepness, confidence_threshold, c_th), slope, spill, budget)

    def decide(self, confidence: float, importance: float | None, rng: Random) -> OffloadDecision:
        """Decide whether a chunk is sent.

        Args:
            confidence: c of the chunk, 0..1.
            importance: i of the chunk. If None, it wasn't measured, and the chunk counts as important.
            rng: used once if the budget is neither 0 nor 1.
        """
        if self.budget >= 1.0:
            return OffloadDecision(True, 1.0, "budget 1")
        if self.budget <= 0.0:
            return OffloadDecision(False, 0.0, "budget 0")
        unsure, both = self._filters(confidence, importance)
        probability = self._spilled(both)
        draw = rng.random()
        if draw < both:
            return OffloadDecision(True, probability, "unsure and important")
        if draw < probability or self.rule == "random":
            return OffloadDecision(draw < probability, probability, "chance")
        return OffloadDecision(False, probability, "confident" if draw >= unsure else "unimportant")

    def probability(self, confidence: float, importance: float | None) -> float:
        """Return the probability that a chunk is sent."""
        if self.budget >= 1.0 or self.budget <= 0.0:
            return float(self.budget >= 1.0)
        return self._spilled(self._filters(confidence, importance)[1])

    def _filters(self, confidence: float, importance: float | None) -> tuple[float, float]:
        """Return P_conf and P_conf P_imp. A filter that the rule doesn't use passes every chunk. The rule ``random`` passes none."""
        if self.rule == "random":
            return 0.0, 0.0
        unsure = float(confidence_probability(confidence, self.confidence_threshold, self.steepness)) if self.rule != "importance" else 1.0
        if self.rule == "confidence" or importance is None:
            return unsure, unsure
        return unsure, unsure * float(importance_probability(importance, self.importance_threshold, self.slope))

    def _spilled(self, probability: float) -> float:
        return probability + (1.0 - probability) * self.spill


class OffloadSteering:
    """Decides for each drafted chunk whether it is sent for verification, so that the share of sent draft tokens meets the budget.

    Each pair of models has one object. Its *plan* has the thresholds of the filters (``Offload``). Its *debt* is the number of tokens that
    the budget has allowed so far minus the number sent. Every 16 chunks the plan is solved again over the latest 256 chunks, for a share
    that makes up for the debt within 64 chunks. If the debt would still exceed 8 chunks, because the text suddenly became easy, the debt
    alone decides. So after n tokens the number of sent tokens differs from n times the budget by at most 8 of the longest chunks. Chunks
    that could not be sent (``keep``) add to the debt too. Beyond 8 chunks that debt is forgiven, so that an answer that could send nothing
    doesn't make the next answer send everything.

    Args:
        budget: share of draft tokens that are sent, 0..1.
        rule: the filters to use.
        confidence_threshold: c_th from the profile.
        chunks: (confidence, importance) of measured chunks, oldest first, for the first plan. If empty, that plan is random.

    Attributes:
        tokens: number of draft tokens so far.
        offloaded_tokens: number of draft tokens that were sent.
        forgiven_tokens: number of tokens in the budget that could not be spent.
        plan: the current plan.

    Raises:
        ConfigError: the budget is outside 0..1.
    """

    def __init__(
        self,
        budget: float,
        *,
        rule: OffloadRule = "combined",
        confidence_threshold: float = CONFIDENCE_THRESHOLD,
        chunks: Iterable[tuple[float, float | None]] = (),
    ) -> None:
        check_share("budget", budget)
        self.budget = budget
        self.tokens = self.offloaded_tokens = 0
        self.forgiven_tokens = 0.0
        self._rule = rule
        self._confidence_threshold = confidence_threshold
        self._seen: deque[tuple[float, float | None, int]] = deque(((*chunk, 1) for chunk in chunks), maxlen=_WINDOW)
        self._largest = 1  # tokens of a chunk
        self._stale = 0
        self.plan = self._solve()

    @property
    def share(self) -> float:
        """Share of draft tokens that were actually sent, 0..1."""
        return self.offloaded_tokens / self.tokens if self.tokens else 0.0

    @property
    def debt(self) -> float:
        """Number of tokens by which the sent tokens are short of the budget. Below 0 if too many were sent."""
        return self.budget * self.tokens - self.offloaded_tokens - self.forgiven_tokens

    def decide(self, confidence: float, importance: float | None, tokens: int, rng: Random) -> OffloadDecision:
        """Decide whether a chunk is sent, and count it.

        Args:
            confidence: c of the chunk, 0..1.
            importance: i of the chunk, or None if not measured.
            tokens: number of the chunk's tokens, 1 or more.
            rng: used once if the budget is neither 0 nor 1, even if the debt then overrules the draw.

        Raises:
            ConfigError: the chunk has no tokens.
        """
        decision = self.plan.decide(confidence, importance, rng)
        self._count(tokens)
        if 0.0 < self.budget < 1.0:
            self._record(confidence, importance, tokens)
            limit = _SLACK * self._largest
            if decision.is_offloaded and self.debt - tokens < -limit:
                decision = OffloadDecision(False, 0.0, "ahead of the budget")
            elif not decision.is_offloaded and self.debt > limit:
                decision = OffloadDecision(True, 1.0, "behind the budget")
        self.offloaded_tokens += tokens if decision.is_offloaded else 0
        return decision

    def keep(self, tokens: int) -> None:
        """Count a chunk that can't be sent, whatever the rules say, because it comes after the early exit or there is no link.

        Raises:
            ConfigError: the chunk has no tokens.
        """
        self._count(tokens)
        self.forgiven_tokens += max(0.0, self.debt - _SLACK * self._largest)

    def withdraw(self, tokens: int) -> None:
        """Count a chunk as not sent after all, because it was refused or the link was lost."""
        self.offloaded_tokens -= tokens
        self.forgiven_tokens += max(0.0, self.debt - _SLACK * self._largest)

    def _count(self, tokens: int) -> None:
        if tokens < 1:
            raise ConfigError(f"offload steering: expected a chunk of at least 1 token, got {tokens}")
        self._largest = max(self._largest, tokens)
        self.tokens += tokens

    def _record(self, confidence: float, importance: float | None, tokens: int) -> None:
        self._seen.append((confidence, importance, tokens))
        self._stale += 1
        if self._stale >= _REFRESH or len(self._seen) < _REFRESH:
            self.plan = self._solve()

    def _solve(self) -> Offload:
        self._stale = 0
        aim = self.budget
        if 0.0 < self.budget < 1.0:
            aim = min(0.999, max(0.001, self.budget + self.debt / (_HORIZON * self._largest)))  # at 0 and 1 no filter would be used
        measured = [chunk for chunk in self._seen if chunk[1] is not None]
        has_importance = 2 * len(measured) > len(self._seen)
        chunks = measured if has_importance else list(self._seen)
        return Offload.plan(
            [chunk[0] for chunk in chunks],
            [chunk[1] or 0.0 for chunk in chunks] if has_importance else None,
            aim,
            rule=self._rule,
            confidence_threshold=self._confidence_threshold,
            weights=[chunk[2] for chunk in chunks],
        )


def _moved(steepness: float, profiled: float, threshold: float) -> float:
    """Return the k with which P_conf falls as fast as at the profiled c_th. A lower c_th would otherwise make it fall more slowly."""
    return steepness * (1.0 - threshold) / max(1.0 - profiled, 0.01) if threshold < profiled else steepness


def _sigmoid(exponent: Floats) -> Floats:
    """Return 1 / (1 + exp(x)), even if exp(x) overflows."""
    result: Floats = 1.0 / (1.0 + np.exp(np.minimum(exponent, 700.0)))
    return result


def _highest(share: Callable[[float], float], low: float, high: float, budget: float) -> float:
    """Return the highest argument at which an increasing function ``share`` is within the budget, or ``low`` if there is none."""
    if share(high) <= budget:
        return high
    for _ in range(_ROUNDS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if share(middle) <= budget else (low, middle)
    return low
