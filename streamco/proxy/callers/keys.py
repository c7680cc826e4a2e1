"""Callers' keys. They are random, shown only once when they are made, and stored only as SHA-256 hashes.

A key has 256 random bits, which nobody can guess, so neither a salt nor a slow hash is needed. The time of a look-up may reveal something
about the hash, but the key can't be derived from that.
"""

from __future__ import annotations

import hashlib
import re
from secrets import token_urlsafe

__all__ = ["hash_key", "make_key"]

_PREFIX = "sk-streamco-"
_BYTES = 32
_KEY = re.compile(rf"{_PREFIX}[A-Za-z0-9_-]{{43}}")


def make_key() -> tuple[str, bytes]:
    """Return a new, unique key, and its hash to store."""
    key = _PREFIX + token_urlsafe(_BYTES)
    return key, _hash(key)


def hash_key(key: str) -> bytes | None:
    """Return the stored hash of an API key, or None if the text isn't a key."""
    return _hash(key) if _KEY.fullmatch(key) else None


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
