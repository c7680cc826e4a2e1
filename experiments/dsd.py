"""DSD's Table 2 beside ours, in Markdown: ``python -m experiments.dsd results/dsd_table2``, after a run of ``dsd_table2.yaml``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from experiments.tables import Means, means_of, show_table

__all__ = ["PAPER_THROUGHPUT", "POLICIES", "WINDOW", "count_won", "table2"]

POLICIES = ("static 4", "dynamic", "adaptive")
WINDOW = "window"  # as dsd_table2.yaml calls the setting that is compared

PAPER_THROUGHPUT = {
    ("gsm8k", "600 drafters", 10): (25.8, 26.1, 28.3),
    ("gsm8k", "600 drafters", 30): (17.8, 18.9, 18.5),
    ("gsm8k", "1000 drafters", 10): (30.6, 30.7, 31.5),
    ("gsm8k", "1000 drafters", 30): (21.4, 21.8, 22.3),
    ("humaneval", "600 drafters", 10): (16.2, 16.7, 17.2),
    ("humaneval", "600 drafters", 30): (11.2, 11.0, 11.3),
    ("humaneval", "1000 drafters", 10): (17.4, 17.6, 18.2),
    ("humaneval", "1000 drafters", 30): (12.8, 13.1, 13.2),
    ("cnn_dailymail", "600 drafters", 10): (8.0, 8.25, 8.4),
    ("cnn_dailymail", "600 drafters", 30): (6.0, 6.2, 6.2),
    ("cnn_dailymail", "1000 drafters", 10): (12.1, 12.2, 12.6),
    ("cnn_dailymail", "1000 drafters", 30): (9.3, 9.5, 9.7),
}
PAPER_TPOT = {
    ("gsm8k", "600 drafters", 10): (40.1, 38.9, 36.2),
    ("gsm8k", "600 drafters", 30): (62.3, 62.9, 58.3),
    ("gsm8k", "1000 drafters", 10): (72.2, 69.7, 67.4),
    ("gsm8k", "1000 drafters", 30): (99.4, 98.1, 91.5),
}
"""By trace, clients and round trip in milliseconds; the paper's, as far as the text of its table can be read."""


def table2(throughput: Means, tpot: Means) -> Iterator[list[str]]:
    """A line for each case that has all policies: requests a second, milliseconds a token."""
    for case in PAPER_THROUGHPUT:
        if {*throughput.get(case, ())} >= {*POLICIES}:
            trace, clients, trip = case
            yield [f"{trace}, {clients}, {trip} ms", *_line(case, throughput[case], tpot[case])]


def _line(case: tuple[str, str, int], throughput: Mapping[str, float], tpot: Mapping[str, float]) -> Iterator[str]:
    yield _three(PAPER_THROUGHPUT[case], "g")
    yield _three([throughput[policy] for policy in POLICIES], ".1f")
    yield _change(throughput, "static 4")
    yield _change(throughput, "dynamic")
    yield _three(PAPER_TPOT[case], ".1f") if case in PAPER_TPOT else ""
    yield _three([1000.0 * tpot[policy] for policy in POLICIES], ".1f")
    yield _change(tpot, "static 4")


def count_won(figures: Means, other: str) -> int:
    """Cases in which the adaptive window has more than another policy."""
    return sum(policies["adaptive"] > policies[other] for policies in figures.values() if {"adaptive", other} <= {*policies})


def _three(values: Sequence[float], form: str) -> str:
    return " / ".join(format(value, form) for value in values)


def _change(figures: Mapping[str, float], other: str) -> str:
    return f"{100.0 * (figures['adaptive'] / figures[other] - 1.0):+.1f} %"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="of the results")
    folder = parser.parse_args(arguments).folder
    results = json.loads((folder / "results.json").read_bytes())
    if WINDOW not in results["sweep"]:
        parser.error(
            f"{folder}: expected results of dsd_table2.yaml, which sweeps {WINDOW!r}, got a sweep of {', '.join(results['sweep'])}"
        )
    throughput, tpot = (means_of(results["scenarios"], WINDOW, figure) for figure in ("throughput", "tpot_mean"))
    head = ["", "paper, requests/s", "ours", "to static", "to dynamic", "paper, TPOT [ms]", "ours", "to static"]
    show_table(f"{results['name']} {'/'.join(POLICIES)}; {results['repeats']} seeds", head, table2(throughput, tpot))
    for other in POLICIES[:-1]:
        print(f"\nmore requests a second than {other}: {count_won(throughput, other)} of {len(throughput)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
