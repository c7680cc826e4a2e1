"""Tables of the callers' file, and how the file is made and recognised."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from streamco.errors import ConfigError

__all__ = ["check_schema", "connect", "create_file"]

_APPLICATION = 0x53434C52  # "SCLR"
_VERSION = 1
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
    """Make the file, readable and writable by its owner alone; one that is there is left as it is.

    Raises:
        OSError, sqlite3.Error: it can't be made.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if path.stat().st_size:
            return
    connection = connect(path, patience)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():  # another process may have been faster
            for table in _TABLES:
                connection.execute(table)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")
    finally:
        connection.close()


def connect(path: Path, patience: float) -> sqlite3.Connection:
    """Return a connection to a file that is there.

    Args:
        path: the file.
        patience: seconds that a call may wait for another process.

    Raises:
        sqlite3.Error: it can't be opened.
    """
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=patience, isolation_level=None)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = NORMAL")  # a process that dies loses nothing; a machine without power its last seconds
    except BaseException:
        connection.close()
        raise
    return connection


def check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Check that a file is one of callers, of this version, and whole.

    Raises:
        ConfigError: it is another one.
        sqlite3.Error: it is damaged, or no database.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise ConfigError(f"callers: expected a file that `streamco callers add` has made, got another one at {path}")
    if version != _VERSION:
        raise ConfigError(f"callers: expected a file of version {_VERSION}, got version {version} at {path}")
    (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if state != "ok":
        raise sqlite3.DatabaseError(f"a damaged file: {state}")
