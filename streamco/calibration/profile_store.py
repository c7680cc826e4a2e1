"""Reading and writing profiles as files."""

from __future__ import annotations

import os
from pathlib import Path

from streamco.engines.llamacpp.cache_dir import write_whole
from streamco.errors import ConfigError
from streamco.profiles import Profile

__all__ = ["load_profile", "save_profile"]

_MAX_BYTES = 16 << 20  # a profile of a thousand steps takes 50 kB


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Read a profile from a file.

    Raises:
        ConfigError: the file can't be read, is above 16 MiB, or holds no profile.
    """
    try:
        data = _read(Path(path).expanduser())
    except OSError as error:
        raise ConfigError(f"{os.fspath(path)}: expected a readable profile, got: {error.strerror or error}") from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{os.fspath(path)}: expected a profile of at most {_MAX_BYTES} bytes, got more")
    return Profile.from_json(data, where=os.fspath(path))


def save_profile(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write a profile to a file. A reader, also after a crash, sees the whole old file or the whole new one.

    Fields of the old file stay if only a later version of the package knows them.

    Raises:
        ConfigError: the folder or the file can't be written.
    """
    target = Path(path).expanduser()
    try:
        former = _read(target)
    except OSError:
        former = None  # a new file
    try:
        write_whole(target, profile.to_json(former=former), is_private=True, is_synced=True)
    except OSError as error:
        expected = "to write a profile" if os.access(target.parent, os.W_OK) else "a writable folder"
        raise ConfigError(f"{target}: expected {expected}, got: {error.strerror or error}") from error


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES + 1)
