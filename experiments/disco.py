"""DiSCo's evaluation again: which side has the first token sooner, what migration saves, and whether the reader notices.

    python -m experiments.disco ttft [--csv FILE] [--plot FILE]     # Table 2, Figure 6: recorded services, with intervals
    python -m experiments.disco simulated results/disco_ttft/results.json   # the same by the live client, from disco_ttft.yaml
    python -m experiments.disco cost                                # Figure 7: cost with and without migration
    python -m experiments.disco moves                               # Table 3: delayed tokens, time between tokens
    python -m experiments.disco correlation                         # Table 1: prompt length and time to first token
    python -m experiments.disco loading                             # Table 4: from a file to the first token
    python -m experiments.disco planning                            # Figure 9: time to make a plan
    python -m experiments.disco speed                               # of the simulator itself
    python -m experiments.disco lengths                             # the table in streamco.sim.race.lengths

All but ``loading``, ``planning`` and ``speed`` print the same bytes every time, whatever the machine: Markdown, the tables of
docs/research/disco.md.
``--quick`` takes fewer of everything. ``ttft``, ``correlation`` and ``lengths`` need the recorded data ($STREAMCO_DATA). ``cost`` and
``moves`` are the packaged services with the live client (``kind: race``): each of the paper's four models at its price of Table 8, with the
times of a service of about its speed, as ``bench/cost.py`` has them. Their intervals are of the bootstrap over requests, which are the same
for both contenders. ``bench.cost`` and ``bench.moves`` ask the same of all recorded services.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.dispatch import PHONES, bench_planning
from bench.report import emit
from bench.worlds import recorded_lengths
from experiments.disco_correlation import show_correlation
from experiments.disco_judged import DRAWS, Cut, format_cuts
from experiments.disco_loading import show_loading
from experiments.disco_ttft import BUDGETS, SIDES, show_ttft
from experiments.tables import run_all, show_table
from streamco.sim.experiment.scenario import KINDS, Outcome, Scenario, run_scenario
from streamco.sim.race.kind import Race
from streamco.sim.race.lengths import SHARES
from streamco.sim.race.options import RaceOptions, RacePolicy

__all__ = ["main"]

MODELS: Mapping[str, tuple[str, str]] = {  # the paper's: whose times, whose price
    "GPT": ("openai-gpt-3.5-turbo-0125", "gpt-4o-mini"),
    "LLaMA": ("together-llama-2-70b-chat", "llama-3.1-70b-hyperbolic"),
    "DeepSeek": ("openai-gpt-4-0125-preview", "deepseek-v2.5"),
    "Command": ("bedrock-llama-2-70b-chat", "command"),
}
SEED = 7
Floats = NDArray[np.float64]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts: Mapping[str, Callable[[argparse.Namespace], None]] = {
        "ttft": show_ttft,
        "simulated": show_simulated,
        "cost": show_cost,
        "moves": show_moves,
        "correlation": show_correlation,
        "loading": show_loading,
        "planning": lambda options: emit(bench_planning(5 if options.quick else 15), json_lines=False),
        "speed": show_speed,
        "lengths": show_lengths,
    }
    parser.add_argument("part", choices=parts)
    parser.add_argument("results", nargs="?", type=Path, help="simulated: what streamco simulate experiments/disco_ttft.yaml has written")
    parser.add_argument("--quick", action="store_true", help="fewer services, budgets and requests")
    parser.add_argument("--jobs", type=int, help="processes (all cores)")
    parser.add_argument("--csv", type=Path, help="ttft: write DiSCo's figures for every service, phone and budget")
    parser.add_argument("--plot", type=Path, help="ttft: draw Figure 6 (needs matplotlib)")
    options = parser.parse_args(arguments)
    parts[options.part](options)
    return 0


# What streamco simulate has written


def show_simulated(options: argparse.Namespace) -> None:
    """DiSCo against random dispatch, by the live client: cuts over services, and the worst of them."""
    if options.results is None:
        raise SystemExit("simulated: expected the results.json that streamco simulate experiments/disco_ttft.yaml writes")
    found: dict[tuple[str, str, float, str], dict[str, dict[str, float]]] = {}
    scenarios = json.loads(options.results.read_text())["scenarios"]
    for point, system in ((each["point"], each["system"]) for each in scenarios):
        place = (point["policy.constrained"], point["world.device"], point["policy.budget"], point["world.service"])
        found.setdefault(place, {})[point["policy.dispatch"]] = system
    cuts = {place: {metric: saved(each, metric) for metric in ("ttft_mean", "ttft_p99")} for place, each in found.items()}
    for side, metric in product(SIDES, ("ttft_mean", "ttft_p99")):
        rows = []
        for budget in sorted({budget for _, _, budget, _ in found}):
            of_phones = [[cut[metric] for place, cut in cuts.items() if place[:3] == (side, phone, budget)] for phone in PHONES]
            rows.append([f"{budget:g}", *(f"{np.mean(each):.1f} ({min(each):.1f} to {max(each):.1f})" for each in of_phones)])
        head = ("budget", *PHONES)
        show_table(f"{metric}, {side}-constrained: per cent less than random dispatch, mean over services (lowest to highest)", head, rows)
        lost = {place: cut[metric] for place, cut in cuts.items() if place[0] == side and cut[metric] < 0}
        worst = sorted(lost, key=lambda place: lost[place])[:5]
        print(f"\nLater than random dispatch in {len(lost)} of {sum(place[0] == side for place in cuts)} settings; the worst:", end=" ")
        print("; ".join(f"{', '.join(map(str, place[1:]))}: {lost[place]:.1f} %" for place in worst) or "none")
    over = [each["disco"]["budget_share"] - place[2] for place, each in found.items()]
    print(f"\nShare spent less budget: {min(over):.3f} to {max(over):.3f}, {len(scenarios):,} scenarios, ", end="")
    print(f"{sum(each['system']['completed'] for each in scenarios):,.0f} requests")


def saved(of_policies: Mapping[str, Mapping[str, float]], metric: str) -> float:
    """Per cent less than random dispatch."""
    return 100.0 * (1.0 - of_policies["disco"][metric] / of_policies["stochastic"][metric])


# Cost and moves: the live client among packaged services


def race(model: str, phone: str, requests: int, pace: str | None, **policy: Any) -> Scenario:
    """One of the paper's models against a phone, rows included."""
    service, prices = MODELS[model]
    return Scenario(
        kind="race",
        kind_location=KINDS["race"],
        seed=SEED,
        requests=True,
        world={"service": service, "prices": prices, "device": phone},
        workload={"requests": requests},
        policy={"dispatch": "disco", **policy, "pace": pace},
    )


def show_cost(options: argparse.Namespace) -> None:
    requests = 60 if options.quick else 200
    budgets = BUDGETS[::4] if options.quick else (*BUDGETS[::2], 1.0)
    places = list(product(SIDES, MODELS, PHONES, budgets))
    rules = ("none", "pre-copy")
    jobs = [
        (race(model, phone, requests, None, constrained=side, budget=budget, migration=rule),)
        for side, model, phone, budget in places
        for rule in rules
    ]
    outcomes: list[Outcome] = run_all(run_scenario, jobs, options.jobs)
    cuts = {place: cost_cut(*outcomes[2 * at : 2 * at + 2]) for at, place in enumerate(places)}
    for side, phone in product(SIDES, PHONES):
        rows = [[f"{budget:g}", *(format_cuts([cuts[side, model, phone, budget]]) for model in MODELS)] for budget in budgets]
        rows.append(["mean", *(format_cuts([cuts[side, model, phone, budget] for budget in budgets]) for model in MODELS)])
        show_table(f"Per cent of cost saved by migration, {side}-constrained, {phone}, 95 % interval", ("budget", *MODELS), rows)
    for side in SIDES:
        best = max((place for place in places if place[0] == side), key=lambda place: cuts[place].value)
        print(f"\n{side}-constrained, most: {', '.join(map(str, best[1:]))}: {format_cuts([cuts[best]])} %")


def cost_cut(stays: Outcome, moves: Outcome) -> Cut:
    """Per cent less with migration; drawn anew are requests, in pairs."""
    without, with_it = (np.array([row.cost for row in outcome.requests]) for outcome in (stays, moves))
    draws = np.random.default_rng(SEED).multinomial(without.size, np.full(without.size, 1.0 / without.size), DRAWS)
    return Cut(100.0 * (1.0 - with_it.sum() / without.sum()), 100.0 * (1.0 - draws @ with_it / (draws @ without)))


def show_moves(options: argparse.Namespace) -> None:
    requests = 60 if options.quick else 200
    budgets = (0.6,) if options.quick else (0.2, 0.6, 1.0)
    places = list(product(SIDES, MODELS, PHONES, budgets))
    jobs = [
        (race(model, phone, requests, "reading", constrained=side, budget=budget, migration="pre-copy"),)
        for side, model, phone, budget in places
    ]
    outcomes = dict(zip(places, run_all(run_scenario, jobs, options.jobs), strict=True))
    rows = []
    for model, side in product(MODELS, SIDES):
        found = [outcome for place, outcome in outcomes.items() if place[:2] == (side, model)]
        delayed = np.array([row.delayed for outcome in found for row in outcome.requests if row.moves], dtype=np.float64)
        slowest = max(outcome.system["tbt_p99"] for outcome in found)
        if not delayed.size:
            rows.append([model, side, "0", "-", "-", "-", f"{slowest:.3f}"])
            continue
        mean, p99 = delayed.mean(), np.percentile(delayed, 99)
        low, high = np.quantile(np.random.default_rng(SEED).choice(delayed, (DRAWS, delayed.size)).mean(axis=1), [0.025, 0.975])
        share = f"{100.0 * float((delayed == 0).mean()):.1f}"
        rows.append([model, side, str(delayed.size), share, f"{mean:.2f} ({low:.2f} to {high:.2f})", f"{p99:.0f}", f"{slowest:.3f}"])
    head = ("model", "constrained", "answers that moved", "without delay [%]", "delayed tokens, mean", "P99", "TBT P99 [s]")
    show_table(f"Answers that moved, read at 4.8 tokens/s; all phones and budgets {', '.join(map(str, budgets))}", head, rows)


# The simulator


def show_speed(options: argparse.Namespace) -> None:
    requests = 300 if options.quick else 2000
    rows = []
    for name, policy in (
        ("disco, device-constrained", RacePolicy(constrained="device", dispatch="disco")),
        ("disco, server-constrained", RacePolicy(constrained="server", dispatch="disco")),
        ("stochastic, device-constrained", RacePolicy(constrained="device", dispatch="stochastic")),
        ("optimal, device-constrained", RacePolicy(constrained="device", dispatch="optimal")),
        ("with migration, device-constrained", RacePolicy(constrained="device", migration="pre-copy", budget=1.0)),
        ("with pace", RacePolicy(constrained="device", pace="reading")),
    ):
        one = Race(RaceOptions(policy=policy), Scenario(kind="race", kind_location=KINDS["race"], seed=SEED))
        draws = [one.draw(f"request {number}") for number in range(requests)]
        events, began = 0, time.perf_counter()
        for draw in draws:
            events += next(one.client.run(draw).session._env._eid)  # how many were scheduled
        seconds = time.perf_counter() - began
        rows.append([name, f"{1000.0 * seconds / requests:.3f}", f"{events / requests:.1f}", f"{events / seconds:,.0f}"])
    show_table("One process", ("policy", "ms a request", "events a request", "events/s"), rows)


def show_lengths(_: argparse.Namespace) -> None:
    pairs = [pair for half in recorded_lengths() for pair in half]
    for name, lengths in zip(("prompts", "answers"), zip(*pairs, strict=True), strict=True):
        print(name, tuple(round(value) for value in np.quantile(lengths, SHARES).tolist()))


if __name__ == "__main__":
    sys.exit(main())
