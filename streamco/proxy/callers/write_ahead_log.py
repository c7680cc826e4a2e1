"""Check that SQLite's write-ahead log beside the callers' file belongs to the file.

SQLite replays any log that lies at ``FILE-wal`` when it opens ``FILE``, also that of another file or of a later state. After a process was
killed, or a file was replaced under a running one, that would mix two files. So each transaction adds one to the file's version number
(``PRAGMA user_version``, which begins at random). It is on the first page, and hence in the log. The log continues a file if the
file's own number is one that the log has, or the one before (SQLite's file format, sections 1.3 and 4.1).
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
    """Check that the log beside a file, if there is one with transactions, belongs to the file. It blocks for milliseconds.

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
    """Return the error of a file that has the log of another one beside it."""
    return ConfigError(
        f"callers: expected a file with its own log, got the log of another one or of a later state at {path}-wal: "
        "was the file replaced while a proxy ran, or after one was killed? "
        f"Stop all proxies, remove {path}-wal and {path}-shm, and put the file there again"
    )


def has_log(path: Path) -> bool:
    """Return True if a log with transactions lies beside this path."""
    log = _log_of(path)
    return log.exists() and log.stat().st_size > _HEADER


def file_version(path: Path) -> int:
    """Return the version number that the file itself has, without its log; 0 to 2**32 - 1."""
    # SQLite reads it, because to close a file of one's own would end all locks that this process has on it.
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    finally:
        connection.close()
    return int(version) % _RANGE


def log_versions(path: Path) -> tuple[int, int] | None:
    """Return the file's version numbers in the log, the first and the last one that is committed; None: there are none."""
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
