"""Converts values of decoded JSON to the type that the caller wants. A value of another type counts as missing."""

from __future__ import annotations

from typing import Any

import msgspec

from streamco.wire.text_halves import whole_values

__all__ = ["count_of", "json_text_of", "number_of", "object_of", "text_of"]


def number_of(value: Any) -> int | None:
    """Return an index given as an integer or as a string of at most 9 digits, or None for any other value."""
    if type(value) is int:
        return value
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10 else None


def text_of(value: Any) -> str:
    """Return the value if it is a string, otherwise an empty string."""
    return value if isinstance(value, str) else ""


def json_text_of(value: Any) -> str:
    """Return the value if it is a string, its JSON if it is an object or a list, otherwise an empty string."""
    return msgspec.json.encode(whole_values(value)).decode() if isinstance(value, dict | list) else text_of(value)


def count_of(value: Any) -> int:
    """Return the value if it is a number of tokens, otherwise 0."""
    return value if type(value) is int and value >= 0 else 0


def object_of(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, otherwise an empty object."""
    return value if isinstance(value, dict) else {}
