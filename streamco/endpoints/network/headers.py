"""HTTP headers: defaults for every request, merging layers of headers, and checks of a caller's headers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from streamco.errors import MAX_NAME, ConfigError, shorten

__all__ = ["BASE_HEADERS", "check_header_value", "check_headers", "check_text", "has_header", "key_header", "merge_headers"]

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

BASE_HEADERS: Mapping[str, str] = {
    "Accept": "text/event-stream, application/json",
    "Accept-Encoding": "identity",  # a compressing proxy would hold events back
    "Content-Type": "application/json",
    "User-Agent": "streamco",
}


def merge_headers(*layers: Mapping[str, str]) -> dict[str, str]:
    """Merge layers of headers; later layers replace earlier ones, ignoring the case of names."""
    found = {name.lower(): (name, value) for layer in layers for name, value in layer.items()}
    return dict(found.values())


def has_header(headers: Mapping[str, str], name: str) -> bool:
    """Return True if there is a header with this name, ignoring case."""
    wanted = name.lower()
    return any(each.lower() == wanted for each in headers)


def key_header(name: str, key: str | None) -> dict[str, str]:
    """Return the header with the key: ``Authorization`` with ``Bearer``, any other with the bare key; {} if there is no key."""
    if key is None:
        return {}
    return {"Authorization": f"Bearer {key}"} if name == "authorization" else {name: key}


def check_headers(setting: str, headers: object) -> None:
    """Check the caller's headers, because aiohttp would refuse a bad one in the middle of a request, or a server might read it as two.

    Args:
        setting: name of the setting, for the error message.
        headers: the caller's value.

    Raises:
        ConfigError: the value isn't a mapping of names to strings, or has a character that isn't valid in a header.
    """
    if type(headers) is not dict and not isinstance(headers, Mapping):  # checked for each request, and most have a dict
        raise ConfigError(f"{setting}: expected a mapping, got {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(f"{setting}: expected names of headers, got {shorten(repr(name), MAX_NAME)}")
        if not (type(value) is str and value.isascii() and value.isprintable()):
            check_header_value(f'{setting}["{shorten(name, MAX_NAME)}"]', value)


def check_header_value(setting: str, value: object) -> None:
    """Check the value of one header.

    Raises:
        ConfigError: see ``check_headers``.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{setting}: expected a string, got {type(value).__name__}")
    if (found := _CONTROL.search(value)) is not None:
        raise ConfigError(f"{setting}: expected a string on one line, got the control character {found[0]!r} at {found.start()}")
    check_text(setting, value)


def check_text(setting: str, text: str) -> None:
    """Check that a text has no half characters, such as half an emoji after a careless cut, because UTF-8 can't encode them.

    Raises:
        ConfigError: the text contains half a character.
    """
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"U+{ord(text[error.start]):04X}"
        raise ConfigError(f"{setting}: expected whole characters, got half of one ({half} at {error.start})") from None
