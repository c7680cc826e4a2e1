"""Keys of callers: random, of one form, kept as a hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from streamco.proxy.callers.keys import hash_key, make_key


def test_a_key_is_random_long_and_what_is_kept_is_its_hash() -> None:
    key, key_hash = make_key()
    assert key.startswith("sk-streamco-")
    assert len(key) == len("sk-streamco-") + 43, "32 bytes"
    assert key_hash == hash_key(key) == hashlib.sha256(key.encode()).digest()
    assert make_key()[0] != key
    assert key.isascii()
    assert key.isprintable()


@pytest.mark.parametrize(
    "change",
    [str.upper, lambda key: key[:-1], lambda key: f"{key}x", lambda key: f"{key}\n", lambda _: "", lambda _: "ä" * 55],
)
def test_a_text_of_another_form_is_no_key_and_nothing_is_looked_up_for_it(change: Callable[[str], str]) -> None:
    assert hash_key(change(make_key()[0])) is None
