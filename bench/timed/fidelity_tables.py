"""The lines of the tables of docs/research/fidelity.md (see ``bench.page_tables``)."""

from __future__ import annotations

from collections.abc import Iterator

from bench.runs import Run
from bench.tables import table_lines
from bench.timed.fidelity_figures import FIGURES, Deviation

__all__ = ["deviations_of", "lines_of"]

_SERVER = "llama2-70b-a100x2"  # the step times of all loads: a line doesn't name them


def deviations_of(run: Run) -> dict[str, dict[str, Deviation]]:
    """Return the deviation of each figure, by load."""
    found: dict[str, dict[str, Deviation]] = {}
    for case, metric, contender in run.rows:
        name, _, rest = metric.partition(": off by")
        if rest and contender == "simulated":
            found.setdefault(case, {})[name] = Deviation(*(run.value(case, metric, who) for who in ("simulated", "live")))
    return found


def lines_of(run: Run) -> Iterator[str]:
    """Yield the lines of a run's table: a load in each, and how many figures are right in the last."""
    found = deviations_of(run)
    rows = [
        [case.replace(f", {_SERVER}", ""), *(str(of_load[name]) if name in of_load else "" for name in FIGURES)]
        for case, of_load in found.items()
    ]
    of_figures = ([of_load[name] for of_load in found.values() if name in of_load] for name in FIGURES)
    rows.append(["right", *(f"{sum(each.is_right for each in of_figure)} of {len(of_figure)}" for of_figure in of_figures)])
    yield from table_lines(["load", *FIGURES], rows)
