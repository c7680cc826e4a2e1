"""SQLite's log beside the callers' file: one that belongs to another file, or to a later state, is never replayed."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamco.errors import ConfigError
from streamco.proxy.callers.keys import hash_key
from streamco.proxy.callers.store import CallerStore
from streamco.proxy.callers.write_ahead_log import check_log, file_version, has_log, log_versions
from tests.proxy.callers.support import NOON, add_caller, new_store

FOREIGN = r"expected a file with its own log, got the log of another one or of a later state at .*-wal"
RESERVE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from streamco.proxy.callers.store import CallerStore
store = CallerStore(Path(sys.argv[1]))
for number in range(5):
    store.reserve(f"dead{number}", "alice", 10, float(sys.argv[2]), may_fall_back=False)
store.rotate("alice", b"another")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a caller."""
    store = new_store(tmp_path / "callers.sqlite")
    (tmp_path / "key").write_text(add_caller(store))
    store.close()
    return store.path


@pytest.fixture
def running(path: Path) -> Iterator[CallerStore]:
    """The store of a proxy that runs, with transactions in the log."""
    store = CallerStore(path)
    for number in range(5):
        store.reserve(str(number), "alice", 10, NOON, may_fall_back=False)
    assert has_log(path)
    yield store
    store.close()


def die_with_a_log(path: Path) -> None:
    died = subprocess.run([sys.executable, "-c", RESERVE_AND_DIE, str(path), str(NOON)], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    assert has_log(path)


def key_of(path: Path) -> bytes:
    found = hash_key((path.parent / "key").read_text())
    assert found is not None
    return found


def is_whole(path: Path) -> bool:
    connection = sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)
    (state,) = connection.execute("PRAGMA integrity_check").fetchone()
    connection.close()
    return bool(state == "ok")


def test_a_new_file_never_gets_the_log_of_the_one_before(running: CallerStore, path: Path) -> None:
    new = new_store(path.with_name("new.sqlite"))
    key = hash_key(add_caller(new, "bob"))
    assert key is not None
    new.close()
    new.path.replace(path)
    for _ in range(2):
        with pytest.raises(ConfigError, match=FOREIGN):
            running.find(key)
    with pytest.raises(ConfigError, match=FOREIGN):
        CallerStore(path).listed()
    assert is_whole(path)
    for end in ("-wal", "-shm"):
        path.with_name(f"{path.name}{end}").unlink()
    found = running.find(key)
    assert found is not None
    assert found.name == "bob"
    assert [each.name for each in running.listed()] == ["bob"]


def test_no_file_is_made_beside_the_log_of_one_that_was_removed(running: CallerStore, path: Path) -> None:
    path.unlink()
    with pytest.raises(ConfigError, match=FOREIGN):
        CallerStore(path).create()
    assert not path.exists()
    with pytest.raises(ConfigError, match="No such file"):
        running.listed()


def test_an_older_copy_of_the_file_never_gets_its_log(path: Path) -> None:
    kept = path.read_bytes()
    die_with_a_log(path)
    other = path.with_name("other")
    other.write_bytes(kept)
    other.replace(path)
    with pytest.raises(ConfigError, match=FOREIGN):
        CallerStore(path).find(key_of(path))
    assert path.read_bytes() == kept, "it is left as it was"


def test_a_copy_that_was_made_while_the_log_grew_never_gets_it(running: CallerStore, path: Path) -> None:
    copy = path.with_name("copy.sqlite")
    running.copy(copy)
    running.reserve("later", "alice", 10, NOON, may_fall_back=False)
    copy.replace(path)
    with pytest.raises(ConfigError, match=FOREIGN):
        CallerStore(path).listed()
    for end in ("-wal", "-shm"):
        path.with_name(f"{path.name}{end}").unlink()
    store = CallerStore(path)
    assert store.figures("alice", NOON)[1].reserved == 50
    store.close()


def test_what_a_dead_process_has_written_is_there(path: Path) -> None:
    die_with_a_log(path)
    store = CallerStore(path)
    assert store.find(key_of(path)) is None
    assert store.figures("alice", NOON)[1].reserved == 50
    store.close()


def test_a_file_that_is_overwritten_under_a_running_store_is_noticed(running: CallerStore, path: Path) -> None:
    other = new_store(path.with_name("other.sqlite"))
    add_caller(other, "bob")
    other.close()
    shutil.copyfile(other.path, path)
    os.utime(path, ns=(0, 0))
    for _ in range(2):
        with pytest.raises(ConfigError, match=FOREIGN):
            running.listed()
    running.close()
    if sys.version_info >= (3, 12):  # closing can be told to leave the log alone from then on
        assert path.read_bytes() == other.path.read_bytes()
        with pytest.raises(ConfigError, match=FOREIGN):
            CallerStore(path).listed()


def test_a_file_that_is_overwritten_while_the_log_is_empty_is_the_one_that_counts(path: Path) -> None:
    store = CallerStore(path)
    assert [each.name for each in store.listed()] == ["alice"]
    other = new_store(path.with_name("other.sqlite"))
    add_caller(other, "bob")
    other.close()
    shutil.copyfile(other.path, path)
    os.utime(path, ns=(0, 0))
    assert [each.name for each in store.listed()] == ["bob"]
    store.close()


def test_a_log_that_was_moved_into_the_file_in_parts_and_begun_again_belongs_to_it(path: Path) -> None:
    writer, reader = CallerStore(path), CallerStore(path)
    reader.open()
    reading = reader._connection
    assert reading is not None
    for number in range(20):
        writer.reserve(str(number), "alice", 1, NOON, may_fall_back=False)
        writing = writer._connection
        assert writing is not None
        if number == 5:
            reading.execute("BEGIN")
            reading.execute("SELECT * FROM callers").fetchall()
        if number == 12:
            reading.execute("COMMIT")
        writing.execute(f"PRAGMA wal_checkpoint({('PASSIVE', 'RESTART', 'TRUNCATE')[number % 3] if number > 12 else 'PASSIVE'})").fetchall()
        check_log(path)
        assert reader.figures("alice", NOON)[1].reserved in {number + 1, 6}
    writer.close()
    reader.close()


def test_numbers_are_those_of_committed_transactions_and_may_go_round(path: Path) -> None:
    assert log_versions(path) is None
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA user_version = -1")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert (file_version(path), log_versions(path)) == (2**32 - 1, None)
    for version in (0, 1):
        connection.execute(f"PRAGMA user_version = {version}")
    assert (file_version(path), log_versions(path)) == (2**32 - 1, (0, 1))
    check_log(path)
    log = path.with_name(f"{path.name}-wal")
    whole = log.read_bytes()
    for size, expected in ((0, None), (31, None), (32 + 24 + 4095, None), (len(whole) - 1, (0, 0)), (len(whole), (0, 1))):
        other = path.with_name("other")
        other.with_name("other-wal").write_bytes(whole[:size])
        assert log_versions(other) == expected
    other.with_name("other-wal").write_bytes(whole[:-4120] + b"\0" * 4120)
    assert log_versions(other) == (0, 0), "what is left of the log before has other salts"
    connection.close()
