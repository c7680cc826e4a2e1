"""The callers' file: how it is made, with which rights, and how it is recognised."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from streamco.errors import ConfigError
from streamco.proxy.callers.schema import check_schema, connect, copy_file, count_version, create_file, use_log
from streamco.proxy.callers.store import CallerStore
from tests.proxy.callers.support import NOON, add_caller


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_the_file_and_those_beside_it_are_its_owners_alone_whatever_the_mask(tmp_path: Path, mask: int) -> None:
    path, before = tmp_path / "callers.sqlite", os.umask(mask)
    try:
        create_file(path, 1.0)
        connection = connect(path, 1.0)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO callers VALUES ('a', x'00', NULL, NULL, 1, 1, 0, NULL, NULL)")
        connection.execute("COMMIT")
        assert {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == dict.fromkeys(
            ("callers.sqlite", "callers.sqlite-wal", "callers.sqlite-shm"), 0o600
        )
        connection.close()
    finally:
        os.umask(before)


def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "callers.sqlite"
    create_file(path, 1.0)
    made = path.read_bytes()
    create_file(path, 1.0)
    assert path.read_bytes() == made
    other = tmp_path / "other"
    other.write_text("not a database")
    create_file(other, 1.0)
    assert other.read_text() == "not a database"


def test_what_a_dead_process_has_begun_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "callers.sqlite"
    for begin in ("PRAGMA user_version = 0", "PRAGMA journal_mode = WAL"):
        path.unlink(missing_ok=True)
        begun = sqlite3.connect(path, isolation_level=None)
        begun.execute(begin)
        begun.close()
        create_file(path, 1.0)
        connection = connect(path, 1.0)
        check_schema(connection, path)
        connection.close()


def test_another_programs_tables_are_left(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("CREATE TABLE kept (a)")
    other.close()
    made = path.read_bytes()
    create_file(path, 1.0)
    assert path.read_bytes() == made


ADD = """
import sys
from pathlib import Path
from streamco.proxy.callers.store import add_caller
print("ready", flush=True)
sys.stdin.readline()
add_caller(Path(sys.argv[1]), sys.argv[2], budget=1.0)
"""


@pytest.mark.long
def test_processes_that_make_a_file_at_once_make_one(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    for path in (tmp_path / str(number) for number in range(5)):
        words = [sys.executable, "-c", ADD, str(path)]
        running = [subprocess.Popen([*words, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for name in names]
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in running:
            process.communicate(timeout=60)
        assert [process.returncode for process in running] == [0] * 4
        store = CallerStore(path)
        assert [each.name for each in store.listed()] == names
        store.close()


def plain_file(path: Path) -> sqlite3.Connection:
    """Make a file without a log, and return a connection that is about to write it."""
    create_file(path, 1.0)
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    assert writer.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    writer.execute("BEGIN IMMEDIATE")
    return writer


def test_a_log_is_begun_when_others_have_done_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "callers.sqlite"
    writer, connection = plain_file(path), connect(path, 60.0)
    closing = threading.Timer(0.1, writer.close)
    closing.start()
    use_log(connection)
    closing.join()
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    use_log(connection)
    connection.close()


def test_a_file_that_others_keep_has_no_log(tmp_path: Path) -> None:
    path = tmp_path / "callers.sqlite"
    writer, connection = plain_file(path), connect(path, 0.05)
    with pytest.raises(sqlite3.OperationalError, match="database is locked"):
        use_log(connection)
    writer.close()
    connection.close()


def test_the_version_number_grows_and_begins_again_below(tmp_path: Path) -> None:
    path = tmp_path / "callers.sqlite"
    create_file(path, 1.0)
    connection = connect(path, 1.0)
    for before, after in ((-1, 0), (7, 8), (2**31 - 1, -(2**31))):
        connection.execute(f"PRAGMA user_version = {before}")
        count_version(connection)
        assert connection.execute("PRAGMA user_version").fetchone() == (after,)
    connection.close()


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path, copy = tmp_path / "callers.sqlite", tmp_path / "copy.sqlite"
    create_file(path, 1.0)
    connection = connect(path, 1.0)
    connection.execute("BEGIN")
    with pytest.raises(sqlite3.OperationalError, match="from within a transaction"):
        copy_file(connection, copy)
    assert not copy.exists()
    connection.execute("COMMIT")
    copy_file(connection, copy)
    kept = copy.read_bytes()
    with pytest.raises(FileExistsError):
        copy_file(connection, copy)
    assert copy.read_bytes() == kept
    connection.close()


def test_an_index_that_lacks_a_row_is_found(tmp_path: Path) -> None:
    path = tmp_path / "callers.sqlite"
    create_file(path, 1.0)
    connection = connect(path, 1.0)
    connection.execute("PRAGMA foreign_keys = OFF")
    (index,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'reservations_of_a_day'").fetchone()
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'reservations_of_a_day'", (f"{index} WHERE cost < 0",))
    connection.close()
    connection = connect(path, 1.0)
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("INSERT INTO reservations VALUES ('r', 'alice', '2026-11-27', 5)")  # the index leaves it out
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'reservations_of_a_day'", (index,))
    connection.close()
    connection = connect(path, 1.0)
    assert connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",), "a quick check doesn't read the index"
    with pytest.raises(sqlite3.DatabaseError, match=r"damaged file: .* missing from index"):
        check_schema(connection, path)
    connection.close()


def test_a_path_with_characters_of_a_url_is_that_path(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory&b#c %41.sqlite"
    create_file(path, 1.0)
    connection = connect(path, 1.0)
    check_schema(connection, path)
    connection.close()
    assert path.stat().st_size


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        connect(tmp_path / "callers.sqlite", 1.0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("PRAGMA application_id = 7", "expected a file that `streamco callers add` has made"),
        (f"PRAGMA application_id = {0x53434C04}", "expected a file of version 3, got version 4"),
        (f"PRAGMA application_id = {0x53434C01}", "expected a file of version 3, got version 1"),
    ],
)
def test_another_programs_file_and_another_version_are_refused(tmp_path: Path, change: str, text: str) -> None:
    path = tmp_path / "callers.sqlite"
    create_file(path, 1.0)
    connection = connect(path, 1.0)
    connection.execute(change)
    with pytest.raises(ConfigError, match=text):
        check_schema(connection, path)
    connection.close()


def test_a_file_of_version_2_gets_what_it_lacks_and_keeps_its_figures(tmp_path: Path) -> None:
    path = tmp_path / "callers.sqlite"
    store = CallerStore(path)
    store.create()
    add_caller(store, "alice")
    store.close()
    earlier = connect(path, 1.0)
    earlier.execute("INSERT INTO usage (caller, day, prompt_tokens, completion_tokens) VALUES ('alice', '2026-11-27', 10, 3)")
    for column in ("estimated_prompt_tokens", "estimated_completion_tokens"):
        earlier.execute(f"ALTER TABLE usage DROP COLUMN {column}")
    earlier.execute(f"PRAGMA application_id = {0x53434C02}")
    earlier.close()
    for _ in range(2):
        store = CallerStore(path)
        _, figures = store.figures("alice", NOON)
        store.close()
        assert (figures.prompt_tokens, figures.completion_tokens) == (10, 3)
        assert (figures.estimated_prompt_tokens, figures.estimated_completion_tokens) == (0, 0)


def test_a_damaged_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "callers.sqlite"
    create_file(path, 1.0)
    pages = bytearray(path.read_bytes())
    pages[4096 : 2 * 4096] = b"\xff" * 4096
    path.write_bytes(pages)
    connection = connect(path, 1.0)
    with pytest.raises(sqlite3.DatabaseError, match=r"damaged|malformed"):
        check_schema(connection, path)
    connection.close()
