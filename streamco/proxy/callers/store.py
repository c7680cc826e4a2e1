"""The callers' file: an SQLite database that several processes share, for one thread of each.

Each change is one transaction that begins with the lock for writing (``BEGIN IMMEDIATE``), so that two processes can't both take the last
of a budget. Before a request goes to a server, the most that it may cost is reserved. When its answer has ended the reservation becomes its
real cost. The reservations of a process that has died count in full until their day has ended. Then they are booked as spent on
that day, because the money may have been.

A file that was removed or replaced is noticed at the next call, which opens whatever is there, and makes nothing. If SQLite's log of the
file before is still there, the call fails, because SQLite would replay it into the new file (``write_ahead_log``).

Without a log (``journal_mode = TRUNCATE``) there would be no such fault, but each transaction waits twice or more for the disk. The three
of a request took 2 to 45 ms on a disk that needs 0.5 to 8 ms for that, and 0.1 ms with the log, which waits only when it is moved to the
file. That is 30 requests a second or thousands. Without waiting (``synchronous = OFF``) a loss of power could damage the file.
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
KEPT_DAYS = 400  # days with requests of which a caller's figures are kept


class ReservedCost(Struct, frozen=True, kw_only=True):
    """What became of a reservation.

    Args:
        is_covered: the budget covers it, and the amount is reserved.
        left: nanodollars that were left of the day's budget before; None: no limit.
    """

    is_covered: bool
    left: int | None


class SettledCost(Struct, frozen=True, kw_only=True):
    """What an answer has cost: nanodollars, the tokens at all endpoints, and how many of them are estimates."""

    cost: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated_prompt_tokens: int = 0
    estimated_completion_tokens: int = 0


class CallerStore:
    """Reads and changes one callers' file; all calls come from one thread.

    Args:
        path: the file.
        patience: seconds that a call may wait for another process.
    """

    def __init__(self, path: Path, *, patience: float = 1.0) -> None:
        self.path = path
        self._patience = patience
        self._connection: sqlite3.Connection | None = None
        self._identity = (0, 0)  # device and inode of the file that is open
        self._changed = 0  # nanoseconds: when it itself, without its log, was changed last
        self._unsettled: dict[str, SettledCost] = {}  # costs that could not be written yet
        self._booked_day = ""

    def create(self) -> None:
        """Make the file if it isn't there, and open it.

        Raises:
            ConfigError: it can't be made, or is another one.
        """
        with self._translated():
            create_file(self.path, self._patience)
        self.open()

    def open(self) -> None:
        """Open the file.

        Raises:
            ConfigError: it isn't there, is damaged or another one, or can't be read.
        """
        with self._using():
            pass

    def check(self) -> None:
        """Check that the file can be written, by an empty transaction.

        Raises:
            ConfigError: it can't be.
        """
        with self._writing():
            pass

    def copy(self, copy: Path) -> None:
        """Write a copy of the file, which may be in use.

        Raises:
            ConfigError: there is a file of this name, or one of the two can't be used.
        """
        with self._using() as connection:
            try:
                copy_file(connection, copy)
            except OSError as error:
                raise ConfigError(f"callers: expected a new file for the copy, got {copy}: {error.strerror}") from error

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # Callers

    def add(self, caller: Caller, key_hash: bytes) -> None:
        """Add a caller with its key's hash.

        Raises:
            ConfigError: there is one of this name, or there are too many.
        """
        with self._writing() as connection:
            if _row(connection, "SELECT 1 FROM callers WHERE name = ?", caller.name) is not None:
                raise ConfigError(f"callers: expected a name of its own, got {caller.name}, which is there")
            (count,) = _needed_row(connection, "SELECT COUNT(*) FROM callers")
            if count >= MAX_CALLERS:
                raise ConfigError(f"callers: expected at most {MAX_CALLERS}, got one more")
            connection.execute(
                f"INSERT INTO callers (key_hash, {_CALLER}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - names of columns
                (key_hash, *_values(caller)),
            )

    def change(self, caller: Caller) -> None:
        """Give the caller of this name these limits. Its bucket begins full.

        Raises:
            ConfigError: there is none.
        """
        with self._writing() as connection:
            self._needed(connection, caller.name)
            name, budget, rate, device, server, operator = _values(caller)
            connection.execute(
                "UPDATE callers SET budget = ?, rate = ?, device = ?, server = ?, operator = ?, tokens = NULL WHERE name = ?",
                (budget, rate, device, server, operator, name),
            )

    def rotate(self, name: str, key_hash: bytes) -> None:
        """Replace a caller's key; the old one is void from now on.

        Raises:
            ConfigError: there is none of this name.
        """
        with self._writing() as connection:
            self._needed(connection, name)
            connection.execute("UPDATE callers SET key_hash = ? WHERE name = ?", (key_hash, name))

    def remove(self, name: str) -> None:
        """Remove a caller with its figures.

        Raises:
            ConfigError: there is none of this name.
        """
        with self._writing() as connection:
            self._needed(connection, name)
            connection.execute("DELETE FROM callers WHERE name = ?", (name,))

    def named(self, name: str) -> Caller:
        """Return the caller of this name.

        Raises:
            ConfigError: there is none.
        """
        with self._using() as connection:
            return self._needed(connection, name)

    def listed(self) -> list[Caller]:
        """Return all callers, by name."""
        with self._using() as connection:
            return [_caller(row) for row in connection.execute(f"SELECT {_CALLER} FROM callers ORDER BY name")]  # noqa: S608

    # Requests

    def find(self, key_hash: bytes) -> Caller | None:
        """Return the caller with this key; None: there is none."""
        with self._using() as connection:
            row = _row(connection, f"SELECT {_CALLER} FROM callers WHERE key_hash = ?", key_hash)  # noqa: S608
        return None if row is None else _caller(row)

    def admit(self, key_hash: bytes, now: float) -> tuple[Caller, float] | None:
        """Find the caller with this key, and count a request against its rate; None: there is none. The number is that of ``take``."""
        caller = self.find(key_hash)
        return None if caller is None else (caller, self.take(caller.name, now))

    def take(self, name: str, now: float) -> float:
        """Count a request against a caller's rate; return the seconds that it comes too early, 0: it is admitted.

        Args:
            name: the caller's name; one that has been removed is limited by the check of its key.
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
        """Reserve the most that a request may cost; None: the caller has been removed.

        Args:
            reservation: a name of its own, for ``settle``.
            name: the caller's name.
            cost: nanodollars.
            now: Unix time; the cost counts on this day.
            may_fall_back: if the budget doesn't cover it, the request is admitted without cost all the same; False: it is refused.
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
        """Replace a reservation by the real cost, on the day of the reservation; one that isn't there is left.

        If the file can't be written now, the reservation stays, and the cost is written with the next reservation or cost, or by
        ``write_settled``.
        """
        self._unsettled[reservation] = settled
        self.write_settled()

    def withdraw(self, reservation: str) -> None:
        """Take a reservation back of which no endpoint was asked; as ``settle``, with no cost."""
        self.settle(reservation, SettledCost())

    @property
    def has_unsettled(self) -> bool:
        """True if there are costs that could not be written."""
        return bool(self._unsettled)

    def write_settled(self) -> None:
        """Write the costs that could not be written before.

        Raises:
            ConfigError: they still can't.
        """
        if self._unsettled:
            with self._writing() as connection:
                self._write_settled(connection)
            self._unsettled.clear()

    def figures(self, name: str, now: float) -> tuple[Caller, DayFigures]:
        """Return a caller's limits, and its figures of this day.

        Raises:
            ConfigError: there is none of this name.
        """
        with self._using() as connection:
            return self._needed(connection, name), _figures(connection, name, day_of(now))

    def history(self, name: str, now: float, days: int) -> list[DayFigures]:
        """Return a caller's figures of the last days, the newest first; days without a request are left out.

        Raises:
            ConfigError: there is no caller of this name.
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
                continue  # its caller was removed, or it was never made
            connection.execute("DELETE FROM reservations WHERE id = ?", (reservation,))
            counts = {column: getattr(settled, column) for column in TOKEN_COLUMNS}
            _add(connection, *row, spent=settled.cost, **counts)

    def _book_abandoned(self, connection: sqlite3.Connection, now: float, day: str) -> None:
        """Book the reservations that a whole day has passed since as spent, and forget figures that are too old; once a day."""
        if day == self._booked_day:
            return
        yesterday = day_before(now, 1)
        for caller, its_day, cost in connection.execute(
            "SELECT caller, day, SUM(cost) FROM reservations WHERE day < ? GROUP BY caller, day", (yesterday,)
        ).fetchall():
            _add(connection, caller, its_day, spent=cost)
        connection.execute("DELETE FROM reservations WHERE day < ?", (yesterday,))
        # Days that have figures are counted, and not days of the calendar: a clock that jumps ahead forgets at most one.
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
        """Yield the file in one transaction with the lock for writing; an exception undoes it."""
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
        """Yield the open file. After an error it is closed, unless another process holds it, and opened again by the next call.

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
        """Check that the open file was changed by SQLite, which moves the log into it, and was not overwritten.

        Raises:
            ConfigError: another file's content was written over it, and its log continues the one before.
        """
        try:
            check_log(self.path)
        except ConfigError:
            if sys.version_info >= (3, 12):  # closing moves the log into the file otherwise
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
            if not is_busy(error):  # opening the file again would lock it, just while others wait for it
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
    """Add a caller to a callers' file, which is made if it isn't there; return the key, which is nowhere else. It blocks for milliseconds.

    Args:
        path: the file.
        name: name in logs, metrics and figures.
        budget: US dollars that it may spend a day (UTC); None: no limit.
        rate: requests a minute; None: no limit.
        sides: sides that its answers may come from.
        is_operator: it may read the figures of all callers.

    Raises:
        ConfigError: there is one of this name, a value is out of range, or the file can't be used.
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
    """Return the columns of ``_CALLER``."""
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
    """Add to a caller's figures of a day."""
    connection.execute("INSERT OR IGNORE INTO usage (caller, day) VALUES (?, ?)", (name, day))
    sums = ", ".join(f"{column} = {column} + ?" for column in amounts)
    connection.execute(f"UPDATE usage SET {sums} WHERE caller = ? AND day = ?", (*amounts.values(), name, day))  # noqa: S608
