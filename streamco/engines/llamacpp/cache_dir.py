"""Where files that can be made again are kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder(*parts: str) -> Path:
    """Return a folder of this user's cache, made when it isn't there: ``$XDG_CACHE_HOME/streamco/...``.

    Without the variable: ``~/Library/Caches`` on macOS, ``%LOCALAPPDATA%`` on Windows, else ``~/.cache``.

    Raises:
        OSError: it can't be made.
    """
    folder = _base().joinpath("streamco", *parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _base() -> Path:
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if chosen and Path(chosen).is_absolute():  # the XDG specification: relative paths are to be ignored
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path.home() / ".cache"
