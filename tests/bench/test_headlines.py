"""The same number everywhere: sentences and tables of the pages say what the recorded results say.

A headline is a text of a page in which each figure is a place to fill. Of a table row the numbers are compared, up to their rounding. The
figures come from what ``bench.record`` and ``experiments.kept`` kept. To have a figure checked, add it here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from statistics import median
from typing import NamedTuple

import pytest

from bench.dispatch import PHONES
from bench.gpu_rows import SHAPES
from bench.runs import load, names
from experiments.disco_planned import PAPER_P99, PAPER_SERVICES, Planned
from experiments.kept import load as kept_results
from tests.support.data import ROOT
from tests.support.words import page_words

TOGETHER = "windows, recorded drafts: 4 links together"
DISCO, FIDELITY, HARDWARE, MIGRATION = "docs/research/disco.md", "docs/research/fidelity.md", "docs/hardware.md", "docs/migration.md"
PAPERS, SPLIT, WINDOWS = "docs/research/papers.md", "docs/research/split.md", "docs/research/windows.md"
IMPOSED = ("streamco", "streamco, chains", "always drafts, trees", "always drafts, chains")


class Figure(NamedTuple):
    """Median, lowest and highest value of a row."""

    median: float
    low: float
    high: float


class Headline(NamedTuple):
    """A text that a page must have; it is compared without regard to line breaks."""

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


def latest(bench: str) -> float:
    """The largest share of rounds that took longer than imposed."""
    return max(figure.median for key, figure in recorded().items() if key[0] == bench and key[2].startswith("rounds that took longer"))


def hand_over_headlines() -> Iterator[Headline]:
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
        yield Headline(MIGRATION, f"| {label} | " + " | ".join(f"**{cell}**" if label.startswith("**") else cell for cell in cells) + " |")


def moves_headlines() -> Iterator[Headline]:
    unnoticed = "moves without a delayed token [%]"
    towards, back = "device to server", "server to device"
    assert value("moves", back, unnoticed) == 100
    first = value("moves", towards, unnoticed, "streamco, first answers")
    worst = recorded()["moves", towards, unnoticed, "streamco"].low
    yield Headline(DISCO, f"`bench.moves` has {worst:g} % unnoticed, and {first:g} % of a client's first 30.")


def learned_headlines() -> Iterator[Headline]:
    """Yield the sentences below the table of clients that learn, and the short table of what `auto` is."""
    groups = {"llmperf and latencylab": 441, "thefastest.ai": 819}

    def over_all(side: str, policy: str) -> tuple[float, float]:
        """Return cases that are surely later than chance, and the mean above the optimum, per cent."""
        cases = {services: f"learned live, {services}, {side}-constrained" for services in groups}
        surely = sum(value("dispatch", at, f"surely later than chance, of {groups[each]} [cases]", policy) for each, at in cases.items())
        above = sum(groups[each] * value("dispatch", at, "mean ttft above optimum [%]", policy) for each, at in cases.items())
        return surely, above / sum(groups.values())

    by_side = [over_all(side, "auto") for side in ("device", "server")]
    surely, count = sum(surely for surely, _ in by_side), 2 * sum(groups.values())
    mean = sum(above for _, above in by_side) / 2
    sure = f"is surely later than random dispatch in {surely or 'none':} of {count:,} cases."
    yield Headline(DISCO, f"{sure} On the mean over all it is {mean:.2f} % above the optimum.")
    yield Headline(DISCO, f"it is **{by_side[0][1]:.2f} %** above.")
    surely, above = over_all("device", "device-constrained")
    yield Headline(DISCO, f"| device | Algorithm 2 | {above:.1f} % | {surely:.0f} of {count // 2:,} cases, all at a budget equal")
    yield Headline(DISCO, f"| device | `optimal`, which `auto` uses | {by_side[0][1]:.1f} % | none |")
    yield Headline(DISCO, f"| server | Algorithm 3, which `auto` uses | {by_side[1][1]:.1f} % |")


def loading_headlines() -> Iterator[Headline]:
    """Yield what a cold start takes, beside the first token after it."""
    models = {"0.5B": "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M", "1.5B": "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M"}
    cold = {row["model"]: row for row in kept_results("disco_loading")["rows"] if row["is_cold"]}
    times = {name: (median(cold[model]["load"]), median(cold[model]["first_token"])) for name, model in models.items()}
    small, large = (f"{times[name][0]:.1f} s with the {name}" for name in models)
    ratios = sorted(load / first for load, first in times.values())
    yield Headline(DISCO, f"A cold start takes {small} and {large}, {ratios[0]:.1f} to {ratios[1]:.1f} times as long as the first token")


def forecast_headlines() -> Iterator[Headline]:
    drawn = "the paper's forecast, one branch drawn"
    cases = [f"simulated: forecasts, RTT {rtt} ms, 12 cells, 2 x 3 answers of 256 tokens" for rtt in (10, 30, 60, 120)]
    metric = "tokens/s relative to the learned forecast, mean [times]"
    slower = [100 * (1 - value("speculate_simulated", case, metric, drawn)) for case in cases]
    yield Headline(PAPERS, f"an option; {min(slower):.0f} to {max(slower):.0f} % slower than ranking all branches")


def fidelity_headlines() -> Iterator[Headline]:
    for run in ("fidelity_unseen", "fidelity"):
        off = [figure.median for key, figure in recorded().items() if key[0] == run and "off by" in key[2] and key[3] == "simulated"]
        within = f"{sum(abs(share) <= 0.1 for share in off)} of {len(off)} figures are within a tenth"
        yield Headline(FIDELITY, within)


def pair_headlines() -> Iterator[Headline]:
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
        yield Headline("docs/speculation.md", shown)
    large_kinds = {"humaneval, 25 prompts": "code (HumanEval)", "alpaca, 25 prompts": "prose (Alpaca)", "all": "both"}
    for rtt, (kind, label) in product((10, 30, 60), large_kinds.items()):
        case = f"{kind}, RTT {rtt} ms"
        times = [f"{value('imposed', case, ratio, name):.2f}" for name in IMPOSED]
        rate = f"{value('imposed', case, 'rate [tokens/s]', 'stream'):.3g}"
        yield Headline("docs/speculation.md", f"| {label}, {rtt} ms | {rate} | **{times[0]}** | {' | '.join(times[1:])} |")
    yield Headline("docs/speculation.md", f"At most {100 * latest('imposed'):.1f} % of the rounds were late")
    trees = [
        value("imposed", f"alpaca, 25 prompts, RTT {rtt} ms", ratio, "always drafts, trees")
        / value("imposed", f"alpaca, 25 prompts, RTT {rtt} ms", ratio, "always drafts, chains")
        for rtt in (10, 30, 60)
    ]
    yield Headline("docs/speculation.md", f"trees give {100 * (min(trees) - 1):.0f} to {100 * (max(trees) - 1):.0f} % on prose")
    large = [f"{value('imposed', f'{kind}, 25 prompts, RTT 30 ms', ratio):.1f}" for kind in ("humaneval", "alpaca")]
    code, prose = (value("pair", f"{kind}, 50 prompts, Q4_0, loopback", ratio) for kind in ("code", "prose"))
    yield Headline("README.md", "code came {} times and prose {} times as fast as from the server alone".format(*large))
    yield Headline("README.md", f"code came {code:.1f} times as fast and prose {100 * (1 - prose):.0f} % slower")


def pair_cause_headlines() -> Iterator[Headline]:
    """The sentences beside the table of the pair on one machine."""
    page, links = "docs/speculation.md", ("loopback", "rtt 30 ms", "rtt 60 ms")
    code, prose = (
        [value("pair", f"{kind}, 50 prompts, Q4_0, {link}", "tokens by the stream [share]") for link in links] for kind in ("code", "prose")
    )
    yield Headline(page, "{:.2f} on loopback, {:.2f} at 30 ms and {:.2f} at 60 ms".format(*code))
    yield Headline(page, f"{min(prose):.2f} to {max(prose):.2f} of the prose comes from the stream")
    texts = value("pair", "all, 100 prompts, Q4_0, loopback", "texts that differ from the stream's [texts]")
    yield Headline(page, f"In the default mode, {texts:.0f} of the 100 texts on loopback")
    rounds = [
        value("pair", f"{kind}, 50 prompts, Q4_0, loopback", f"{metric} [ms]", "drafts alone")
        for kind, metric in product(("code", "prose"), ("round", "round: computed at the verifier"))
    ]
    took = "took {:.0f} ms on code, {:.0f} of them at the verifier; on prose {:.0f}, of which it computed for {:.0f}"
    yield Headline(page, took.format(*rounds))
    cases = [f"{kind}, 50 prompts, Q4_0, {link}" for kind, link in product(("code", "prose"), links)]
    streams = [value("pair", case, "rate [tokens/s]", "stream") for case in cases]
    yield Headline(page, f"varied from {min(streams):.1f} to {max(streams):.1f} tokens/s")


def exact_headlines() -> Iterator[Headline]:
    page, run = "docs/speculation.md", "pair_exact"
    code, prose, both = (f"{kind}, Q4_0, exact mode, loopback" for kind in ("code, 50 prompts", "prose, 50 prompts", "all, 100 prompts"))
    differ = "texts that differ from the stream's [texts]"
    assert not any(value(run, both, differ, name) for name in ("streamco", "drafts alone"))
    rates = [value(run, case, "rate [tokens/s]", name) for case, name in ((both, "stream"), (code, "streamco"), (prose, "streamco"))]
    yield Headline(page, "the stream has {:.3g} tokens/s, and streamco {:.3g} on code and {:.3g} on prose".format(*rates))
    times = [value(run, case, "rate over the stream's [x]") for case in (code, prose, both)]
    yield Headline(page, "{:.2f} and {:.2f} times the stream, {:.2f} on both".format(*times))


def dssd_headlines() -> Iterator[Headline]:
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
        yield Headline(page, f"| {link} Mbps | {' | '.join(cells)} | {shown} |")
    ahead = max(figure.median for key, figure in recorded().items() if key[0] == run and key[2].startswith("rounds sent ahead"))
    yield Headline(page, f"which happens in up to {100 * ahead:.0f} % of the rounds")


def row_cost_headlines() -> Iterator[Headline]:
    error, rate = "error of a batch's time [share]", "rate over the best fixed one's, window 3 [x]"
    plain, scaled = (
        100 * value("row_costs", "Q4_0, 500 batches", error, name)
        for name in ("the list as it was measured", "scaled by the batches before")
    )
    yield Headline("docs/speculation.md", f"500 live batches of 1 to 8 rows with a median error of {plain:.1f} %")
    yield Headline("docs/speculation.md", f"as a client does it, the error was {scaled:.1f} %")
    shares = [f"{value('row_costs', 'Q4_0, own speed, loopback', rate, name):.2f}" for name in ("confident", "adaptive", "predicted")]
    yield Headline("docs/speculation.md", "had {} of the rate, `adaptive` {} and `predicted` {}".format(*shares))


def split_headlines() -> Iterator[Headline]:
    share, now = "time to first token [of U-shape]", "split_ttft_planned"
    ways = ("whole", "fixed 128", "fixed 256", "balanced", "fastest")
    for kind, tokens in (("7B", 128), ("7B", 512), ("7B", 1000), ("7B", 2000), ("own", 128), ("own", 512)):
        case = f"{kind}, {tokens} tokens"
        shares = [*(value("split_ttft", case, share, way) for way in ways), value(now, case, share, "fastest")]
        start = f"| {kind}, {tokens:,} tokens | {value('split_ttft', case, 'time to first token [ms]', 'U-shape'):,.0f} ms |"
        yield Headline(SPLIT, f"{start} {' | '.join(f'{each:.2f}' for each in shares)} |")
    others = (("split_ttft", "fastest"), (now, "fastest"), ("split_ttft", "whole"))
    pauses = [f"{value(run, 'others', 'longest pause [s]', way):.2f} s" for run, way in others]
    yield Headline(SPLIT, f"| longest pause between tokens | {' | '.join(pauses)} |")
    pace = "mean time between pieces [of that without the prompt]"
    paces = [f"{value(run, 'others', pace, way):.1f}" for run, way in others]
    yield Headline(SPLIT, f"| time between tokens over the usual | {' | '.join(paces)} |")


def scheduling_headlines() -> Iterator[Headline]:
    page, run, device = "docs/research/synera.md", "scheduling_overhead", "device, budget 0.2, chunks of 4"

    def shown(case: str, metric: str, contender: str) -> str:
        return f"{value(run, case, metric, contender) / 1000:.3f}"

    rules = [shown(device, "P_conf, P_imp and steering, a drafted token [us]", rule) for rule in ("combined", "confidence", "importance")]
    yield Headline(page, f"both filters with their steering, a drafted token | under 0.5 ms | {rules[0]} ms |")
    yield Headline(page, f"confidence alone; importance alone | | {rules[1]} ms; {rules[2]} ms |")
    reading = shown(device, "importance of a chunk from its rows, a drafted token [us]", "importance")
    yield Headline(page, f"importance of a chunk from its rows, a drafted token | | {reading} ms |")
    metric, cases = "time of a verification [us]", [f"server, budget {budget}, 16 sessions" for budget in (0.2, 0.5, 0.9)]
    own = " / ".join(shown(case, metric, "scheduler") for case in cases)
    of_batch = max(value(run, case, metric, "scheduler") / value(run, case, metric, "llama2-70b-a100x4, alone") for case in cases)
    yield Headline(page, f"{own} ms, {100 * of_batch:.1f} % of a 70B's batch")
    memory = value(run, "server, 16 sessions", "memory of a session [KiB]", "scheduler")
    yield Headline(page, f"memory of a session in the scheduler | | {memory:.1f} KiB |")


def disco_headlines() -> Iterator[Headline]:
    """Yield the sentences around the tables of DiSCo's planned times."""
    planned = Planned.of(kept_results("disco_planned"))
    counts = [sum(row[kind][0] < 0 for row in planned.settings) for kind in ("mean_cut", "mean_cut_spent")]
    number = f"{len(planned.settings):,}"
    yield Headline(DISCO, f"DiSCo is later than random dispatch in {counts[0] or 'none'} of {number} settings.")
    yield Headline(DISCO, f"may spend what DiSCo really spent, DiSCo is later in {counts[1]}.")

    worse = [row for row in planned.settings if row["mean_cut_spent"][0] < 0]
    budgets = " and ".join(f"{budget:g}" for budget in sorted({row["budget"] for row in worse}))
    cuts = sorted(-row["mean_cut_spent"][0] for row in worse)
    yield Headline(DISCO, f"later at equal spending are all at budget {budgets}, by {cuts[0]:.0f} to {cuts[-1]:.0f} %:")
    best = [policies["optimal"]["later"] for policies in planned.policies.values()]
    later, spent = (sum(each[kind]["later"] for each in best) for kind in ("mean_cut", "mean_cut_spent"))
    surely = sum(each[kind]["surely later"] for each in best for kind in ("mean_cut", "mean_cut_spent"))
    lowest = -min(each["mean_cut"]["lowest"] for each in best)
    yield Headline(DISCO, f"same budget in {later} settings, by {lowest:.1f} % at worst, and in {surely or 'none'} of them surely.")
    yield Headline(DISCO, f"At equal spending it is later in {spent}.")

    def span(side: str, figure: str) -> str:
        values = [policies["disco"][figure][0] for place, policies in planned.policies.items() if place[0] == side]
        return f"{min(values):.0f} to {max(values):.0f}"

    medians, means = ([span(side, figure) for side in ("device", "server")] for figure in ("median_service", "mean_cut"))
    yield Headline(DISCO, f"the time to first token of the median service is {medians[0]} % lower")
    yield Headline(DISCO, f"if the server is spared {medians[1]} % (means over services: {means[0]} and {means[1]} %)")
    cells = [
        planned.cut("p99_cut", side=side, phone=phone, service=PAPER_SERVICES[model]) >= cut
        for (model, side), cuts in PAPER_P99.items()
        for phone, cut in zip(PHONES, cuts, strict=True)
    ]
    yield Headline(DISCO, f"The gains at P99 reach the paper's in {sum(cells)} of these {len(cells)} cells")


def relative_rates(bench: str, case: str, contender: str) -> list[float]:
    """Rates over the best fixed window of the same link, by round trip."""
    found = {
        key[1]: figure.median
        for key, figure in recorded().items()
        if key[0] == bench and case in key[1] and key[3] == contender and key[2].startswith("tokens/s relative to the best fixed one there")
    }
    return [next(share for name, share in found.items() if f"RTT {rtt} ms" in name) for rtt in (10, 30, 60, 120)]


def window_rows() -> Iterator[TableRow]:
    for step in (6.1, 12.2, 24.4):
        label = f"| draft step {step} ms: adaptive |"
        case = f"draft step {step} ms:"
        yield TableRow(WINDOWS, "In virtual time:", label, relative_rates("windows_simulated", case, "adaptive"))
        yield TableRow(WINDOWS, label, "| confident |", relative_rates("windows_simulated", case, "confident"))
    for contender in ("adaptive", "confident", "predicted", "dynamic"):
        together = value("windows_recorded", TOGETHER, "tokens/s relative to the best single fixed one, window 4 [times]", contender)
        rates = [*relative_rates("windows_recorded", "", contender), together]
        yield TableRow(WINDOWS, "Live, over an emulated link", f"| {contender} |", rates)


def windows_recorded_headlines() -> Iterator[Headline]:
    """The sentences below the table of the live links."""
    found = {key[1:]: figure.median for key, figure in recorded().items() if key[0] == "windows_recorded"}
    yield Headline(WINDOWS, f"At most {100 * latest('windows_recorded'):.1f} % of a contender's rounds took longer than imposed")
    mean = "mean of tokens/s relative to the server alone [times]"
    constant, adaptive, confident = (f"{found[TOGETHER, mean, name]:.2f}" for name in ("window 4", "adaptive", "confident"))
    rates = f"four tokens has {constant} times the rate of the server's stream, adaptive {adaptive} and confident {confident}"
    yield Headline(WINDOWS, rates)
    alone = {
        (case.split("RTT ")[1].split()[0], name): left
        for (case, metric, name), left in found.items()
        if metric == "by the server alone [tokens]"
    }
    yield Headline(WINDOWS, f"adaptive left {alone['120', 'adaptive']:,.0f} to the server and confident {alone['120', 'confident']:,.0f}")
    left = (alone["60", name] for name in ("dynamic", "window 4", "adaptive"))
    said = "At 60 ms *dynamic* left {:,.0f} tokens to the server, the constant of four {:.0f} and adaptive {:.0f}"
    yield Headline(WINDOWS, said.format(*left))
    shares = relative_rates("windows_recorded", "", "confident")
    near = f"{min(shares[:3]):.2f} to {max(shares[:3]):.2f} of the best fixed window's rate at 10 to 60 ms"
    yield Headline("docs/speculation.md", f"{near}, and {shares[3]:.2f} at 120 ms")


def split_rows() -> Iterator[TableRow]:
    for server, size in (("7B", 128), ("7B", 512), ("7B", 1000), ("7B", 2000), ("own", 128), ("own", 512)):
        case, over = f"{server}, {size} tokens", "time to first token [of U-shape]"
        shares = [value("split_ttft", case, over, cut) for cut in ("whole", "fixed 128", "fixed 256", "balanced", "fastest")]
        alone = value("split_ttft", case, "time to first token [ms]", "U-shape")
        yield TableRow(SPLIT, "## Time to the first token", f"| {server}, {size:,} tokens | {alone:,.0f} ms |", shares)
    labels = {"none (U-shape)": "none (U-shape)", "SD, PC, PD (HAT)": "SD, PC, PD (HAT)", "default": "default (lookups, confident)"}
    for contender, label in labels.items():
        first = [
            value("split_ablation", "7B, RTT 30 ms", f"time to first token [{unit}]", contender) for unit in ("ms", "of the U-shape's")
        ]
        yield TableRow(SPLIT, "## HAT's Table V, live", f"| {label} |", first)
    texts = [value("split_texts", "200 prompts", "equal texts", states) for states in ("f32", "f16", "i8")]
    yield TableRow(SPLIT, "`python -m bench.split_texts` compares", "| 200 |", texts)


def paper_rows() -> Iterator[TableRow]:
    for rule in ("importance", "confidence"):
        shares = [
            figure.median
            for key, figure in recorded().items()
            if key[0] == "importance" and key[2] == "loss left at 0.2, by rule [share]" and key[3] == rule
        ]
        yield TableRow(PAPERS, "### Importance as a filter", f"| {rule} |", [min(shares), max(shares)])


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
        yield TableRow(HARDWARE, "**The forecast with graphs", f"| `{model}`{label} |", shares)


def inversion_headlines() -> Iterator[Headline]:
    two, five = (100 * value("inversion", f"{layers} layers, f16", "recovered [share]", "linear map, its own text") for layers in (2, 5))
    yield Headline(SPLIT, f"A linear map recovers {two:.0f} % of the tokens after two layers")
    yield Headline("docs/split.md", f"recovers {two:.0f} % of the tokens after two layers, and still {five:.0f} % after five layers.")


def lookup_headlines() -> Iterator[Headline]:
    kinds, metric = ("gsm8k", "Spec-Bench", "HumanEval (absent)", "Alpaca (absent)"), "tokens a round [tokens]"
    gains = {
        (window, kind): value("draft_layer", kind, metric, f"window {window}, lookup")
        / value("draft_layer", kind, metric, f"window {window}")
        for window, kind in product((4, 8), kinds)
    }
    _, most = max(gains, key=lambda place: gains[place])
    ends = f"{min(gains.values()):.2f} to {max(gains.values()):.2f}"
    yield Headline(SPLIT, f"lookups bring {ends} times as many tokens a round, most on {most.partition(' ')[0]}")
    equal = value("draft_layer", "PyTorch and llama.cpp at 300 positions", "share [share]", "equal drafts")
    page = "streamco/engines/split/draft_layers/README.md"
    yield Headline(page, f"the same draft at {300 * equal:.0f} of 300 positions")


def aborted_headlines() -> Iterator[Headline]:
    for where in ("a prompt", "a round"):
        case, metric = f"closed in the middle of {where}, 12 times", "the other device's verdict [ms]"
        aborted, whole = (value("aborted_batches", case, metric, name) for name in ("aborted", "read to the end"))
        yield Headline("docs/serve.md", f"| {where} | {aborted:.0f} | {whole:.0f} |")


def policy_headlines() -> Iterator[Headline]:
    for policy in ("alternating", "mixed", "strict", "length-aware"):
        found = [
            value("verifier_policies", f"large, {policy}, budget 0.6", metric, f"{devices} devices")
            for devices, metric in product((16, 64), ("verdicts [1/s]", "verdict p95 [ms]"))
        ]
        yield Headline("docs/serve.md", f"| `{policy}` | {' | '.join(f'{each:.0f}' for each in found)} |")


TABLE_ROWS = [*gpu_rows(), *window_rows(), *split_rows(), *paper_rows()]

HEADLINES = [
    *hand_over_headlines(),
    *moves_headlines(),
    *learned_headlines(),
    *loading_headlines(),
    *forecast_headlines(),
    *fidelity_headlines(),
    *pair_headlines(),
    *pair_cause_headlines(),
    *exact_headlines(),
    *dssd_headlines(),
    *scheduling_headlines(),
    *windows_recorded_headlines(),
    *row_cost_headlines(),
    *split_headlines(),
    *disco_headlines(),
    *aborted_headlines(),
    *inversion_headlines(),
    *lookup_headlines(),
    *policy_headlines(),
]


@pytest.mark.parametrize("headline", HEADLINES, ids=lambda headline: headline.text[:60])
def test_a_page_says_what_was_recorded(headline: Headline) -> None:
    assert headline.text in page_words(headline.page), f"{headline.page}: expected {headline.text!r}"


@pytest.mark.parametrize("row", TABLE_ROWS, ids=lambda row: f"{row.page[14:-3]} {row.start[:50]}")
def test_a_row_of_a_table_has_the_recorded_values(row: TableRow) -> None:
    _, found, rest = (ROOT / row.page).read_text(encoding="utf-8").partition(row.after)
    assert found, f"{row.page}: expected {row.after!r}"
    line = next(line for line in rest.splitlines() if line.startswith(row.start))
    shown = [float(number.replace(",", "")) for number in re.findall(r"-?\d[\d,]*(?:\.\d+)?", line.removeprefix(row.start))]
    assert shown[: len(row.values)] == pytest.approx(row.values, abs=row.rounding), line


STAMPED = {
    "docs/endpoints.md": ("wire",),
    "docs/hardware.md": ("gpu_rows",),
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
