"""The folder for files that can be made again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder(*parts: str) -> Path:
    """Return a folder of this user's cache, created if needed: ``$XDG_CACHE_HOME/streamco/...``.

    Without the variable: ``~/Library/Caches`` on macOS, ``%LOCALAPPDATA%`` on Windows, else ``~/.cache``.

    Raises:
        OSError: it can't be created.
    """
    folder = _base().joinpath("streamco", *parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _base() -> Path:
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if chosen and Path(chosen).is_absolute():  # the XDG specification says to ignore relative paths
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path.home() / ".cache"
