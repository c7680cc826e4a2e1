"""The sentences of docs/research/dsd.md say what the kept results say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from statistics import fmean
from typing import Any

import pytest

from experiments.dsd import OTHERS, change, seeds_of
from experiments.kept import load
from experiments.tables import means_of
from tests.support.words import page_words, span

ALONE, FUSED = OTHERS
TASKS = ("gsm8k", "humaneval", "cnn_dailymail")


@cache
def table2() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = load("dsd_table2")["scenarios"]
    return found


def means(figure: str, policy: str, task: str = "") -> list[float]:
    return [fmean(policies[policy].values()) for case, policies in seeds_of(table2(), figure).items() if case.startswith(task)]


def changes(figure: str, other: str, task: str = "", *, policy: str = "adaptive", rtt: str = "") -> list[float]:
    """Return per cent more than the other policy, by case."""
    cases = seeds_of(table2(), figure).items()
    return [change(by[policy], by[other]).mean for case, by in cases if case.startswith(task) and case.endswith(rtt)]


def counts(other: str) -> tuple[int, int]:
    """Return in how many cases adaptive has a lower and a higher time a token than another policy, beyond the interval."""
    found = [change(by["adaptive"], by[other]) for by in seeds_of(table2(), "tpot_mean").values()]
    return sum(-each.mean > (each.half or 0.0) for each in found), sum(each.mean > (each.half or 0.0) for each in found)


def less(values: list[float]) -> list[float]:
    return [-value for value in values]


def table2_sentences() -> Iterator[str]:
    (better, worse), (better_dynamic, worse_dynamic) = counts("static 4"), counts("dynamic")
    yield f"the adaptive window beats a static window of four in {better} of 12 cases, HumanEval's, and is slower in {worse}."
    yield f"It beats *dynamic* in {better_dynamic} and is slower in {worse_dynamic}."
    time, first = "tpot_mean", "ttft_mean"
    yield f"It takes {span([1000 * each for each in means(time, FUSED)])} ms a token, because its drafts wait"
    dynamic = [1000 * each for each in means(time, "dynamic", "humaneval")]
    yield f"the long drafts of dynamic win: {span(means('window_mean', 'dynamic', 'humaneval'))} tokens, and {span(dynamic)} ms a token."
    drafts = f"Adaptive drafts {span(means('window_mean', 'adaptive', 'humaneval'))} tokens"
    faster, slower = less(changes(time, "static 4", "humaneval")), changes(time, "dynamic", "humaneval")
    yield f"{drafts}, takes {span(faster)} % less time than static 4, and {span(slower)} % more than dynamic."
    news = [span(changes(time, "static 4", "cnn", rtt=rtt)) for rtt in ("10 ms", "30 ms")]
    yield f"Adaptive takes {span(changes(time, 'static 4', 'gsm8k'))} % longer on GSM8K, and on CNN/DailyMail {news[0]} % longer at 10 ms"
    yield f"and {news[1]} % at 30 ms."
    others = ("gsm8k", "cnn_dailymail")
    drafted, left = ([each for task in others for each in means(name, "adaptive", task)] for name in ("window_mean", "by_server_alone"))
    yield f"It drafts {span(drafted)} tokens when it drafts, and leaves {span([100 * each for each in left])} % to the server."
    yield f"is still {span(changes(time, 'static 4', 'cnn', policy='dynamic'))} % slower than static 4."
    firsts = less([each for task in ("humaneval", "cnn_dailymail") for each in changes(first, "static 4", task)])
    yield f"Adaptive is better than static 4 in all HumanEval and CNN/DailyMail cases, by {span(firsts)} %"
    both = [span(less(changes(time, ALONE, policy=policy))) for policy in ("adaptive", "static 4")]
    yield f"adaptive takes {both[0]} % less time a token and static 4 takes {both[1]} % less, both in all 12 cases."
    lost = sum(each > 0 for each in changes(time, ALONE, policy="dynamic"))
    yield f"Dynamic loses {'one' if lost == 1 else lost}."


def figure5_sentences() -> Iterator[str]:
    columns = {name: means_of(load("dsd_figure5")["scenarios"], "workload.trace", name) for name in ("throughput", "tpot_mean")}

    def more(figure: str, policy: str, other: str) -> list[float]:
        ours, theirs = ([*columns[figure][name,].values()] for name in (policy, other))
        return [100 * (one / two - 1) for one, two in zip(ours, theirs, strict=True)]

    fifo, alike = "shortest queue, FIFO, static 4", "shortest queue, alike lengths, static 4"
    rates, times = more("throughput", fifo, "random, FIFO, static 4"), less(more("tpot_mean", fifo, "random, FIFO, static 4"))
    yield "brings {:.0f}, {:.0f} and {:.0f} % more requests a second.".format(*rates)
    yield "Its milliseconds a token are {:.0f}, {:.0f} and {:.0f} % less.".format(*times)
    gsm8k, code, news = more("tpot_mean", "shortest queue, alike lengths, dynamic", alike)
    yield f"takes {-code:.0f} % less time a token on HumanEval, and {gsm8k:.0f} and {news:.0f} % more on the others."
    adaptive = less(more("tpot_mean", "shortest queue, alike lengths, adaptive", alike))
    yield f"takes {span(adaptive)} % less time a token than static 4, because it may leave"


def figure6_sentences() -> Iterator[str]:
    lines = means_of(load("dsd_figure6")["scenarios"], "who writes", "tpot_mean")
    rtts = [rtt for (rtt,) in lines]
    alone, waiting, on, _, adaptive, _ = zip(*(line.values() for line in lines.values()), strict=True)

    def crossing(times: tuple[float, ...]) -> float:
        """Return the round trip from which the server alone is faster, on the line between two."""
        gaps = [ours - theirs for ours, theirs in zip(times, alone, strict=True)]
        at = next((place for place, gap in enumerate(gaps) if gap > 0), 0)
        assert at > 0, f"expected the server alone to be slower at first, and faster in the end, got {gaps}"
        share = gaps[at - 1] / (gaps[at - 1] - gaps[at])
        return float(rtts[at - 1] + share * (rtts[at] - rtts[at - 1]))

    yield f"| ours, the device waits for its verdict | {crossing(waiting):.0f} ms |"
    yield f"| ours, the device drafts on meanwhile | {crossing(on):.0f} ms |"
    yield f"drafts of four tokens from a round trip of {crossing(waiting):.0f} ms on if the device waits"
    slower = {rtt: 100 * (one / two - 1) for rtt, one, two in zip(rtts, adaptive, on, strict=True)}
    near = span([slower[rtt] for rtt in (5, 10, 20)])
    yield f"if both draft on: by {near} % up to 20 ms, {slower[30]:.0f} % at 30 ms and {slower[45]:.0f} % at 45 ms."
    yield f"at 80 ms, it is {-slower[80]:.0f} % faster."


@pytest.mark.parametrize("part", [table2_sentences, figure5_sentences, figure6_sentences])
def test_the_page_says_what_was_simulated(part: Callable[[], Iterator[str]]) -> None:
    assert not [sentence for sentence in part() if sentence not in page_words("docs/research/dsd.md")]


def test_calibrated_clients_are_the_fastest_on_short_round_trips() -> None:
    lines = {rtt: line for (rtt,), line in means_of(load("dsd_figure6")["scenarios"], "who writes", "tpot_mean").items()}
    calibrated, four = "adaptive, drafting on, calibrated", "drafts of 4, drafting on meanwhile"
    assert [rtt for rtt, line in lines.items() if line[calibrated] == min(line.values())][:2] == [5, 10], "up to 10 ms"
    assert all(lines[rtt][calibrated] > lines[rtt][four] for rtt in (20, 30, 45, 60)), "from 20 to 60 ms slower than four tokens"


def test_the_adaptive_window_is_never_much_slower_than_the_server() -> None:
    lines = means_of(load("dsd_figure6")["scenarios"], "who writes", "tpot_mean").values()
    names = ("adaptive window, waiting", "adaptive window, drafting on meanwhile")
    over = [line[name] / line["the server alone (fused)"] for line in lines for name in names]
    assert max(over) <= 1.01, "docs/research/dsd.md: at most 1 % slower"
