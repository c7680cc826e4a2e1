"""The tables of docs/research/fidelity.md, made of the kept runs by ``python -m bench.page``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.fidelity_figures import BEARABLE, FIGURES
from bench.runs import Run, load
from experiments.tables import replace_marked, table_lines

__all__ = ["PAGE", "KEPT", "Error", "errors_of", "lines_of", "render"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "research" / "fidelity.md"
KEPT = ("fidelity", "fidelity_unseen")
"""Runs whose tables stand between marks of these names."""
_SERVER = "llama2-70b-a100x2"  # step times of all loads; a column's worth of space for what is always the same


class Error(NamedTuple):
    """By how much the simulator says too much, and the live runs differ among themselves: shares of the live median."""

    off: float
    spread: float

    @property
    def is_right(self) -> bool:
        """True if it is off by no more than is bearable, or than the live runs differ."""
        return abs(self.off) <= max(BEARABLE, self.spread)

    def __str__(self) -> str:
        """Return both in per cent, bold if it is wrong."""
        text = f"{_percent(self.off)} ({100 * self.spread:.0f})"
        return text if self.is_right else f"**{text}**"


def errors_of(run: Run) -> dict[str, dict[str, Error]]:
    """Return the error of each figure, by load."""
    found: dict[str, dict[str, Error]] = {}
    for case, metric, contender in run.rows:
        name, _, rest = metric.partition(": off by")
        if rest and contender == "simulated":
            found.setdefault(case, {})[name] = Error(*(run.value(case, metric, who) for who in ("simulated", "live")))
    return found


def lines_of(run: Run) -> Iterator[str]:
    """Yield the lines of a run's table: a load in each, and how many figures are right in the last."""
    found = errors_of(run)
    rows = [
        [case.replace(f", {_SERVER}", ""), *(str(errors[name]) if name in errors else "" for name in FIGURES)]
        for case, errors in found.items()
    ]
    of_figures = ([errors[name] for errors in found.values() if name in errors] for name in FIGURES)
    rows.append(["right", *(f"{sum(each.is_right for each in errors)} of {len(errors)}" for errors in of_figures)])
    yield from table_lines(["load", *FIGURES], rows)


def render() -> str:
    """Return the page with the tables of the kept runs."""
    page = PAGE.read_text(encoding="utf-8")
    for name in KEPT:
        run = load(name)
        command = " ".join(("python -m bench.fidelity", *run.head["options"]))
        source = f"`{command}`: {run.head['machine']}; {run.head['date']}; commit {run.head['commit']}."
        page = replace_marked(page, name, "\n\n" + "\n".join((source, "", *lines_of(run))) + "\n\n")
    return page


def _percent(share: float) -> str:
    rounded = round(100 * share)
    return f"{rounded:+d}" if rounded else "0"
