"""The callers' file: an SQLite database that several processes share, each using it in one thread.

Each change is one transaction that begins with the write lock (``BEGIN IMMEDIATE``), so that two processes can't both take the rest of a
budget. Before a request goes to a server, the most that it may cost is reserved. When its answer has ended, the reservation is replaced
with its real cost. The reservations of a process that has died count in full until their day is over. Then they are booked as spent on
that day, because the money may have been spent.

A file that was removed or replaced is noticed at the next call, which opens the file that is there, and doesn't create one. If SQLite's log
of the previous file is still there, the call fails, because SQLite would replay it into the new file (``write_ahead_log``).

Without a log (``journal_mode = TRUNCATE``) this couldn't happen, but each transaction would wait for the disk at least twice. The three
transactions of a request took 2 to 45 ms on a disk where one wait takes 0.5 to 8 ms, and 0.1 ms with the log, which waits only when it is
moved to the file. That is the difference between 30 requests a second and thousands. Without waiting (``synchronous = OFF``), a power
failure could damage the file.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from streamco.endpoints.base import Kind
from streamco.errors import ConfigError
from streamco.proxy.callers.base import MAX_CALLERS, SIDES, Caller, DayFigures, to_nanos
from streamco.proxy.callers.budget import DayBudget, day_before, day_of
from streamco.proxy.callers.keys import make_key
from streamco.proxy.callers.rates import TokenBucket
from streamco.proxy.callers.schema import (
    TOKEN_COLUMNS,
    begin_log,
    check_schema,
    connect,
    copy_file,
    count_version,
    create_file,
    is_busy,
    use_log,
)
from streamco.proxy.callers.write_ahead_log import check_log, file_version, has_log

__all__ = ["KEPT_DAYS", "CallerStore", "ReservedCost", "SettledCost", "add_caller"]

_CALLER = "name, budget, rate, device, server, operator"
KEPT_DAYS = 400  # number of days with requests for which a caller's figures are kept


class ReservedCost(Struct, frozen=True, kw_only=True):
    """The outcome of a reservation.

    Args:
        is_covered: True if the budget covers it, so that the amount is reserved.
        left: nanodollars that were left of the day's budget before, or None for no limit.
    """

    is_covered: bool
    left: int | None


class SettledCost(Struct, frozen=True, kw_only=True):
    """The cost of an answer: nanodollars, the tokens at all endpoints, and how many of them are estimates."""

    cost: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated_prompt_tokens: int = 0
    estimated_completion_tokens: int = 0


class CallerStore:
    """Reads and changes one callers' file. All calls must come from one thread.

    Args:
        path: the file.
        patience: seconds that a call may wait for another process.
    """

    def __init__(self, path: Path, *, patience: float = 1.0) -> None:
        self.path = path
        self._patience = patience
        self._connection: sqlite3.Connection | None = None
        self._identity = (0, 0)  # device and inode of the file that is open
        self._changed = 0  # last change of the file itself, without its log, in nanoseconds
        self._unsettled: dict[str, SettledCost] = {}  # costs that couldn't be written yet
        self._booked_day = ""

    def create(self) -> None:
        """Create the file if it doesn't exist, and open it.

        Raises:
            ConfigError: it can't be created, or isn't a callers' file.
        """
        with self._translated():
            create_file(self.path, self._patience)
        self.open()

    def open(self) -> None:
        """Open the file.

        Raises:
            ConfigError: it doesn't exist, is damaged, isn't a callers' file, or can't be read.
        """
        with self._using():
            pass

    def check(self) -> None:
        """Check with an empty transaction that the file can be written.

        Raises:
            ConfigError: it can't be written.
        """
        with self._writing():
            pass

    def copy(self, copy: Path) -> None:
        """Write a copy of the file, which may be in use.

        Raises:
            ConfigError: there is a file with this name, or one of the two can't be used.
        """
        with self._using() as connection:
            try:
                copy_file(connection, copy)
            except OSError as error:
                raise ConfigError(f"callers: expected a new file for the copy, got {copy}: {error.strerror}") from error

    def close(self) -> None:
        """Close the file. The next call opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # Callers

    def add(self, caller: Caller, key_hash: bytes) -> None:
        """Add a caller with its key's hash.

        Raises:
            ConfigError: there is a caller with this name, or there are too many callers.
        """
        with self._writing() as connection:
            if _row(connection, "SELECT 1 FROM callers WHERE name = ?", caller.name) is not None:
                raise ConfigError(f"callers: expected a name of its own, got {caller.name}, which is there")
            (count,) = _needed_row(connection, "SELECT COUNT(*) FROM callers")
            if count >= MAX_CALLERS:
                raise ConfigError(f"callers: the limit is {MAX_CALLERS}")
            connection.execute(
                f"INSERT INTO callers (key_hash, {_CALLER}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - names of columns
                (key_hash, *_values(caller)),
            )

    def change(self, caller: Caller) -> None:
        """Replace the limits of the caller with this name. Its bucket is full at first.

        Raises:
            ConfigError: there is no such caller.
        """
        with self._writing() as connection:
            self._needed(connection, caller.name)
            name, budget, rate, device, server, operator = _values(caller)
            connection.execute(
                "UPDATE callers SET budget = ?, rate = ?, device = ?, server = ?, operator = ?, tokens = NULL WHERE name = ?",
                (budget, rate, device, server, operator, name),
            )

    def rotate(self, name: str, key_hash: bytes) -> None:
        """Replace a caller's key. The old one is invalid from now on.

        Raises:
            ConfigError: there is no caller with this name.
        """
        with self._writing() as connection:
            self._needed(connection, name)
            connection.execute("UPDATE callers SET key_hash = ? WHERE name = ?", (key_hash, name))

    def remove(self, name: str) -> None:
        """Remove a caller and its figures.

        Raises:
            ConfigError: there is no caller with this name.
        """
        with self._writing() as connection:
            self._needed(connection, name)
            connection.execute("DELETE FROM callers WHERE name = ?", (name,))

    def named(self, name: str) -> Caller:
        """Return the caller with this name.

        Raises:
            ConfigError: there is none.
        """
        with self._using() as connection:
            return self._needed(connection, name)

    def listed(self) -> list[Caller]:
        """Return all callers, sorted by name."""
        with self._using() as connection:
            return [_caller(row) for row in connection.execute(f"SELECT {_CALLER} FROM callers ORDER BY name")]  # noqa: S608

    # Requests

    def find(self, key_hash: bytes) -> Caller | None:
        """Return the caller with this key, or None if there is none."""
        with self._using() as connection:
            row = _row(connection, f"SELECT {_CALLER} FROM callers WHERE key_hash = ?", key_hash)  # noqa: S608
        return None if row is None else _caller(row)

    def admit(self, key_hash: bytes, now: float) -> tuple[Caller, float] | None:
        """Return the caller with this key and, from ``take``, by how many seconds its request is too early. None if no caller has it."""
        caller = self.find(key_hash)
        return None if caller is None else (caller, self.take(caller.name, now))

    def take(self, name: str, now: float) -> float:
        """Count a request against a caller's rate. Return by how many seconds it is too early, or 0 if it is admitted.

        Args:
            name: the caller's name. A removed caller isn't limited here, because the check of its key refuses it anyway.
            now: Unix time.
        """
        with self._writing() as connection:
            row = _row(connection, "SELECT rate, tokens, tokens_at FROM callers WHERE name = ?", name)
            if row is None or row[0] is None:
                return 0.0
            rate, tokens, at = row
            bucket, wait = (TokenBucket.full(rate, now) if tokens is None else TokenBucket(tokens, at)).take(rate, now)
            connection.execute("UPDATE callers SET tokens = ?, tokens_at = ? WHERE name = ?", (bucket.tokens, bucket.at, name))
        return wait

    def reserve(self, reservation: str, name: str, cost: int, now: float, *, may_fall_back: bool) -> ReservedCost | None:
        """Reserve the most that a request may cost. Return None if the caller has been removed.

        Args:
            reservation: a unique name, for ``settle``.
            name: the caller's name.
            cost: nanodollars.
            now: Unix time; the cost counts on this day.
            may_fall_back: if the budget doesn't cover the request, True admits it without cost, and False refuses it.
        """
        day = day_of(now)
        with self._writing() as connection:
            self._write_settled(connection)
            self._book_abandoned(connection, now, day)
            row = _row(connection, "SELECT budget FROM callers WHERE name = ?", name)
            if row is None:
                return None
            figures = _figures(connection, name, day)
            budget = DayBudget(limit=row[0], spent=figures.spent, reserved=figures.reserved)
            is_covered = budget.covers(cost)
            if is_covered or may_fall_back:
                amount = cost if is_covered else 0
                connection.execute("INSERT INTO reservations VALUES (?, ?, ?, ?)", (reservation, name, day, amount))
                _add(connection, name, day, requests=1, spared=int(not is_covered))
            else:
                _add(connection, name, day, refused=1)
        self._unsettled.clear()
        self._booked_day = day
        return ReservedCost(is_covered=is_covered, left=budget.left)

    def settle(self, reservation: str, settled: SettledCost) -> None:
        """Replace a reservation with the real cost, on the day of the reservation. A reservation that doesn't exist is ignored.

        If the file can't be written now, the reservation stays, and the cost is written with the next reservation or cost, or by
        ``write_settled``.
        """
        self._unsettled[reservation] = settled
        self.write_settled()

    def withdraw(self, reservation: str) -> None:
        """Take back a reservation for which no endpoint was asked; like ``settle`` without cost."""
        self.settle(reservation, SettledCost())

    @property
    def has_unsettled(self) -> bool:
        """True if there are costs that couldn't be written."""
        return bool(self._unsettled)

    def write_settled(self) -> None:
        """Write the costs that couldn't be written before.

        Raises:
            ConfigError: they still can't be written.
        """
        if self._unsettled:
            with self._writing() as connection:
                self._write_settled(connection)
            self._unsettled.clear()

    def figures(self, name: str, now: float) -> tuple[Caller, DayFigures]:
        """Return a caller's limits, and its figures for today.

        Raises:
            ConfigError: there is no caller with this name.
        """
        with self._using() as connection:
            return self._needed(connection, name), _figures(connection, name, day_of(now))

    def history(self, name: str, now: float, days: int) -> list[DayFigures]:
        """Return a caller's figures for the last ``days`` days, newest first. Days without a request are left out.

        Raises:
            ConfigError: there is no caller with this name.
        """
        first = day_before(now, days - 1)
        with self._using() as connection:
            self._needed(connection, name)
            found = {
                *connection.execute("SELECT day FROM usage WHERE caller = ? AND day >= ?", (name, first)),
                *connection.execute("SELECT day FROM reservations WHERE caller = ? AND day >= ?", (name, first)),
            }
            return [_figures(connection, name, day) for (day,) in sorted(found, reverse=True)]

    # Inside

    def _write_settled(self, connection: sqlite3.Connection) -> None:
        for reservation, settled in self._unsettled.items():
            row = _row(connection, "SELECT caller, day FROM reservations WHERE id = ?", reservation)
            if row is None:
                continue  # its caller was removed, or the reservation was never made
            connection.execute("DELETE FROM reservations WHERE id = ?", (reservation,))
            counts = {column: getattr(settled, column) for column in TOKEN_COLUMNS}
            _add(connection, *row, spent=settled.cost, **counts)

    def _book_abandoned(self, connection: sqlite3.Connection, now: float, day: str) -> None:
        """Book reservations from before yesterday as spent, and forget figures that are too old. This is done once a day."""
        if day == self._booked_day:
            return
        yesterday = day_before(now, 1)
        for caller, its_day, cost in connection.execute(
            "SELECT caller, day, SUM(cost) FROM reservations WHERE day < ? GROUP BY caller, day", (yesterday,)
        ).fetchall():
            _add(connection, caller, its_day, spent=cost)
        connection.execute("DELETE FROM reservations WHERE day < ?", (yesterday,))
        # Counts days that have figures, not calendar days, so that a clock that jumps ahead makes at most one day be forgotten.
        crowded = connection.execute("SELECT caller FROM usage GROUP BY caller HAVING COUNT(*) > ?", (KEPT_DAYS,)).fetchall()
        for (caller,) in crowded:
            kept = "SELECT day FROM usage WHERE caller = ? ORDER BY day DESC LIMIT ?"
            connection.execute(f"DELETE FROM usage WHERE caller = ? AND day NOT IN ({kept})", (caller, caller, KEPT_DAYS))  # noqa: S608

    def _needed(self, connection: sqlite3.Connection, name: str) -> Caller:
        row = _row(connection, f"SELECT {_CALLER} FROM callers WHERE name = ?", name)  # noqa: S608
        if row is None:
            raise ConfigError(f"callers: expected the name of a caller in {self.path}, got {name!r}")
        return _caller(row)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Yield the file in one transaction with the write lock; an exception rolls it back."""
        with self._using() as connection:
            connection.execute("BEGIN IMMEDIATE")
            before = connection.total_changes
            try:
                yield connection
                if connection.total_changes != before:
                    count_version(connection)
                connection.execute("COMMIT")
            except BaseException:
                connection.rollback()
                raise

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """Yield the open file. After an error it is closed, unless another process has locked it, and the next call opens it again.

        Raises:
            ConfigError: it can't be used.
        """
        with self._translated():
            status = self.path.stat()
            if self._connection is not None and self._identity != (status.st_dev, status.st_ino):
                self.close()
            if self._connection is not None and self._changed != status.st_mtime_ns:
                self._look_again(self._connection)
            if self._connection is None:
                self._connection = self._opened()
                self._identity = (status.st_dev, status.st_ino)
            self._changed = status.st_mtime_ns
            yield self._connection

    def _look_again(self, connection: sqlite3.Connection) -> None:
        """Check that the open file was changed by SQLite, which moves the log into it, and wasn't overwritten.

        Raises:
            ConfigError: another file's content was written over it, and its log belongs to the previous content.
        """
        try:
            check_log(self.path)
        except ConfigError:
            if sys.version_info >= (3, 12):  # otherwise closing would move the log into the file
                connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)
            raise
        (version,) = _needed_row(connection, "PRAGMA user_version")
        if not has_log(self.path) and file_version(self.path) != version % (1 << 32):
            self.close()

    def _opened(self) -> sqlite3.Connection:
        check_log(self.path)
        connection = connect(self.path, self._patience)
        try:
            check_schema(connection, self.path)
            use_log(connection)
            begin_log(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if not is_busy(error):  # reopening the file would lock it just while others wait for it
                with suppress(sqlite3.Error):
                    self.close()
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            reason += " (streamco callers add makes one)" if isinstance(error, FileNotFoundError) else ""
            raise ConfigError(f"callers: expected a file that can be read and written at {self.path}, got: {reason}") from error


def add_caller(
    path: Path,
    name: str,
    *,
    budget: float | None,
    rate: int | None = None,
    sides: Sequence[Kind] = SIDES,
    is_operator: bool = False,
) -> str:
    """Add a caller to a callers' file, which is created if needed, and return its key, which isn't stored. Blocks for milliseconds.

    Args:
        path: the file.
        name: name in logs, metrics and figures.
        budget: US dollars that it may spend per day (UTC), or None for no limit.
        rate: requests per minute, or None for no limit.
        sides: sides that its answers may come from.
        is_operator: True if it may read the figures of all callers.

    Raises:
        ConfigError: there is a caller with this name, a value is out of range, or the file can't be used.
    """
    nanos = None if budget is None else to_nanos(budget)
    caller = Caller(name=name, budget=nanos, rate=rate, sides=tuple(sides), is_operator=is_operator)
    key, key_hash = make_key()
    store = CallerStore(path)
    try:
        store.create()
        store.add(caller, key_hash)
    finally:
        store.close()
    return key


def _row(connection: sqlite3.Connection, query: str, *values: object) -> tuple[Any, ...] | None:
    found: tuple[Any, ...] | None = connection.execute(query, values).fetchone()
    return found


def _needed_row(connection: sqlite3.Connection, query: str, *values: object) -> tuple[Any, ...]:
    found = _row(connection, query, *values)
    if found is None:
        raise AssertionError("a sum has a row, whatever is summed")
    return found


def _values(caller: Caller) -> tuple[str, int | None, int | None, bool, bool, bool]:
    """Return a caller's values for the columns of ``_CALLER``, in that order."""
    return caller.name, caller.budget, caller.rate, "device" in caller.sides, "server" in caller.sides, caller.is_operator


def _caller(row: tuple[Any, ...]) -> Caller:
    name, budget, rate, device, server, operator = row
    sides = tuple(side for side, is_allowed in zip(SIDES, (device, server), strict=True) if is_allowed)
    return Caller(name=name, budget=budget, rate=rate, sides=sides, is_operator=bool(operator))


def _figures(connection: sqlite3.Connection, name: str, day: str) -> DayFigures:
    columns = ", ".join(("spent", "requests", "spared", "refused", *TOKEN_COLUMNS))
    row = _row(connection, f"SELECT {columns} FROM usage WHERE caller = ? AND day = ?", name, day)  # noqa: S608
    (reserved,) = _needed_row(connection, "SELECT COALESCE(SUM(cost), 0) FROM reservations WHERE caller = ? AND day = ?", name, day)
    if row is None:
        return DayFigures(day=day, reserved=reserved)
    return DayFigures(day=day, reserved=reserved, **dict(zip(columns.split(", "), row, strict=True)))


def _add(connection: sqlite3.Connection, name: str, day: str, **amounts: int) -> None:
    """Add to a caller's figures for a day."""
    connection.execute("INSERT OR IGNORE INTO usage (caller, day) VALUES (?, ?)", (name, day))
    sums = ", ".join(f"{column} = {column} + ?" for column in amounts)
    connection.execute(f"UPDATE usage SET {sums} WHERE caller = ? AND day = ?", (*amounts.values(), name, day))  # noqa: S608
