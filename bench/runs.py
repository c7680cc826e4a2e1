"""Kept runs: bench/results/NAME.jsonl, a line about machine, date and commit, and then a line for each row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench.report import Row

__all__ = ["RUNS", "Run", "figure", "load", "names", "save"]

RUNS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Run:
    """One bench's kept rows.

    Attributes:
        head: machine, date, commit, the bench's options, and a note on what is special about the run, if anything is.
        rows: the rows by case, metric with unit, and contender.
    """

    head: Mapping[str, Any]
    rows: Mapping[tuple[str, str, str], Row]

    def row(self, case: str, metric: str, contender: str = "streamco") -> Row:
        """Return a row. ``metric`` has its unit in brackets, if it has one: "rate [tokens/s]"."""
        return self.rows[case, metric, contender]

    def value(self, case: str, metric: str, contender: str = "streamco") -> float:
        """Return a row's median."""
        return self.row(case, metric, contender).median

    @property
    def about(self) -> str:
        """Machine, date, commit and options in a line."""
        head = self.head
        return "; ".join(
            filter(None, (head["machine"], head["date"], f"commit {head['commit']}", " ".join(head["options"]), head.get("note", "")))
        )


@cache
def load(name: str, folder: Path = RUNS) -> Run:
    """Return the kept run of this name."""
    head, *lines = map(json.loads, (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())
    rows = [Row(**line) for line in lines]
    return Run(head, {(row.case, f"{row.metric} [{row.unit}]" if row.unit else row.metric, row.contender): row for row in rows})


def names(folder: Path = RUNS) -> Iterator[str]:
    """Names of all kept runs."""
    return (path.stem for path in sorted(folder.glob("*.jsonl")))


def save(name: str, rows: Sequence[Row], head: Mapping[str, Any], folder: Path = RUNS) -> None:
    """Write the file of a run, in place of the one before."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in (head, *map(asdict, rows))), encoding="utf-8")


def figure(value: float) -> str:
    """Three significant digits, whole numbers whole, no exponent."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 or not value else f"{value:.6f}"
