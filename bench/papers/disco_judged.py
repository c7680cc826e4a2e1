"""Time to first token of DiSCo's policies on recorded services, with confidence intervals: Table 2 and Figure 6.

Every policy is planned on the first half of a service's recorded times and of the Alpaca prompts and evaluated on the second halves, where
each time meets each prompt (``bench.counted.dispatch``). The intervals are of the bootstrap: the evaluated times and prompts are drawn
again with replacement, as many as there are of each, and all policies meet the same draws, so that pairs are compared. Plans stay as they
are. A service has 17 to 50 evaluated times: their number, not the prompts', is what makes the intervals wide.

A plan spends its budget on the times it was made from; on later ones it may spend more (a client steers against that, which is not done
here). So each policy is compared with stochastic dispatch twice: at the same budget, as in the paper, and with what the policy really
spent, if that was more.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.counted.dispatch import PHONES, judge, plan_all
from bench.traces import Halves, prompt_lengths, ttft_traces
from streamco.core.race.learner import Policy
from streamco.policies.dispatch import DeviceOnly, ServerOnly, Side
from streamco.policies.dispatch_device_constrained import ProportionalWait
from streamco.policies.dispatch_stochastic import Stochastic
from streamco.profiles import DeviceSpeed, LengthDistribution, TTFTDistribution

__all__ = [
    "DRAWS",
    "EQUATIONS",
    "ONE_SIDE",
    "POLICIES",
    "Cut",
    "Drawn",
    "Judgement",
    "figures_of",
    "interval",
    "judge_service",
    "median_interval",
    "plan_equations",
]

Floats = NDArray[np.float64]

ONE_SIDE: dict[str, Policy] = {"server only": ServerOnly(), "device only": DeviceOnly()}  # the paper's vLLM and llama.cpp
EQUATIONS = ("equations 1-2", "equations 1-2, longest l_th", "equations 1-2, l_th = 0")
"""Equations 1 and 2 by their choice of l_th: by the lowest expected time, as long as the budget allows, and none: every prompt waits."""
POLICIES = ("disco", *EQUATIONS, "optimal", *ONE_SIDE, "stochastic")
DRAWS = 400
TAIL = 0.01
_HEAD = 0.08  # of the mass, the slowest: where a drawn P99 is looked for first


@dataclass(frozen=True, slots=True)
class Cut:
    """Per cent less than stochastic dispatch, and the same in every draw."""

    value: float
    drawn: Floats


@dataclass(frozen=True, slots=True)
class Judgement:
    """One policy with one phone, service, constrained side and budget.

    Args:
        mean, p99: seconds.
        share: of prompt tokens, what the constrained side processed.
        mean_cut, p99_cut: against stochastic dispatch at the same budget.
        mean_cut_spent, p99_cut_spent: against one that may spend the same, where that is more than the budget.
    """

    phone: str
    side: Side
    service: str
    budget: float
    policy: str
    mean: float
    p99: float
    share: float
    mean_cut: Cut
    p99_cut: Cut
    mean_cut_spent: Cut
    p99_cut_spent: Cut


@dataclass(frozen=True, slots=True)
class Drawn:
    """How often each judged length and each judged time is there, draw by draw; the first row is the recording itself."""

    lengths: Floats
    times: Floats

    @classmethod
    def draw(cls, lengths: LengthDistribution, times: Floats, seed: int, draws: int) -> Drawn:
        """Shares; each row adds up to 1."""
        rng = np.random.default_rng(seed)
        prompts = int(lengths.counts.sum())
        of_lengths = rng.multinomial(prompts, lengths.probabilities, draws) / prompts
        of_times = rng.multinomial(times.size, np.full(times.size, 1.0 / times.size), draws) / times.size
        return cls(np.vstack([lengths.probabilities, of_lengths]), np.vstack([np.full(times.size, 1.0 / times.size), of_times]))


def judge_service(phone: str, side: Side, service: str, budgets: Sequence[float], draws: int = DRAWS) -> list[Judgement]:
    """All policies at all budgets."""
    traces, prompts = ttft_traces(), prompt_lengths()
    trace, device = traces[service], PHONES[phone]
    lengths = LengthDistribution.from_samples(prompts.judged)
    drawn = Drawn.draw(lengths, trace.judged, zlib.crc32(service.encode()), draws)
    found = []
    for budget in budgets:
        planned = plan_all(trace, prompts, device, budget, side) | ONE_SIDE
        if side == "device":
            planned |= plan_equations(trace, prompts, budget)
        against = figures_of(planned["stochastic"], trace.judged, lengths, device, drawn)
        for name in POLICIES:
            if name not in planned:
                continue
            judged = judge(planned[name], trace.judged, lengths, device, side)
            figures = figures_of(planned[name], trace.judged, lengths, device, drawn)
            cuts = [_cut(*pair) for pair in zip(figures, against, strict=True)]
            as_dear = against
            if judged.share > budget:
                as_dear = figures_of(Stochastic(side, min(1.0, judged.share)), trace.judged, lengths, device, drawn)
            cuts += [_cut(*pair) for pair in zip(figures, as_dear, strict=True)]
            found.append(Judgement(phone, side, service, budget, name, judged.mean, judged.p99, judged.share, *cuts))
    return found


def plan_equations(trace: Halves, prompts: Halves, budget: float) -> dict[str, Policy]:
    """Return equations 1 and 2 with the two choices of l_th that need no speed of the device."""
    ttft, lengths = TTFTDistribution.from_samples(trace.planned), LengthDistribution.from_samples(prompts.planned)
    longest, none = (ProportionalWait.plan(ttft, lengths, budget, threshold=threshold) for threshold in (None, 0))
    return {EQUATIONS[1]: longest, EQUATIONS[2]: none}


def interval(cuts: Iterable[Cut]) -> tuple[float, float, float]:
    """The mean of several cuts, and within what it lies in 95 of 100 draws."""
    cuts = list(cuts)
    drawn = np.mean([cut.drawn for cut in cuts], axis=0)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.mean([cut.value for cut in cuts])), float(low), float(high)


def median_interval(groups: Iterable[Iterable[Cut]]) -> tuple[float, float, float]:
    """Return the middle one of the groups' means, and within what it lies in 95 of 100 draws; a group is a service at several budgets."""
    means = [[np.append(cut.value, cut.drawn) for cut in group] for group in groups]
    middle = np.median([np.mean(group, axis=0) for group in means], axis=0)
    low, high = np.quantile(middle[1:], [0.025, 0.975])
    return float(middle[0]), float(low), float(high)


def _cut(values: Floats, others: Floats) -> Cut:
    cuts = 100.0 * (1.0 - values / others)
    return Cut(float(cuts[0]), cuts[1:])


def figures_of(policy: Policy, times: Floats, lengths: LengthDistribution, device: DeviceSpeed, drawn: Drawn) -> tuple[Floats, Floats]:
    """Mean and P99 in each draw."""
    outcomes = [
        (place, probability, _first(decision.device_wait, device.ttft(length)), _first(decision.server_wait, 0.0))
        for place, length in enumerate(lengths.lengths.tolist())
        for probability, decision in policy.outcomes(length)
        if probability > 0
    ]
    places, probabilities, on_device, server_start = (np.array(column) for column in zip(*outcomes, strict=True))
    first = np.minimum(on_device[:, None], server_start[:, None] + times[None, :])
    weights = drawn.lengths[:, places.astype(np.int64)] * probabilities
    means = np.einsum("dr,rt,dt->d", weights, first, drawn.times, optimize=True)
    return means, _tails(first, weights, drawn.times)


def _first(wait: float | None, seconds: float) -> float:
    return np.inf if wait is None else wait + seconds


def _tails(first: Floats, weights: Floats, times: Floats) -> Floats:
    """P99 of each draw: the slowest are gone through until a hundredth of the mass is behind them."""
    rows, columns = np.unravel_index(np.argsort(first, axis=None)[::-1], first.shape)
    mass = np.cumsum(weights[0][rows] * times[0][columns])
    tails = np.empty(len(weights))
    left = np.arange(len(weights))
    head = _HEAD
    while left.size:
        stop = int(np.searchsorted(mass, head)) + 1
        upto = np.cumsum(weights[left][:, rows[:stop]] * times[left][:, columns[:stop]], axis=1)
        place = (upto <= TAIL + 1e-12).sum(axis=1)
        is_found = place < min(stop, mass.size)
        tails[left[is_found]] = first[rows[place[is_found]], columns[place[is_found]]]
        left, head = left[~is_found], 2.0 * head
    return tails
