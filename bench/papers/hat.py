"""HAT's figures and tables beside ours, in Markdown.

    streamco simulate bench/papers/hat_figure6.yaml
    python -m bench.papers.hat results/hat_figure6
    python -m bench.papers.hat batches

The folder's name says which experiment it is. ``batches`` computes Figures 1c and 1d from the predicted times of a batch, without a
simulation. ``python -m bench.papers.kept`` keeps the results, and makes the tables of the page. The paper's numbers are those of its text
and tables; its figures have no others that can be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from bench.tables import Means, format_table, means_of, show_table
from streamco.sim.split.kind import batch_seconds
from streamco.sim.split.options import MiddleServerOptions

__all__ = ["FIGURES", "TABLES", "Table", "batch_growth", "batches", "chunked_steps", "less_than", "lines_of", "main", "tables_of"]

FRAMEWORKS = ("U-shape", "U-Medusa", "U-Sarathi", "HAT")
BASELINES = FRAMEWORKS[:-1]
RATE, STAGES = "workload.arrivals.poisson_per_s", "world.server.stages"
Scenarios = Sequence[Mapping[str, Any]]

# The paper's numbers: milliseconds, shares and per cent, in the order of FRAMEWORKS or BASELINES
TTFT_AT = {"hat_figure6": (6, (646.2, 644.6, 609.2, 384.2)), "hat_figure7": (4, (2140.8, 2214.8, 1750.6, 1027.4))}
TBT_LESS_AT = {"hat_figure6": (4, (41.3, 22.5, 31.9)), "hat_figure7": (4, (74.7, 77.2, 40.8))}
TBT_RISE = {"hat_figure6": (4, 9, (44.0, 64.5, 7.8, 5.3))}
STAGE_AT = {
    "hat_figure6": (6, ((8.4, 7.1), (10.0, 8.1), (6.5, 1.2), (6.8, 1.3))),
    "hat_figure7": (4, ((18.9, 24.6), (23.3, 27.5), (11.9, 3.4), (12.4, 1.1))),
}
PREFILL_SHARE = {"hat_figure9": (350, (86.6, 78.8, 76.8, 100.0)), "hat_figure10": (300, (76.3, 68.9, 64.7, 100.0))}
DECODE_LIMIT = {
    "hat_figure9": ("decode_sla_p50", "50 %", (786.1, 659.8, 565.0, 489.3)),
    "hat_figure10": ("decode_sla_p90", "90 %", (3357.8, 3109.6, 1561.5, 1352.7)),
}
ONE_STAGE = {"hat_figure11": ((694.0, 727.1, 1080.0, 431.4), (88.6, 65.3, 67.5, 39.2))}
FOUR_STAGES_LESS = {"hat_figure12": ((40.1, 40.7, 36.9), (47.1, 33.9, 32.3))}
TABLE4 = {
    "SpecBench, 7B": {"U-shape": (1.00, 1.00), "U-Medusa": (1.89, 1.41), "HAT": (2.06, 1.65)},
    "CNN/DM, 13B": {"U-shape": (1.00, 1.00), "U-Medusa": (1.75, 1.45), "HAT": (1.98, 1.60)},
}
TABLE5 = {
    "SpecBench, 7B": ((655.6, 52.3), (384.0, 39.4), (655.3, 38.3), (657.9, 33.8), (384.3, 30.6), (384.2, 26.4)),
    "CNN/DM, 13B": ((1989.0, 128.1), (1038.7, 74.2), (1993.5, 84.3), (1992.1, 74.9), (1039.1, 49.3), (1039.9, 43.5)),
}
PARTS = ("none (U-shape)", "PC", "SD", "SD, PD", "SD, PC", "SD, PC, PD (HAT)")


class Table(NamedTuple):
    """Title, head and lines of a table."""

    title: str
    head: list[str]
    lines: list[list[str]]


def less_than(figures: Mapping[str, float], baseline: str) -> float:
    """Return by how many per cent HAT has less than a baseline."""
    return 100.0 * (1.0 - figures["HAT"] / figures[baseline])


def tables_of(name: str, scenarios: Scenarios) -> list[Table]:
    """Return the tables of an experiment's results.

    Raises:
        KeyError: there is no such experiment, or the results lack one of its settings.
    """
    return [*TABLES[name](name, scenarios)]


def lines_of(tables: Iterable[Table]) -> list[str]:
    """Return the lines of a page: each table under its title."""
    shown = (format_table(f"{table.title[0].upper()}{table.title[1:]}:", table.head, table.lines) for table in tables)
    return "\n".join(shown).strip().splitlines()


def _rates(name: str, scenarios: Scenarios) -> Iterator[Table]:
    """Figures 6 to 8: by request rate."""
    ttft, tbt = (means_of(scenarios, "framework", figure) for figure in ("ttft_mean", "tpot_mean"))
    yield _by_case("TTFT [ms] by requests a second", ttft)
    yield _by_case("TBT [ms] by requests a second", tbt)
    rate, paper = TTFT_AT[name]
    yield _beside(f"TTFT [ms] at {rate} requests/s", ttft[(rate,)], paper)
    rate, less = TBT_LESS_AT[name]
    yield _less(f"HAT's TBT is less than that of ... at {rate} requests/s, per cent", tbt[(rate,)], less)
    if name in TBT_RISE:
        low, high, rise = TBT_RISE[name]
        ours = {framework: 100 * (tbt[(high,)][framework] / tbt[(low,)][framework] - 1) for framework in FRAMEWORKS}
        yield _beside(f"rise of TBT from {low} to {high} requests/s, per cent", ours, rise, scale=1.0)
    rate, stage = STAGE_AT[name]
    mean, deviation = (means_of(scenarios, "framework", figure)[(rate,)] for figure in ("stage_mean", "stage_deviation"))
    lines = [
        [framework, f"{paper[0]} ± {paper[1]}", f"{1e3 * mean[framework]:.1f} ± {1e3 * deviation[framework]:.1f}"]
        for framework, paper in zip(FRAMEWORKS, stage, strict=True)
    ]
    yield Table(f"a batch in a stage [ms], mean and deviation, at {rate} requests/s", ["", "paper", "ours"], lines)


def _limits(name: str, scenarios: Scenarios) -> Iterator[Table]:
    """Figures 9 and 10: shares that keep limits."""
    limit, shares = PREFILL_SHARE[name]
    ours = means_of(scenarios, "framework", "prefill_in_time")[()]
    yield _beside(f"prompts within {limit} ms for 128 tokens, per cent", ours, shares, scale=100.0)
    figure, share, paper = DECODE_LIMIT[name]
    yield _beside(f"limit that {share} keep for 10 tokens [ms]", means_of(scenarios, "framework", figure)[()], paper)
    found = {each: means_of(scenarios, "framework", each)[()] for each in _LIMITS}
    lines = [[framework, *(f"{1e3 * found[each][framework]:.0f}" for each in _LIMITS)] for framework in found[_LIMITS[0]]]
    yield Table("ours [ms]: limits that 50, 90 and 99 % keep for 128 prompt tokens, and for 10 tokens", ["", *_LIMITS], lines)


def _stages(name: str, scenarios: Scenarios) -> Iterator[Table]:
    """Figures 11 and 12: by pipeline stages."""
    ttft, tbt = (means_of(scenarios, "framework", figure) for figure in ("ttft_mean", "tpot_mean"))
    yield _by_case("TTFT [ms] by stages", ttft)
    yield _by_case("TBT [ms] by stages", tbt)
    if name in ONE_STAGE:
        for title, found, paper in zip(("TTFT", "TBT"), (ttft, tbt), ONE_STAGE[name], strict=True):
            yield _beside(f"{title} [ms] with one stage", found[(1,)], paper)
    if name in FOUR_STAGES_LESS:
        for title, found, less in zip(("TTFT", "TBT"), (ttft, tbt), FOUR_STAGES_LESS[name], strict=True):
            yield _less(f"HAT's {title} is less than that of ... with four stages, per cent", found[(4,)], less)


def _table4(name: str, scenarios: Scenarios) -> Iterator[Table]:
    """Table IV: tokens a round, and speedup of the time between tokens."""
    tokens, tbt = (means_of(scenarios, "framework", figure) for figure in ("round_tokens", "tpot_mean"))
    lines = []
    for data, paper in TABLE4.items():
        ours = tbt[(data,)]
        for framework in ours:
            known = paper.get(framework)
            printed = [f"{known[0]:.2f}", f"{known[1]:.2f}"] if known else ["", ""]
            speedup = ours["U-shape"] / ours[framework]
            lines.append([f"{data}, {framework}", printed[0], f"{tokens[(data,)][framework]:.2f}", printed[1], f"{speedup:.2f}"])
    yield Table("Table IV", ["", "paper, tokens a round", "ours (fitted)", "paper, speedup", "ours"], lines)


def _table5(name: str, scenarios: Scenarios) -> Iterator[Table]:
    """Table V: the parts of HAT."""
    ttft, tbt = (means_of(scenarios, "parts", figure) for figure in ("ttft_mean", "tpot_mean"))
    lines = []
    for (data,), found in ttft.items():
        printed = dict(zip(PARTS, TABLE5.get(data) or (), strict=False))
        for part, seconds in found.items():
            known = printed.get(part)
            first, between = (f"{known[0]:.0f}", f"{known[1]:.1f}") if known else ("", "")
            base = tbt[(data,)][PARTS[0]]
            share = f"{known[1] / printed[PARTS[0]][1]:.2f}" if known else ""
            own = tbt[(data,)][part]
            lines.append([f"{data}: {part}", first, f"{1e3 * seconds:.0f}", between, f"{1e3 * own:.1f}", share, f"{own / base:.2f}"])
    head = ["", "paper, TTFT [ms]", "ours", "paper, TBT [ms]", "ours", "paper, TBT to U-shape", "ours"]
    yield Table("Table V", head, lines)


def _figure1(name: str, scenarios: Scenarios) -> Iterator[Table]:
    """Figures 1a and 1b: where the time of a first token goes."""
    names = ("ttft_mean", "prompt_device", "prompt_link", "prompt_server")
    found = {each: means_of(scenarios, "case", each)[()] for each in names}
    lines = []
    for case, seconds in found["ttft_mean"].items():
        share = found["prompt_link"][case] / seconds
        lines.append([case, *(f"{1e3 * found[each][case]:.0f}" for each in names), f"{100 * share:.0f} %"])
    lines.append(["paper: U-shape, 2,000 tokens", "3570", "90", "3200", "280", "89.6 %"])
    yield Table("Figures 1a and 1b [ms]", ["", "TTFT", "device", "link", "server", "link's share"], lines)


def _chunks(name: str, scenarios: Scenarios) -> Iterator[Table]:
    """Not in the paper: sizes of chunks, and how many may be in flight."""
    found = means_of(scenarios, "chunks", "ttft_mean")
    sizes = [*next(iter(found.values()))]
    lines = [[*map(str, case), *(f"{1e3 * ttft[size]:.0f}" for size in sizes)] for case, ttft in found.items()]
    yield Table("TTFT [ms] of 1,024 tokens", ["stages", "rows back", "round trip [ms]", "chunks in flight", *sizes], lines)


def _split_tbt(name: str, scenarios: Scenarios) -> Iterator[Table]:
    """Not in the paper: the time between tokens of a live split, by how good its draft layer is."""
    tbt, tokens = (means_of(scenarios, "drafting", figure) for figure in ("tpot_mean", "round_tokens"))
    alone, *drafting = next(iter(tbt.values()))
    mean = [fmean(each[name] for each in tokens.values()) for name in drafting]
    lines = [["tokens a round", *(f"{value:.2f}" for value in mean)]]
    lines += [[f"{rtt} ms", *(f"{of[each] / of[alone]:.2f}" for each in drafting)] for (rtt,), of in tbt.items()]
    yield Table("time between tokens over the U-shape's", ["", *drafting], lines)


def _split_ttft(name: str, scenarios: Scenarios) -> Iterator[Table]:
    """Not in the paper: the time to the first token of a live split, by how the prompt is sent."""
    found = means_of(scenarios, "prompt", "ttft_mean")
    whole, *others = next(iter(found.values()))
    lines = [
        [f"{tokens:,}, {rtt} ms", f"{1e3 * ttft[whole]:.0f}", *(f"{ttft[each] / ttft[whole]:.2f}" for each in others)]
        for (tokens, rtt), ttft in found.items()
    ]
    yield Table("time to the first token over the U-shape's", ["tokens, round trip", "U-shape [ms]", *others], lines)


TABLES: Mapping[str, Callable[[str, Scenarios], Iterator[Table]]] = {
    "hat_figure1": _figure1,
    "hat_figure6": _rates,
    "hat_figure7": _rates,
    "hat_figure9": _limits,
    "hat_figure10": _limits,
    "hat_figure11": _stages,
    "hat_figure12": _stages,
    "hat_table4": _table4,
    "hat_table5": _table5,
    "hat_chunks": _chunks,
    "split_tbt": _split_tbt,
    "split_ttft": _split_ttft,
}
"""Tables of each experiment, by the name of its file."""

_PACES, _STAGE = ("ttft_mean", "tpot_mean"), ("stage_mean", "stage_deviation")
_LIMITS = tuple(f"{phase}_sla_{rank}" for phase in ("prefill", "decode") for rank in ("p50", "p90", "p99"))
FIGURES: Mapping[str, Sequence[str]] = {
    "hat_figure1": ("ttft_mean", "prompt_device", "prompt_link", "prompt_server"),
    "hat_figure6": (*_PACES, *_STAGE),
    "hat_figure7": (*_PACES, *_STAGE),
    "hat_figure9": ("prefill_in_time", *_LIMITS),
    "hat_figure10": ("prefill_in_time", *_LIMITS),
    "hat_figure11": _PACES,
    "hat_figure12": _PACES,
    "hat_table4": ("tpot_mean", "round_tokens"),
    "hat_table5": _PACES,
    "hat_chunks": ("ttft_mean",),
    "split_tbt": ("tpot_mean", "round_tokens"),
    "split_ttft": ("ttft_mean",),
}
"""Figures of the results that these tables show."""


def _beside(title: str, ours: Mapping[str, float], paper: Sequence[float], *, scale: float = 1e3) -> Table:
    """Return a line for each framework: the paper's, ours, and that of the frameworks which the paper doesn't have."""
    printed = dict(zip(FRAMEWORKS, paper, strict=True))
    lines = [[each, f"{printed[each]:g}" if each in printed else "", f"{scale * value:.1f}"] for each, value in ours.items()]
    return Table(title, ["", "paper", "ours"], lines)


def _less(title: str, ours: Mapping[str, float], paper: Sequence[float]) -> Table:
    lines = [[each, f"{printed:g}", f"{less_than(ours, each):.1f}"] for each, printed in zip(BASELINES, paper, strict=True)]
    return Table(title, ["", "paper", "ours"], lines)


def _by_case(title: str, found: Means) -> Table:
    """Return a line for each framework, and a column for each case."""
    frameworks = [*next(iter(found.values()))]
    lines = [[each, *(f"{1e3 * case[each]:.1f}" for case in found.values())] for each in frameworks]
    return Table(title, ["", *(", ".join(map(str, case)) for case in found)], lines)


# Figures 1c and 1d

A6000 = MiddleServerOptions(model="llama2-7b", gpu="a6000", time_factor=0.9375)
DECODES, CONTEXT = 9, 500  # requests that decode beside the prompt, and their cached rows each


def batch_growth(rows: int) -> float:
    """Return how much longer a batch of 9 rows takes with so many of a prompt than with one, per cent (Figure 1c)."""
    seconds = batch_seconds(A6000)
    of = [seconds(DECODES + each, DECODES * CONTEXT, DECODES + 1) for each in (1, rows)]
    return 100.0 * (of[1] / of[0] - 1.0)


def chunked_steps(prompt: int, chunk: int, steps: int = 64) -> tuple[float, float]:
    """Return the seconds of all steps, and of those with the prompt's chunks beside 9 requests that decode (Figure 1d)."""
    seconds = batch_seconds(A6000)
    context = DECODES * CONTEXT
    chunks = [min(chunk, prompt - start) for start in range(0, prompt, chunk)]
    reading = sum(seconds(DECODES + rows, context + chunk * index, DECODES + 1) for index, rows in enumerate(chunks))
    rest = max(0, steps - len(chunks)) * seconds(DECODES + 1, context + prompt, DECODES + 1)
    return reading + rest, reading


def batches() -> list[Table]:
    """Return Figures 1c and 1d."""
    growth = [[str(rows), "10.1" if rows == 32 else "", f"{batch_growth(rows):.1f}"] for rows in (32, 128, 512, 1024, 2048)]
    total, first = chunked_steps(2048, 2048)
    steps = []
    for chunk in (1024, 512, 256, 128, 64, 32):
        all_steps, reading = chunked_steps(2048, chunk)
        printed = ["82.3", "6.6"] if chunk == 32 else ["", ""]
        steps.append([str(chunk), printed[0], f"{1e3 * (total - all_steps):.1f}", printed[1], f"{reading / first:.1f}"])
    return [
        Table("Figure 1c: a batch of 9 rows and a prompt's, longer than with one row of it, per cent", ["rows", "paper", "ours"], growth),
        Table(
            "Figure 1d: 64 steps with 9 requests and a prompt of 2,048 tokens in chunks",
            ["rows of a chunk", "paper, saved in all [ms]", "ours", "paper, time of the prompt, times", "ours"],
            steps,
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", help=f"folder of the results of {', '.join(TABLES)}; or batches")
    what = parser.parse_args(arguments).what
    if what == "batches":
        tables, note = batches(), "computed"
    else:
        folder = Path(what)
        if folder.name not in TABLES:
            parser.error(f"{what}: expected a folder named {', '.join(TABLES)}, got {folder.name!r}")
        results = json.loads((folder / "results.json").read_bytes())
        tables, note = tables_of(folder.name, results["scenarios"]), f"{results['repeats']} seeds"
    for table in tables:
        show_table(f"{table.title} ({note})", table.head, table.lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
