"""Reads and writes the files in which profiles are kept."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from streamco.engines.llamacpp.cache_dir import write_whole
from streamco.errors import ConfigError
from streamco.policies.quality import MAX_LABELS
from streamco.profiles import Profile
from streamco.profiles.rated_answer import RatedAnswer

__all__ = ["add_ratings", "added_ratings", "begin_profile", "load_profile", "save_profile"]

_MAX_BYTES = 16 << 20  # a profile of a thousand steps takes 50 kB


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Read a profile from a file.

    Raises:
        ConfigError: the file can't be read, is larger than 16 MiB, or isn't a profile.
    """
    try:
        data = _read(Path(path).expanduser())
    except OSError as error:
        raise ConfigError(f"{os.fspath(path)}: expected a readable profile, got: {error.strerror or error}") from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{os.fspath(path)}: expected a profile of at most {_MAX_BYTES} bytes, got more")
    return Profile.from_json(data, where=os.fspath(path))


def save_profile(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write a profile to a file. A reader sees either the whole old file or the whole new one, even after a crash.

    Fields of the old file that only a later version of the package knows are kept. A symbolic link stays a link.

    Raises:
        ConfigError: the folder or the file can't be written.
    """
    target = Path(path).expanduser().resolve()
    try:
        former = _read(target)
    except OSError:
        former = None  # a new file
    try:
        write_whole(target, profile.to_json(former=former), is_private=True, is_synced=True)
    except OSError as error:
        problem = "the profile can't be written" if os.access(target.parent, os.W_OK) else "its folder can't be written to"
        raise ConfigError(f"{target}: {problem}: {error.strerror or error}") from error


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES + 1)


def begin_profile(path: str | os.PathLike[str] | None) -> Profile:
    """Read the profile that a program starts with and will write when it ends. Without a path or an existing file, it is empty.

    Raises:
        ConfigError: the file can't be read or isn't a profile, or its folder can't be written to.
    """
    if path is None:
        return Profile()
    target = Path(path).expanduser()
    if not (target.parent.is_dir() and os.access(target.parent, os.W_OK | os.X_OK)):
        problem = "isn't writable" if target.parent.is_dir() else "doesn't exist"
        raise ConfigError(f"{target}: its folder {problem}")
    return load_profile(target) if target.exists() else Profile()


def add_ratings(ratings: Iterable[RatedAnswer], path: str | os.PathLike[str], changes: Mapping[str, Any] = MappingProxyType({})) -> int:
    """Add ratings to those in a profile's file, to which another program may also have added some; return how many it has now.

    Args:
        ratings: the new ratings, oldest first. The file keeps the latest 1,000.
        path: the file, which need not exist.
        changes: other fields to change; all others stay as they are in the file.

    Raises:
        ConfigError: the file can't be read or written, or isn't a profile.
    """
    now = begin_profile(path)
    kept = (*now.ratings, *ratings)[-MAX_LABELS:]
    save_profile(replace(now, **changes, ratings=kept), path)
    return len(kept)


def added_ratings(former: Sequence[RatedAnswer], ratings: Sequence[RatedAnswer]) -> Sequence[RatedAnswer]:
    """Return the ratings that were added after the former ones, the oldest of which may have been dropped since."""
    shared = next(count for count in range(len(former), -1, -1) if former[len(former) - count :] == ratings[:count])
    return ratings[shared:]
