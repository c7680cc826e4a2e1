"""What does dispatch cost, and what does it win on recorded services?

1. Planning from 1K, 10K and 100K samples, beside the paper's figures (MacBook Pro M1, DiSCo section 5.3), and one decision.
2. Quality: planned on the first half of each recorded trace with the first half of the Alpaca prompts, evaluated on the second halves, at
   budgets from 0.05 to 0.95, for the paper's three phones. Every such time meets every such prompt, so nothing is random.
3. The budget: the same policies request by request, with and without steering: by how much the realised share exceeds the budget.
4. Learned live, policy by policy: cases later than chance, distance from the optimum, realised budgets
   (``bench.counted.dispatch_learned``).

``--traces`` adds a row for each trace, the losing ones among them; ``--plot FILE`` draws part 2 (needs matplotlib).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from random import Random
from statistics import fmean
from time import perf_counter, process_time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.counted.dispatch_learned import bench_learned
from bench.report import Row, add_arguments, emit, interleave, per_call, rows_from, summarise
from bench.traces import Halves, prompt_lengths, ttft_traces
from streamco.core.race.learner import DeviceTTFT, Learner, Policy, PromptLength, ServerTTFT
from streamco.policies.budget_control import BudgetSteering, steer
from streamco.policies.dispatch import Side
from streamco.policies.dispatch_device_constrained import DeviceConstrained, ProportionalWait
from streamco.policies.dispatch_optimal import Optimal
from streamco.policies.dispatch_server_constrained import ServerConstrained
from streamco.policies.dispatch_stochastic import Stochastic
from streamco.profiles import DeviceSpeed, LengthDistribution, TTFTDistribution

__all__ = ["Judged", "Realised", "judge", "main", "plan_all", "realise"]

Floats = NDArray[np.float64]

BUDGETS = tuple(round(0.05 * step, 2) for step in range(1, 20))
PHONES = {  # prefill and decode tokens/s: DiSCo section 5.1
    "pixel7-bloom-1.1b": DeviceSpeed.from_rates(31.32, 13.93),
    "pixel7-bloom-560m": DeviceSpeed.from_rates(51.80, 20.14),
    "xiaomi14-qwen-0.5b": DeviceSpeed.from_rates(79.90, 21.47),
}
PAPER_MS = {  # section 5.3, "Scalability Analysis"
    ("server", 1_000): 0.128,
    ("server", 10_000): 0.969,
    ("server", 100_000): 9.082,
    ("device", 1_000): 0.486,
    ("device", 10_000): 1.741,
    ("device", 100_000): 14.856,
}
SIDES: tuple[Side, ...] = ("server", "device")
SEED = 7


@dataclass(frozen=True, slots=True)
class Judged:
    """What a policy did on times and prompts it was not planned from: seconds, and the constrained side's share of prompt tokens."""

    mean: float
    p99: float
    share: float


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--traces", action="store_true", help="a row for each trace as well")
    parser.add_argument("--jobs", type=int, help="processes of part 4 (all cores)")
    parser.add_argument("--plot", metavar="FILE", help="draw mean and P99 over budgets (needs matplotlib)")
    options = parser.parse_args(arguments)
    rounds = 5 if options.quick else 15
    budgets = BUDGETS[::3] if options.quick else BUDGETS
    traces, prompts = ttft_traces(), prompt_lengths()
    rows = [*bench_planning(rounds), *bench_decision(rounds, traces, prompts)]
    found = judge_all(traces, prompts, budgets)
    rows += summarise_quality(found, per_trace=options.traces)
    steered = list(traces)[::5] if options.quick else list(traces)
    rows += bench_steering({name: traces[name] for name in steered}, prompts, budgets[:: 3 if options.quick else 2])
    rows += bench_learned(PHONES, is_quick=options.quick, jobs=options.jobs)
    emit(rows, options.json)
    if options.plot:
        plot(found, options.plot)


# 1. Time


def bench_planning(rounds: int) -> list[Row]:
    """Milliseconds from raw samples to a plan, log-normal as in the paper."""
    rows: list[Row] = []
    rng = np.random.default_rng(SEED)
    for size in (1_000, 10_000, 100_000):
        times = rng.lognormal(-0.9, 0.5, size)
        lengths = np.maximum(1, rng.lognormal(2.9, 0.6, size)).astype(np.int64)
        plans: Mapping[Side, Callable[[], object]] = {
            "server": partial(_plan_server, lengths),
            "device": partial(_plan_device, times, lengths),
        }
        for side, plan in plans.items():
            samples = interleave({"streamco": per_call(plan, max(3, 30_000 // size), scale=1e3)}, rounds)
            samples["paper (M1)"] = [PAPER_MS[side, size]]
            rows += rows_from("dispatch", f"plan, {side}-constrained, {size:,} samples", "time", "ms", samples)
    return rows + bench_replanning(rounds)


def bench_replanning(rounds: int) -> list[Row]:
    """Milliseconds of processor time in which a client makes its plan again, by policy; this happens on its event loop."""
    rows: list[Row] = []
    for size in (30, 100, 300, 1_000):
        contenders = {policy: partial(_time_replan, _learned(policy, size)) for policy in ("auto", "disco", "proportional-wait")}
        case = f"plan made again, device-constrained, {size:,} learned samples"
        rows += rows_from("dispatch", case, "processor time", "ms", interleave(contenders, rounds))
    return rows


def _time_replan(learner: Learner, repeats: int = 3) -> float:
    start = process_time()
    for _ in range(repeats):
        learner.replan()
    return (process_time() - start) / repeats * 1e3


def _learned(policy: str, size: int) -> Learner:
    rng = np.random.default_rng(SEED)
    learner, device = Learner(0.3, policy=policy, constrained="device"), PHONES["pixel7-bloom-560m"]
    for length, time in zip(rng.lognormal(2.9, 0.6, size).astype(int).tolist(), rng.lognormal(-0.9, 0.5, size).tolist(), strict=True):
        on_device = device.ttft(max(1, length)) * rng.uniform(0.75, 1.25)
        learner.observe(PromptLength(max(1, length)))
        learner.observe(DeviceTTFT(max(1, length), on_device))
        learner.observe(ServerTTFT(min(time, on_device), on_device < time))
    return learner


def _plan_server(lengths: NDArray[np.int64]) -> object:
    return ServerConstrained.plan(LengthDistribution.from_samples(lengths), 0.3)


def _plan_device(times: Floats, lengths: NDArray[np.int64]) -> object:
    return DeviceConstrained.plan(TTFTDistribution.from_samples(times), LengthDistribution.from_samples(lengths), 0.3)


def bench_decision(rounds: int, traces: Mapping[str, Halves], prompts: Halves) -> list[Row]:
    """Microseconds a request, by policy, and with the whole bookkeeping of the budget."""
    trace = next(iter(traces.values()))
    lengths = prompts.judged.tolist()
    contenders: dict[str, Callable[[], float]] = {}
    for side in SIDES:
        for name, policy in plan_all(trace, prompts, PHONES["pixel7-bloom-560m"], 0.3, side).items():
            contenders[f"{name}, {side}-constrained"] = partial(_time_decisions, policy, lengths, Random(SEED))
    contenders["streamco with steering"] = partial(_time_steering, lengths)
    return rows_from("dispatch", "one decision", "time", "us", interleave(contenders, rounds))


def _time_decisions(policy: Policy, lengths: Sequence[int], rng: Random) -> float:
    start = perf_counter()
    for length in lengths:
        policy.decide(length, rng)
    return (perf_counter() - start) / len(lengths) * 1e6


def _time_steering(lengths: Sequence[int]) -> float:
    policy, rng, steering = Stochastic("server", 0.3), Random(SEED), BudgetSteering(0.3)
    start = perf_counter()
    for length in lengths:
        decision = policy.decide(length, rng)
        reservation = steering.reserve(length, wanted=decision.server_wait is not None)
        decision = steer(decision, "server", is_allowed=reservation.is_allowed)
        steering.settle(reservation, started=decision.server_wait is not None)
    return (perf_counter() - start) / len(lengths) * 1e6


# 2. Quality


def plan_all(trace: Halves, prompts: Halves, device: DeviceSpeed, budget: float, side: Side) -> dict[str, Policy]:
    """Every policy for one constraint, planned from the first halves; ``disco`` is the paper's Algorithm 2 or 3."""
    ttft, lengths = TTFTDistribution.from_samples(trace.planned), LengthDistribution.from_samples(prompts.planned)
    plan_optimal = partial(Optimal.plan, ttft, lengths, device, budget, constraint=side)
    planned: dict[str, Policy] = {
        "disco": DeviceConstrained.plan(ttft, lengths, budget) if side == "device" else ServerConstrained.plan(lengths, budget)
    }
    if side == "device":
        planned["equations 1-2"] = ProportionalWait.plan(ttft, lengths, budget, device=device)
    return planned | {"optimal": plan_optimal(), "optimal, tail": plan_optimal(tail_weight=0.1), "stochastic": Stochastic(side, budget)}


def judge(policy: Policy, times: Floats, lengths: LengthDistribution, device: DeviceSpeed, side: Side) -> Judged:
    """Mean and P99 time to first token over all pairs of a server time and a prompt, and the share of tokens spent."""
    outcomes = [
        (probability * share, int(length), decision)
        for length, share in zip(lengths.lengths.tolist(), lengths.probabilities.tolist(), strict=True)
        for probability, decision in policy.outcomes(length)
        if probability > 0
    ]
    weights = np.array([weight for weight, _, _ in outcomes])
    tokens = np.array([length for _, length, _ in outcomes], dtype=np.float64)
    device_start = np.array([_start(decision.device_wait) for _, _, decision in outcomes])
    server_start = np.array([_start(decision.server_wait) for _, _, decision in outcomes])
    on_device = (device_start + device.seconds_per_token * tokens + device.overhead)[:, None]
    on_server = server_start[:, None] + times[None, :]
    first = np.minimum(on_device, on_server)
    has_started = on_server > device_start[:, None] if side == "device" else on_device > server_start[:, None]
    spent = float((weights * tokens * has_started.mean(axis=1)).sum() / (weights * tokens).sum())
    return Judged(float((weights * first.mean(axis=1)).sum()), _quantile(first, weights, 0.99), spent)


def _start(wait: float | None) -> float:
    return math.inf if wait is None else wait


def _quantile(values: Floats, weights: Floats, share: float) -> float:
    flat = values.ravel()
    order = np.argsort(flat)
    mass = np.cumsum(np.repeat(weights / values.shape[1], values.shape[1])[order])
    return float(flat[order[min(int(np.searchsorted(mass, share * mass[-1] - 1e-12)), flat.size - 1)]])


Found = dict[tuple[str, Side, str, float, str], Judged]  # phone, constrained side, trace, budget, policy


def judge_all(traces: Mapping[str, Halves], prompts: Halves, budgets: Sequence[float]) -> Found:
    """Every phone, constraint, trace, budget and policy."""
    lengths = LengthDistribution.from_samples(prompts.judged)
    found: Found = {}
    for phone, device in PHONES.items():
        for side in SIDES:
            for name, trace in traces.items():
                for budget in budgets:
                    for policy_name, policy in plan_all(trace, prompts, device, budget, side).items():
                        found[phone, side, name, budget, policy_name] = judge(policy, trace.judged, lengths, device, side)
    return found


def summarise_quality(found: Found, *, per_trace: bool) -> list[Row]:
    """Means over traces and budgets of the cut against stochastic; min and max are the traces with the least and the most."""
    rows: list[Row] = []
    for phone in PHONES:
        for side in SIDES:
            picked = {key: value for key, value in found.items() if key[:2] == (phone, side)}
            traces = sorted({trace for _, _, trace, _, _ in picked})
            for metric in ("mean", "p99"):
                for policy in dict.fromkeys(key[4] for key in picked):
                    cuts = {trace: _cut(picked, trace, policy, metric) for trace in traces}
                    rows.append(_cut_row(phone, side, policy, metric, list(cuts.values())))
                    if per_trace:
                        rows += [_cut_row(phone, f"{side}, {trace}", policy, metric, [cut]) for trace, cut in cuts.items()]
    return rows


def _cut(picked: Found, trace: str, policy: str, metric: str) -> float:
    """Per cent less than stochastic, mean over budgets."""
    return fmean(
        100.0 * (1.0 - getattr(value, metric) / getattr(picked[(*key[:4], "stochastic")], metric))
        for key, value in picked.items()
        if key[2] == trace and key[4] == policy
    )


def _cut_row(phone: str, case: str, policy: str, metric: str, cuts: Sequence[float]) -> Row:
    """The column "median" holds the mean over traces and budgets: it is what "on average" asks for."""
    return Row("dispatch", f"{phone}, {case}-constrained", policy, f"{metric} ttft cut, mean", "%", fmean(cuts), min(cuts), max(cuts))


# 3. The budget


class Realised(NamedTuple):
    """One run: how far the constrained side's share exceeded the budget in total and in the worst window of 500, and mean TTFT [s]."""

    total: float
    window: float
    mean: float


def bench_steering(traces: Mapping[str, Halves], prompts: Halves, budgets: Sequence[float]) -> list[Row]:
    """The realised share less the budget: the whole from the 500th request on, and the worst window of 500; and what steering costs."""
    found: dict[tuple[str, str, str, str], list[float]] = {}
    device = PHONES["pixel7-bloom-560m"]
    for side in SIDES:
        for trace in traces.values():
            for budget in budgets:
                for name, policy in plan_all(trace, prompts, device, budget, side).items():
                    run = partial(realise, policy, trace.judged, prompts.judged, device=device, side=side, budget=budget)
                    steered, plain = run(), run(is_steered=False)
                    for contender, result in ((name, steered), (f"{name}, not steered", plain)):
                        found.setdefault((side, contender, "total over budget", "share"), []).append(result.total)
                        found.setdefault((side, contender, "worst window over budget", "share"), []).append(result.window)
                    found.setdefault((side, name, "mean ttft, steered / not", "ratio"), []).append(steered.mean / plain.mean)
    return [
        summarise(values, bench="dispatch", case=f"realised budget, {side}-constrained", contender=contender, metric=metric, unit=unit)
        for (side, contender, metric, unit), values in found.items()
    ]


def realise(
    policy: Policy, times: Floats, lengths: Iterable[int], *, device: DeviceSpeed, side: Side, budget: float, is_steered: bool = True
) -> Realised:
    """Run the prompts one after another."""
    rng, steering = Random(SEED), BudgetSteering(budget)
    tokens = np.array(list(lengths), dtype=np.int64)
    was_started = np.zeros(tokens.size, dtype=bool)
    server_times = np.random.default_rng(SEED).choice(times, tokens.size).tolist()
    waited = 0.0
    for index, (length, server_time) in enumerate(zip(tokens.tolist(), server_times, strict=True)):
        decision = policy.decide(length, rng)
        if is_steered:
            reservation = steering.reserve(length, wanted=decision.wait(side) is not None)
            decision = steer(decision, side, is_allowed=reservation.is_allowed)
        on_device, on_server = _start(decision.device_wait) + device.ttft(length), _start(decision.server_wait) + server_time
        waited += min(on_device, on_server)
        was_started[index] = (on_server if side == "device" else on_device) > _start(decision.wait(side))
        if is_steered:
            steering.settle(reservation, started=bool(was_started[index]))
    total, window = _overshoot(tokens, np.where(was_started, tokens, 0), budget)
    return Realised(total, window, waited / tokens.size)


def _overshoot(tokens: NDArray[np.int64], spent: NDArray[np.int64], budget: float, window: int = 500) -> tuple[float, float]:
    all_tokens, all_spent = np.concatenate(([0], np.cumsum(tokens))), np.concatenate(([0], np.cumsum(spent)))
    total = float((all_spent[window:] / all_tokens[window:]).max())
    worst = float(((all_spent[window:] - all_spent[:-window]) / (all_tokens[window:] - all_tokens[:-window])).max())
    return total - budget, worst - budget


def plot(found: Found, file: str) -> None:
    """Mean and P99 over budgets, the mean over traces, one column a phone."""
    import_module("matplotlib").use("Agg")
    plt = import_module("matplotlib.pyplot")
    figure, axes = plt.subplots(4, len(PHONES), figsize=(5 * len(PHONES), 16), squeeze=False)
    for column, phone in enumerate(PHONES):
        for line, (side, metric) in enumerate((side, metric) for side in SIDES for metric in ("mean", "p99")):
            picked = {key: value for key, value in found.items() if key[:2] == (phone, side)}
            for policy in dict.fromkeys(key[4] for key in picked):
                budgets = sorted({key[3] for key in picked})
                values = [fmean(getattr(v, metric) for k, v in picked.items() if k[3:] == (budget, policy)) for budget in budgets]
                axes[line][column].plot(budgets, values, label=policy)
            axes[line][column].set(title=f"{phone}, {side}-constrained", xlabel="budget", ylabel=f"{metric} TTFT [s]")
            axes[line][column].legend(fontsize="x-small")
    figure.tight_layout()
    figure.savefig(file)


if __name__ == "__main__":
    main()
