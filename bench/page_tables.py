"""Tables of kept runs on other pages than docs/benchmarks.md, made by ``python -m bench.page``.

Each stands between marks ``<!-- bench NAME: begin -->`` and ``<!-- bench NAME: end -->``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from bench.counted.dispatch import PAPER_MS, SIDES
from bench.runs import Run, figure, load
from bench.tables import replace_table, table_lines
from bench.timed import fidelity_tables

__all__ = ["DOCS", "TABLES", "PageTable", "render"]

DOCS = Path(__file__).resolve().parents[1] / "docs"
TREE_RATE, ROUND = "tokens/s [x]", "tokens a round [x]"
RATE_OVER_STREAM = "rate over the stream's [x]"
ROUND_TOKENS = "tokens a round [tokens]"
ERROR = "mean absolute error [%]"
LEARNED_CASES = {"llmperf and latencylab": "441", "thefastest.ai": "819"}  # of each policy
BETWEEN, OF_SHAPE, TRIP = "time between tokens [ms]", "time between tokens [of the U-shape's]", "tokens a trip [tokens]"


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of one run.

    Args:
        page: the page's path below docs.
        run: name of the kept run.
        lines: makes its lines of the run.
        is_first: True if the run's machine, date and commit stand above it; False if an earlier table of the page has them.
    """

    page: str
    run: str
    lines: Callable[[Run], Iterator[str]]
    is_first: bool = True

    @property
    def text(self) -> str:
        """What stands between its marks."""
        run = load(self.run)
        source = [f"`python -m bench.page {self.run}` prints all rows; {run.about}.", ""] if self.is_first else []
        return "\n".join((*source, *self.lines(run)))


# The predictor of a pass's time


def hardware(run: Run) -> Iterator[str]:
    """Yield the predictor's mean errors by machine, beside those of kernels alone, and the paper's."""
    machines = [
        (f"{gpus} {kind.upper()}", role, f"{kind} x {gpus} ({role})")
        for role, kind, gpus in product(("fitted", "held out"), ("a100", "h100"), (2, 4, 8))
    ]
    machines = [machine for machine in machines if (f"prefill, {machine[2]}", ERROR, "streamco") in run.rows]
    rows = []
    for name, role, case in (*machines, *((f"all {role}", "", f"all {role}") for role in ("fitted", "held out"))):
        ours = [run.value(f"{part}, {case}", ERROR) for part in ("prefill", "prefill of up to 2048 tokens", "decode")]
        kernels = [run.value(f"{part}, {case}", ERROR, "kernels") for part in ("prefill", "decode")]
        rows.append([name, role, *(f"{value:.1f}" for value in (*ours, *kernels))])
    rows.append(["the paper's predictor, on its own machines", "", "7.4", "", "5.2", "", ""])
    yield from table_lines(["machine", "", "prefill", "of up to 2048 tokens", "decode", "kernels alone: prefill", "decode"], rows)


# Dispatch


def learned(run: Run) -> Iterator[str]:
    """Yield how clients that learn compare with random dispatch and with the optimum, by side, services and policy."""
    rows = []
    for side, (services, cases) in product(("device", "server"), LEARNED_CASES.items()):
        case = f"learned live, {services}, {side}-constrained"
        later = f"later than chance, of {cases} [cases]"
        place = [side, services.replace("llmperf and latencylab", "the 21")]
        policies = [who for at, metric, who in run.rows if (at, metric) == (case, later)]
        rows += [[*place, f"`{policy}`", cases, *_learned_cells(run, case, policy, cases)] for policy in policies]
    head = ["constrained", "services", "policy", "cases", "later than random dispatch", "surely later"]
    head += ["mean above the optimum: mean / median / highest", "over 2 % above it"]
    yield from table_lines([*head, "mean against random dispatch", "P99 against random dispatch"], rows)


def _learned_cells(run: Run, case: str, policy: str, cases: str) -> list[str]:
    def value(metric: str) -> float:
        return run.value(case, metric, policy)

    above = run.row(case, "mean ttft above optimum [%]", policy)
    counts = [f"{value(f'{what}, of {cases} [cases]'):.0f}" for what in ("later than chance", "surely later than chance")]
    against = [f"{value(f'{metric} ttft above chance [%]'):.1f} %" for metric in ("mean", "p99")]
    if policy == "stochastic":
        counts = against = ["", ""]
    middle, over = value("mean ttft above optimum, middle case [%]"), value(f"over 2 % above optimum, of {cases} [cases]")
    shown = " / ".join(figure(share) for share in (above.median, middle, above.max))
    return [*counts, f"{shown} %", f"{over:.0f}", *against]


def planning(run: Run) -> Iterator[str]:
    """Yield milliseconds in which a plan is made, beside the paper's."""
    sizes = (1_000, 10_000, 100_000)
    rows = []
    for side in SIDES:
        ours = (run.value(f"plan, {side}-constrained, {size:,} samples", "time [ms]") for size in sizes)
        both = (" / ".join(f"{value:.3f}" for value in values) for values in ((PAPER_MS[side, size] for size in sizes), ours))
        rows.append([f"{side} spared", " / ".join(f"{size:,}" for size in sizes), *(f"{values} ms" for values in both)])
    yield from table_lines(["", "samples", "paper, M1", "here"], rows)


def replanning(run: Run) -> Iterator[str]:
    """Yield milliseconds of processor time in which a client makes its plan again."""
    sizes = ("30", "100", "300", "1,000")
    cases = [f"plan made again, device-constrained, {size} learned samples" for size in sizes]
    names = {"auto": "`auto`, device-constrained", "disco": "`disco` (Algorithm 2)", "proportional-wait": "`proportional-wait`"}
    rows = ([label, *(f"{run.value(case, 'processor time [ms]', name):.2f}" for case in cases)] for name, label in names.items())
    yield from table_lines(["learned samples", *sizes], rows)


def arrivals(run: Run) -> Iterator[str]:
    """Yield first words of answers that arrive while others are made, the server's share and what is owed, with credit and without."""
    clients = {"with credit": "streamco", "`burst=0`": "streamco, burst=0"}
    words = ("median", "95th percentile", "last")
    rows = []
    for case in dict.fromkeys(case for case, _, _ in run.rows):
        firsts = [" / ".join(f"{run.value(case, f'first word, {word} [s]', who):.2f}" for word in words) for who in clients.values()]
        shares = [f"{run.value(case, 'prompt tokens at the server [share]', who):.3f}" for who in clients.values()]
        rows.append([case, *firsts, *shares, f"{run.value(case, 'owed at most [tokens]'):,.0f}"])
    head = [f"{what}, {name}" for what in ("first word", "server's share") for name in clients]
    yield from table_lines(["", *head, "owed at most"], rows)


def refusals(run: Run) -> Iterator[str]:
    """Yield when answers begin that a server refuses, and how many requests it refuses, with the rest and without."""
    case, rows = "answers by the device", []
    for who, label in {"streamco": "default client", "nothing rests": "if nothing rested"}.items():
        first, count = run.row(case, "first word [s]", who), run.value("all", "answers by the device [answers]", who)
        words = f"{first.median:.2f} ({first.min:.2f} to {first.max:.2f})"
        rows.append([label, f"{count:.0f}", words, f"{run.value('all', 'refused requests [requests]', who):.0f}"])
    yield from table_lines(["", "answers by the device", "their first word, seconds", "requests that the server refused"], rows)


def told(run: Run) -> Iterator[str]:
    """Yield new clients' first words, and the share of answers that the server writes, without told times and with them, by server."""
    servers = ("0.3 s", "2 s", "0.1 to 13 s", "2 s, told 0.3 s")
    word = "first word [s]"
    lines = {
        "default": ("default", word),
        "by the server": ("default", "answers by the server [share]"),
        "`Auto(time=1)`": ("Auto(time=1)", word),
    }
    rows = []
    for label, (client, metric) in lines.items():
        cases = [f"{client}, server {server}, first 30" for server in servers]
        rows.append([label, *(", ".join(f"{run.value(case, metric, who):.3f}" for who in ("not told", "streamco")) for case in cases)])
    yield from table_lines(["not told, told", *servers], rows)


# Speculation


def trees(run: Run) -> Iterator[str]:
    """Yield the rate of trees over that of chains, with intervals, by what rows cost."""
    costs = {
        "GPU, rows free": "nothing (GPU), loopback",
        "GPU, rows free, RTT 60 ms": "nothing (GPU), RTT 60 ms",
        "CPU, Q4_0 repacked": "a CPU's staircase, Q4_0 repacked",
        "CPU, Q4_K_M": "a CPU's staircase, Q4_K_M",
    }
    rows = []
    for cost, label in costs.items():
        found = [run.row(f"{task}, {cost}, 52 prompts", TREE_RATE, "tree / chain") for task in ("humaneval", "alpaca")]
        rows.append([label, *(f"{row.median:.2f} ({row.min:.2f} to {row.max:.2f})" for row in found)])
    yield from table_lines(["rows cost", "code (HumanEval)", "prose (Alpaca)"], rows)


def tree_rounds(run: Run) -> Iterator[str]:
    """Yield tokens of a round of trees over those of a chain with as many rows."""
    rows = []
    for count in (4, 8, 16):
        cases = [f"{task}, 52 prompts, {count} rows" for task in ("humaneval", "alpaca")]
        of_rounds = [{who: row.median for (at, metric, who), row in run.rows.items() if (at, metric) == (case, ROUND)} for case in cases]
        ratios = [ratio for found in of_rounds for who, ratio in found.items() if who.endswith("with siblings / chain")]
        rows.append([str(count), *(f"{ratio:.2f}" for ratio in ratios)])
    yield from table_lines(["rows", "code", "prose"], rows)


def unread(run: Run) -> Iterator[str]:
    """Yield the first token and the rate of answers whose prompt neither side has read, with and without the stream's beginning."""
    case = "all of 600 words, unread, RTT 30 ms"
    names = {"streamco": "with it", "the stream never begins": "without it", "stream": "the server alone"}
    firsts = [f"{run.value(case, 'to the first token, median [s]', name):.2g} s" for name in names]
    rates = [f"{run.value(case, RATE_OVER_STREAM, name):.2f}" for name in names if name != "stream"]
    rows = [["time to the first token", *firsts], ["rate of answers of 64 tokens, relative to the stream", *rates, "1"]]
    yield from table_lines(["600 words that neither side has read", *names.values()], rows)


def forecasts(run: Run) -> Iterator[str]:
    """Yield how often a branch is adopted by each forecast, and its rate over the default's, by round trip."""
    names = {
        "streamco": '`"learned"`, branches ranked',
        "the paper's forecast": '`"geometric"`: the paper\'s, branches ranked',
        "the paper's forecast, one branch drawn": '`"sampled"`: the paper\'s, one branch drawn',
    }
    metrics = ("rounds whose branch was adopted, mean [share]", "tokens/s relative to the learned forecast, mean [times]")

    def by_rtt(metric: str, forecast: str) -> str:
        cases = (f"simulated: forecasts, RTT {rtt} ms, 12 cells, 2 x 3 answers of 256 tokens" for rtt in (10, 30, 60, 120))
        return " / ".join(f"{run.value(case, metric, forecast):.2f}" for case in cases)

    rows = ([label, *(by_rtt(metric, forecast) for metric in metrics)] for forecast, label in names.items())
    head = ["forecast (`SpeculationTuning.forecast`)", "branch adopted at 10 / 30 / 60 / 120 ms", "tokens/s over the default's"]
    yield from table_lines(head, rows)


# Synera


def early_exit(run: Run) -> Iterator[str]:
    """Yield what leaving after an earlier layer does to a token's time, by rule and model."""
    models = {"SmolLM2 Q4_0, 30 layers": "SmolLM2-135M Q4_0", "Qwen2.5-Coder 0.5B, 24 layers": "Qwen2.5-Coder 0.5B"}

    def saved(case: str, rule: str) -> list[float]:
        return [row.median for (at, metric, who), row in run.rows.items() if (at, metric) == (case, "time saved [share]") and rule in who]

    def longer(case: str, rule: str) -> str:
        times = [1.0 - share for share in saved(case, rule)]
        return " to ".join(dict.fromkeys(f"{time:.2f}" for time in (min(times), max(times)))) + " times as long"

    paper, oracle = "the paper's rule, margin 0.7", "oracle"
    same = [f"{run.value(case, 'of those, as the last layer [share]', paper):.2f}" for case in models]
    rows = [
        ["the paper's (margin 0.7)", *(longer(case, paper) for case in models)],
        ["leaving at one layer only, whichever it is", *(longer(case, " only, ") for case in models)],
        ["an oracle that knows at no cost where to leave", *(f"{100 * max(saved(case, oracle)):.0f} % saved" for case in models)],
        ["of the tokens that leave early by the paper's rule, the share that equals the last layer's", *same],
    ]
    yield from table_lines(["rule: time of a token", *models.values()], rows)


def importance(run: Run) -> Iterator[str]:
    """Yield what each rule leaves of the loss, and its rank correlation with the loss, least and most of four cases."""
    cases = [case for case in dict.fromkeys(case for case, _, _ in run.rows) if "chunks" in case]

    def span(metric: str, contender: str) -> str:
        values = [run.value(case, metric, contender) for case in cases]
        return " to ".join(dict.fromkeys(f"{value:.2f}" for value in (min(values), max(values))))

    correlation, among = "rank correlation with the loss [share]", "the same among wrong chunks [share]"
    filters = {"random": "", "importance": "last 4 layers, the chunk's rows", "combined": "", "confidence": "confidence"}
    rows = []
    for rule, filter_name in filters.items():
        found = [span(metric, filter_name) if filter_name else "" for metric in (correlation, among)]
        label = {"random": "chance", "combined": "both filters"}.get(rule, rule)
        rows.append([label, span("loss left at 0.2, by rule [share]", rule), *found])
    head = ["chosen by", "loss left if a fifth is verified", "rank correlation with the loss", "the same among wrong chunks"]
    yield from table_lines(head, rows)


def packing(run: Run) -> Iterator[str]:
    """Yield the time between tokens of one and two streams, and the packing factor, by model."""
    models = {"Q8_0": "SmolLM2-135M Q8_0", "0.5B": "Qwen2.5-Coder 0.5B Q4_K_M", "1.5B": "Qwen2.5-Coder 1.5B Q4_K_M"}
    rows = []
    for kind, label in models.items():
        times = [run.value(kind, BETWEEN, f"{streams} streams") for streams in (1, 2)]
        rows.append([label, *(f"{time:.1f}" for time in times), f"{run.value(kind, 'streams within 10 %'):.0f}"])
    yield from table_lines(["model", "one stream, ms between tokens", "two streams", "Pf"], rows)


# The split


def split_live(run: Run) -> Iterator[str]:
    """Yield the time between tokens with the default drafts, by server, round trip and kind of text."""
    rows = []
    for server, rtt in product(("7B", "own"), (10, 30, 80)):
        case, drafts = f"{server}, RTT {rtt} ms", "confident"
        alone = run.value(case, BETWEEN, "U-shape")
        kinds = [run.value(case, OF_SHAPE, f"{drafts}, {kind}") for kind in ("gsm8k", "Spec-Bench", "HumanEval (absent)")]
        whole = run.row(case, OF_SHAPE, drafts)
        ratios = (f"**{whole.median:.2f}**", *(f"{kind:.2f}" for kind in kinds), f"{whole.max:.2f}")
        rows.append([f"{server}, {rtt} ms", f"{_three(alone)} ms", *ratios, f"{run.value(case, TRIP, drafts):.2f}"])
    head = ["server, round trip", "without drafts", "with drafts", "GSM8K", "Spec-Bench", "HumanEval", "worst answer", "tokens a trip"]
    yield from table_lines(head, rows)


def split_drafts(run: Run) -> Iterator[str]:
    """Yield other drafts beside the default ones."""
    names = {
        "confident": "confident, with lookups",
        "confident, no lookup": "confident, without lookups",
        "layer's drafts of 4": "always 4 tokens of the draft layer",
        "threshold, parallel 3, last": "threshold, drafting while a verdict is out, as in the paper (equations 5 and 6)",
    }
    case = "7B, RTT 30 ms"
    found = {label: (run.row(case, OF_SHAPE, name), run.value(case, TRIP, name)) for name, label in names.items()}
    rows = ([label, f"{row.median:.2f}", f"{row.max:.2f}", f"{trip:.2f}"] for label, (row, trip) in found.items())
    yield from table_lines(["drafts", "time between tokens, of that without drafts", "worst answer", "tokens a trip"], rows)


def split_ablation(run: Run) -> Iterator[str]:
    """Yield HAT's Table V live, beside the paper's columns."""
    case = "7B, RTT 30 ms"
    paper = {
        "none (U-shape)": ("1.00", "1.00"),
        "PC": ("0.59", "0.75"),
        "SD": ("1.00", "0.73"),
        "SD, PD": ("1.00", "0.65"),
        "SD, PC": ("0.59", "0.59"),
        "SD, PC, PD (HAT)": ("0.59", "0.50"),
    }
    fixed = {f"f32, parallel {count}": f'`states="f32"`, `parallel={count}`' for count in (0, 3)}
    names = {"default": "**default** (both `auto`)"} | fixed
    rows = []
    for who in (*paper, "HAT, last row only", *names):
        cells = []
        for metric, theirs in zip(("time to first token", "time between tokens"), paper.get(who, ("", "")), strict=True):
            seconds, share = (run.value(case, f"{metric} [{unit}]", who) for unit in ("ms", "of the U-shape's"))
            cells += [f"{_three(seconds)} ms", f"{share:.2f}", theirs]
        rows.append([names.get(who, who), *cells, f"{run.value(case, TRIP, who):.2f}"])
    head = ["", "first token", "of the U-shape's", "paper", "between tokens", "of the U-shape's", "paper", "tokens a trip"]
    yield from table_lines(head, rows)


def split_texts(run: Run) -> Iterator[str]:
    """Yield how many of the texts are equal, by what is sent."""
    names = {"exact": "exact mode, 32 bits", "f32": "32 bits", "f16": "16 bits", "i8": "8 bits"}
    yield from table_lines([*names.values()], [[f"{run.value('200 prompts', 'equal texts', name):.0f}" for name in names]])


def inversion(run: Run) -> Iterator[str]:
    """Yield what an attacker recovers of the tokens, by input layers and noise, and what the noise does to the answer."""
    attacks = ("linear map, its own text", "small network", "search")
    places = [(layers, "") for layers in (1, 2, 3, 5, 10)] + [(2, noise) for noise in ("0.1", "0.2", "0.4", "0.8")]
    rows = []
    for layers, noise in places:
        case = f"{layers} layers, {f'noise {noise}' if noise else 'f16'}"
        shares = [_percent(run.value(case, "recovered [share]", attack)) for attack in attacks]
        same = (case, "unchanged [share]", "the answer")
        rows.append([f"{layers}, {noise or 'none'}", *shares, _percent(run.rows[same].median) if same in run.rows else ""])
    head = ["input layers, noise", "linear map", "small network", "search", "next tokens that stay the same"]
    yield from table_lines(head, rows)


def draft_rounds(run: Run) -> Iterator[str]:
    """Yield tokens a round of the packaged draft layer by kind of text and length of drafts, with lookups and without."""
    names = ("window 4", "window 4, lookup", "window 8", "window 8, lookup")
    drafts = {name.replace("window", "drafts of").replace(", lookup", ", with lookups"): name for name in names}
    kinds = list(dict.fromkeys(case for case, metric, _ in run.rows if metric == ROUND_TOKENS))
    rows = ([label, *(f"{run.value(kind, ROUND_TOKENS, name):.2f}" for kind in kinds)] for label, name in drafts.items())
    yield from table_lines(["", *kinds], rows)


# Rows


def row_formats(run: Run) -> Iterator[str]:
    """Yield milliseconds of each number of rows by the format of the weights."""
    sizes = list(dict.fromkeys(case for case, _, _ in run.rows))
    formats = dict.fromkeys(name for _, _, name in run.rows)
    rows = ([name, *(f"{run.value(size, 'time [ms]', name):.0f}" for size in sizes)] for name in formats)
    yield from table_lines(["format", *(size.removesuffix("s") if size == "1 rows" else size for size in sizes)], rows)


def pair_tasks(run: Run) -> Iterator[str]:
    """Yield a live pair's figures on six tasks, each with the bounds of 95 % of draws."""
    metrics = {"score [of 1]": 2, "server's tokens [a token]": 2, "rate [tokens/s]": 1, "energy of the device [J an answer]": 0}
    case = next(iter(dict.fromkeys(case for case, _, _ in run.rows)))
    rows = []
    for name in dict.fromkeys(name for _, _, name in run.rows):
        found = [(run.row(case, metric, name), digits) for metric, digits in metrics.items()]
        cells = [f"{row.median:.{digits}f} ({row.min:.{digits}f} to {row.max:.{digits}f})" for row, digits in found]
        rows.append([f"**{name}**" if name == "default" else name, *cells])
    yield from table_lines([case, "score", "server's tokens a token", "tokens/s", "device's energy, J an answer"], rows)


def _percent(share: float) -> str:
    """Return a share as per cent; nearly all is not 100 %."""
    whole = f"{100 * share:.0f}"
    return f"{100 * share:.1f} %" if whole == "100" and share < 1.0 else f"{whole} %"


def _three(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


TABLES: Mapping[str, PageTable] = {
    **{run: PageTable("research/fidelity.md", run, fidelity_tables.lines_of) for run in ("fidelity", "fidelity_unseen")},
    "hardware": PageTable("research/hardware.md", "hardware", hardware),
    "learned": PageTable("research/disco.md", "dispatch", learned),
    "planning": PageTable("research/disco.md", "dispatch", planning, is_first=False),
    "replanning": PageTable("research/disco.md", "dispatch", replanning, is_first=False),
    "arrivals": PageTable("dispatch.md", "arrivals", arrivals),
    "refusals": PageTable("dispatch.md", "refusals", refusals),
    "trees": PageTable("speculation.md", "trees", trees),
    "tree_rounds": PageTable("speculation.md", "trees", tree_rounds, is_first=False),
    "early_exit": PageTable("research/papers.md", "early_exit", early_exit),
    "forecasts": PageTable("research/papers.md", "speculate_simulated", forecasts),
    "importance": PageTable("research/papers.md", "importance", importance),
    "packing": PageTable("research/synera.md", "packing", packing),
    "pair_tasks": PageTable("research/synera.md", "pair_tasks", pair_tasks),
    "unread": PageTable("speculation.md", "unread", unread),
    "told": PageTable("research/disco.md", "told", told),
    "row_formats": PageTable("serve.md", "row_formats", row_formats),
    "inversion": PageTable("research/split.md", "inversion", inversion),
    "draft_rounds": PageTable("research/split.md", "draft_layer", draft_rounds),
    "split_live": PageTable("research/split.md", "split_live", split_live),
    "split_drafts": PageTable("research/split.md", "split_live", split_drafts, is_first=False),
    "split_ablation": PageTable("research/split.md", "split_ablation", split_ablation),
    "split_texts": PageTable("research/split.md", "split_texts", split_texts),
}
"""The tables by the name of their marks."""


def render(tables: Mapping[str, PageTable] = TABLES, folder: Path = DOCS) -> Mapping[Path, str]:
    """Return the pages with these tables."""
    pages: dict[Path, str] = {}
    for name, table in tables.items():
        path = folder / table.page
        pages[path] = replace_table(pages.get(path) or path.read_text(encoding="utf-8"), f"bench {name}", table.text)
    return pages
