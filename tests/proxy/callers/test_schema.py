"""The callers' file: how it is made, with which rights, and how it is recognised."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from streamco.errors import ConfigError
from streamco.proxy.callers.schema import check_schema, connect, create_file


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
        ("PRAGMA user_version = 2", "expected a file of version 1, got version 2"),
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
