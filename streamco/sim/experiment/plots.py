"""Plots of an experiment, readable without the paper: a question as the title, axes with units, and a caption about the simulation.

Lines differ in colour and marker, and most colour-blind readers can tell the colours apart (Okabe and Ito). If higher or lower values of a
metric are better, the axis says which. An axis begins at 0, unless all values would be squeezed into its upper part.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamco.errors import ConfigError
from streamco.sim.experiment.experiment import Experiment
from streamco.sim.experiment.metrics import Metric
from streamco.sim.experiment.plot_options import PlotOptions
from streamco.sim.experiment.scenario import metrics_of
from streamco.sim.experiment.sweep_axes import Axis, Label, label_of
from streamco.sim.experiment.tables import Point, Spread, name_of_path, scale_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["check_matplotlib", "draw_plots"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8a7a00")
MARKERS = "osD^vPX*"
QUIET = "#555555"
WIDTH, HEIGHT, PANEL, ROW = 8.0, 5.6, 4.2, 3.4  # inches
MAX_BESIDE, MAX_TICKS = 4, 12  # most panels in a row, and most values that each have a tick
CHARACTERS = 14.5  # characters of a caption per inch
SLANT = 35  # degrees by which names of values are slanted if they don't fit side by side
LEGEND_ROW, USUAL_ROWS = 0.23, 3  # inches of a legend's row; rows, including its title, that ``HEIGHT`` has space for


def check_matplotlib() -> None:
    """Check that plots can be drawn. Called before a long sweep.

    Raises:
        ConfigError: matplotlib is missing.
    """
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise ConfigError("simulate: needs the package matplotlib: pip install 'streamco[sim]'")


def draw_plots(experiment: Experiment, points: Sequence[Point], folder: Path) -> list[Path]:
    """Draw an experiment's plots as PNG files, and return their paths."""
    paths = []
    for number, plot in enumerate(experiment.plots, 1):
        path = folder / (f"plot-{number}.png" if len(experiment.plots) > 1 else "plot.png")
        _draw(experiment, plot, points, path)
        paths.append(path)
    return paths


def _draw(experiment: Experiment, plot: PlotOptions, points: Sequence[Point], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture

    axes_by_name = {axis.name: axis for axis in experiment.axes}
    held = {name: label_of(label) for name, label in plot.where.items()}
    points = [point for point in points if all(point.labels[name] == label for name, label in held.items())]
    metric = metrics_of(experiment.kind)[plot.y]
    drawn = [point.metrics[plot.y] for point in points if plot.y in point.metrics]
    if not drawn:
        raise ConfigError(f"plot: expected a metric that was measured, got {plot.y}, which no request has")
    unit, factor = scale_of(metric, [spread.high for spread in drawn])
    panels = [
        dict(zip(plot.panels, labels, strict=True))
        for labels in product(*([value.label for value in axes_by_name[name].values] for name in plot.panels))
    ]

    beside = min(len(panels), MAX_BESIDE)
    rows = -(-len(panels) // beside)
    width = max(WIDTH, PANEL * beside)
    lines = [] if plot.line is None else [str(value.label) for value in axes_by_name[plot.line].values]
    legend_inches = LEGEND_ROW * max(0, _legend_rows(lines, width) - USUAL_ROWS)
    slanted = _slanted_inches(axes_by_name[plot.x], width / beside)
    picture = Picture(figsize=(width, HEIGHT + (rows - 1) * ROW + legend_inches + rows * slanted), dpi=150)
    FigureCanvasAgg(picture)
    grid = picture.subplots(rows, beside, sharey=True, squeeze=False).flat
    for ax in grid[len(panels) :]:
        ax.remove()
    for index, (panel, ax) in enumerate(zip(panels, grid, strict=False)):
        inside = [point for point in points if all(point.labels[name] == label for name, label in panel.items())]
        _draw_panel(ax, plot, axes_by_name, inside, factor, is_slanted=slanted > 0.0)
        ax.set_title("\n".join(_setting(name, label) for name, label in panel.items()), fontsize=10, color=QUIET)
        if index % beside == 0:
            ax.set_ylabel(_label_y(metric, unit))
    _begin_at_zero(grid[0], drawn, factor)
    _frame(picture, grid[0], experiment, plot)
    picture.savefig(path, metadata={"Software": None})


def _draw_panel(ax: Axes, plot: PlotOptions, axes: dict[str, Axis], points: Sequence[Point], factor: float, *, is_slanted: bool) -> None:
    """Draw a line for each value of the ``line`` sweep. If the x values are names, draw a group of bars for each of them instead."""
    x = axes[plot.x]
    lines: list[Label | None] = [value.label for value in axes[plot.line].values] if plot.line is not None else [None]
    labels = [value.label for value in x.values]
    for index, line in enumerate(lines):
        among = {point.labels[plot.x]: point for point in points if plot.line is None or point.labels[plot.line] == line}
        found = {label: among[label].metrics[plot.y] for label in labels if label in among and plot.y in among[label].metrics}
        means = [spread.mean * factor for spread in found.values()]
        style: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "yerr": _reach(list(found.values()), factor), "capsize": 4}
        style["label"] = None if line is None else str(line)
        if x.is_numeric:
            marker = MARKERS[index % len(MARKERS)]
            ax.errorbar([float(label) for label in found], means, marker=marker, markersize=6, linewidth=2, **style)
        else:
            width = 0.8 / len(lines)
            ax.bar([labels.index(label) - 0.4 + (index + 0.5) * width for label in found], means, width * 0.92, **style)
    _label_x(ax, x, is_slanted=is_slanted)
    ax.grid(axis="y", color="#dddddd", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _reach(spreads: Sequence[Spread], factor: float) -> list[list[float]] | None:
    """Return how far the whiskers extend below and above the means, or None if there are no whiskers."""
    if all(spread.low == spread.high for spread in spreads):
        return None
    return [[(each.mean - each.low) * factor for each in spreads], [(each.high - each.mean) * factor for each in spreads]]


def _slanted_inches(x: Axis, width: float) -> float:
    """Return how much taller a panel gets if the names on its x axis must be slanted, or 0 if they fit side by side.

    The width and the result are in inches.
    """
    names = [str(value.label) for value in x.values]
    room = (width - 1.0) / len(names) * CHARACTERS * 0.8  # characters in a line; the y axis takes some of the width
    if x.is_numeric or max(len(line) for name in names for line in textwrap.wrap(name, 18) or [name]) <= room:
        return 0.0
    return max(map(len, names)) / (CHARACTERS * 0.8) * math.sin(math.radians(SLANT))


def _label_x(ax: Axes, x: Axis, *, is_slanted: bool) -> None:
    """Draw a tick for each value. If the numbers span more than a factor of 30, the axis is logarithmic."""
    ax.set_xlabel(name_of_path(x.name))
    names = [str(value.label) for value in x.values]
    if is_slanted:
        ax.set_xticks(range(len(names)), names, rotation=SLANT, ha="right", rotation_mode="anchor")
        return
    if not x.is_numeric:
        ax.set_xticks(range(len(names)), [textwrap.fill(name, 18) for name in names])
        return
    numbers = [float(value.label) for value in x.values]
    if min(numbers) > 0 and max(numbers) / min(numbers) > 30:
        ax.set_xscale("log")
    if len(numbers) <= MAX_TICKS:
        ax.set_xticks(numbers, [f"{number:g}" for number in numbers])
        ax.minorticks_off()


def _begin_at_zero(ax: Axes, drawn: Sequence[Spread], factor: float) -> None:
    low, high = min(spread.low for spread in drawn) * factor, max(spread.high for spread in drawn) * factor
    if low >= 0.0 and low < 0.6 * high:
        ax.set_ylim(0.0, high * 1.08)


def _label_y(metric: Metric, unit: str) -> str:
    text = textwrap.fill(f"{metric.text}{f' ({unit})' if unit else ''}", 44)
    return f"{text}\n{metric.better} is better" if metric.better else text


def _frame(picture: Any, ax: Axes, experiment: Experiment, plot: PlotOptions) -> None:
    """Draw title, legend and caption around the panels."""
    width, height = picture.get_size_inches()
    title = textwrap.fill(plot.title or experiment.file.name, int(width * 8.5))
    caption = textwrap.fill(_caption(experiment, plot), int(width * CHARACTERS))
    about = textwrap.fill(experiment.file.about, int(width * CHARACTERS * 0.9)) if experiment.file.about else ""
    top = 1.0 - 0.12 / height
    picture.text(0.012, top, title, fontsize=14, fontweight="bold", va="top")
    top -= 0.27 * (title.count("\n") + 1) / height
    if about:
        picture.text(0.012, top, about, fontsize=10.5, color=QUIET, va="top")
        top -= 0.22 * (about.count("\n") + 1) / height
    bottom = 0.1 / height
    picture.text(0.012, bottom, caption, fontsize=8.5, color=QUIET, va="bottom")
    bottom += (0.17 * (caption.count("\n") + 1) + 0.05) / height
    if plot.line is not None:
        handles, names = ax.get_legend_handles_labels()
        legend = picture.legend(
            handles,
            names,
            title=name_of_path(plot.line),
            loc="upper left",
            bbox_to_anchor=(0.0, top),
            ncols=_columns(names, width),
            frameon=False,
            alignment="left",
        )
        legend.get_title().set_color(QUIET)
        top -= (LEGEND_ROW * _legend_rows(names, width) + 0.1) / height
    picture.tight_layout(rect=(0.0, bottom, 1.0, top))


def _columns(names: Sequence[str], width: float) -> int:
    """Return how many columns of a legend fit side by side."""
    return max(1, min(len(names), int(width * 13 / (max(map(len, names)) + 11))))


def _legend_rows(names: Sequence[str], width: float) -> int:
    """Return how many rows a legend takes, including its title, or 0 if there is none."""
    return -(-len(names) // _columns(names, width)) + 1 if names else 0


def _caption(experiment: Experiment, plot: PlotOptions) -> str:
    repeats = experiment.file.repeats
    kinds = "dots" if next(axis for axis in experiment.axes if axis.name == plot.x).is_numeric else "bars"
    spread = f" {kinds.capitalize()} are means of {repeats} repeats, whiskers the smallest and the largest of them." if repeats > 1 else ""
    where = {name: label_of(label) for name, label in plot.where.items()}
    held = "".join(f" {_setting(name, label)}." for name, label in where.items())
    return f"Simulated: {experiment.describe(where)}.{held}{spread}"


def _setting(name: str, label: Label) -> str:
    return f"{name_of_path(name)}: {label}"
