"""Scenarios, which are an experiment's points as plain data, and the kinds of simulation that run them.

A kind (``Kind``) has the type of its options, the names of its metrics, and a function that runs the options in virtual time. It is found
by its name (``KINDS``) and loaded when it is needed, so that reading an experiment or asking for help doesn't load a simulator. A scenario
is sent to other processes and machines as data, and equal data gives equal outcomes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from streamco.errors import ConfigError
from streamco.sim.experiment.metrics import STANDARD, Metric, RequestRow, Sink, round_metric
from streamco.sim.experiment.yaml_document import Location

__all__ = ["KINDS", "Kind", "Named", "Outcome", "Scenario", "metrics_of", "kind_location", "load_kind", "run_scenario"]

KINDS = {
    "race": "streamco.sim.race.kind:KIND",
    "speculate": "streamco.sim.fleet.kind:KIND",
    "split": "streamco.sim.split.kind:KIND",
}
"""The module and attribute of each kind, by name."""


class Scenario(Struct, frozen=True, kw_only=True):
    """Everything that a run depends on.

    Args:
        kind: name of the kind of experiment.
        kind_location: module and attribute of the kind, as in ``KINDS``.
        seed: seed of all random draws.
        requests: True if the outcome includes rows of single requests.
        world, workload, policy: the kind's options as in the file, with the sweep's values.
        point: labels of the sweep's values for this scenario, by the setting's path or the name of the cases.
        folder: folder in which relative paths start.
    """

    kind: str
    kind_location: str
    seed: int
    requests: bool = False
    world: dict[str, Any] = {}
    workload: dict[str, Any] = {}
    policy: dict[str, Any] = {}
    point: dict[str, Any] = {}
    folder: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The three parts of the kind's options."""
        return {"world": self.world, "workload": self.workload, "policy": self.policy}

    @property
    def key(self) -> str:
        """Digest of the content. Equal runs have equal digests, whatever the file's folder or the names of its cases."""
        content = (self.kind, self.seed, self.requests, self.settings)
        return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:32]

    def locate(self, path: str) -> Path:
        """Return the path of a file that an option names. ``~`` and ``$VARIABLES`` are replaced; relative paths start at ``folder``."""
        return Path(self.folder) / Path(os.path.expandvars(path)).expanduser()


class Outcome(Struct, frozen=True, kw_only=True):
    """The outcome of a scenario.

    Args:
        system: metrics over all requests, by name. Metrics without measurements are left out.
        requests: rows in the order of their numbers, if the scenario asks for them.
    """

    system: dict[str, float]
    requests: list[Any] = []


class Named(NamedTuple):
    """Something that an option refers to by name, such as a file, hardware or a packaged table.

    Args:
        location: location of the setting with the name.
        name: the name. Equal names mean the same file, hardware or table.
        find: looks it up, and raises ``ConfigError`` if it is missing or can't be used.
    """

    location: Location
    name: str
    find: Callable[[], object]


class Kind(Protocol):
    """A kind of simulation."""

    @property
    def options(self) -> type[Struct]:
        """The Struct type of the options. Its fields are ``world``, ``workload`` and ``policy``, all Structs that forbid unknown fields."""
        ...

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """The metrics that ``run`` returns besides ``STANDARD``, with their texts. The mapping may also rename standard metrics."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The metrics in the table, with the most important one first, which is also what a plot shows by default."""
        ...

    def describe(self, options: Any) -> str:
        """Return a line that says what was simulated, and how much, to someone who doesn't have the file."""
        ...

    def names(self, options: Any, scenario: Scenario) -> Iterable[Named]:
        """Return the files, hardware and tables that the options name and can't check themselves. Each is looked up once before any run."""
        ...

    def run(self, options: Any, scenario: Scenario, sink: Sink) -> Mapping[str, float]:
        """Run the options in virtual time, and call ``sink`` for every request that ends.

        Args:
            options: an instance of ``self.options``.
            scenario: provides the seed and locates files; its settings are already in ``options``.
            sink: called with the row of each request.

        Returns:
            Metrics that the sink can't compute. A metric with a standard name replaces the sink's.

        Raises:
            ConfigError: the options contradict each other, or name something that is missing.
        """
        ...


def kind_location(name: str) -> str:
    """Return the module and attribute of the kind with this name.

    Raises:
        ConfigError: there is no such kind.
    """
    if name not in KINDS:
        near = get_close_matches(name, KINDS, n=1)
        raise ConfigError(f"kind: expected {' or '.join(KINDS)}, got {name!r}{f'; did you mean {near[0]}?' if near else ''}")
    return KINDS[name]


def load_kind(location: str) -> Kind:
    """Return the kind at ``module:NAME``.

    Raises:
        ConfigError: the kind needs a package that isn't installed.
    """
    module, _, attribute = location.partition(":")
    try:
        kind: Kind = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "streamco":
            raise
        raise ConfigError(f"simulate: needs the package {error.name}: pip install 'streamco[sim]'") from error
    return kind


def metrics_of(kind: Kind) -> dict[str, Metric]:
    """Return all metrics that a scenario of this kind may have, by name."""
    return {**STANDARD, **kind.metrics}


def run_scenario(scenario: Scenario) -> Outcome:
    """Run one scenario in this process. Equal scenarios give equal outcomes.

    Raises:
        ConfigError: the options contradict each other, or name something that is missing.
    """
    kind = load_kind(scenario.kind_location)
    sink = Sink(keeps=scenario.requests)
    try:
        options = msgspec.convert(scenario.settings, kind.options)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{scenario.kind}: {error}") from error
    own = kind.run(options, scenario, sink)
    known = metrics_of(kind)
    if unknown := sorted(set(own) - set(known)):
        raise AssertionError(f"{scenario.kind_location}: expected metrics that it has declared, got {', '.join(unknown)} too")
    system = {**sink.metrics(), **{name: round_metric(value) for name, value in own.items()}}
    rows: list[RequestRow] = sorted(sink.rows, key=lambda row: row.number)
    return Outcome(system={name: system[name] for name in known if name in system}, requests=rows)
