"""Writes files atomically, finds the cache folder, and names files that are valid for only one machine and model.

A reader sees either the old file or the new one, never half of either, even after a crash.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["CPUINFO", "cache_folder", "machine_key", "replaced_file", "write_whole"]

CPUINFO = Path("/proc/cpuinfo")


def cache_folder(*parts: str) -> Path:
    """Return a folder of this user's cache, created if needed: ``$XDG_CACHE_HOME/streamco/...``.

    Without the variable it is in ``~/Library/Caches`` on macOS, ``%LOCALAPPDATA%`` on Windows, and ``~/.cache`` elsewhere.

    Raises:
        OSError: it can't be created.
    """
    folder = _base().joinpath("streamco", *parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def machine_key(model: Path, library: Any, *further: object, cpuinfo: Path = CPUINFO) -> str:
    """Return a key for facts about a model on this machine with this build of llama.cpp. It changes if any of the three changes.

    Args:
        model: the model's file.
        library: llama.cpp.
        further: other values that the facts depend on; JSON must be able to represent them.
        cpuinfo: the file in which the kernel describes the CPU.

    Raises:
        OSError: the model's file can't be found.
    """
    own = Path(library.__file__)
    parts = [own, *sorted((own.parent / "lib").glob("*ggml*"))]
    builds = [(item.name, item.stat().st_size, item.stat().st_mtime_ns) for item in parts if item.is_file()]
    file = model.resolve()
    machine = (_cpu(cpuinfo), platform.node(), platform.release(), library.__version__, builds)
    return hashlib.sha256(json.dumps((*machine, str(file), file.stat().st_size, *further)).encode()).hexdigest()[:32]


@contextmanager
def replaced_file(target: Path) -> Iterator[Path]:
    """Yield the path of a temporary file next to the target, which takes the target's place after the block.

    If the block fails, the temporary file is removed, and the target stays as it is.

    Raises:
        OSError: it can't take the target's place.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(target: Path, data: bytes, *, is_private: bool = False, is_synced: bool = False) -> None:
    """Write a file, or replace it.

    Args:
        target: its path.
        data: its content.
        is_private: only its owner may read it.
        is_synced: return only when it is on the disk, so that it is complete even after a power failure.

    Raises:
        OSError: it can't be written; an old file stays as it is.
    """
    with replaced_file(target) as temporary:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(temporary, flags, 0o600 if is_private else 0o666), "wb") as file:
            file.write(data)
            if is_synced:
                file.flush()
                os.fsync(file.fileno())


def _cpu(cpuinfo: Path) -> list[str]:
    wanted = ("model name", "flags", "microcode")
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:  # not Linux
        return [platform.machine(), platform.processor()]
    return [line for line in lines if line.startswith(wanted)]


def _base() -> Path:
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if chosen and Path(chosen).is_absolute():  # the XDG specification says to ignore relative paths
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path.home() / ".cache"
