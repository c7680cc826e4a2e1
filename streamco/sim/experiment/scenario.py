"""One point of an experiment, as plain data, and the kinds of worlds that can run it.

A kind (``Kind``) brings the shape of its options, the names of its figures and a function that runs them in virtual time. It is found by
its name (``KINDS``) and loaded when it is needed, so that reading an experiment or asking for help loads no simulator. A scenario crosses
process and machine borders as data, and everything it says comes back the same for the same data.
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
}
"""Where each kind is: module and attribute."""


class Scenario(Struct, frozen=True, kw_only=True):
    """Everything that a run depends on.

    Args:
        kind: name of the kind.
        kind_location: where the kind is, as in ``KINDS``.
        seed: of all dice.
        requests: rows of single requests are wanted.
        world, workload, policy: the kind's options as the file has them, the sweep's values put in.
        point: what the sweep set for this scenario, by the setting's path or the name of the cases, as people read it.
        folder: that relative paths are relative to.
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
        """What the kind's options are made of."""
        return {"world": self.world, "workload": self.workload, "policy": self.policy}

    @property
    def key(self) -> str:
        """A name for the content: the same for the same run, wherever the file lies and whatever its cases are called."""
        content = (self.kind, self.seed, self.requests, self.settings)
        return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:32]

    def locate(self, path: str) -> Path:
        """Return a file that an option names: ``~`` and ``$VARIABLES`` are replaced, relative ones lie beside the experiment."""
        return Path(self.folder) / Path(os.path.expandvars(path)).expanduser()


class Outcome(Struct, frozen=True, kw_only=True):
    """What came out.

    Args:
        system: figures of the whole, by name; those that nothing was measured of are missing.
        requests: rows, by number, where the scenario wants them.
    """

    system: dict[str, float]
    requests: list[Any] = []


class Named(NamedTuple):
    """Something that options name: a file, hardware, a packaged table.

    Args:
        location: of the setting that names it.
        name: the same wherever the same is meant.
        find: looks it up, and raises a ``ConfigError`` where it isn't there or is of no use.
    """

    location: Location
    name: str
    find: Callable[[], object]


class Kind(Protocol):
    """A kind of world."""

    @property
    def options(self) -> type[Struct]:
        """A Struct of three fields, ``world``, ``workload`` and ``policy``, each a Struct; unknown fields forbidden all the way down."""
        ...

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """What ``run`` returns beyond ``STANDARD``, and how it is called; may rename standard ones."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Figures that the table shows, the most important first: it is also what a plot shows that wasn't told."""
        ...

    def describe(self, options: Any) -> str:
        """Return a line for people who haven't seen the file: what was simulated, how much of it."""
        ...

    def names(self, options: Any, scenario: Scenario) -> Iterable[Named]:
        """Return what the options name and can't check by themselves; it is looked up once before anything is run."""
        ...

    def run(self, options: Any, scenario: Scenario, sink: Sink) -> Mapping[str, float]:
        """Run it in virtual time: every request that ends is given to ``sink``.

        Args:
            options: an instance of ``self.options``.
            scenario: for its seed and the place of files; what it says is in ``options`` already.

        Returns:
            figures that the sink can't know; one with a standard name replaces the sink's.

        Raises:
            ConfigError: the options contradict themselves, or name what isn't there.
        """
        ...


def kind_location(name: str) -> str:
    """Where the kind of that name is.

    Raises:
        ConfigError: there is none.
    """
    if name not in KINDS:
        near = get_close_matches(name, KINDS, n=1)
        raise ConfigError(f"kind: expected {' or '.join(KINDS)}, got {name!r}{f'; did you mean {near[0]}?' if near else ''}")
    return KINDS[name]


def load_kind(location: str) -> Kind:
    """Return the kind at a place, ``module:NAME``.

    Raises:
        ConfigError: it needs a package that isn't installed.
    """
    module, _, attribute = location.partition(":")
    try:
        kind: Kind = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "streamco":
            raise
        raise ConfigError(f"simulate: expected the package {error.name}, got none: pip install 'streamco[sim]'") from error
    return kind


def metrics_of(kind: Kind) -> dict[str, Metric]:
    """Return all figures that a scenario of this kind may have, by name."""
    return {**STANDARD, **kind.metrics}


def run_scenario(scenario: Scenario) -> Outcome:
    """Run one scenario here and now; the same scenario gives the same outcome.

    Raises:
        ConfigError: the options contradict themselves, or name what isn't there.
    """
    kind = load_kind(scenario.kind_location)
    sink = Sink(keeps=scenario.requests)
    try:
        options = msgspec.convert(scenario.settings, kind.options)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{scenario.kind}: {error}") from error
    told = kind.run(options, scenario, sink)
    known = metrics_of(kind)
    if unknown := sorted(set(told) - set(known)):
        raise AssertionError(f"{scenario.kind_location}: expected figures that it has declared, got {', '.join(unknown)} too")
    system = {**sink.metrics(), **{name: round_metric(value) for name, value in told.items()}}
    rows: list[RequestRow] = sorted(sink.rows, key=lambda row: row.number)
    return Outcome(system={name: system[name] for name in known if name in system}, requests=rows)
