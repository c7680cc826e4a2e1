"""The sentences of docs/research/synera.md say what the kept results and the packaged scores say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from statistics import fmean

import pytest

from bench.packing import LIMIT
from bench.runs import load as load_run
from experiments.kept import load
from experiments.synera import formats
from experiments.synera.costs import DEVICE, cost_of
from experiments.synera.quality import Quality, qualities, with_whole_answers
from experiments.synera.results import read_package
from experiments.synera.summary import NAMES
from experiments.tables import means_of
from experiments.tasks.intervals import Interval
from streamco.policies.cost import device_costs
from streamco.sim.workload.trace_files import read_trace
from tests.support.words import NUMBERS, fraction, page_words, span

BUDGETS = (0.2, 0.5)
CELLS = [(task, budget) for task in NAMES for budget in BUDGETS]
TRACES = {"gsm8k": "GSM8K", "humaneval": "HumanEval", "alpaca": "Alpaca", "xsum": "XSum", "cnn_dailymail": "CNN/DailyMail"}
FIGURES = ("tpot_mean", "agreement", "cloud_share", "drafted")
CHUNKS = ("combined", "confidence", "importance")

Contenders = Mapping[str, Mapping[str, float]]
"""Of one figure or ratio: by trace and contender."""


@cache
def scores() -> dict[str, dict[str, Quality]]:
    """Return what every contender is worth, by task and contender."""
    found = {}
    for task, questions in read_package().items():
        results = with_whole_answers([*questions.values()], BUDGETS)
        found[task] = {each.name: each for each in qualities(results, [*results[0]])}
    return found


def over_confidence(rule: str) -> dict[tuple[str, float], Interval]:
    found = {(task, budget): scores()[task][f"{rule} {budget:g}"].over_confidence for task, budget in CELLS}
    return {cell: interval for cell, interval in found.items() if interval is not None}


def gain_share(task: str, budget: float) -> float:
    """Return the score's gain by confidence, of that of the server alone."""
    return scores()[task][f"confidence {budget:g}"].gain.value / scores()[task]["server"].gain.value


def costs(figures: Mapping[str, Contenders]) -> dict[str, dict[str, float]]:
    """Return each contender's cost of the server's alone."""
    found = {}
    for trace, seconds in figures["tpot_mean"].items():
        all_costs = {name: cost_of(each, figures["cloud_share"][trace][name]) for name, each in seconds.items()}
        found[trace] = {name: cost / all_costs["server"] for name, cost in all_costs.items()}
    return found


@cache
def simulated(run: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return the kept figures, and ``cost``, by trace and contender."""
    by_figure = {figure: means_of(load(run)["scenarios"], "contender", figure) for figure in FIGURES}
    found = {
        figure: {str(trace).removesuffix("_qwen"): dict(line) for (trace,), line in means.items()} for figure, means in by_figure.items()
    }
    return {**found, "cost": costs(found)}


def answer_sentences() -> Iterator[str]:
    ratios = {task: by["confidence 0.2"].ratio for task, by in scores().items()}
    (open_task,) = (task for task, ratio in ratios.items() if ratio is not None and ratio.low < 1 < ratio.high)
    yield f"on {NAMES[open_task].replace('DM', 'DailyMail')} the interval reaches from a loss to a gain."
    cost = [by["confidence 0.2"] for by in simulated("synera_table4")["cost"].values()]
    yield f"In the simulator that costs {span(cost, 2)} of the server alone ({', '.join(TRACES.values())})."
    both = over_confidence("combined")
    ((better, at),) = (cell for cell, interval in both.items() if interval.low > 0)
    assert all(interval.high >= 0 for interval in both.values()), "not different in the others"
    value, low, high = both[better, at]
    assert NAMES[better] == "CNN/DM"
    yield f"confidence alone in one of {NUMBERS[len(CELLS)]} cells (CNN/DailyMail at {at:g}, by {value:.3f}, {low:.3f} to {high:.3f})"
    shares = {task: gain_share(task, 0.2) for task in NAMES}
    most = max(shares, key=lambda task: shares[task])
    others = [100 * share for task, share in shares.items() if task != most]
    gains = f"A budget of 0.2 brings {span(others, 0)} % of the gain of the server alone"
    yield f"{gains}, and {100 * shares[most]:.0f} % on {NAMES[most]}; with an even rise it would be 20 %."
    assert all(interval.low <= 0 for interval in over_confidence("importance").values())
    yield "Importance alone is nowhere surely better."
    assert sum(interval.value > 0 for interval in over_confidence("hybrid").values()) > len(CELLS) / 2
    yield "bring more quality at the same budget in most cells, but wait for each."


def counts() -> dict[str, int]:
    return {task: len(questions) for task, questions in read_package().items()}


def recorded_sentences() -> Iterator[str]:
    found = counts()
    assert found["csqa"] == found["sst2"]
    yield f"Recorded are {found['csqa']} questions of CommonsenseQA and SST-2"
    yield f"all {found['cnndm']} of CNN/DM, {found['xsum']} of XSum, {found['gsm8k']} of GSM8K and {found['humaneval']} of HumanEval"
    yield f"GSM8K has {found['gsm8k']} questions of 100, and HumanEval {found['humaneval']}."


def score_sentences() -> Iterator[str]:
    both = over_confidence("combined")
    values = span([interval.value for interval in both.values()], 2, "+")
    (above,) = (cell for cell, interval in both.items() if interval.low > 0)
    low, high = both[above].low, both[above].high
    yield f"from {values} in the {NUMBERS[len(both)]} cells."
    yield f"One interval is above 0, {NAMES[above[0]]} at {above[1]:g}: {low:+.3f} to {high:+.3f}. The others reach 0."
    importance = over_confidence("importance")
    assert all(interval.low <= 0 <= interval.high for interval in importance.values())
    yield "**Importance alone** isn't surely better or worse anywhere."
    single = over_confidence("hybrid")
    more = [cell for cell, interval in single.items() if interval.value > 0]
    surely = sum(interval.low > 0 for interval in single.values())
    yield f"bring more than chunks by confidence in {NUMBERS[len(more)]} of {NUMBERS[len(single)]} cells. In {NUMBERS[surely]} of these"
    exceptions = [f"{NAMES[task]} at {budget:g}" for task, budget in single if (task, budget) not in more]
    yield f"{' and '.join(exceptions)} is the exception."
    computed = [scores()[task][f"hybrid {at:g}"].server_share > scores()[task][f"confidence {at:g}"].server_share for task, at in CELLS]
    yield f"Each token is a round trip, and in {NUMBERS[sum(computed)]} of the twelve cells the server computes more tokens."


def world_sentences() -> Iterator[str]:
    kept = load("synera_table4")
    world, workload = kept["settings"]["world"], kept["settings"]["workload"]
    pace, rtt = world["device_pools"][0]["draft_tokens_per_s"], world["link"]["rtt_ms"]
    every = NUMBERS[round(1 / workload["arrivals"]["poisson_per_s"])]
    requests = f"{workload['requests']} requests, one every {every} seconds"
    yield f"{world['devices']} devices of {pace} tokens/s, a round trip of {rtt} ms, and {requests}."
    yield f"Means of {NUMBERS[kept['repeats']]} seeds."
    lengths = {name: [row.output_tokens for row in read_trace(f"{name}_qwen")] for name in TRACES}
    (answers,) = {len(each) for each in lengths.values()}
    yield f"packaged traces of {' / '.join(TRACES.values())}, {answers} answers each of Qwen2.5-Coder 0.5B for 1.5B."
    yield f"GSM8K / HumanEval / CNN/DailyMail, {answers} answers each of Qwen2.5-Coder 0.5B for 1.5B."
    yield f"XSum, whose answers of {fmean(lengths['xsum']):.0f} tokens agree least."
    yield f"GSM8K as above, answers of {fmean(lengths['gsm8k']):.0f} tokens."


def filter_sentences() -> Iterator[str]:
    found = simulated("synera_table4")
    agreement, cost = found["agreement"], found["cost"]
    assert all(by[f"importance {at}"] < by[f"combined {at}"] <= by[f"confidence {at}"] for by in agreement.values() for at in BUDGETS)
    yield "Importance alone brings the least of the three."
    both = [f"{agreement['gsm8k'][name]:.3f}" for name in ("combined 0.2", "confidence 0.2")]
    yield f"confidence alone, and mostly less (on GSM8K at 0.2, {both[0]} and {both[1]})."
    less = {name: max(1 - by[f"combined {at}"] / by[f"confidence {at}"] for at in BUDGETS) for name, by in cost.items()}
    most = max(less, key=lambda name: less[name])
    yield f"cost up to {100 * less[most]:.0f} % less ({TRACES[most]}), because the server computes fewer tokens"


def hybrid_sentences() -> Iterator[str]:
    found = simulated("synera_table4")
    agreement, cost, seconds = found["agreement"], found["cost"], found["tpot_mean"]
    gains = {name: [by[f"hybrid {at}"] - by[f"confidence {at}"] for at in BUDGETS] for name, by in agreement.items()}
    (equal,) = (name for name, each in gains.items() if max(each) < 0.001)
    assert all(min(each) > 0.001 for name, each in gains.items() if name != equal)
    yield f"brings more agreement at the same budget, except on {TRACES[equal]}, where it is equal."
    longer = [by["hybrid 0.2"] / by["confidence 0.2"] for by in seconds.values()]
    yield f"A token takes {span(longer, 2)} times as long as with chunks by confidence at 0.2."
    assert min(by["hybrid 0.5"] for by in cost.values()) > 0.95, "about as much as the server alone, or more"


def whole_answer_sentences() -> Iterator[str]:
    found = simulated("synera_table4")
    agreement, cost = found["agreement"], found["cost"]
    chunks = {(name, at): [by[f"{rule} {at}"] for rule in CHUNKS] for name, by in cost.items() for at in BUDGETS}
    ((name, at),) = (cell for cell, others in chunks.items() if cost[cell[0]][f"answers {cell[1]}"] > min(others))
    shown = f"{cost[name][f'answers {at}']:.2f}; chunks {span(chunks[name, at], 2)}"
    yield f"are the cheapest, except on {TRACES[name]} at {at:g} ({shown})."
    near = ("alpaca", "xsum")
    pairs = [span([agreement[name][f"{rule} 0.2"] for rule in ("answers", "confidence")], 3) for name in near]
    shares = [f"{cost[name]['answers 0.2'] / cost[name]['confidence 0.2']:.2f}" for name in near]
    yield f"the agreement of chunks by confidence ({', '.join(pairs)}) for {' and '.join(shares)} of the cost."
    values = [by[f"{rule} 0.2"] for by in cost.values() for rule in CHUNKS]
    (most,) = {max(TRACES, key=lambda name: cost[name][f"{rule} 0.2"]) for rule in CHUNKS}
    assert most == min(TRACES, key=lambda name: agreement[name]["device"])
    yield f"**Chunks at 0.2** cost {span(values, 2)} of the server alone, most on {TRACES[most]}"


def energy_sentences() -> Iterator[str]:
    found = simulated("synera_table4")
    drafted, joules = found["drafted"].values(), device_costs(DEVICE).completion_joules
    branched = [joules * by[f"{rule} 0.2"] for by in drafted for rule in CHUNKS]
    waiting = [joules * by["confidence 0.2, device waits"] for by in drafted]
    yield f"costs the device {span(branched, 2)} J a token at 0.2. If it waits, it takes {span(waiting, 2)} J."
    ways = {"one branch drawn, as in the paper": "one branch drawn", "the device waits": "device waits"}
    for label, name in ways.items():
        seconds = found["tpot_mean"].values()
        cells = [span([by[f"confidence {at}, {name}"] / by[f"confidence {at}"] for by in seconds], 2) for at in BUDGETS]
        yield f"| {label} | {cells[0]} | {cells[1]} |"


def budget_sentences() -> Iterator[str]:
    found = simulated("synera_figure14")
    agreement, cost, seconds = found["agreement"], found["cost"], found["tpot_mean"]
    gained = {name: (by["0.2"] - by["device"]) / (by["server"] - by["device"]) for name, by in agreement.items()}
    yield f"On HumanEval {fraction(gained['humaneval'])} of the gain comes by 0.2."
    above = [name for name in cost["cnn_dailymail"] if name not in {"server", "device"} and cost["cnn_dailymail"][name] > 1]
    shown = ", then ".join(f"{cost['cnn_dailymail'][name]:.2f}" for name in above)
    yield f"is above the server alone's from {above[0]} on ({shown}), because rejected tokens are computed too."
    others = ("gsm8k", "humaneval")
    costs_of = " and ".join(f"{cost[name]['1']:.2f}" for name in others)
    times = " and ".join(f"{seconds[name]['1'] / seconds[name]['server']:.2f}" for name in others)
    yield f"With the other two a budget of 1 costs {costs_of} of it, and a token takes {times} of the time."


def load_sentences() -> Iterator[str]:
    """Yield what is said of Figures 13 and 15."""
    thin = load("synera_figure13")["settings"]
    pace = thin["world"]["device_pools"][0]["draft_tokens_per_s"]
    yield f"At a budget of {thin['policy']['budget']:g}. Devices make {pace} tokens/s, and chunks are chosen by both filters;"
    verdicts, answered = (means_of(load("synera_figure15")["scenarios"], "policy.budget", name) for name in ("verdict_mean", "throughput"))
    slower = [rate for (rate,), by in verdicts.items() if [*by.values()] == sorted(by.values(), reverse=True)]
    assert slower == sorted(rate for (rate,) in verdicts if rate >= slower[0])
    most = [max(by[budget] for by in answered.values()) for budget in (0.3, 0.6, 0.9)]
    assert most == sorted(most, reverse=True), "the most that is answered falls with the budget"
    yield f"From {slower[0]} requests a second on the lower budget has the slower verdicts, and answers more."


def packing_sentences() -> Iterator[str]:
    run, kinds = load_run("packing"), ("Q8_0", "0.5B", "1.5B")
    yield f"carries with at most {100 * (LIMIT - 1):.0f} % more time between tokens."
    (factor,) = {run.value(kind, "streams within 10 %") for kind in kinds}
    yield f"On one thread of a CPU it is {factor:.0f} for every model"
    times = [run.value(kind, "time between tokens [ms]", "2 streams") for kind in kinds]
    once = [run.value(kind, "time between tokens [ms]", "1 streams") for kind in kinds]
    yield f"With a second row a pass takes {span([two / one for one, two in zip(once, times, strict=True)], 1)} times as long"


def format_sentences() -> Iterator[str]:
    found = read_package(formats.PACKAGED)
    by_kind = [found[f"{formats.TASK} {kind}"] for kind in formats.FORMATS]
    common = sorted(set.intersection(*map(set, by_kind)))
    ratios = [qualities([each[question] for question in common], ["combined 0.2"])[0].ratio for each in by_kind]
    eight, four, two = (ratio for ratio in ratios if ratio is not None)
    yield f"In eight and four bits the server raises the score by {100 * (eight.value - 1):.0f} and {100 * (four.value - 1):.0f} %."
    assert min(eight.low, four.low) > 1
    assert two.low < 1 < two.high
    yield "In two bits the interval reaches from a loss to a gain."
    paper = [100 * (float(ratio) - 1) for *_, ratio in formats.PAPER]
    yield f"The paper has {span(paper, 0)} % with each of its three."


def attention_sentences() -> Iterator[str]:
    run, slower = load_run("importance"), []
    for prompt in (64, 768):
        case = f"reading attention, Q2_K, one thread, prompt of {prompt}"
        unread = max(run.value(case, "decode [tokens/s]", f"{way}flash attention, nothing read") for way in ("", "no "))
        slower.append(fraction(1 - run.value(case, "decode [tokens/s]", "last 4 layers") / unread))
    yield f"reading the attention costs the device {slower[0]} of its pace after a prompt of 64 tokens, and {slower[1]} after one of 768"


PARTS: list[Callable[[], Iterator[str]]] = [
    answer_sentences,
    recorded_sentences,
    score_sentences,
    world_sentences,
    filter_sentences,
    hybrid_sentences,
    whole_answer_sentences,
    energy_sentences,
    budget_sentences,
    load_sentences,
    packing_sentences,
    format_sentences,
    attention_sentences,
]


@pytest.mark.parametrize("part", PARTS)
def test_the_page_says_what_was_found(part: Callable[[], Iterator[str]]) -> None:
    words = page_words("docs/research/synera.md")
    assert not [sentence for sentence in part() if sentence not in words]
