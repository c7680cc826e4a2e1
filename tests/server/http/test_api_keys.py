"""Several keys: their file, their names, and that none is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamco.errors import ConfigError
from streamco.server.http.api_keys import MAX_KEYS, ApiKey, check_keys, find_key, read_key_file

ALICE, BOB = ApiKey("alice", "sk-alice"), ApiKey("bob", "sk-bob")


@pytest.mark.parametrize(
    ("given", "found"), [("sk-alice", ALICE), ("sk-bob", BOB), ("sk-", None), ("", None), ("ключ", None), ("\udcff", None)]
)
def test_a_key_is_found_among_several(given: str, found: ApiKey | None) -> None:
    assert find_key((ALICE, BOB), given) == found


def test_a_file_has_a_name_and_a_key_on_each_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# for the office\n\nalice\tsk-alice\n  bob   sk-bob\n")
    assert read_key_file(file) == (ALICE, BOB)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alice sk-1\nsk-secret", "keys:2: expected a name and a key, got 1 words"),
        ("alice sk-secret more", "keys:1: expected a name and a key, got 3 words"),
        ("# none\n", "expected at least one name and key"),
        ("al/ice sk-secret", "expected a name of 1 to 64 letters"),
        ("alice sk-sécret", "expected printable ASCII"),
    ],
)
def test_a_wrong_file_is_refused_without_showing_a_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_key_file(file)
    assert "cret" not in str(caught.value)


def test_a_file_that_cant_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"alice \xff")
    for name in ("missing", "bytes"):
        with pytest.raises(ConfigError, match=name):
            read_key_file(tmp_path / name)


def test_keys_and_names_are_different_and_not_too_many() -> None:
    check_keys((ALICE, BOB))
    for keys in ((ALICE, ApiKey("alice", "sk-2")), (ALICE, ApiKey("carol", "sk-alice"))):
        with pytest.raises(ConfigError, match="got one twice") as caught:
            check_keys(keys)
        assert "sk-" not in str(caught.value)
    with pytest.raises(ConfigError, match="at most"):
        check_keys([ApiKey(f"n{number}", f"k{number}") for number in range(MAX_KEYS + 1)])


def test_a_key_is_not_shown() -> None:
    assert "sk-" not in f"{ALICE} {[BOB]!r}"
