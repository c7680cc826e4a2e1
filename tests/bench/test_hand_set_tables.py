"""Tables that are set by hand, outside the marks of generated ones, have the figures of the kept runs.

A line is compared as it stands. Of a table row the numbers are compared, up to their rounding. The figures come from what
``bench.record`` and ``bench.papers.kept`` kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

import pytest

from bench.papers.kept import load as kept_results
from bench.papers.quality.equation import cells_of
from bench.papers.quality.measured import read_package
from bench.runs import load, names
from bench.tables import means_of
from tests.support.data import ROOT

TOGETHER = "windows, recorded drafts: 4 links together"
DISCO, HARDWARE, MIGRATION = "docs/research/disco.md", "docs/research/hardware.md", "docs/migration.md"
PAPERS, SPLIT, WINDOWS = "docs/research/papers.md", "docs/research/split.md", "docs/research/windows.md"
IMPOSED = ("streamco", "streamco, chains", "always drafts, trees", "always drafts, chains")


class Figure(NamedTuple):
    """Median, lowest and highest value of a row."""

    median: float
    low: float
    high: float


class Line(NamedTuple):
    """A line of a table, or its beginning."""

    page: str
    text: str


class TableRow(NamedTuple):
    """The first line that begins with ``start`` after a text of a page: its numbers from there on are the values, up to their rounding."""

    page: str
    after: str
    start: str
    values: Sequence[float]
    rounding: float = 0.0051


@cache
def recorded() -> dict[tuple[str, str, str, str], Figure]:
    """Rows of all kept runs by bench, case, metric with unit, and contender."""
    return {(bench, *key): Figure(row.median, row.min, row.max) for bench in names() for key, row in load(bench).rows.items()}


def value(bench: str, case: str, metric: str, contender: str = "streamco") -> float:
    return recorded()[bench, case, metric, contender].median


def hand_over_lines() -> Iterator[Line]:
    sizes, metric = (4, 16, 64, 400), "bytes on the wire, mean [B]"
    lines = {
        ("to a server, chat", "text"): "to a server, chat: text",
        ("to a server, chat", "base64 in JSON"): "base64 in JSON, for servers without MessagePack",
        ("to a server, chat", "streamco"): "**packed, MessagePack**",
        ("to a server, completions", "text"): "to a server, completions: text",
        ("to a server, completions", "JSON ids"): "ids as a JSON list",
        ("to a server, completions", "streamco"): "**packed, MessagePack**",
        ("from a server, chat", "text"): "from a server, chat: text in events",
        ("from a server, chat", "JSON ids"): "events with ids as JSON lists",
        ("from a server, chat", "streamco"): "**MessagePack, ids packed**",
    }
    for (way, contender), label in lines.items():
        cells = [f"{value('hand_over_bytes', f'{way}, {size} tokens', metric, contender):,.0f}" for size in sizes]
        yield Line(MIGRATION, f"| {label} | " + " | ".join(f"**{cell}**" if label.startswith("**") else cell for cell in cells) + " |")


def learned_lines() -> Iterator[Line]:
    """Yield the short table of what `auto` is."""
    groups = {"llmperf and latencylab": 441, "thefastest.ai": 819}

    def over_all(side: str, policy: str) -> tuple[float, float]:
        """Return cases that are surely later than chance, and the mean above the optimum, per cent."""
        cases = {services: f"learned live, {services}, {side}-constrained" for services in groups}
        surely = sum(value("dispatch", at, f"surely later than chance, of {groups[each]} [cases]", policy) for each, at in cases.items())
        above = sum(groups[each] * value("dispatch", at, "mean ttft above optimum [%]", policy) for each, at in cases.items())
        return surely, above / sum(groups.values())

    by_side = [over_all(side, "auto") for side in ("device", "server")]
    assert not any(surely for surely, _ in by_side)
    surely, above = over_all("device", "device-constrained")
    yield Line(DISCO, f"| device | Algorithm 2 | {above:.1f} % | {surely:.0f} of {sum(groups.values()):,} cases, all at a budget equal")
    yield Line(DISCO, f"| device | `optimal`, which `auto` uses | {by_side[0][1]:.1f} % | none |")
    yield Line(DISCO, f"| server | Algorithm 3, which `auto` uses | {by_side[1][1]:.1f} % |")


def pair_lines() -> Iterator[Line]:
    kinds = {
        "code, 50 prompts": "code (HumanEval, 50 prompts)",
        "prose, 50 prompts": "prose (Alpaca, 50 prompts)",
        "all, 100 prompts": "both",
    }
    links = {"loopback": "loopback", "rtt 30 ms": "round trip 30 ms", "rtt 60 ms": "round trip 60 ms"}
    ratio = "rate over the stream's [x]"
    for (link, length), (kind, label) in product(links.items(), kinds.items()):
        case = f"{kind}, Q4_0, {link}"
        rates = [f"{value('pair', case, 'rate [tokens/s]', name):.3g}" for name in ("stream", "streamco")]
        times = [f"{value('pair', case, ratio, name):.2f}" for name in ("streamco", "drafts alone", "bound")]
        unit = " tokens/s" if (link, kind) == ("loopback", "code, 50 prompts") else ""
        shown = f"| {label}, {length} | {rates[0]}{unit} | {rates[1]}{unit} | **{times[0]}** | {times[1]} | {times[2]} |"
        yield Line("docs/speculation.md", shown)
    large_kinds = {"humaneval, 25 prompts": "code (HumanEval)", "alpaca, 25 prompts": "prose (Alpaca)", "all": "both"}
    for rtt, (kind, label) in product((10, 30, 60), large_kinds.items()):
        case = f"{kind}, RTT {rtt} ms"
        times = [f"{value('imposed', case, ratio, name):.2f}" for name in IMPOSED]
        rate = f"{value('imposed', case, 'rate [tokens/s]', 'stream'):.3g}"
        yield Line("docs/speculation.md", f"| {label}, {rtt} ms | {rate} | **{times[0]}** | {' | '.join(times[1:])} |")


def dssd_lines() -> Iterator[Line]:
    page, run, rounds = "docs/speculation.md", "dssd", "rounds a second, rows up = 1 [times]"
    for link in ("0.1", "1", "10"):
        cells = []
        for each in (5, 20, 64):
            cases = (f"arithmetic, {link} Mbps, rows of {each} ids, {turns}" for turns in ("draft, then wait", "draft written meanwhile"))
            cells.append(" and ".join(f"{value(run, case, rounds, 'row down'):.2f}" for case in cases))
        whole = recorded()[
            run,
            f"virtual time, {link} Mbps, rows of 20 ids, all acceptances and RTTs, 40 answers each",
            "tokens a second, rows up = 1 [times]",
            "row down",
        ]
        shown = f"{whole.median:.2f} ({whole.low:.2f} to {whole.high:.2f})"
        yield Line(page, f"| {link} Mbps | {' | '.join(cells)} | {shown} |")


def split_lines() -> Iterator[Line]:
    share, now = "time to first token [of U-shape]", "split_ttft_planned"
    ways = ("whole", "fixed 128", "fixed 256", "balanced", "fastest")
    for kind, tokens in (("7B", 128), ("7B", 512), ("7B", 1000), ("7B", 2000), ("own", 128), ("own", 512)):
        case = f"{kind}, {tokens} tokens"
        shares = [*(value("split_ttft", case, share, way) for way in ways), value(now, case, share, "fastest")]
        start = f"| {kind}, {tokens:,} tokens | {value('split_ttft', case, 'time to first token [ms]', 'U-shape'):,.0f} ms |"
        yield Line(SPLIT, f"{start} {' | '.join(f'{each:.2f}' for each in shares)} |")
    others = (("split_ttft", "fastest"), (now, "fastest"), ("split_ttft", "whole"))
    pauses = [f"{value(run, 'others', 'longest pause [s]', way):.2f} s" for run, way in others]
    yield Line(SPLIT, f"| longest pause between tokens | {' | '.join(pauses)} |")
    pace = "mean time between pieces [of that without the prompt]"
    paces = [f"{value(run, 'others', pace, way):.1f}" for run, way in others]
    yield Line(SPLIT, f"| time between tokens, relative to the usual time | {' | '.join(paces)} |")


def scheduling_lines() -> Iterator[Line]:
    page, run, device = "docs/research/synera.md", "scheduling_overhead", "device, budget 0.2, chunks of 4"

    def shown(case: str, metric: str, contender: str) -> str:
        return f"{value(run, case, metric, contender) / 1000:.3f}"

    rules = [shown(device, "P_conf, P_imp and steering, a drafted token [us]", rule) for rule in ("combined", "confidence", "importance")]
    yield Line(page, f"both filters with their steering, a drafted token | under 0.5 ms | {rules[0]} ms |")
    yield Line(page, f"confidence alone; importance alone | | {rules[1]} ms; {rules[2]} ms |")
    reading = shown(device, "importance of a chunk from its rows, a drafted token [us]", "importance")
    yield Line(page, f"importance of a chunk from its rows, a drafted token | | {reading} ms |")
    metric, cases = "time of a verification [us]", [f"server, budget {budget}, 16 sessions" for budget in (0.2, 0.5, 0.9)]
    own = " / ".join(shown(case, metric, "scheduler") for case in cases)
    of_batch = max(value(run, case, metric, "scheduler") / value(run, case, metric, "llama2-70b-a100x4, alone") for case in cases)
    yield Line(page, f"{own} ms, {100 * of_batch:.1f} % of a 70B's batch")
    memory = value(run, "server, 16 sessions", "memory of a session [KiB]", "scheduler")
    yield Line(page, f"memory of a session in the scheduler | | {memory:.1f} KiB |")


def relative_rates(bench: str, case: str, contender: str) -> list[float]:
    """Rates over the best fixed window of the same link, by round trip."""
    found = {
        key[1]: figure.median
        for key, figure in recorded().items()
        if key[0] == bench and case in key[1] and key[3] == contender and key[2].startswith("tokens/s relative to the best fixed one there")
    }
    return [next(share for name, share in found.items() if f"RTT {rtt} ms" in name) for rtt in (10, 30, 60, 120)]


def best_single_window(case: str, contender: str) -> tuple[float, int]:
    """Return the rate over the best fixed window's of all links together, and that window."""
    metric = "tokens/s relative to the best single fixed one, window "
    ((rate, window),) = {
        (figure.median, int(key[2].removeprefix(metric).split()[0]))
        for key, figure in recorded().items()
        if key[0] == "windows_simulated" and case in key[1] and key[3] == contender and key[2].startswith(metric)
    }
    return rate, window


def window_rows() -> Iterator[TableRow]:
    for step in (6.1, 12.2, 24.4):
        label = f"| draft step {step} ms: adaptive |"
        case = f"draft step {step} ms:"
        for contender, after, start in (("adaptive", "In virtual time:", label), ("confident", label, "| confident |")):
            best = best_single_window(case, contender)[: 2 if contender == "adaptive" else 1]
            yield TableRow(WINDOWS, after, start, [*relative_rates("windows_simulated", case, contender), *best])
    for contender in ("adaptive", "confident", "predicted", "dynamic"):
        together = value("windows_recorded", TOGETHER, "tokens/s relative to the best single fixed one, window 4 [times]", contender)
        rates = [*relative_rates("windows_recorded", "", contender), together]
        yield TableRow(WINDOWS, "Live, over an emulated link", f"| {contender} |", rates)


def split_rows() -> Iterator[TableRow]:
    texts = [value("split_texts", "200 prompts", "equal texts", states) for states in ("f32", "f16", "i8")]
    yield TableRow(SPLIT, "`python -m bench split_texts` compares", "| 200 |", texts)


def paper_rows() -> Iterator[TableRow]:
    for rule in ("importance", "confidence"):
        shares = [
            figure.median
            for key, figure in recorded().items()
            if key[0] == "importance" and key[2] == "loss left at 0.2, by rule [share]" and key[3] == rule
        ]
        yield TableRow(PAPERS, "### Importance as a filter", f"| {rule} |", [min(shares), max(shares)])


SHAPES = ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "llama2-7b", "llama3-8b", "llama2-13b")  # models of the kept run


def gpu_rows() -> Iterator[TableRow]:
    of_rows = [("one sequence", f"{count} rows") for count in (4, 16, 64, 256)]
    of_sequences = [(f"{rows} of each sequence", f"{count} sequences") for rows in ("1 row", "4 rows") for count in (8, 64)]
    prompts = [("prompt", f"{count} tokens") for count in (512, 2048)]

    def values(model: str, metric: str, points: Sequence[tuple[str, str]]) -> list[float]:
        cases = [(f"{model}, {what}" + ", context 512" * (what != "prompt"), contender) for what, contender in points]
        return [value("gpu_rows", case, metric, contender) for case, contender in cases]

    for model in SHAPES:
        shares = values(model, "time over that of one row [x]", of_rows) + values(model, "time over that of one sequence [x]", of_sequences)
        one = values(model, "time [ms]", [("one sequence", "1 row")])
        yield TableRow(HARDWARE, "## What further rows cost", f"| `{model}` |", one + shares)
    for model, (label, forecast) in product(("llama2-7b", "llama3-8b"), {"": "graphs", ", without gaps": "graphs without gaps"}.items()):
        points = [("one sequence", "1 row"), *of_rows[1:], *of_sequences, *prompts]
        shares = values(model, f"forecast ({forecast}) over time [x]", points)
        yield TableRow(HARDWARE, "**With graphs the predicted times", f"| `{model}`{label} |", shares)


def aborted_lines() -> Iterator[Line]:
    for where in ("a prompt", "a round"):
        case, metric = f"closed in the middle of {where}, 12 times", "the other device's verdict [ms]"
        aborted, whole = (value("aborted_batches", case, metric, name) for name in ("aborted", "read to the end"))
        yield Line("docs/serve.md", f"| {where} | {aborted:.0f} | {whole:.0f} |")


def policy_lines() -> Iterator[Line]:
    for policy in ("alternating", "mixed", "strict", "length-aware"):
        found = [
            value("verifier_policies", f"large, {policy}, budget 0.6", metric, f"{devices} devices")
            for devices, metric in product((16, 64), ("verdicts [1/s]", "verdict p95 [ms]"))
        ]
        yield Line("docs/serve.md", f"| `{policy}` | {' | '.join(f'{each:.0f}' for each in found)} |")


def crossing_lines() -> Iterator[Line]:
    """Yield the round trips from which the server alone is faster, each on the line between two that were simulated."""
    lines = means_of(kept_results("dsd_figure6")["scenarios"], "who writes", "tpot_mean")
    rtts = [float(rtt) for (rtt,) in lines]
    for label, name in (("device waits for its verdict", "then wait"), ("device keeps drafting meanwhile", "drafting on meanwhile")):
        gaps = [line[f"drafts of 4, {name}"] - line["the server alone (fused)"] for line in lines.values()]
        after = next(place for place, gap in enumerate(gaps) if gap > 0)
        share = gaps[after - 1] / (gaps[after - 1] - gaps[after])
        yield Line("docs/research/dsd.md", f"| ours, the {label} | {rtts[after - 1] + share * (rtts[after] - rtts[after - 1]):.0f} ms |")


def move_lines() -> Iterator[Line]:
    found = {(cell.task, cell.pair, cell.cut): cell for cell in cells_of(read_package())}
    smollm, small, large = "SmolLM2", "0.5B", "1.5B"
    places = [("humaneval", smollm, large, 16), ("humaneval", smollm, large, 64), ("gsm8k", small, large, 4), ("gsm8k", large, small, 4)]
    for task, first, second, at in places:
        cell = found[task, (first, second), at]
        weaker, stronger = sorted([cell.first.value, cell.second.value])
        right = " | ".join(f"{100 * each:.0f}" for each in (cell.mean.value, stronger, weaker))
        name = {"gsm8k": "GSM8K", "humaneval": "HumanEval"}[task]
        yield Line("docs/research/quality.md", f"| {name}, {first} → {second} | {at} | {right} |")


TABLE_ROWS = [*gpu_rows(), *window_rows(), *split_rows(), *paper_rows()]

LINES = [
    *hand_over_lines(),
    *learned_lines(),
    *pair_lines(),
    *dssd_lines(),
    *scheduling_lines(),
    *split_lines(),
    *aborted_lines(),
    *policy_lines(),
    *crossing_lines(),
    *move_lines(),
]


@cache
def page_words(path: str) -> str:
    """Return a page's text without its line breaks."""
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.text[:60])
def test_a_line_of_a_table_has_what_was_recorded(line: Line) -> None:
    assert line.text in page_words(line.page), f"{line.page}: expected {line.text!r}"


@pytest.mark.parametrize("row", TABLE_ROWS, ids=lambda row: f"{row.page[14:-3]} {row.start[:50]}")
def test_a_row_of_a_table_has_the_recorded_values(row: TableRow) -> None:
    _, found, rest = (ROOT / row.page).read_text(encoding="utf-8").partition(row.after)
    assert found, f"{row.page}: expected {row.after!r}"
    line = next(line for line in rest.splitlines() if line.startswith(row.start))
    shown = [float(number.replace(",", "")) for number in re.findall(r"-?\d[\d,]*(?:\.\d+)?", line.removeprefix(row.start))]
    assert shown[: len(row.values)] == pytest.approx(row.values, abs=row.rounding), line


STAMPED = {
    "docs/endpoints.md": ("wire",),
    "docs/research/hardware.md": ("gpu_rows",),
    "docs/migration.md": ("hand_over_bytes",),
    "docs/serve.md": ("aborted_batches", "verifier_policies"),
    "docs/speculation.md": ("dssd", "imposed", "pair", "pair_exact", "row_costs"),
    SPLIT: ("split_ttft", "split_ttft_planned"),
    "docs/research/synera.md": ("scheduling_overhead",),
    WINDOWS: ("windows_recorded", "windows_simulated"),
    "streamco/engines/split/draft_layers/README.md": ("draft_layer",),
}
"""Pages with the runs whose figures stand outside marked tables."""


@pytest.mark.parametrize(("page", "run"), [(page, run) for page, runs in STAMPED.items() for run in runs])
def test_a_page_names_the_commit_of_a_run(page: str, run: str) -> None:
    assert load(run).head["commit"][:7] in page_words(page), load(run).about
