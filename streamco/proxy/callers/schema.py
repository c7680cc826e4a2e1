"""The tables of the callers' file, and how the file is created and recognised."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from secrets import randbits

from streamco.errors import ConfigError
from streamco.proxy.callers.write_ahead_log import foreign_log, has_log

__all__ = ["TOKEN_COLUMNS", "begin_log", "check_schema", "connect", "copy_file", "count_version", "create_file", "is_busy", "use_log"]

_APPLICATION = 0x53434C00  # "SCL", and the version
_VERSION = 3
_UPGRADES = {2: ("estimated_prompt_tokens", "estimated_completion_tokens")}  # columns of ``usage`` that files of an earlier version lack
TOKEN_COLUMNS = ("prompt_tokens", "completion_tokens", *_UPGRADES[2])
"""The columns of ``usage`` that count tokens."""
_RETRY = 0.01  # seconds
_LARGEST = (1 << 31) - 1  # largest version number in SQLite, which is signed
_TABLES = (
    """CREATE TABLE callers (
        name TEXT PRIMARY KEY,
        key_hash BLOB NOT NULL UNIQUE,
        budget INTEGER,
        rate INTEGER,
        device INTEGER NOT NULL,
        server INTEGER NOT NULL,
        operator INTEGER NOT NULL,
        tokens REAL,
        tokens_at REAL
    )""",
    """CREATE TABLE usage (
        caller TEXT NOT NULL REFERENCES callers (name) ON DELETE CASCADE,
        day TEXT NOT NULL,
        spent INTEGER NOT NULL DEFAULT 0,
        requests INTEGER NOT NULL DEFAULT 0,
        spared INTEGER NOT NULL DEFAULT 0,
        refused INTEGER NOT NULL DEFAULT 0,
        prompt_tokens INTEGER NOT NULL DEFAULT 0,
        completion_tokens INTEGER NOT NULL DEFAULT 0,
        estimated_prompt_tokens INTEGER NOT NULL DEFAULT 0,
        estimated_completion_tokens INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (caller, day)
    )""",
    """CREATE TABLE reservations (
        id TEXT PRIMARY KEY,
        caller TEXT NOT NULL REFERENCES callers (name) ON DELETE CASCADE,
        day TEXT NOT NULL,
        cost INTEGER NOT NULL
    )""",
    "CREATE INDEX reservations_of_a_day ON reservations (caller, day)",
)


def create_file(path: Path, patience: float) -> None:
    """Create the file, readable and writable only by its owner. An existing file is left as it is, unless it is empty.

    The tables are created in one transaction. So only one of several processes creates them, and if a process dies, the next one does it.

    Raises:
        ConfigError: there is no file, but there is still the log of a removed one.
        OSError, sqlite3.Error: it can't be created.
    """
    if has_log(path) and not path.exists():
        raise foreign_log(path)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        connection = connect(path, patience)
    except sqlite3.DatabaseError as error:
        if _code_of(error) == sqlite3.SQLITE_NOTADB:
            return  # it is another kind of file; opening it raises the error
        raise
    try:
        connection.execute("BEGIN IMMEDIATE")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        is_empty = not application and not connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        if is_empty:
            for table in _TABLES:
                connection.execute(table)
            connection.execute(f"PRAGMA application_id = {_APPLICATION | _VERSION}")
            connection.execute(f"PRAGMA user_version = {_random_version()}")
        connection.execute("COMMIT")
        if is_empty:
            use_log(connection)
    finally:
        connection.close()


def connect(path: Path, patience: float) -> sqlite3.Connection:
    """Return a connection to an existing file.

    Args:
        path: the file.
        patience: seconds that a call may wait for another process.

    Raises:
        sqlite3.Error: it can't be opened.
    """
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=patience, isolation_level=None)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = NORMAL")  # a process that dies loses nothing, a power failure the last seconds
    except BaseException:
        connection.close()
        raise
    return connection


def use_log(connection: sqlite3.Connection) -> None:
    """Keep changes in a write-ahead log from now on.

    This needs exclusive use of the file. SQLite gives up at once if another process is about to write, so this function does the waiting.

    Raises:
        sqlite3.Error: another process uses the file without a log for longer than this connection waits.
    """
    (patience,) = connection.execute("PRAGMA busy_timeout").fetchone()
    gives_up_at = time.monotonic() + patience / 1e3
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= gives_up_at:
                raise
            time.sleep(_RETRY)
        else:
            return


def is_busy(error: Exception) -> bool:
    """Return True if another process holds the file."""
    return _code_of(error) == sqlite3.SQLITE_BUSY


def _code_of(error: Exception) -> int:
    """Return an error's primary code, or 0 if it has none, as with errors that Python's sqlite3 module raises itself."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def count_version(connection: sqlite3.Connection) -> None:
    """Add one to the file's version number. Call it in each transaction that changes something; see ``write_ahead_log``."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {version + 1 if version < _LARGEST else -_LARGEST - 1}")


def begin_log(connection: sqlite3.Connection) -> None:
    """Give the file a number that no earlier copy has, so that the log written from now on doesn't continue any of them.

    If another process is writing, or the file can't be written, nothing happens: the process that began the log did this already.

    Raises:
        sqlite3.Error: the file can't be used.
    """
    (patience,) = connection.execute("PRAGMA busy_timeout").fetchone()
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        connection.execute("BEGIN IMMEDIATE")
        count_version(connection)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError as error:
        if _code_of(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY):
            raise
    finally:
        connection.execute(f"PRAGMA busy_timeout = {patience}")


def copy_file(connection: sqlite3.Connection, copy: Path) -> None:
    """Write a copy of an open file, as it is between two transactions. Only its owner can read and write the copy.

    Raises:
        FileExistsError: there is a file with this name.
        OSError, sqlite3.Error: it can't be written.
    """
    os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        connection.execute("VACUUM INTO ?", (str(copy),))
        copied = sqlite3.connect(copy, isolation_level=None)
        try:
            copied.execute(f"PRAGMA user_version = {_random_version()}")  # so that no log of the original continues it
        finally:
            copied.close()
    except BaseException:
        copy.unlink()
        raise


def check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Check that a file is a complete callers' file of this version. A file of an earlier version is upgraded.

    Raises:
        ConfigError: it isn't.
        sqlite3.Error: it is damaged, or isn't a database.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application & ~0xFF != _APPLICATION:
        raise ConfigError(f"callers: expected a file that `streamco callers add` has made, got a different kind of file at {path}")
    if application & 0xFF in _UPGRADES:
        application = _upgrade(connection)
    if application & 0xFF != _VERSION:
        raise ConfigError(f"callers: expected a file of version {_VERSION}, got version {application & 0xFF} at {path}")
    (state,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if state != "ok":
        raise sqlite3.DatabaseError(f"a damaged file: {state}")


def _upgrade(connection: sqlite3.Connection) -> int:
    """Upgrade a file of an earlier version in one transaction, and return its application id.

    Raises:
        sqlite3.Error: it can't be written.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()  # another process may have done it meanwhile
        if application & 0xFF in _UPGRADES:
            for column in _UPGRADES[application & 0xFF]:
                connection.execute(f"ALTER TABLE usage ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0")
            application = _APPLICATION | _VERSION
            connection.execute(f"PRAGMA application_id = {application}")
            count_version(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    upgraded: int = application
    return upgraded


def _random_version() -> int:
    return randbits(32) - _LARGEST - 1
