"""Checks that SQLite's write-ahead log next to the callers' file belongs to the file.

SQLite replays any log at ``FILE-wal`` when it opens ``FILE``, even if it belongs to another file or a later state. After a process was
killed, or a file was replaced while a process was using it, that would mix two files. So each transaction adds one to the file's version
number (``PRAGMA user_version``, which starts at a random number). The number is on the first page, and so it is in the log, too. The log
belongs to a file if the file's own number is one of the log's, or the one before (SQLite's file format, sections 1.3 and 4.1).
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from streamco.errors import ConfigError

__all__ = ["check_log", "file_version", "foreign_log", "has_log", "log_versions"]

_HEADER, _FRAME = 32, 24  # bytes
_MAGIC = b"\x37\x7f\x06"
_VERSION_AT = 60  # in the first page
_RANGE = 1 << 32
_TRIES = 5  # another process may write between two reads
_PAUSE = 0.01  # seconds


def check_log(path: Path) -> None:
    """Check that the log next to a file, if there is one with transactions, belongs to the file. This blocks for milliseconds.

    Raises:
        ConfigError: it doesn't, so the file was replaced.
        OSError, sqlite3.Error: they can't be read.
    """
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE)
        own, versions = file_version(path), log_versions(path)
        if versions is None:
            return
        first, last = versions
        if (own - first + 1) % _RANGE <= (last - first + 1) % _RANGE:
            return
    raise foreign_log(path)


def foreign_log(path: Path) -> ConfigError:
    """Return the error for a file with another file's log next to it."""
    return ConfigError(
        f"callers: expected a file with its own log, got the log of another one or of a later state at {path}-wal: "
        "was the file replaced while a proxy ran, or after one was killed? "
        f"Stop all proxies, remove {path}-wal and {path}-shm, and put the file there again"
    )


def has_log(path: Path) -> bool:
    """Return True if there is a log with transactions next to this path."""
    log = _log_of(path)
    return log.exists() and log.stat().st_size > _HEADER


def file_version(path: Path) -> int:
    """Return the version number in the file itself, without its log; 0 to 2**32 - 1."""
    # SQLite reads it, because closing our own file object would release all locks that this process has on the file.
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    finally:
        connection.close()
    return int(version) % _RANGE


def log_versions(path: Path) -> tuple[int, int] | None:
    """Return the first and the last committed version number in the log, or None if there are none."""
    try:
        log = _log_of(path).open("rb")
    except FileNotFoundError:
        return None
    first = last = pending = None
    with log:
        header = log.read(_HEADER)
        if len(header) < _HEADER or header[:3] != _MAGIC:
            return None
        page_size, salts = int.from_bytes(header[8:12]), header[16:24]
        while len(frame := log.read(_FRAME)) == _FRAME and frame[8:16] == salts:
            page = log.read(page_size)
            if len(page) < page_size:
                break
            if int.from_bytes(frame[:4]) == 1:
                pending = int.from_bytes(page[_VERSION_AT : _VERSION_AT + 4])
            if any(frame[4:8]) and pending is not None:  # the last frame of a transaction
                first, last, pending = pending if first is None else first, pending, None
    return None if first is None or last is None else (first, last)


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")
