"""DSD's Table 2 beside ours: every cell, with intervals over the seeds.

    streamco simulate bench/papers/dsd_table2.yaml --jobs 2
    python -m bench.papers.dsd results/dsd_table2

The second command prints the tables; ``bench.papers.kept`` puts them into docs/research/dsd.md. The paper's numbers are those of its
Table 2, whose latencies the text has in pieces; a cell that no piece fits is None.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

__all__ = ["FIGURES", "PAPER_THROUGHPUT", "PAPER_TPOT", "PAPER_TTFT", "POLICIES", "Interval"]
__all__ += ["change", "drafting", "interval", "seeds_of", "tables"]

POLICIES = ("static 4", "dynamic", "adaptive")
OTHERS = ("the server alone", "fused, drafting 4")
CASE, WINDOW = "case", "window"  # as dsd_table2.yaml calls the settings that are swept
_STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}  # 95 %, by seeds; more: as for ten

Cells = Mapping[str, tuple[float | None, float | None, float | None]]

PAPER_THROUGHPUT: Cells = {
    "gsm8k, 600 drafters, 10 ms": (25.8, 26.1, 28.3),
    "gsm8k, 600 drafters, 30 ms": (17.8, 18.9, 18.5),
    "gsm8k, 1000 drafters, 10 ms": (30.6, 30.7, 31.5),
    "gsm8k, 1000 drafters, 30 ms": (21.4, 21.8, 22.3),
    "humaneval, 600 drafters, 10 ms": (16.2, 16.7, 17.2),
    "humaneval, 600 drafters, 30 ms": (11.2, 11.0, 11.3),
    "humaneval, 1000 drafters, 10 ms": (17.4, 17.6, 18.2),
    "humaneval, 1000 drafters, 30 ms": (12.8, 13.1, 13.2),
    "cnn_dailymail, 600 drafters, 10 ms": (8.0, 8.25, 8.4),
    "cnn_dailymail, 600 drafters, 30 ms": (6.0, 6.2, 6.2),
    "cnn_dailymail, 1000 drafters, 10 ms": (12.1, 12.2, 12.6),
    "cnn_dailymail, 1000 drafters, 30 ms": (9.3, 9.5, 9.7),
}
"""Requests a second, in the order of ``POLICIES``."""

PAPER_TTFT: Cells = {
    "gsm8k, 600 drafters, 10 ms": (352, 334, 347),
    "gsm8k, 600 drafters, 30 ms": (462, 457, 443),
    "gsm8k, 1000 drafters, 10 ms": (368, 354, 362),
    "gsm8k, 1000 drafters, 30 ms": (478, 465, 463),
    "humaneval, 600 drafters, 10 ms": (803, 792, 799),
    "humaneval, 600 drafters, 30 ms": (1138, 1125, 1120),
    "humaneval, 1000 drafters, 10 ms": (2102, 2178, 2038),
    "humaneval, 1000 drafters, 30 ms": (2578, 2520, 2497),
    "cnn_dailymail, 600 drafters, 10 ms": (1602, 1625, 1569),
    "cnn_dailymail, 600 drafters, 30 ms": (2024, 1993, 2006),
    "cnn_dailymail, 1000 drafters, 10 ms": (2412, 2408, 2352),
    "cnn_dailymail, 1000 drafters, 30 ms": (2986, 2934, 2925),
}
"""Milliseconds to the first token."""

PAPER_TPOT: Cells = {
    "gsm8k, 600 drafters, 10 ms": (40.1, 38.9, 36.2),
    "gsm8k, 600 drafters, 30 ms": (62.3, 62.9, 58.3),
    "gsm8k, 1000 drafters, 10 ms": (72.2, 69.7, 67.4),
    "gsm8k, 1000 drafters, 30 ms": (99.4, 98.1, 91.5),
    "humaneval, 600 drafters, 10 ms": (50.8, 48.6, 46.3),
    "humaneval, 600 drafters, 30 ms": (79.2, 78.1, 73.6),
    "humaneval, 1000 drafters, 10 ms": (75.4, 73.4, 70.5),
    "humaneval, 1000 drafters, 30 ms": (102.7, 100.2, 96.8),
    "cnn_dailymail, 600 drafters, 10 ms": (67.4, 66.9, 62.8),
    "cnn_dailymail, 600 drafters, 30 ms": (92.4, 88.6, 86.7),
    "cnn_dailymail, 1000 drafters, 10 ms": (82.6, None, 76.8),  # the text has one number of the two
    "cnn_dailymail, 1000 drafters, 30 ms": (108.3, 108.5, 98.2),
}
"""Milliseconds a token after the first. Which cell a piece belongs to follows from the per cent that the adaptive column prints."""


class Figure(NamedTuple):
    """A figure of Table 2: its name in results.json, title, the paper's cells, factor to the paper's unit, and digits."""

    name: str
    title: str
    paper: Cells
    factor: float
    digits: int


FIGURES = (
    Figure("finished", "Requests answered a second", PAPER_THROUGHPUT, 1.0, 1),
    Figure("ttft_mean", "Milliseconds to the first token", PAPER_TTFT, 1000.0, 0),
    Figure("tpot_mean", "Milliseconds a token", PAPER_TPOT, 1000.0, 1),
)


class Interval(NamedTuple):
    """A mean over seeds, and half the width of its 95 per cent interval (Student's t); None: a single seed."""

    mean: float
    half: float | None

    def show(self, digits: int) -> str:
        """Return the mean, with the interval if there is one."""
        return f"{self.mean:.{digits}f}" + ("" if self.half is None else f" ± {self.half:.{digits}f}")


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of one value for each seed, with its interval."""
    if len(values) < 2:
        return Interval(fmean(values), None)
    return Interval(fmean(values), _STUDENT[min(len(values), max(_STUDENT))] * stdev(values) / len(values) ** 0.5)


def change(new: Mapping[int, float], old: Mapping[int, float]) -> Interval:
    """Return by how many per cent one policy differs from another, over the seeds of both: each seed has the same requests."""
    return interval([100.0 * (new[seed] / old[seed] - 1.0) for seed in new if seed in old])


Seeds = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Values of a figure by case, policy and seed."""


def seeds_of(scenarios: Iterable[Mapping[str, Any]], figure: str) -> Seeds:
    """Return the values of a figure of ``results.json``."""
    found: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for scenario in scenarios:
        point = scenario["point"]
        if figure in scenario["system"]:
            found[point[CASE]][point[WINDOW]][scenario["seed"]] = scenario["system"][figure]
    return found


def tables(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of all tables, in Markdown, and how often the adaptive window is better or worse beyond its interval."""
    for figure in FIGURES:
        found = seeds_of(results["scenarios"], figure.name)
        yield f"**{figure.title}**, {' / '.join(POLICIES)}; {results['repeats']} seeds, 95 % intervals:"
        yield ""
        columns = ["", "paper", "ours", "adaptive to static", "to dynamic", *OTHERS, "adaptive to the server alone"]
        yield f"| {' | '.join(columns)} |"
        yield f"|{'---|' * len(columns)}"
        for case, policies in found.items():
            if {*policies} >= {*POLICIES}:
                yield f"| {' | '.join(_line(case, policies, figure))} |"
        yield ""
        yield " ".join(_count(found, other, figure) for other in (*POLICIES[:-1], *OTHERS))
        yield ""


def drafting(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table on how the devices draft: means over the seeds of each case and policy."""
    found = {name: seeds_of(results["scenarios"], name) for name in ("window_mean", "acceptance", "by_server_alone", "device_wait")}
    yield f"**How they draft**, {' / '.join(POLICIES)}:"
    yield ""
    yield "| | tokens of a draft | accepted share of all drafted tokens | share by the server's stream | seconds until the device is free |"
    yield "|---|---|---|---|---|"
    for case in found["window_mean"]:
        cells = (
            " / ".join(f"{fmean(by[case][policy].values()):.{digits}f}" if by[case][policy] else "?" for policy in POLICIES)
            for by, digits in zip(found.values(), (1, 2, 2, 1), strict=True)
        )
        yield f"| {case} | {' | '.join(cells)} |"


def _line(case: str, policies: Mapping[str, Mapping[int, float]], figure: Figure) -> Iterator[str]:
    def ours(policy: str) -> str:
        values = [figure.factor * value for value in policies[policy].values()]
        return interval(values).show(figure.digits)

    yield case
    yield " / ".join("?" if cell is None else f"{cell:g}" for cell in figure.paper[case])
    yield " / ".join(ours(policy) for policy in POLICIES)
    for other in POLICIES[:-1]:
        yield _percent(change(policies["adaptive"], policies[other]))
    for other in OTHERS:
        yield ours(other) if other in policies else ""
    yield _percent(change(policies["adaptive"], policies[OTHERS[0]])) if OTHERS[0] in policies else ""


def _percent(found: Interval) -> str:
    return f"{found.mean:+.1f}" + ("" if found.half is None else f" ± {found.half:.1f}") + " %"


def _count(found: Seeds, other: str, figure: Figure) -> str:
    """Return in how many cases the adaptive window is better and worse than another policy, beyond the interval of the difference."""
    sign = 1 if figure.name == "finished" else -1
    changes = [change(policies["adaptive"], policies[other]) for policies in found.values() if {"adaptive", other} <= {*policies}]
    better = sum(sign * each.mean > (each.half or 0.0) for each in changes)
    worse = sum(-sign * each.mean > (each.half or 0.0) for each in changes)
    return f"Adaptive against {other}: better in {better} of {len(changes)}, worse in {worse}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="folder of the results")
    options = parser.parse_args(arguments)
    results = json.loads((options.folder / "results.json").read_bytes())
    if WINDOW not in results["sweep"] or CASE not in results["sweep"]:
        parser.error(
            f"{options.folder}: expected results of dsd_table2.yaml, which sweeps {CASE!r} and {WINDOW!r}, "
            f"got a sweep of {', '.join(results['sweep'])}"
        )
    print("\n".join(tables(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
