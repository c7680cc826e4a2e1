"""Device-constrained dispatch: the server starts at once, and the device after a wait w(l) (DiSCo section 4.2, Algorithm 2).

A part alpha (``tail``) of the budget b protects the tail: for every prompt, the device starts if the server takes longer than its
(1 - alpha) quantile, w_tail. The rest of the budget lets the device start at once for the shortest prompts, which cost least.

This differs from Algorithm 2 in line 18, which prints F(w*). The device starts only if the server has *not* answered by w*, so the factor
here is 1 - F(w*). A wait of w_tail already spends the tail's share on every length, so a wait of w costs only the additional
(1 - F(w) - alpha) p(l) l / E[l]. Budgets are shares of E[l], the mean prompt.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from random import Random
from typing import TYPE_CHECKING

from msgspec import Struct

from streamco.config import check_share
from streamco.lazy_numpy import np
from streamco.policies.dispatch import Decision, Outcomes
from streamco.profiles import DeviceSpeed, LengthDistribution, TTFTDistribution

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

__all__ = ["DeviceConstrained", "ProportionalWait", "TAIL"]

TAIL = 0.05  # alpha: people notice the slowest twentieth of answers; the paper names no default

_TIE = 1e-12  # rounding of sums of shares
_THRESHOLD_SIZE = 64  # number of times and lengths distinguished in the choice of l_th
_ROUNDS = 50  # of bisection


class DeviceConstrained(Struct, frozen=True, tag="device-constrained"):
    """A plan of Algorithm 2.

    Args:
        limits: prompt lengths in tokens, ascending. Each is the greatest length for which the corresponding wait is used.
        waits: waits in seconds, one more than limits. With None the device starts only if the server fails.
        planned_share: expected share of all prompt tokens that the device processes.
    """

    limits: tuple[int, ...]
    waits: tuple[float | None, ...]
    planned_share: float

    @property
    def name(self) -> str:
        """Name of the policy, ``device-constrained``."""
        return "device-constrained"

    @classmethod
    def plan(cls, ttft: TTFTDistribution, lengths: LengthDistribution, budget: float, tail: float = TAIL) -> DeviceConstrained:
        """Make the plan for one server and one kind of prompt.

        Args:
            ttft: F, distribution of the server's time to first token.
            lengths: p(l), distribution of prompt lengths.
            budget: b, share of prompt tokens that the device may process, 0..1.
            tail: alpha, share of prompt tokens that the budget keeps for the tail, 0..1.

        Raises:
            ConfigError: a share is outside 0..1.
        """
        check_share("budget", budget)
        check_share("tail", tail)
        if not budget:
            return cls((), (None,), 0.0)
        latest = ttft.quantile(1.0 - min(tail, budget))  # phase 1, line 2: w_tail = F^-1(1 - min(alpha, b))
        spent = ttft.survival_at(latest)  # at most ``tail``: the curve has steps
        left = budget - spent
        last = None if math.isinf(latest) else latest
        if budget <= tail or left <= _TIE or last is None:
            return cls((), (last,), spent if last is not None else 0.0)
        shares = lengths.token_shares
        # Shortest prompts first: w = 0 costs (1 - F(0) - alpha) p(l) l / E[l] beyond the tail's share, with F(0) = 0.
        costs = np.cumsum(shares) * (1.0 - spent)
        immediate = int(np.searchsorted(costs, left + _TIE, "right"))
        used = float(costs[immediate - 1]) if immediate else 0.0
        if immediate == shares.size:
            return cls((), (0.0,), 1.0)
        # Line 18 with 1 - F(w*): the length at which the budget ends gets the wait w* that spends the rest.
        wait = min(last, ttft.quantile(1.0 - spent - (left - used) / float(shares[immediate])))
        used += float(shares[immediate]) * (ttft.survival_at(wait) - spent)
        partial = int(lengths.lengths[immediate])
        if not immediate:
            return cls((partial,), (wait, last), spent + used)
        return cls((int(lengths.lengths[immediate - 1]), partial), (0.0, wait, last), spent + used)

    def outcomes(self, length: int) -> Outcomes:
        """Return the only decision for this prompt length."""
        wait = self.waits[bisect_left(self.limits, length)]
        return ((1.0, Decision(wait, 0.0, "device-constrained", _reason(wait))),)

    def decide(self, length: int, rng: Random) -> Decision:
        """Return the only decision for this prompt length."""
        wait = self.waits[bisect_left(self.limits, length)]
        return Decision(wait, 0.0, "device-constrained", _reason(wait))


class ProportionalWait(Struct, frozen=True, tag="proportional-wait"):
    """A plan by equations 1 and 2, the paper's other rule: w(l) = min(beta l, w_tail), but 0 for lengths up to a threshold l_th.

    Args:
        threshold: l_th in tokens. For prompts up to this length, the device starts at once.
        seconds_per_token: beta, the wait in seconds for each token of the prompt.
        latest: w_tail in seconds. If None, the device starts only if the server fails.
        planned_share: expected share of all prompt tokens that the device processes.
    """

    threshold: int
    seconds_per_token: float
    latest: float | None
    planned_share: float

    @property
    def name(self) -> str:
        """Name of the policy, ``proportional-wait``."""
        return "proportional-wait"

    @classmethod
    def plan(
        cls,
        ttft: TTFTDistribution,
        lengths: LengthDistribution,
        budget: float,
        tail: float = TAIL,
        *,
        device: DeviceSpeed | None = None,
        threshold: int | None = None,
    ) -> ProportionalWait:
        """Choose l_th, and then the beta with which the whole budget is spent, including the tail's part.

        Args:
            ttft: F, distribution of the server's time to first token.
            lengths: p(l), distribution of prompt lengths.
            budget: b, share of prompt tokens that the device may process, 0..1.
            tail: alpha, share of prompt tokens that the budget keeps for the tail, 0..1.
            device: the device's speed, which is needed to choose the best l_th, or None if not known.
            threshold: l_th in tokens. None chooses the one with the lowest expected time to first token (the paper leaves it open), or
                without ``device`` the highest one that the budget allows.

        Raises:
            ConfigError: a share is outside 0..1.
        """
        check_share("budget", budget)
        check_share("tail", tail)
        latest = ttft.quantile(1.0 - min(tail, budget))
        if not budget or math.isinf(latest):
            return cls(0, 0.0, None, 0.0)
        candidates = [threshold] if threshold is not None else _rank_thresholds(ttft, lengths, budget, latest, device)
        for candidate in candidates:
            slopes, shares = _solve_slopes(ttft, lengths, budget, latest, np.array([candidate]))
            if shares[0] <= budget + _TIE:  # the ranking uses shortened distributions
                break
        return cls(candidate, float(slopes[0]), latest, float(shares[0]))

    def outcomes(self, length: int) -> Outcomes:
        """Return the only decision for this prompt length."""
        wait = self.latest
        if wait is not None:
            wait = 0.0 if length <= self.threshold else min(self.seconds_per_token * length, wait)
        return ((1.0, Decision(wait, 0.0, "proportional-wait", _reason(wait))),)

    def decide(self, length: int, rng: Random) -> Decision:
        """Return the only decision for this prompt length."""
        return self.outcomes(length)[0][1]


def _rank_thresholds(
    ttft: TTFTDistribution, lengths: LengthDistribution, budget: float, latest: float, device: DeviceSpeed | None
) -> list[int]:
    """Return candidates for l_th within the budget, sorted by expected time to first token, or longest first if ``device`` is None.

    The last candidate is 0. Times and lengths are reduced to so few steps that they can be searched between two requests.
    """
    ttft, lengths = ttft.compress(_THRESHOLD_SIZE), lengths.group(_THRESHOLD_SIZE)
    thresholds = np.concatenate(([0], lengths.lengths))
    slopes, shares = _solve_slopes(ttft, lengths, budget, latest, thresholds)
    order = np.arange(thresholds.size)[::-1]
    if device is not None:
        on_device = device.seconds_per_token * lengths.lengths + device.overhead
        means = ttft.mean_within(_waits(lengths, slopes, latest, thresholds) + on_device) @ lengths.probabilities
        order = np.argsort(means, kind="stable")
    return [*thresholds[order[shares[order] <= budget + _TIE]].tolist(), 0]


def _solve_slopes(
    ttft: TTFTDistribution, lengths: LengthDistribution, budget: float, latest: float, thresholds: Integers
) -> tuple[Floats, Floats]:
    """For each l_th, return the lowest beta that stays within the budget, and the share of tokens that the device then processes.

    If no beta does, every prompt longer than l_th waits w_tail, and the share is above the budget.
    """
    steps = np.concatenate(([1.0], ttft.survival))

    def spent(slopes: Floats) -> Floats:
        found: Floats = steps[np.searchsorted(ttft.times, _waits(lengths, slopes, latest, thresholds), "right")] @ lengths.token_shares
        return found

    low = np.zeros(thresholds.size)
    high = np.where(spent(low) <= budget + _TIE, 0.0, max(float(ttft.times[-1]), 1e-9))  # beta = the largest time: w_tail for every prompt
    for _ in range(_ROUNDS if high.any() else 0):
        middle = (low + high) / 2
        is_kept = spent(middle) <= budget + _TIE
        low, high = np.where(is_kept, low, middle), np.where(is_kept, middle, high)
    return high, spent(high)


def _waits(lengths: LengthDistribution, slopes: Floats, latest: float, thresholds: Integers) -> Floats:
    """Return the waits by equation 1 in seconds, shape (thresholds, lengths)."""
    waits = np.minimum(np.multiply.outer(slopes, lengths.lengths), latest)
    return np.where(lengths.lengths[None, :] <= thresholds[:, None], 0.0, waits)


def _reason(wait: float | None) -> str:
    if wait is None:
        return "server first, no budget for the device"
    return f"server first, device after {wait:.3f} s" if wait else "short prompt, both at once"
