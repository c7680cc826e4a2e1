"""Loads profiles by name or from files: tables that make a small local server behave like a large remote one.

A profile is a small JSON file of derived figures (quantiles, medians) that names its source and licence. The packaged ones are in
``streamco/emulation/profiles``; ``bench/data/make_latency_profiles.py`` makes them from recorded measurements.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TypeVar

import msgspec

from streamco.emulation.latency_replay import LatencyProfile
from streamco.emulation.step_times import StepTimes
from streamco.errors import ConfigError

__all__ = ["load_latency", "load_step_times", "packaged_names"]

T = TypeVar("T", LatencyProfile, StepTimes)

MAX_BYTES = 1 << 20  # of a profile; the packaged ones are below 3 kB


class _Kind(msgspec.Struct):
    kind: str = ""


def packaged_names(kind: str) -> list[str]:
    """Return the names of the packaged profiles of one kind (``latency`` or ``step_times``), sorted."""
    folder = resources.files("streamco.emulation") / "profiles"
    found = (entry for entry in folder.iterdir() if entry.name.endswith(".json"))
    return sorted(entry.name.removesuffix(".json") for entry in found if msgspec.json.decode(entry.read_bytes(), type=_Kind).kind == kind)


def load_latency(name: str) -> LatencyProfile:
    """Return the packaged latency profile with this name, or the one in this JSON file.

    Raises:
        ConfigError: there is no such name or file, or the file isn't a latency profile.
    """
    return _load(name, "latency", LatencyProfile)


def load_step_times(name: str) -> StepTimes:
    """Return the packaged step-time profile with this name, or the one in this JSON file.

    Raises:
        ConfigError: there is no such name or file, or the file isn't a step-time profile.
    """
    return _load(name, "step_times", StepTimes)


def _load(name: str, kind: str, shape: type[T]) -> T:
    data = _read(name, kind)
    try:
        found = msgspec.json.decode(data, type=_Kind).kind
        if found != kind:
            raise ConfigError(f"{kind} profile: expected kind {kind!r}, got {found!r} in {name}")
        return msgspec.json.decode(data, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{kind} profile: {name}: {error}") from error


def _read(name: str, kind: str) -> bytes:
    """Return a profile's file as bytes. A name without a folder or suffix means a packaged one."""
    path = Path(name)
    if path.suffix != ".json" and path.name == name:
        if name not in packaged_names(kind):
            raise ConfigError(f"{kind} profile: expected a JSON file or one of {', '.join(packaged_names(kind))}, got {name!r}")
        return (resources.files("streamco.emulation") / "profiles" / f"{name}.json").read_bytes()
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{kind} profile: {name}: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{kind} profile: expected at most {MAX_BYTES} bytes, got more in {name}")
    return data
