"""Optimal dispatch, which is not in the paper. It is the bound against which the paper's rules (DiSCo section 4.2) are measured.

For each prompt length, the wait minimises E[TTFT] + mu * cost. There is one price mu for all lengths, found by bisection so that the
expected cost meets the budget. At that price two sets of waits are equally good, one just below the budget and one just above. A random
choice between them spends the whole budget. That is the optimum of the linear program over all (randomised) waits, so no rule that knows
the same distributions does better on them.

Let E[min(T, x)] = G(x) be the area below the server's survival curve up to x, d the device's time, and w the wait of the side that joins:

- If the device joins, E[min(T, w + d)] = G(w + d), and it starts with probability P(T > w). Only the steps of the curve can be optimal.
- If the server joins, E[min(d, w + T)] = min(w, d) + G(d - w), and it starts with probability P(d > w). Only 0 and the steps of d can be
  optimal, so if the device has no jitter, the server starts at once or never.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from msgspec import Struct

from streamco.config import check_share
from streamco.errors import ConfigError
from streamco.lazy_numpy import np
from streamco.policies.dispatch import Decision, Outcomes, Side
from streamco.profiles import DeviceSpeed, LengthDistribution, TTFTDistribution

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Choice = NDArray[np.int64]  # the index of a candidate for each length

__all__ = ["Optimal"]

_NEVER = 60.0  # seconds that an unanswered request counts as, the default limit on first tokens
_TAIL = 0.01  # tail_weight weighs the mean of the slowest hundredth
_LEVELS = 9  # of each grid
_ROUNDS = 60  # of bisection, after which the price is exact to the last bit


class Optimal(Struct, frozen=True, tag="optimal"):
    """A plan of the optimal policy.

    Args:
        constrained: the side that starts after a wait. The other side starts at once.
        limits: prompt lengths in tokens, ascending. Each is the greatest length for which the corresponding waits are used, but the last
            waits are also used for longer prompts.
        waits: the set of waits below the budget, in seconds. With None the side starts only if the other side fails.
        costlier_waits: the set of waits above the budget, in seconds.
        costlier_share: probability of that set, 0..1.
        planned_share: expected share of all prompt tokens that the constrained side processes.
        planned_ttft: expected time to first token on the plan's own distributions, in seconds.
    """

    constrained: Side
    limits: tuple[int, ...]
    waits: tuple[float | None, ...]
    costlier_waits: tuple[float | None, ...]
    costlier_share: float
    planned_share: float
    planned_ttft: float

    @property
    def name(self) -> str:
        """Name of the policy, ``optimal``."""
        return "optimal"

    @classmethod
    def plan(
        cls,
        ttft: TTFTDistribution,
        lengths: LengthDistribution,
        device: DeviceSpeed,
        budget: float,
        *,
        constraint: Side,
        tail_weight: float = 0.0,
        candidates: int = 256,
        groups: int = 256,
    ) -> Optimal:
        """Make the plan for one server, one device and one kind of prompt.

        Args:
            ttft: distribution of the server's time to first token T.
            lengths: distribution of prompt lengths.
            device: the device's speed.
            budget: b, share of prompt tokens that the constrained side may process, 0..1.
            constraint: the constrained side.
            tail_weight: weight of the mean of the slowest hundredth, relative to the mean of all, 0 or more.
            candidates: maximum number of waits to try. The result is exact if the curve has no more steps than this.
            groups: maximum number of groups of lengths. The result is exact if there are no more lengths than this.

        Raises:
            ConfigError: a share is outside 0..1, or the weight is negative.
        """
        check_share("budget", budget)
        if not tail_weight >= 0:
            raise ConfigError(f"tail weight: expected >= 0, got {tail_weight!r}")
        lengths = lengths.group(groups)
        times = np.multiply.outer(device.seconds_per_token * lengths.lengths + device.overhead, np.array(device.jitter))
        table = _device_joins(ttft, times, candidates) if constraint == "device" else _server_joins(ttft, times)
        costs = table.starts * lengths.token_shares
        low, high, share = _choose_waits(table, lengths.probabilities, costs, budget, tail_weight)
        rows = np.arange(lengths.lengths.size)
        mean = table.mean * lengths.probabilities
        waits = [tuple(_wait(value) if budget else None for value in table.waits[chosen, rows].tolist()) for chosen in (low, high)]
        planned = [_mix(values, rows, low, high, share) for values in (costs, mean)]
        return cls(constraint, tuple(lengths.lengths.tolist()), waits[0], waits[1], share, planned[0], planned[1])

    def outcomes(self, length: int) -> Outcomes:
        """Return the only decision for this prompt length, or the two from which ``decide`` draws."""
        index = min(bisect_left(self.limits, length), len(self.limits) - 1)
        low, high = self.waits[index], self.costlier_waits[index]
        if low == high:
            return ((1.0, self._decision(low)),)
        return ((1.0 - self.costlier_share, self._decision(low)), (self.costlier_share, self._decision(high)))

    def decide(self, length: int, rng: Random) -> Decision:
        """Return a decision for this prompt length. ``rng`` is used only if the two sets of waits differ here."""
        index = min(bisect_left(self.limits, length), len(self.limits) - 1)
        low, high = self.waits[index], self.costlier_waits[index]
        return self._decision(high if low != high and rng.random() < self.costlier_share else low)

    def _decision(self, wait: float | None) -> Decision:
        if self.constrained == "device":
            reason = "server first" if wait is None else f"server first, device after {wait:.3f} s"
            return Decision(wait, 0.0, "optimal", reason)
        reason = "device alone" if wait is None else f"device first, server after {wait:.3f} s"
        return Decision(0.0, wait, "optimal", reason)


class _Table:
    """The effects of each candidate wait for each length, as arrays of shape (candidates, lengths).

    Args:
        waits: waits in seconds, or inf to never start.
        starts: probability that the waiting side is started.
        expected: function from a limit in seconds to E[min(TTFT, limit)] in seconds.
        levels: possible times to first token in seconds.

    Attributes:
        mean: E[TTFT] in seconds.
    """

    def __init__(self, waits: Floats, starts: Floats, expected: Callable[[float], Floats], levels: Floats) -> None:
        self.waits = waits
        self.starts = starts
        self.expected = expected
        self.mean = expected(math.inf)
        self.levels = levels


def _device_joins(ttft: TTFTDistribution, times: Floats, candidates: int) -> _Table:
    """Return the table for waits at the steps of the server's curve. ``times`` are the device's times, shape (lengths, jitter)."""
    curve = ttft.compress(candidates)
    waits = np.unique(np.concatenate(([0.0], curve.times)))
    starts = np.array([ttft.survival_at(wait) for wait in waits])
    if starts[-1] > 0:
        waits, starts = np.append(waits, math.inf), np.append(starts, 0.0)
    max_time = max(_NEVER, float(ttft.times[-1]))
    answered = waits[:, None, None] + times[None, :, :]

    def expected(limit: float) -> Floats:
        mean: Floats = ttft.mean_within(np.minimum(answered, min(limit, max_time))).mean(axis=2)
        return mean

    shape = (waits.size, times.shape[0])
    return _Table(np.broadcast_to(waits[:, None], shape), np.broadcast_to(starts[:, None], shape), expected, curve.times)


def _server_joins(ttft: TTFTDistribution, times: Floats) -> _Table:
    """Return the table for a wait of 0 and waits of each of the device's equally likely times. The last wait never starts the server."""
    ordered = np.sort(times, axis=1)
    waits = np.vstack([np.zeros(times.shape[0]), ordered.T])
    starts = (ordered[None, :, :] > waits[:, :, None]).mean(axis=2)

    def expected(limit: float) -> Floats:
        wait, device = waits[:, :, None], ordered[None, :, :]
        alone = np.minimum(np.minimum(wait, device), limit)
        mean: Floats = (alone + ttft.mean_within(np.maximum(np.minimum(device, limit) - wait, 0.0))).mean(axis=2)
        return mean

    return _Table(np.where(starts > 0, waits, math.inf), starts, expected, np.concatenate((ttft.times, times.ravel())))


def _choose_waits(table: _Table, weights: Floats, costs: Floats, budget: float, tail_weight: float) -> tuple[Choice, Choice, float]:
    """Return the two sets of waits and the probability of the costlier set.

    With a tail weight, the mean of the slowest share s is min over q of q + E[(TTFT - q)+] / s (Rockafellar and Uryasev 2000). So every q
    gives a problem without a tail. A coarse grid of q is tried first, and then a fine grid around the best q.
    """
    mean = table.mean
    best = _solve(mean * weights, costs, budget)
    if not tail_weight:
        return best
    rows = np.arange(weights.size)

    def weigh(level: float) -> tuple[float, tuple[Choice, Choice, float]]:
        values = (mean + tail_weight * (level + (mean - table.expected(level)) / _TAIL)) * weights
        chosen = _solve(values, costs, budget)
        return min(((_mix(values, rows, *choice), choice) for choice in (chosen, best)), key=lambda pair: pair[0])

    levels = np.quantile(table.levels, np.linspace(0.5, 1.0, _LEVELS))
    coarse = [weigh(level) for level in levels.tolist()]
    position = min(range(_LEVELS), key=lambda index: coarse[index][0])
    around = np.linspace(levels[max(0, position - 1)], levels[min(position + 1, _LEVELS - 1)], _LEVELS)
    return min([*coarse, *(weigh(level) for level in around.tolist())], key=lambda pair: pair[0])[1]


def _mix(values: Floats, rows: Choice, low: Choice, high: Choice, share: float) -> float:
    """Return the expected sum of values if the second choice is taken with probability ``share``."""
    return float((1 - share) * values[low, rows].sum() + share * values[high, rows].sum())


def _solve(values: Floats, costs: Floats, budget: float) -> tuple[Choice, Choice, float]:
    """Choose one candidate for each length so that the sum of values is lowest and the expected sum of costs equals the budget.

    The result is a set within the budget, a set above it, and the probability of the second set. The cheapest candidates cost nothing.
    """
    rows = np.arange(values.shape[1])

    def choose(price: float) -> tuple[Choice, float]:
        chosen: Choice = np.argmin(values + price * costs, axis=0).astype(np.int64)
        return chosen, float(costs[chosen, rows].sum())

    cheapest = np.argmin(costs, axis=0).astype(np.int64)
    low, low_cost = cheapest, float(costs[cheapest, rows].sum())
    high, high_cost = choose(0.0)
    if high_cost <= budget:
        return high, high, 0.0
    below, above = 0.0, 1.0
    while (found := choose(above))[1] > budget and above < 1e18:
        below, above = above, above * 4.0
    if found[1] <= budget:
        low, low_cost = found
    for _ in range(_ROUNDS):
        middle = (below + above) / 2
        chosen, cost = choose(middle)
        if cost <= budget:
            above, low, low_cost = middle, chosen, cost
        else:
            below, high, high_cost = middle, chosen, cost
    return low, high, max(0.0, budget - low_cost) / (high_cost - low_cost)


def _wait(seconds: float) -> float | None:
    return None if math.isinf(seconds) else seconds
