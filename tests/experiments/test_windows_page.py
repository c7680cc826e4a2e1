"""The sentences of docs/research/windows.md say what the kept results say.

Those about live links, and the rates at each link, are in tests/bench/test_headlines.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from statistics import fmean
from typing import Any

import pytest

from bench.runs import load as load_run
from bench.speculate import LARGE
from bench.windows_recorded import CLIENTS
from experiments.dsd import OTHERS, change, seeds_of
from experiments.kept import load
from experiments.tables import means_of
from experiments.window_inputs import FLEETS, WORLDS
from experiments.window_regret import PARTS as WORLD_PARTS
from experiments.window_worlds import ANSWERS, TOKENS
from streamco.emulation.profiles import load_step_times
from streamco.policies.window import Confident, Stabiliser, is_fused
from tests.support.data import ROOT
from tests.support.words import NUMBERS, fraction, page_words, span

PAGE = "docs/research/windows.md"
STEPS, LINKS = (6.1, 12.2, 24.4), (10, 30, 60, 120)
SLOWEST = STEPS[-1]
SINGLE, THERE = "tokens/s relative to the best single fixed one", "tokens/s relative to the best fixed one there"


@cache
def regret() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = load("window_regret")["rows"]
    return found


def means(among: str) -> dict[str, dict[str, float]]:
    """Return the mean shares of the best, by mode and policy."""
    found: dict[str, dict[str, float]] = {}
    for row in regret():
        if row["among"].startswith(among):
            found.setdefault(row["mode"], {})[row["policy"]] = row["mean"]
    return found


def faster(policy: str, other: str, among: str = "worlds to draft in") -> list[float]:
    """Return per cent more than another policy, by mode."""
    return [100 * (by[policy] / by[other] - 1) for by in means(among).values()]


def worlds_of(among: str) -> int:
    """Return the number of worlds, which the kept rows name."""
    (name,) = {row["among"] for row in regret() if row["among"].startswith(among)}
    return int(name.split("(")[1].removesuffix(")"))


def rates(step: float, contender: str, metric: str = THERE) -> list[tuple[float, int]]:
    """Return rates over those of the best fixed window, and that window, in the order of the links."""
    return [
        (row.median, int(name.removeprefix(f"{metric}, window ").split()[0]))
        for (case, name, by), row in load_run("windows_simulated").rows.items()
        if f"draft step {step} ms" in case and name.startswith(metric) and by == contender
    ]


def recorded(step: float, metric: str, rtt: int) -> dict[str, float]:
    """Return a figure of a link by contender."""
    return {
        by: row.median
        for (case, name, by), row in load_run("windows_simulated").rows.items()
        if f"draft step {step} ms" in case and f"RTT {rtt} ms" in case and name == metric
    }


def prompts() -> tuple[int, int]:
    """Return the number of answers and of their tokens, which each case names."""
    cases = (re.search(r"(\d+) x (\d+) tokens", case) for case, *_ in load_run("windows_simulated").rows)
    ((answers, tokens),) = {found.groups() for found in cases if found}
    return int(answers), int(tokens)


def answer_sentences() -> Iterator[str]:
    yield f"it beats a fixed window of four tokens by {span(faster('adaptive', 'static 4'))} %, and a *dynamic* window"
    yield f"the paper doesn't say of which) by {span(faster('adaptive', 'dynamic'))} %."
    yield f"it is {span(faster('adaptive', 'confident'))} % ahead in these worlds, and equal with recorded drafts."
    switched = means("worlds to draft in")["with the mode switch"]
    yield f"is as fast ({switched['predicted']:.3f} and {switched['adaptive']:.3f} of the best)."
    gains = [gain for among in ("all worlds", "worlds to draft in") for gain in faster("adaptive, not smoothed", "adaptive", among)]
    most = f"{max(gains):.1f}"
    yield f"the network is up to {'half a per cent' if most == '0.5' else f'{most} %'} faster."
    lost = [rate for rate, _ in rates(SLOWEST, "adaptive")]
    yield f"if a draft step takes nearly half of the server's step, it has {span(lost, 2)} of the best fixed window."


def world_sentences() -> Iterator[str]:
    count = worlds_of("all worlds")
    yield f"[{count} unseen worlds](#unseen-worlds)"
    yield f"The {count} worlds have one device each, and the network has not seen them."
    yield f"In {worlds_of('worlds to draft in')} of them drafting is best."
    yield f"An answer has {TOKENS} tokens and there are {NUMBERS[ANSWERS]}"
    assert count == len(range(0, WORLDS, WORLD_PARTS))
    learned = [sum(number % WORLD_PARTS > 1 for number in range(most)) for most in (WORLDS, FLEETS)]
    yield f"| worlds | {WORLDS:,} ({learned[0]:,} to learn from) | {FLEETS} ({learned[1]} to learn from) |"


def smoothing_sentences() -> Iterator[str]:
    window, stabiliser, in_a_row, rounds = 8, Stabiliser(), 0, 0
    stabiliser.settle(window)
    while in_a_row < 2:
        in_a_row = in_a_row + 1 if is_fused(stabiliser.settle(0.0)) else 0
        rounds += 1
    yield f"changes its mind from {window} tokens to the server alone is then followed after {NUMBERS[rounds]} rounds."
    alike = [faster("adaptive, mode smoothed", "adaptive", among) for among in ("all worlds", "worlds to draft in")]
    most = max(abs(each) for pair in alike for each in pair)
    yield f"The means of the two differ by {most:.1f} % at most"


def recorded_sentences() -> Iterator[str]:
    answers, tokens = prompts()
    yield f"There are {NUMBERS[CLIENTS]} new clients a contender and link, and {answers} answers of {tokens} tokens."
    yield f"of {answers * tokens:,} tokens adaptive left"
    assert 0.4 < SLOWEST / 1000 / load_step_times(LARGE)(1, 0) < 0.5
    paces = [recorded(SLOWEST, "tokens a second [tokens/s]", rtt) for rtt in LINKS]
    best = max(rate / by["server alone"] for by in paces for name, rate in by.items() if name.startswith("window"))
    (window,) = {found for metric in (THERE, SINGLE) for _, found in rates(SLOWEST, "adaptive", metric)}
    yield f"At {SLOWEST} ms a draft step takes nearly half of the server's. Drafting is {best:.1f} times as fast at best there,"
    yield f"and {NUMBERS[window]} tokens are the best window."
    left = recorded(SLOWEST, "by the server alone [tokens]", LINKS[0])["adaptive"] / (answers * tokens)
    yield f"The network then leaves {fraction(left)} of the tokens to the server at {LINKS[0]} ms."
    yield f"it never requires a chance above {Confident().surest:g} that all is accepted."
    predicted = [rate for rate, _ in rates(SLOWEST, "predicted")]
    yield f'`"predicted"` has {span(predicted[:3], 2)} at {LINKS[0]} to {LINKS[2]} ms.'


def row_cost_sentences() -> Iterator[str]:
    settings = load("row_costs")["settings"]
    pace = settings["world"]["device_pools"][0]["draft_tokens_per_s"]
    branches = NUMBERS[settings["policy"]["branches"]]
    place = f"drafts {branches} branch at a time, and is on the server's machine; {settings['workload']['requests']} answers"
    yield f"The device makes {pace} tokens/s, {place}, in virtual time."
    found = means_of(load("row_costs")["scenarios"], "window", "tpot_mean")
    policies = ("predicted", "confident", "adaptive")
    by_list: dict[str, list[dict[str, float]]] = {}
    for (rows, _), by in found.items():
        by_list.setdefault(rows, []).append(dict(by))
    fixed = [{name: each for name, each in by.items() if name.startswith("fixed")} for by in found.values()]
    best = dict(zip(found, (min(each, key=lambda name: by[name]) for each, by in zip(fixed, found.values(), strict=True)), strict=True))
    for case, by in found.items():
        if case[0].startswith("Q4_0"):
            assert max(by[policy] for policy in policies) < 1.03 * by[best[case]]
    yield f"On stairs all {NUMBERS[len(policies)]} policies find the window that fills the first one."
    alone = "the server alone"
    plain = by_list["Q4_K_M, not repacked"]
    assert all(by[alone] == min(by.values()) for by in plain)
    less = [100 * (1 - by[alone] / min(each for name, each in by.items() if name.startswith("fixed"))) for by in plain]
    yield "With Q4_K_M that is not repacked no window beats the server alone,"
    yield f"which takes {span(less)} % less time a token than the best fixed one."
    (one,) = {int(best[case].split()[-1]) for case in found if case[0] == "flat"}
    alike = []
    for by in by_list["flat"]:
        names = [name for name in by if name.startswith("fixed")]
        gaps = {abs(by[name] - by["confident"]): name for name in names}
        alike.append(float(gaps[min(gaps)].split()[-1]))
    step = fraction(1 / pace / fmean(by[alone] for by in by_list["flat"]))
    yield f"With flat costs, and a device's step of {step} the server's, `\"confident\"` is as slow"
    yield f"as a fixed window of {span(alike)} tokens,"
    yield f"where {NUMBERS[one]} token is the best, for the reason"


def limit_sentences() -> Iterator[str]:
    cases = seeds_of(load("dsd_table2")["scenarios"], "finished")
    alone = [change(by["adaptive"], by[OTHERS[0]]).mean for by in cases.values()]
    yield f"clients with this window answered at most {-min(alone):.1f} % fewer requests a second than the server alone,"
    fewer = [-change(by["adaptive"], by["static 4"]).mean for case, by in cases.items() if case.startswith("gsm8k")]
    yield f"but on GSM8K {span(fewer)} % fewer than with a fixed window of four."
    yield f'`"confident"` goes by that alone, up to {NUMBERS[Confident().max_window]} tokens.'
    size = len((resources.files("streamco.policies") / "windownet.json").read_bytes())
    yield f"The weights are {size / 1000:.0f} kB in `streamco/policies/windownet.json`."


PARTS = (answer_sentences, world_sentences, smoothing_sentences, recorded_sentences, row_cost_sentences, limit_sentences)


@pytest.mark.parametrize("part", PARTS)
def test_the_page_says_what_was_found(part: Callable[[], Iterator[str]]) -> None:
    words = page_words(PAGE)
    assert not [sentence for sentence in part() if sentence not in words]


@pytest.mark.parametrize("step", STEPS)
def test_the_table_names_the_best_single_window(step: float) -> None:
    adaptive, confident = (ROOT / PAGE).read_text(encoding="utf-8").partition(f"| draft step {step} ms: adaptive |")[2].splitlines()[:2]
    ((rate, window),) = rates(step, "adaptive", SINGLE)
    shown, _, named = adaptive.removesuffix(" |").rpartition("| ")[2].partition(" (")
    assert named == f"{window} tokens)"
    assert float(shown) == pytest.approx(rate, abs=0.0051)
    assert confident.startswith("| confident |")
    assert float(confident.removesuffix(" |").rpartition("| ")[2]) == pytest.approx(rates(step, "confident", SINGLE)[0][0], abs=0.0051)
