"""The outputs of an experiment: a readable table of its points, and a file with all outcomes for programs.

The file's bytes depend only on the experiment and its seeds, not on the time of day, the duration or the order in which scenarios finish.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from streamco.engines.llamacpp.cache_dir import replaced_file
from streamco.sim.experiment.experiment import Experiment
from streamco.sim.experiment.metrics import Metric
from streamco.sim.experiment.result_store import ResultStore, name_of
from streamco.sim.experiment.scenario import metrics_of
from streamco.sim.experiment.sweep_axes import PARTS, Label

__all__ = [
    "Point",
    "Spread",
    "Table",
    "format_number",
    "format_table",
    "name_of_path",
    "scale_of",
    "summarise",
    "table_of",
    "write_results",
]

MAX_WIDTH, MAX_LABEL_WIDTH = 14, 30  # characters of a column's head, and of a label in it
MISSING = "-"  # stands for a metric without measurements

UNITS = {"ms": "ms", "mbps": "Mbit/s", "per_s": "1/s", "tokens_per_s": "tokens/s", "s": "s"}
"""Units, by the ending of a setting's name."""

WORDS = {
    "rtt_ms": "round trip of the link (ms)",
    "jitter_ms": "jitter of the link (ms)",
    "loss": "lost packets (share)",
    "devices": "devices",
    "servers": "servers",
    "window": "tokens of a draft",
    "poisson_per_s": "requests that arrive (1/s)",
    "budget": "budget (share)",
}
"""Readable names of settings, by name."""


class Spread(Struct, frozen=True):
    """A metric's mean, smallest and largest value over the repeats of a point."""

    mean: float
    low: float
    high: float


class Point(Struct, frozen=True):
    """A point of the sweep, with its label on every axis and its metrics. Metrics that no repeat has are left out."""

    labels: dict[str, Label]
    metrics: dict[str, Spread]


class Table(Struct, frozen=True):
    """A table of points. The first ``labels`` columns name the point, and the others are metrics."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int


def summarise(experiment: Experiment, store: ResultStore) -> list[Point]:
    """Return every point of a finished experiment, with its repeats merged."""
    repeats = experiment.file.repeats
    points = []
    for begin in range(0, len(experiment.scenarios), repeats):
        scenarios = experiment.scenarios[begin : begin + repeats]
        systems = [store.read(name_of(scenario)).system for scenario in scenarios]
        found = {name: [system[name] for system in systems if name in system] for name in metrics_of(experiment.kind)}
        metrics = {name: Spread(statistics.fmean(values), min(values), max(values)) for name, values in found.items() if values}
        points.append(Point(scenarios[0].point, metrics))
    return points


def write_results(path: Path, experiment: Experiment, store: ResultStore) -> None:
    """Write all outcomes as JSON, with one scenario per line. The file is replaced at the end, so it is never incomplete."""
    with replaced_file(path) as temporary, temporary.open("wb") as file:
        file.writelines(_lines(experiment, store))


def table_of(experiment: Experiment, points: Sequence[Point]) -> Table:
    """Return the table of the experiment's columns. Repeats are shown as their mean."""
    known = metrics_of(experiment.kind)
    names = [name for name in experiment.columns if any(name in point.metrics for point in points)]
    heads, columns = [], []
    for name in names:
        values = [point.metrics[name].mean if name in point.metrics else None for point in points]
        unit, factor = scale_of(known[name], [value for value in values if value is not None])
        heads.append(f"{known[name].text}{f' ({unit})' if unit else ''}")
        is_whole = all(value is None or value * factor == round(value * factor) for value in values)
        columns.append([MISSING if value is None else f"{value:.0f}" if is_whole else format_number(value * factor) for value in values])
    labels = [axis.name for axis in experiment.axes]
    rows = [(*(str(point.labels[label]) for label in labels), *(column[index] for column in columns)) for index, point in enumerate(points)]
    return Table((*map(name_of_path, labels), *heads), tuple(rows), len(labels))


def format_table(table: Table, max_width: int | None = None) -> str:
    """Return a table as text. Heads and labels take as many lines as they need, and numbers are aligned to the right.

    Args:
        table: the table.
        max_width: maximum characters of a line, or None for no limit. If the table is wider, its last metrics are left out.
    """
    columns = [
        _Column(head, cells, index < table.labels) for index, (head, *cells) in enumerate(zip(table.heads, *table.rows, strict=True))
    ]
    while max_width is not None and len(columns) > table.labels + 1 and sum(column.width + 2 for column in columns) - 2 > max_width:
        columns.pop()
    heads = _block([column.head for column in columns], columns, is_head=True)
    rule = "  ".join("─" * column.width for column in columns)
    body = [line for cells in zip(*(column.cells for column in columns), strict=True) for line in _block(cells, columns, is_head=False)]
    return "\n".join([*heads, rule, *body])


class _Column:
    """The lines of each cell of a column, and their width."""

    def __init__(self, head: str, cells: Sequence[str], is_label: bool) -> None:
        self.is_number = all(_is_number(cell) for cell in cells)
        self.head = textwrap.wrap(head, MAX_WIDTH if not is_label or self.is_number else MAX_LABEL_WIDTH, break_long_words=False) or [""]
        self.cells = [textwrap.wrap(cell, MAX_LABEL_WIDTH, break_long_words=False) or [""] if is_label else [cell] for cell in cells]
        self.width = max(len(line) for cell in [self.head, *self.cells] for line in cell)


def _block(cells: Sequence[list[str]], columns: Sequence[_Column], *, is_head: bool) -> list[str]:
    """Return the lines of a row. Heads are aligned at the bottom, and cells at the top."""
    depth = max(map(len, cells))
    padded = [[*[""] * (depth - len(cell)), *cell] if is_head else [*cell, *[""] * (depth - len(cell))] for cell in cells]
    return [
        "  ".join(
            text.rjust(column.width) if column.is_number else text.ljust(column.width) for text, column in zip(line, columns, strict=True)
        ).rstrip()
        for line in zip(*padded, strict=True)
    ]


def name_of_path(path: str) -> str:
    """Return the readable name of a setting's path: ``world.link.rtt_ms`` is "round trip of the link (ms)"."""
    name = path.rpartition(".")[2]
    if name in WORDS:
        return WORDS[name]
    ending = next((each for each in sorted(UNITS, key=len, reverse=True) if name.endswith(f"_{each}")), None)
    if ending is None:
        return name.replace("_", " ")
    return f"{name.removesuffix(f'_{ending}').replace('_', ' ')} ({UNITS[ending]})"


def scale_of(metric: Metric, values: Sequence[float]) -> tuple[str, float]:
    """Return the unit for these values, and the factor to multiply them by: seconds below 1 become milliseconds."""
    if metric.unit == "s" and values and 0.0 < max(values) < 1.0:
        return "ms", 1e3
    return metric.unit, 1.0


def format_number(value: float) -> str:
    """Format a number with three significant digits, and with all digits before the decimal point."""
    return f"{value:.0f}" if abs(float(f"{value:.3g}")) >= 100 else f"{value:#.3g}"


def _lines(experiment: Experiment, store: ResultStore) -> Iterator[bytes]:
    file = experiment.file
    head = {
        "name": file.name,
        "kind": file.kind,
        "about": experiment.describe(),
        "seed": file.seed,
        "repeats": file.repeats,
        "settings": {part: getattr(file, part) for part in PARTS},
        "sweep": file.sweep,
        "figures": metrics_of(experiment.kind),
    }
    yield b"{\n" + msgspec.json.encode(head)[1:-1] + b',\n"scenarios": [\n'
    for index, scenario in enumerate(experiment.scenarios):
        head = {"point": scenario.point, "seed": scenario.seed}
        outcome: dict[str, Any] = msgspec.json.decode(store.read_json(name_of(scenario)), type=dict[str, msgspec.Raw])
        if not scenario.requests:
            outcome.pop("requests", None)
        yield (b",\n" if index else b"") + msgspec.json.encode({**head, **outcome})
    yield b"\n]\n}\n"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text == MISSING
    return True
