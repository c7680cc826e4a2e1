"""Dispatch learned live on recorded services: is a policy ever worse than chance, and how far is it from the optimum?

A ``Learner`` starts knowing nothing, like a new client. It answers ``_WARM_UP`` requests with times of the first half of a trace, then
``_REQUESTS`` with times of the second half; only these count. It learns from what a client sees: if the device wins, the server's time is
censored. Starts are steered by the budget. All policies meet the same prompts, server times and device times.

*Chance* is the policy "stochastic" with the same budget and steering. The *optimum* is ``Optimal`` planned with hindsight, on the times and
prompts of the second halves. A case is surely worse than chance if its whole 95 % interval is above 0. The interval is of the bootstrap
over the recorded times, because there are only 15 to 50 of them. No policy was designed on the services of thefastest.ai; the cap on the
budget and the first plans of a client were chosen with all services in view.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from random import Random

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from bench.report import Row
from bench.traces import Halves, fastest_traces, prompt_lengths, ttft_traces
from streamco.core.race.learner import DeviceTTFT, Learner, Policy, PromptLength, ServerTTFT
from streamco.policies.budget_control import BudgetSteering, steer
from streamco.policies.dispatch import Decision, Side
from streamco.policies.dispatch_optimal import Optimal
from streamco.profiles import DeviceSpeed, LengthDistribution, TTFTDistribution

__all__ = ["BUDGETS", "Case", "Traffic", "bench_learned", "compare", "run_learned", "run_trace"]

Floats = NDArray[np.float64]

BUDGETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
JITTER = (0.75, 0.85, 0.95, 1.0, 1.05, 1.15, 1.25)  # of the device's times, equally likely
POLICIES: Mapping[Side, tuple[str, ...]] = {
    "device": ("auto", "optimal", "device-constrained", "proportional-wait", "stochastic"),
    "server": ("auto", "optimal", "server-constrained", "stochastic"),
}
SETS: Mapping[str, Callable[[], dict[str, Halves]]] = {"llmperf and latencylab": ttft_traces, "thefastest.ai": fastest_traces}
_WARM_UP = 200
_REQUESTS = 1000
_DRAWS = 400
_NOTHING = 1e-9  # relative; equal times
_NEAR = 0.02  # of the optimum


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of one case, in order.

    Args:
        lengths: tokens of each prompt.
        server, device: seconds to each side's first token.
        recorded: place of the server's time in the recording's second half; -1: a warm-up.
        speed: the device, its jitter included.
    """

    lengths: NDArray[np.int64]
    server: Floats
    device: Floats
    recorded: NDArray[np.int64]
    speed: DeviceSpeed

    @classmethod
    def draw(cls, trace: Halves, prompts: Halves, device: DeviceSpeed, seed: int, *, requests: int = _REQUESTS) -> Traffic:
        """Warm-up from the first halves, the rest from the second."""
        rng = np.random.default_rng(seed)
        recorded = rng.integers(trace.judged.size, size=requests)
        lengths = np.concatenate((rng.choice(prompts.planned, _WARM_UP), rng.choice(prompts.judged, requests)))
        server = np.concatenate((rng.choice(trace.planned, _WARM_UP), trace.judged[recorded]))
        speed = replace(device, jitter=JITTER)
        on_device = (speed.seconds_per_token * lengths + speed.overhead) * rng.choice(JITTER, lengths.size)
        return cls(lengths, server, on_device, np.concatenate((np.full(_WARM_UP, -1), recorded)), speed)


@dataclass(frozen=True, slots=True)
class Case:
    """One policy in one case.

    Args:
        services: name of the set of recordings.
        worse: relative difference of its mean time to first token from chance's; above 0: it is later.
        worse_low: lower end of its 95 % interval.
        gap: relative difference of its mean from the optimum's.
        p99: the same as ``worse``, of the 99th percentile.
        over: realised share less the budget, from the 500th request on, at most.
        window: the same of the worst window of 500 requests.
        first: largest number of prompts by which the share has passed the budget within the first 100 requests.
    """

    services: str
    side: Side
    policy: str
    budget: float
    trace: str
    phone: str
    worse: float
    worse_low: float
    gap: float
    p99: float
    over: float
    window: float
    first: float


def run_learned(policy: str, traffic: Traffic, budget: float, side: Side, *, seed: int = 7) -> tuple[Floats, NDArray[np.bool_]]:
    """Seconds to each first token, and whether the constrained side was started, of a client that learns."""
    learner, steering, rng = Learner(budget, policy=policy, constrained=side), BudgetSteering(budget), Random(seed)
    firsts, was_started = np.zeros(traffic.lengths.size), np.zeros(traffic.lengths.size, dtype=bool)
    steps = zip(traffic.lengths.tolist(), traffic.server.tolist(), traffic.device.tolist(), strict=True)
    for index, (length, server_time, device_time) in enumerate(steps):
        decision = learner.plan.decide(length, rng)
        reservation = steering.reserve(length, wanted=decision.wait(side) is not None)
        decision = steer(decision, side, is_allowed=reservation.is_allowed)
        device_start, server_start = _starts(decision)
        device_end, server_end = device_start + device_time, server_start + server_time
        first = min(device_end, server_end)
        learner.observe(PromptLength(length))
        if server_start < first:
            is_censored = device_end < server_end and not decision.explore
            learner.observe(ServerTTFT((first if is_censored else server_end) - server_start, is_censored))
        if device_start < first and (device_end <= first or decision.explore):
            learner.observe(DeviceTTFT(length, device_time))
        firsts[index] = first
        was_started[index] = (server_start if side == "server" else device_start) < first
        steering.settle(reservation, started=bool(was_started[index]))
    return firsts, was_started


def run_plan(policy: Policy, traffic: Traffic, *, seed: int = 7) -> Floats:
    """Seconds to each first token by a finished plan, not steered."""
    rng = Random(seed)
    starts = np.array([_starts(policy.decide(length, rng)) for length in traffic.lengths.tolist()])
    firsts: Floats = np.minimum(starts[:, 0] + traffic.device, starts[:, 1] + traffic.server)
    return firsts


def _starts(decision: Decision) -> tuple[float, float]:
    return (
        math.inf if decision.device_wait is None else decision.device_wait,
        math.inf if decision.server_wait is None else decision.server_wait,
    )


def compare(ours: Floats, others: Floats, recorded: NDArray[np.int64], *, seed: int = 7) -> tuple[float, float]:
    """Relative difference of two means, and the lower end of its 95 % interval: whole recorded times are drawn again."""
    groups = np.unique(recorded, return_inverse=True)[1]
    sums = [np.bincount(groups, values) for values in (ours, others)]
    size = sums[0].size
    draws = np.random.default_rng(seed).multinomial(size, np.full(size, 1.0 / size), _DRAWS)
    drawn = (draws @ sums[0]) / (draws @ sums[1]) - 1.0
    return float(sums[0].sum() / sums[1].sum() - 1.0), float(np.quantile(drawn, 0.025))


def run_trace(
    services: str, name: str, phones: Mapping[str, DeviceSpeed], budgets: Sequence[float], requests: int, *sides: Side
) -> list[Case]:
    """Every side (or these), phone, budget and policy on one recording."""
    trace, prompts = SETS[services]()[name], prompt_lengths()
    ttft, lengths = TTFTDistribution.from_samples(trace.judged), LengthDistribution.from_samples(prompts.judged)
    cases = []
    for phone, device in phones.items():
        traffic = Traffic.draw(trace, prompts, device, zlib.crc32(f"{name} {phone}".encode()), requests=requests)
        counted = traffic.recorded >= 0
        recorded = traffic.recorded[counted]
        for side, budget in product(sides or POLICIES, budgets):
            best = run_plan(Optimal.plan(ttft, lengths, traffic.speed, budget, constraint=side), traffic)[counted].mean()
            runs = {policy: run_learned(policy, traffic, budget, side) for policy in POLICIES[side]}
            chance = runs["stochastic"][0][counted]
            for policy, (firsts, was_started) in runs.items():
                ours = firsts[counted]
                worse, low = compare(ours, chance, recorded)
                p99 = float(np.quantile(ours, 0.99) / np.quantile(chance, 0.99) - 1.0)
                shares = overshoot(traffic.lengths, was_started, budget)
                gap = float(ours.mean() / best - 1.0)
                cases.append(Case(services, side, policy, budget, name, phone, worse, low, gap, p99, *shares))
    return cases


def overshoot(lengths: NDArray[np.int64], was_started: NDArray[np.bool_], budget: float, window: int = 500) -> tuple[float, float, float]:
    """How far the share passed the budget: in total from the 500th request on, in any 500, and in prompts within the first 100."""
    tokens, spent = (np.concatenate(([0], np.cumsum(values))) for values in (lengths, np.where(was_started, lengths, 0)))
    total = float((spent[window:] / tokens[window:]).max())
    worst = float(((spent[window:] - spent[:-window]) / (tokens[window:] - tokens[:-window])).max())
    first = float((spent[1:101] - budget * tokens[1:101]).max() / lengths[:100].mean())
    return total - budget, worst - budget, first


def bench_learned(phones: Mapping[str, DeviceSpeed], *, is_quick: bool = False, jobs: int | None = None) -> list[Row]:
    """All cases, and their summary by set, side and policy; a second table is by budget."""
    budgets, requests = (BUDGETS[::3], 500) if is_quick else (BUDGETS, _REQUESTS)
    work = [
        (services, name, phones, budgets, requests) for services, read in SETS.items() for name in list(read())[:: 10 if is_quick else 1]
    ]
    with ProcessPoolExecutor(jobs) as pool:
        cases = [case for part in pool.map(run_trace, *zip(*work, strict=True)) for case in part]
    return summarise_cases(cases)


def summarise_cases(cases: Sequence[Case]) -> list[Row]:
    """A row for each figure of each set, side and policy."""
    rows: list[Row] = []
    for services, side in product(SETS, POLICIES):
        for policy in POLICIES[side]:
            part = [case for case in cases if (case.services, case.side, case.policy) == (services, side, policy)]
            if part:
                rows += _figures(f"learned live, {services}, {side}-constrained", policy, part)
    for side, budget in product(POLICIES, sorted({case.budget for case in cases})):
        for policy in POLICIES[side]:
            part = [case for case in cases if (case.side, case.budget, case.policy) == (side, budget, policy)]
            rows.append(
                _spread(
                    f"learned live, {side}-constrained, budget {budget:g}",
                    policy,
                    "mean ttft above optimum",
                    (100 * case.gap for case in part),
                )
            )
    return rows


def _figures(case: str, policy: str, part: Sequence[Case]) -> Iterable[Row]:
    def count(metric: str, value: int) -> Row:
        return Row("dispatch", case, policy, f"{metric}, of {len(part)}", "cases", value, value, value)

    yield count("later than chance", sum(each.worse > _NOTHING for each in part))
    yield count("surely later than chance", sum(each.worse_low > _NOTHING for each in part))
    yield count("over 2 % above optimum", sum(each.gap > _NEAR for each in part))
    yield _spread(case, policy, "mean ttft above optimum", (100 * each.gap for each in part))
    middle = 100 * float(np.median([each.gap for each in part]))
    yield Row("dispatch", case, policy, "mean ttft above optimum, middle case", "%", middle, middle, middle)
    yield _spread(case, policy, "mean ttft above chance", (100 * each.worse for each in part))
    yield _spread(case, policy, "p99 ttft above chance", (100 * each.p99 for each in part))
    yield _spread(case, policy, "share over budget after 500", (100 * each.over for each in part))
    yield _spread(case, policy, "share over budget, any 500", (100 * each.window for each in part))
    yield _spread(case, policy, "prompts over budget, first 100", (each.first for each in part), unit="prompts")


def _spread(case: str, policy: str, metric: str, values: Iterable[float], unit: str = "%") -> Row:
    """The column "median" holds the mean over cases."""
    found = list(values)
    return Row("dispatch", case, policy, metric, unit, float(np.mean(found)), min(found), max(found))
