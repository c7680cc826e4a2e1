"""Values of decoded JSON as the types that a reader wants. A value of another type counts for nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from streamco.wire.text_halves import whole_values

__all__ = ["count_of", "json_text_of", "number_of", "object_of", "text_of"]


def number_of(value: Any) -> int | None:
    """Return an index, also one that is written as a text; None: it is neither."""
    if type(value) is int:
        return value
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10 else None


def text_of(value: Any) -> str:
    """Return the value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def json_text_of(value: Any) -> str:
    """Return the value if it is a text, an object or a list as its JSON, else an empty text."""
    return msgspec.json.encode(whole_values(value)).decode() if isinstance(value, dict | list) else text_of(value)


def count_of(value: Any) -> int:
    """Return the value if it is a number of tokens, else 0."""
    return value if type(value) is int and value >= 0 else 0


def object_of(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}
