"""What experiments share: all cores, and tables in Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import fmean
from typing import Any

__all__ = ["Means", "format_table", "means_of", "run_all", "show_table"]

Means = Mapping[tuple[Any, ...], Mapping[Any, float]]
"""Of one figure: by the values of all swept settings but one, then by that one's."""


def run_all(function: Callable[..., Any], jobs: Iterable[Sequence[Any]], processes: int | None) -> list[Any]:
    """On all cores; in order."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(function, *zip(*jobs, strict=True)))


def show_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """In Markdown."""
    print(format_table(title, head, rows))


def format_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, with an empty line before its title."""
    lines = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join((f"\n{title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}", *lines))


def means_of(scenarios: Iterable[Mapping[str, Any]], column: str, figure: str) -> Means:
    """A figure of ``results.json``, a mean over the seeds; ``column`` is the setting that stands apart. All in the order of the file.

    Raises:
        KeyError: there is no such setting or figure.
    """
    found: dict[tuple[Any, ...], dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))
    for scenario in scenarios:
        point = dict(scenario["point"])
        place = point.pop(column)
        found[tuple(point.values())][place].append(scenario["system"][figure])
    return {case: {place: fmean(values) for place, values in places.items()} for case, places in found.items()}
