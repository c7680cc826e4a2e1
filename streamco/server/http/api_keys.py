"""A server's API keys. Each has a name for the log. They are compared in constant time and never shown."""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web
from msgspec import Struct

from streamco.errors import ConfigError

__all__ = ["KEY_NAME", "ApiKey", "check_keys", "find_key", "read_key_file"]

KEY_NAME: web.RequestKey[str] = getattr(web, "RequestKey", lambda name, _: name)("streamco_key_name", str)
"""Where a request keeps the name of its key, if the server has several. Before aiohttp 3.14 this is a plain string."""

MAX_KEYS = 1024  # each request is compared with all of them

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class ApiKey(Struct, frozen=True):
    """One key with the name of its user.

    Args:
        name: the user's name in logs: up to 64 letters, digits, dots, dashes or underscores.
        key: the bearer token: printable ASCII without surrounding spaces.

    Raises:
        ConfigError: the name or the key isn't allowed.
    """

    name: str
    key: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"api_keys: expected a name of 1 to 64 letters, digits, dots, dashes or underscores, got {self.name!r}")
        if self.key == "":
            raise ConfigError("api_key: expected a key, got an empty string")
        if not (self.key.isascii() and self.key.isprintable() and self.key.strip() == self.key):
            raise ConfigError("api_key: expected printable ASCII that a header can carry, got other characters or spaces around it")

    def __repr__(self) -> str:
        """Show only the name, because reprs end up in logs."""
        return f"ApiKey({self.name!r}, '***')"


def check_keys(keys: Sequence[ApiKey]) -> None:
    """Check that the keys are different and that there aren't too many.

    Raises:
        ConfigError: two have the same name or key, or there are too many.
    """
    for field, values in (("name", [key.name for key in keys]), ("key", [key.key for key in keys])):
        if len(set(values)) < len(values):
            raise ConfigError(f"api_keys: expected a {field} of its own for each key, got one twice")
    if len(keys) > MAX_KEYS:
        raise ConfigError(f"api_keys: expected at most {MAX_KEYS}, got {len(keys)}")


def find_key(keys: Sequence[ApiKey], given: str) -> ApiKey | None:
    """Return the key that was given, or None if it isn't one of these. The time taken doesn't depend on how much of a key is right."""
    found, token = None, given.encode("utf-8", "surrogateescape")
    for key in keys:
        if hmac.compare_digest(token, key.key.encode()):
            found = key
    return found


def read_key_file(path: Path) -> tuple[ApiKey, ...]:
    """Return the keys in a file, which has a name, spaces and a key on each line. Empty lines and lines that begin with # are ignored.

    Raises:
        ConfigError: the file can't be read, or a line isn't a name and a key; the error gives the line's number, not its text.
    """
    try:
        lines = path.expanduser().read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "bytes that are no UTF-8"
        raise ConfigError(f"api key file: expected a file of names and keys at {path}, got {reason}") from error
    keys = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise ConfigError(f"api key file: {path}:{number}: expected a name and a key, got {len(words)} words")
        keys.append(ApiKey(*words))
    if not keys:
        raise ConfigError(f"api key file: expected at least one name and key at {path}, got none")
    return tuple(keys)
