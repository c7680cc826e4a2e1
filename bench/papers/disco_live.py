"""DiSCo by the live client in virtual time: Table 2 with a client that learns, what migration saves (Figure 7), and moves (Table 3).

The first is ``disco_ttft.yaml``. Cost and moves are the packaged services: each of the paper's four models at its price of Table 8, with
the times of a service of about its speed, as ``bench/counted/cost.py`` has them, and with the abilities of its own provider. The paper has
every answer moved, so both are also asked as if all services could go on with an answer and any model were good enough.

Their intervals are of the bootstrap over requests, which are the same for all contenders; ``disco_cost.yaml`` and ``disco_moves.yaml`` have
none. ``bench.counted.cost`` and ``bench.counted.moves`` ask the same of all recorded services. ``python -m bench.papers.kept run disco_ttft
disco_cost disco_moves`` keeps all three.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from bench.counted.dispatch import PHONES
from bench.papers.disco_judged import DRAWS, Cut, interval
from bench.papers.disco_planned import BUDGETS, SIDES
from bench.tables import run_all, table_lines
from streamco.sim.experiment.scenario import KINDS, Outcome, Scenario, run_scenario

__all__ = ["FIGURES", "MODELS", "cost_cut", "cost_lines", "cost_rows", "move_lines", "move_row", "move_rows", "ttft_lines"]

FIGURES = ("ttft_mean", "ttft_p99", "budget_share")
MODELS: Mapping[str, tuple[str, str, str]] = {  # the paper's: whose times, whose price, whose abilities
    "GPT": ("openai-gpt-3.5-turbo-0125", "gpt-4o-mini", "openai"),
    "LLaMA": ("together-llama-2-70b-chat", "llama-3.1-70b-hyperbolic", "generic"),
    "DeepSeek": ("openai-gpt-4-0125-preview", "deepseek-v2.5", "deepseek"),
    "Command": ("bedrock-llama-2-70b-chat", "command", "generic"),
}
DEFAULT, ANY_MODEL, ALL = "by default", "to any model", "if all could"
WAYS: Mapping[str, tuple[float | None, str | None]] = {  # how answers move: min_quality, and whose abilities if not the provider's own
    DEFAULT: (None, None),
    ANY_MODEL: (0.0, None),
    ALL: (0.0, "vllm"),
}
SEED = 7
REQUESTS = 200
COST_BUDGETS = (*BUDGETS[::2], 1.0)
SHOWN_BUDGET = 0.5
MOVE_BUDGETS = (0.2, 0.6, 1.0)
PAPER_MOST = {"device": "72.7", "server": "83.6"}  # per cent that migration saves
PAPER_DELAYED = {  # tokens of a move: mean / P99
    ("GPT", "server"): "4.21 / 9.40",
    ("GPT", "device"): "6.59 / 6.59",
    ("LLaMA", "server"): "5.53 / 11.00",
    ("LLaMA", "device"): "10.01 / 10.01",
    ("DeepSeek", "server"): "8.13 / 11.00",
    ("DeepSeek", "device"): "17.17 / 17.17",
    ("Command", "server"): "3.25 / 8.00",
    ("Command", "device"): "8.54 / 8.54",
}
PAPER_BETWEEN = {"server": "0.209", "device": "0.217"}  # seconds between tokens, P99

SENTENCES = {  # over the tables of cost, in their order
    DEFAULT: f"By default, at budget {SHOWN_BUDGET:g}:",
    ALL: f"If all services could go on with an answer, and any model were good enough, at budget {SHOWN_BUDGET:g}:",
}

Rows = Sequence[Mapping[str, Any]]


# Time to first token, Table 2


def ttft_lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield per cent less than random dispatch, means over services, and how often it is later."""
    found: dict[tuple[str, str, float, str], dict[str, Mapping[str, float]]] = {}
    for point, system in ((each["point"], each["system"]) for each in results["scenarios"]):
        place = (point["policy.constrained"], point["world.device"], point["policy.budget"], point["world.service"])
        found.setdefault(place, {})[point["policy.dispatch"]] = system
    cuts = {
        metric: {place: 100.0 * (1.0 - each["disco"][metric] / each["stochastic"][metric]) for place, each in found.items()}
        for metric in ("ttft_mean", "ttft_p99")
    }

    def of_phones(side: str, budget: float, metric: str) -> str:
        return " / ".join(
            f"{fmean(cut for place, cut in cuts[metric].items() if place[:3] == (side, phone, budget)):.1f}" for phone in PHONES
        )

    columns = [*product(SIDES, ("ttft_mean", "ttft_p99"))]
    names = {"ttft_mean": "mean", "ttft_p99": "P99"}
    budgets = sorted({budget for _, _, budget, _ in found})
    rows = ([f"{budget:g}", *(of_phones(side, budget, metric) for side, metric in columns)] for budget in budgets)
    yield from table_lines(["budget", *(f"{side} spared, {names[metric]}" for side, metric in columns)], rows)
    later = [f"{sum(cut < 0 for cut in cuts[metric].values())} by {names[metric]}" for metric in cuts]
    over = [each["disco"]["budget_share"] - place[2] for place, each in found.items()]
    yield ""
    spent = f"Share spent minus the budget: {min(over):.3f} to {max(over):.3f}."
    yield f"Later than random dispatch, of {len(found)} settings: {' and '.join(later)}. {spent}"


# Cost and moves: the live client among packaged services


def make_race(model: str, phone: str, pace: str | None, way: str | None, **policy: Any) -> Scenario:
    """Return a race of one of the paper's models against a phone; each request has a row in its outcome. ``way`` None: no answer moves."""
    service, prices, provider = MODELS[model]
    min_quality, other = (None, None) if way is None else WAYS[way]
    policy |= {"migration": "none" if way is None else "pre-copy", "min_quality": min_quality, "dispatch": "disco", "pace": pace}
    return Scenario(
        kind="race",
        kind_location=KINDS["race"],
        seed=SEED,
        requests=True,
        world={"service": service, "provider": other or provider, "prices": prices, "device": phone},
        workload={"requests": REQUESTS},
        policy=policy,
    )


def cost_rows(processes: int) -> Rows:
    """Return per cent of the cost that migration saves, with intervals, for each way, model, phone and budget."""
    places = [*product(SIDES, MODELS, PHONES, COST_BUDGETS)]
    ways = (None, *WAYS)
    jobs = [(make_race(model, phone, None, way, constrained=side, budget=budget),) for side, model, phone, budget in places for way in ways]
    outcomes: list[Outcome] = run_all(run_scenario, jobs, processes)
    rows = []
    for at, (side, model, phone, budget) in enumerate(places):
        stays, *moves = outcomes[len(ways) * at : len(ways) * (at + 1)]
        for way, outcome in zip(WAYS, moves, strict=True):
            saved, low, high = interval([cost_cut(stays, outcome)])
            ends = {"saved": round(saved, 6), "low": round(low, 6), "high": round(high, 6)}
            rows.append({"way": way, "side": side, "model": model, "phone": phone, "budget": budget, **ends})
    return rows


def cost_cut(stays: Outcome, moves: Outcome) -> Cut:
    """Per cent less with migration; drawn again are requests, in pairs."""
    without, with_it = (np.array([row.cost for row in outcome.requests]) for outcome in (stays, moves))
    draws = np.random.default_rng(SEED).multinomial(without.size, np.full(without.size, 1.0 / without.size), DRAWS)
    return Cut(100.0 * (1.0 - with_it.sum() / without.sum()), 100.0 * (1.0 - draws @ with_it / (draws @ without)))


def cost_lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the mean and the most that is saved in each way beside the paper's most, and then what is saved at one budget."""
    rows: Rows = results["rows"]
    totals = []
    for side in SIDES:
        cells = []
        for way in WAYS:
            found = [row for row in rows if (row["way"], row["side"]) == (way, side)]
            mean = fmean(row["saved"] for row in found if row["budget"] == SHOWN_BUDGET)
            cells.append(f"{mean:.0f} / {max(row['saved'] for row in found):.1f} %")
        totals.append([side, *cells, f"{PAPER_MOST[side]} %"])
    yield from table_lines(["spared: mean / most", *WAYS, "the paper's most"], totals)
    for way, sentence in SENTENCES.items():
        yield from ("", sentence, "")
        yield from table_lines(["spared", "phone", *MODELS, "most, at budget"], _cost_cells([row for row in rows if row["way"] == way]))


def _cost_cells(rows: Rows) -> Iterator[list[str]]:
    for side, phone in product(SIDES, PHONES):
        found = [row for row in rows if (row["side"], row["phone"]) == (side, phone)]
        shown = {row["model"]: row for row in found if row["budget"] == SHOWN_BUDGET}
        cells = (f"{shown[model]['saved']:.1f} ({shown[model]['low']:.1f} to {shown[model]['high']:.1f})" for model in MODELS)
        most = max(found, key=lambda row: row["saved"])
        yield [side, phone, *cells, f"{most['model']} {most['saved']:.1f}, at {most['budget']:g}" if most["saved"] > 0 else "none"]


def move_rows(processes: int) -> Rows:
    """Return delayed tokens and seconds between tokens of answers that moved, for each way, model and spared side."""
    places = [*product(WAYS, SIDES, MODELS, PHONES, MOVE_BUDGETS)]
    jobs = [(make_race(model, phone, "reading", way, constrained=side, budget=budget),) for way, side, model, phone, budget in places]
    outcomes: Mapping[Any, Outcome] = dict(zip(places, run_all(run_scenario, jobs, processes), strict=True))
    cases = product(WAYS, MODELS, reversed(SIDES))
    return [
        {
            "way": way,
            "model": model,
            "side": side,
            **move_row([found for place, found in outcomes.items() if place[:3] == (way, side, model)]),
        }
        for way, model, side in cases
    ]


def move_row(found: Iterable[Outcome]) -> Mapping[str, Any]:
    """Return the figures of all answers that moved in these outcomes; those of delayed tokens are absent if none did."""
    found = [*found]
    delayed = np.array([row.delayed for outcome in found for row in outcome.requests if row.moves], dtype=np.float64)
    row: dict[str, Any] = {"moved": delayed.size, "between_p99": round(max(outcome.system["tbt_p99"] for outcome in found), 4)}
    if delayed.size:
        drawn = np.random.default_rng(SEED).choice(delayed, (DRAWS, delayed.size)).mean(axis=1)
        low, high = np.quantile(drawn, [0.025, 0.975])
        tail, unnoticed = np.percentile(delayed, 99), (delayed == 0).mean()
        figures = {"delayed": delayed.mean(), "low": low, "high": high, "p99": tail, "unnoticed": unnoticed}
        row |= {name: round(float(value), 4) for name, value in figures.items()}
    return row


def move_lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the moves of each model and side beside the paper's."""
    head = ["service", "spared", "paper: delayed tokens, mean / P99", "ours, mean", "P99", "answers that moved", "of these unnoticed"]
    rows: Rows = results["rows"]
    moved = {way: {(row["model"], row["side"]): row["moved"] for row in rows if row["way"] == way} for way in (DEFAULT, ANY_MODEL)}
    lines = ([*_move_line(row), *(f"{found[row['model'], row['side']]}" for found in moved.values())] for row in rows if row["way"] == ALL)
    yield from table_lines([*head, "paper: TBT P99", "ours", *(f"moved {way}" for way in moved)], lines)


def _move_line(row: Mapping[str, Any]) -> list[str]:
    model, side = row["model"], row["side"]
    delayed, p99, unnoticed = "-", "-", "-"
    if row["moved"]:
        ends = f" ({row['low']:.2f} to {row['high']:.2f})" if row["high"] else ""
        delayed, p99, unnoticed = f"{row['delayed']:.2f}{ends}", f"{row['p99']:.0f}", f"{100 * row['unnoticed']:.1f} %"
    paper = (PAPER_DELAYED[model, side], PAPER_BETWEEN[side])
    return [model, side, paper[0], delayed, p99, f"{row['moved']}", unnoticed, f"{paper[1]} s", f"{row['between_p99']:.3f} s"]
