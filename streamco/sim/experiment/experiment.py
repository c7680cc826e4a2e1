"""Experiments: a YAML file, and the scenarios that it expands to (DSD section 3.1, its configuration parser).

The file has the options for a kind of simulation, and says which of them vary. Each combination of their values is a point, and every point
is run with the same seeds, so that points differ only in their settings. When the file is read, the options of all scenarios are checked
and all names in them are looked up, so that a misspelt word can't end a sweep after hours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from streamco.errors import ConfigError
from streamco.sim.experiment.option_errors import convert_options, pick
from streamco.sim.experiment.plot_options import PlotOptions, read_plots
from streamco.sim.experiment.scenario import Kind, Scenario, kind_location, load_kind, metrics_of
from streamco.sim.experiment.sweep_axes import PARTS, Axis, Label, Value, change, dotted, label_of, read_axes
from streamco.sim.experiment.yaml_document import Document, Location, read_document

__all__ = ["Experiment", "ExperimentFile", "read_experiment", "merge"]

QUICK_VALUES, QUICK_REQUESTS = 3, 50  # maximum values of a sweep and maximum requests with --quick


class ExperimentFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of an experiment file; docs/simulate.md explains the keys."""

    name: str
    kind: str
    about: str = ""
    seed: int = 1
    repeats: Annotated[int, Meta(ge=1)] = 1
    requests: bool = False
    world: dict[str, Any] = {}
    workload: dict[str, Any] = {}
    policy: dict[str, Any] = {}
    sweep: dict[str, Any] = {}
    plot: PlotOptions | tuple[PlotOptions, ...] | None = None
    table: tuple[str, ...] = ()


class Experiment:
    """An experiment file that has been read, checked and expanded.

    Args:
        document: the file.
        seed: first seed, or None to use the seed in the file.
        is_quick: True for a first look, with one repeat, few requests and few values.

    Attributes:
        file: contents of the file.
        kind: kind of simulation.
        axes: the varied settings.
        scenarios: the runs, point by point, with all seeds of a point together.
        plots: the plots, with all their panels.
        columns: metrics of the table.

    Raises:
        ConfigError: a setting of one of the scenarios is invalid.
    """

    def __init__(self, document: Document, *, seed: int | None = None, is_quick: bool = False) -> None:
        if not isinstance(document.data, dict):
            raise ConfigError(f"{document.where(())}: expected name, kind, world and so on, got {type(document.data).__name__}")
        self._document = document
        file = convert_options(document.data, ExperimentFile, document.where)
        try:
            self._kind_location = kind_location(file.kind)
        except ConfigError as error:
            raise ConfigError(f"{document.where(('kind',), ())}: {error}") from error
        self.kind: Kind = load_kind(self._kind_location)
        if is_quick:
            file = self._shorten(file)
        self.file = file if seed is None else msgspec.structs.replace(file, seed=seed)
        self.axes = read_axes(document, self.file.sweep)
        self.plots = read_plots(document, self.file.plot, self.axes, self.kind)
        if is_quick:
            self.axes = tuple(self._thin(axis) for axis in self.axes)
        self.columns = self._columns()
        self._descriptions: list[str] = []  # by point
        self._found: set[tuple[Location, str]] = set()  # settings with the names in them that were looked up
        self.scenarios = list(self._expand())

    @property
    def points(self) -> list[dict[str, Any]]:
        """The labels of each point, in the order of the scenarios."""
        return [dict(zip(self._names, (value.label for value in values), strict=True)) for values in self._combinations()]

    def describe(self, where: Mapping[str, Label] = MappingProxyType({})) -> str:
        """Return a one-line description of what is simulated. Words that differ between points are listed side by side.

        Args:
            where: labels of the points to describe.
        """
        points = zip(self.points, self._descriptions, strict=True)
        return merge([text for point, text in points if all(point[name] == label for name, label in where.items())])

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    def _combinations(self) -> Iterator[tuple[Value, ...]]:
        return product(*(axis.values for axis in self.axes))

    def _expand(self) -> Iterator[Scenario]:
        base = {part: getattr(self.file, part) for part in PARTS}
        folder = str(self._document.path.parent.absolute())
        for values in self._combinations():
            settings = base
            for value in values:
                settings = change(settings, value, self._document)
            scenario = Scenario(
                kind=self.file.kind,
                kind_location=self._kind_location,
                seed=self.file.seed,
                requests=self.file.requests,
                point={name: value.label for name, value in zip(self._names, values, strict=True)},
                folder=folder,
                **settings,
            )
            self._check(scenario, values)
            for seed in range(self.file.seed, self.file.seed + self.file.repeats):
                yield msgspec.structs.replace(scenario, seed=seed)

    def _check(self, scenario: Scenario, values: tuple[Value, ...]) -> None:
        """Check the options of a scenario, and look up the names in them. If the sweep set an option, errors give its line in the sweep."""

        def where(location: Location, *, is_whole: bool = False) -> str:
            """Return the line and path of a setting. If ``is_whole``, the sweep may have set only a part of it."""
            for value in reversed(values):
                for path, written in value.locations.items():
                    if location[: len(path)] == path or (is_whole and path[: len(location)] == location):
                        return f"{self._document.where(written, ())}: sweep: {dotted(max(location, path, key=len))}"
            return self._document.where(location)

        options = convert_options(scenario.settings, self.kind.options, where)
        try:
            self._descriptions.append(self.kind.describe(options))
        except ConfigError as error:
            raise ConfigError(f"{self._document.where(('world',), ())}: {error}") from error
        for location, name, find in self.kind.names(options, scenario):
            if (location, name) not in self._found:
                try:
                    find()
                except ConfigError as error:
                    raise ConfigError(f"{where(location, is_whole=True)}: {error}") from error
                self._found.add((location, name))

    def _columns(self) -> tuple[str, ...]:
        known = metrics_of(self.kind)
        for index, name in enumerate(self.file.table):
            if name not in known:
                raise ConfigError(f"{self._document.where(('table', index))}: {pick(name, known)}")
        drawn = [plot.y for plot in self.plots]
        return self.file.table or tuple(dict.fromkeys([*drawn, *self.kind.columns]))

    def _shorten(self, file: ExperimentFile) -> ExperimentFile:
        """Return the file with one repeat and few requests, and without a warm-up."""
        workload = next(field.type for field in msgspec.structs.fields(self.kind.options) if field.name == "workload")
        requests = file.workload.get("requests")
        fields = getattr(workload, "__struct_fields__", ())
        if "requests" in fields and (requests is None or (isinstance(requests, int) and requests > QUICK_REQUESTS)):
            kept = {name: value for name, value in file.workload.items() if name != "warm_up_s"}
            file = msgspec.structs.replace(file, workload={**kept, "requests": QUICK_REQUESTS})
        return msgspec.structs.replace(file, repeats=1)

    def _thin(self, axis: Axis) -> Axis:
        """Return the axis with only its first, middle and last value, and the values that a plot's ``where`` needs."""
        kept = {label_of(plot.where[axis.name]) for plot in self.plots if axis.name in plot.where}
        last = len(axis.values) - 1
        positions = {round(last * step / (QUICK_VALUES - 1)) for step in range(QUICK_VALUES)}
        return Axis(axis.name, tuple(value for position, value in enumerate(axis.values) if position in positions or value.label in kept))


def read_experiment(path: Path, *, seed: int | None = None, is_quick: bool = False) -> Experiment:
    """Read, check and expand an experiment file.

    Raises:
        ConfigError: the file can't be read, or a setting is invalid; the error text names the file, the line and the path.
    """
    return Experiment(read_document(path), seed=seed, is_quick=is_quick)


def merge(texts: Sequence[str]) -> str:
    """Merge the descriptions of several points: words that differ become ``600/1000``, or ``400...2000`` if there are many."""
    words = [text.split() for text in texts]
    if len({len(each) for each in words}) > 1:
        return f"{texts[0]}, for example"
    return " ".join(_alternatives(list(dict.fromkeys(column))) for column in zip(*words, strict=True))


def _alternatives(words: Sequence[str]) -> str:
    """Return the alternatives joined by slashes. A bracket or comma that all of them begin or end with appears once."""
    if len(words) == 1:
        return words[0]
    begin = "(" if all(word.startswith("(") for word in words) else ""
    end = words[0][-1] if words[0][-1] in ",;)" and all(word.endswith(words[0][-1]) for word in words) else ""
    inner = [word.removeprefix(begin).removesuffix(end) for word in words]
    return f"{begin}{'/'.join(inner) if len(inner) <= 4 else f'{inner[0]}...{inner[-1]}'}{end}"
