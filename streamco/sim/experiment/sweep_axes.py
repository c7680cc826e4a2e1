"""The axes of a sweep. Each is a setting with a list of values, or a list of named cases that change several settings at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from streamco.errors import ConfigError
from streamco.sim.experiment.yaml_document import Document, Location

__all__ = ["PARTS", "Axis", "Label", "Value", "change", "dotted", "label_of", "read_axes"]

PARTS = ("world", "workload", "policy")
"""The parts of an experiment's settings. Every path begins with one of them."""

Label = str | float | int | bool


class Value(Struct, frozen=True):
    """One value of an axis.

    Args:
        label: readable text or number.
        settings: values of settings, by path.
        locations: location of each value in the file, by path.
    """

    label: Label
    settings: dict[Location, Any]
    locations: dict[Location, Location]


class Axis(Struct, frozen=True):
    """One axis of a sweep; ``name`` is a setting's path, or the name of its cases."""

    name: str
    values: tuple[Value, ...]

    @property
    def is_numeric(self) -> bool:
        """True if all values are numbers."""
        return all(isinstance(value.label, int | float) and not isinstance(value.label, bool) for value in self.values)


def read_axes(document: Document, sweep: Mapping[str, Any]) -> tuple[Axis, ...]:
    """Return the axes of a file's ``sweep``.

    Raises:
        ConfigError: a path doesn't begin with one of the ``PARTS``, there are no values, or a value appears twice.
    """
    return tuple(_axis(document, name, values) for name, values in sweep.items())


def change(settings: Mapping[str, Any], value: Value, document: Document) -> dict[str, Any]:
    """Return a copy of an experiment's settings, changed to one value of an axis. Unchanged parts are shared.

    Raises:
        ConfigError: a path leads through a value that has no settings.
    """
    changed: Any = settings
    for location, setting in value.settings.items():
        try:
            changed = _with(changed, location, setting)
        except (LookupError, TypeError) as error:
            where = document.where(value.locations[location])
            raise ConfigError(f"{where}: expected a path to a setting, got {dotted(location)}: {error}") from error
    return dict(changed)


def label_of(value: Any) -> Label:
    """Return the label of a value, which is the value itself if it is a string, a number or a boolean, and its JSON otherwise."""
    return value if isinstance(value, str | float | int) else msgspec.json.encode(value).decode()


def dotted(location: Location) -> str:
    """Return a location in dotted notation."""
    return ".".join(str(part) for part in location)


def _axis(document: Document, name: str, values: Any) -> Axis:
    where = document.where(("sweep", name))
    if isinstance(values, dict) and values:
        return Axis(name, tuple(_case(document, name, label, settings) for label, settings in values.items()))
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{where}: expected a list of values, or cases by name, got {values!r}")
    path = _path(document, name, ("sweep", name))
    labels = [label_of(value) for value in values]
    if len(set(labels)) < len(labels):
        raise ConfigError(f"{where}: expected different values, got {', '.join(map(str, labels))}")
    found = [Value(label, {path: value}, {path: ("sweep", name, at)}) for at, (label, value) in enumerate(zip(labels, values, strict=True))]
    return Axis(name, tuple(found))


def _case(document: Document, name: str, label: Any, settings: Any) -> Value:
    written: Location = ("sweep", name, str(label))
    if not isinstance(settings, dict):
        raise ConfigError(f"{document.where(written)}: expected settings by their paths, got {settings!r}")
    locations = {_path(document, str(path), (*written, str(path))): (*written, str(path)) for path in settings}
    return Value(label_of(label), dict(zip(locations, settings.values(), strict=True)), locations)


def _path(document: Document, text: str, written: Location) -> Location:
    location = tuple(int(part) if part.isdigit() else part for part in text.split("."))
    if len(location) < 2 or location[0] not in PARTS:
        raise ConfigError(f"{document.where(written)}: expected a path that begins with {', '.join(PARTS)}, or cases by name, got {text!r}")
    return location


def _with(data: Any, location: Location, value: Any) -> Any:
    """Return a copy of nested mappings and lists with another value at one location. Missing mappings are created."""
    if not location:
        return value
    name, rest = location[0], location[1:]
    if isinstance(data, list):
        if not isinstance(name, int):
            raise TypeError(f"expected the number of an element, got {name}")
        if name >= len(data):
            raise IndexError(f"expected an element below {len(data)}, got {name}")
        return [*data[:name], _with(data[name], rest, value), *data[name + 1 :]]
    if data is None or isinstance(data, Mapping):
        held = data or {}
        return {**held, str(name): _with(held.get(str(name)), rest, value)}
    raise TypeError(f"expected settings in front of {name}, got {data!r}")
