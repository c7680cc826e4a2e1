"""The options of an experiment's plots: checks its ``plot`` key, and provides a default if there is none."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import msgspec
from msgspec import Struct

from streamco.errors import ConfigError
from streamco.sim.experiment.option_errors import pick
from streamco.sim.experiment.scenario import Kind, metrics_of
from streamco.sim.experiment.sweep_axes import Axis, label_of
from streamco.sim.experiment.yaml_document import Document, Location

__all__ = ["PlotOptions", "read_plots"]

MAX_PANELS = 16


class PlotOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of one plot.

    Args:
        x: the sweep along the x axis.
        y: the metric.
        line: the sweep that gives a line for each value, or None for a single line.
        panels: the sweep, or sweeps, that give a panel for each value. Sweeps without another role get panels, too.
        where: the chosen value of each sweep that isn't drawn.
        title: title of the plot, or None for the experiment's name.
    """

    x: str
    y: str
    line: str | None = None
    panels: str | tuple[str, ...] = ()
    where: dict[str, Any] = {}
    title: str | None = None


def read_plots(
    document: Document, given: PlotOptions | tuple[PlotOptions, ...] | None, axes: Sequence[Axis], kind: Kind
) -> tuple[PlotOptions, ...]:
    """Return the plots, with all their panels.

    Args:
        document: the experiment file, for line numbers in errors.
        given: the file's ``plot``, if it has one.
        axes: the varied settings.
        kind: the kind of simulation.

    Raises:
        ConfigError: a plot names an unknown sweep or metric, or has too many panels.
    """
    if given is None:
        return _usual(axes, kind)
    if isinstance(given, PlotOptions):
        return (_check(document, given, axes, kind, ("plot",)),)
    return tuple(_check(document, plot, axes, kind, ("plot", index)) for index, plot in enumerate(given))


def _usual(axes: Sequence[Axis], kind: Kind) -> tuple[PlotOptions, ...]:
    """Return the default plot: the numeric sweep with the most values is on the x axis, and the longest other sweep gives the lines."""
    names = [axis.name for axis in sorted(axes, key=lambda axis: (-axis.is_numeric, -len(axis.values)))]
    if not 1 <= len(names) <= 3:
        return ()
    return (PlotOptions(x=names[0], y=kind.columns[0], line=names[1] if len(names) > 1 else None, panels=tuple(names[2:])),)


def _check(document: Document, plot: PlotOptions, axes: Sequence[Axis], kind: Kind, location: Location) -> PlotOptions:
    labels = {axis.name: [value.label for value in axis.values] for axis in axes}
    metrics = metrics_of(kind)
    if plot.y not in metrics:
        raise ConfigError(f"{document.where((*location, 'y'))}: {pick(plot.y, metrics)}")
    panels = (plot.panels,) if isinstance(plot.panels, str) else plot.panels
    drawn = [("x", plot.x), *([("line", plot.line)] if plot.line is not None else []), *(("panels", name) for name in panels)]
    for field, name in [*drawn, *(("where", name) for name in plot.where)]:
        if name not in labels:
            raise ConfigError(f"{document.where((*location, field))}: {pick(name, labels)}; what is drawn has to be swept")
    for name, label in plot.where.items():
        if label_of(label) not in labels[name]:
            raise ConfigError(f"{document.where((*location, 'where', name))}: {pick(label, tuple(map(str, labels[name])))}")
    known = {*plot.where, *(name for _, name in drawn)}
    panels = (*panels, *(name for name in labels if name not in known))
    if (many := prod(len(labels[name]) for name in panels)) > MAX_PANELS:
        held = ", ".join(panels)
        raise ConfigError(
            f"{document.where(location)}: expected {MAX_PANELS} panels at most, got {many}: say in where which {held} is meant"
        )
    return msgspec.structs.replace(plot, panels=panels)
