"""Keys of callers: random, shown once when they are made, and kept as SHA-256 alone.

A key has 256 random bits, so that no salt and no slow hash is needed: there is nothing to guess. What the time of a look-up shows is
something about the hash, from which no key follows.
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
    """Return a new key and what is kept of it; no other process makes the same one."""
    key = _PREFIX + token_urlsafe(_BYTES)
    return key, _hash(key)


def hash_key(key: str) -> bytes | None:
    """Return what is kept of a key; None: this is none, whatever the file says."""
    return _hash(key) if _KEY.fullmatch(key) else None


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
