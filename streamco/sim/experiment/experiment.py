"""An experiment: one YAML file, and the scenarios that it stands for (DSD section 3.1, its configuration parser).

The file has the options of a kind of world, and which of them are varied. Every combination of the varied ones is a point, and every point
is run with each of the seeds, the same at all points, so that points differ by their settings alone. All options of all scenarios are
checked when the file is read, and all that they name is looked up: a sweep of hours doesn't end with a misspelt word.
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

QUICK_VALUES, QUICK_REQUESTS = 3, 50  # what --quick leaves of a sweep, and of the requests


class ExperimentFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file says; docs/simulate.md has the words."""

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
    """A file that was read, checked and expanded.

    Args:
        document: the file.
        seed: instead of the file's; None: the file's.
        is_quick: a first look: one repeat, few requests, few values.

    Attributes:
        file: what it says. kind: of world. axes: what is varied. scenarios: to be run, point by point, a point's seeds together.
        plots: to be drawn, with all their panels. columns: figures of the table.

    Raises:
        ConfigError: a setting that doesn't fit, in any of the scenarios.
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
        self._descriptions: list[str] = []  # point by point
        self._found: set[tuple[Location, str]] = set()  # settings, and what they name that was looked up
        self.scenarios = list(self._expand())

    @property
    def points(self) -> list[dict[str, Any]]:
        """What each point is called, in the order of the scenarios."""
        return [dict(zip(self._names, (value.label for value in values), strict=True)) for values in self._combinations()]

    def describe(self, where: Mapping[str, Label] = MappingProxyType({})) -> str:
        """Return a line that says what is simulated; what differs between the points is told with all its values.

        Args:
            where: of the points that have these values.
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
        """Whether the kind takes these options, and finds what they name; where a sweep set one, the error is there."""

        def where(location: Location, *, is_whole: bool = False) -> str:
            """``is_whole``: all that is at the place is meant, so that it may be a part of it that the sweep set."""
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
        """Return one repeat, and few requests."""
        workload = next(field.type for field in msgspec.structs.fields(self.kind.options) if field.name == "workload")
        told = file.workload.get("requests")
        fields = getattr(workload, "__struct_fields__", ())
        if "requests" in fields and (told is None or (isinstance(told, int) and told > QUICK_REQUESTS)):
            file = msgspec.structs.replace(file, workload={**file.workload, "requests": QUICK_REQUESTS})
        return msgspec.structs.replace(file, repeats=1)

    def _thin(self, axis: Axis) -> Axis:
        """Return the first value, one in the middle and the last; those that a plot holds fast stay."""
        kept = {label_of(plot.where[axis.name]) for plot in self.plots if axis.name in plot.where}
        last = len(axis.values) - 1
        positions = {round(last * step / (QUICK_VALUES - 1)) for step in range(QUICK_VALUES)}
        return Axis(axis.name, tuple(value for position, value in enumerate(axis.values) if position in positions or value.label in kept))


def read_experiment(path: Path, *, seed: int | None = None, is_quick: bool = False) -> Experiment:
    """Read a file, check it, and expand it.

    Raises:
        ConfigError: it can't be read, or a setting doesn't fit: the text names file, line and path.
    """
    return Experiment(read_document(path), seed=seed, is_quick=is_quick)


def merge(texts: Sequence[str]) -> str:
    """Descriptions of several points as one: words that differ are told as ``600/1000``, or, where they are many, as ``400...2000``."""
    words = [text.split() for text in texts]
    if len({len(each) for each in words}) > 1:
        return f"{texts[0]}, for example"
    return " ".join(_alternatives(list(dict.fromkeys(column))) for column in zip(*words, strict=True))


def _alternatives(words: Sequence[str]) -> str:
    """Return what all of them begin or end with, a bracket or a comma, is told once."""
    if len(words) == 1:
        return words[0]
    begin = "(" if all(word.startswith("(") for word in words) else ""
    end = words[0][-1] if words[0][-1] in ",;)" and all(word.endswith(words[0][-1]) for word in words) else ""
    inner = [word.removeprefix(begin).removesuffix(end) for word in words]
    return f"{begin}{'/'.join(inner) if len(inner) <= 4 else f'{inner[0]}...{inner[-1]}'}{end}"
