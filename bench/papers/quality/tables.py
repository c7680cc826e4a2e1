"""The cells as Markdown, JSON lines, a picture, and the models' qualities as settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.papers.quality.equation import Cell, cells_of
from bench.papers.quality.measured import Questions
from bench.tables import replace_marked
from bench.tasks.intervals import mean_interval
from bench.tasks.records import LENGTH, PAIRS

__all__ = ["format_cells", "plot_cells", "show_cells", "show_profile", "update_page"]


def show_cells(questions: Questions, *, json_lines: bool = False, page: Path | None = None) -> None:
    """Print the cells, or put their tables into a page."""
    cells = cells_of(questions)
    if json_lines:
        for cell in cells:
            print(json.dumps(asdict(cell) | {"verdict": cell.verdict}))
    elif page is not None:
        page.write_text(update_page(page.read_text(encoding="utf-8"), format_cells(cells)), encoding="utf-8")
    else:
        print(format_cells(cells))


def update_page(text: str, tables: str) -> str:
    """Return the page with the tables between its marks replaced.

    Raises:
        ValueError: it has no marks.
    """
    return replace_marked(text, "table", f"\n{tables}\n")


def format_cells(cells: Sequence[Cell]) -> str:
    """Return a sentence with the counts, and one table for each measure."""
    verdicts = [cell.verdict for cell in cells]
    counts = ", ".join(f"{sum(each == verdict for each in verdicts)} {label}" for verdict, label in _LABELS.items())
    parts = [f"Of {len(cells)} cells: {counts}."]
    for task, measure in dict.fromkeys((cell.task, cell.measure) for cell in cells):
        rows = [cell for cell in cells if (cell.task, cell.measure) == (task, measure)]
        parts.append(f"**{task}, {measure}** ({rows[0].questions} questions)\n")
        parts[-1] += "\n| pair | Q first | Q second | cut | moved | Q moved | above the lower bound | below the upper bound | eq. 7 |"
        parts[-1] += "\n|---|---|---|---:|---:|---|---|---|---|"
        parts[-1] += "".join(f"\n{_row(cell)}" for cell in rows)
    return "\n\n".join(parts)


_LABELS = {
    "holds": "hold",
    "open": "are open (outside the bounds by less than the noise)",
    "fails below": "fail below (worse than both models)",
    "fails above": "fail above (better than both)",
}


def _row(cell: Cell) -> str:
    columns = [
        " → ".join(cell.pair),
        cell.first.show(),
        cell.second.show(),
        str(cell.cut),
        f"{cell.moved:.0%}",
        cell.mean.show(),
        cell.above_lower.show(),
        cell.below_upper.show(),
        f"**{cell.verdict}**" if cell.verdict.startswith("fails") else cell.verdict,
    ]
    return f"| {' | '.join(columns)} |"


def show_profile(questions: Questions) -> None:
    """Print the mean score of each model over the tasks that are there, each task weighing the same, as a TOML table."""
    print("[migration.quality]")
    for name in dict.fromkeys(model for pair in PAIRS for model in pair):
        means = [
            mean_interval([known[name, None, LENGTH].score for known in items.values()]).value for items in questions.values() if items
        ]
        print(f'"{name}" = {sum(means) / len(means):.3f}')


def plot_cells(questions: Questions, picture: Path) -> None:
    """Draw quality over the tokens of the first model, as Figure 10 does: a panel for each measure and pair."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # an extra

    cells = cells_of(questions)
    measures = list(dict.fromkeys((cell.task, cell.measure) for cell in cells))
    figure = Figure(figsize=(3.0 * len(PAIRS), 2.2 * len(measures)), layout="constrained")
    axes = figure.subplots(len(measures), len(PAIRS), squeeze=False, sharey="row")
    for row, (task, measure) in enumerate(measures):
        for column, pair in enumerate(PAIRS):
            axis = axes[row][column]
            found = [cell for cell in cells if (cell.task, cell.measure, cell.pair) == (task, measure, pair)]
            points = [(0, found[0].second), *((cell.cut, cell.mean) for cell in found), (LENGTH, found[0].first)]
            values = [interval.value for _, interval in points]
            errors = [[value - interval.low for value, (_, interval) in zip(values, points, strict=True)]]
            errors.append([interval.high - value for value, (_, interval) in zip(values, points, strict=True)])
            bounds = sorted((found[0].first.value, found[0].second.value))
            axis.axhspan(*bounds, color="0.88")
            axis.errorbar(range(len(points)), values, yerr=errors, marker="o", capsize=3)
            axis.set_xticks(range(len(points)), [str(tokens) for tokens, _ in points])
            if row == 0:
                axis.set_title(" → ".join(pair))
            if column == 0:
                axis.set_ylabel(f"{task}\n{measure}")
            if row == len(measures) - 1:
                axis.set_xlabel("tokens of the first model")
    figure.savefig(picture, dpi=110)
