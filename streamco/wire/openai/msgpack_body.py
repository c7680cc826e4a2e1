"""Request bodies in MessagePack. They have the fields of the JSON body, but packed token ids are bytes instead of base64.

``streamco serve`` accepts these bodies as well as JSON, for hand-overs by token ids. A body is one map with text keys. Only values of the
outer map may be bytes, because the API has no other fields of bytes. Extension types are refused. The field ``continuation_tokens_packed``
is called ``continuation`` here, because its full name is longer than the ids of a short answer.

The decoded objects are never larger than a small multiple of the body, because an array or a map may have at most 4,096 elements, and all
of them together at most 65,536.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import msgspec

__all__ = ["MSGPACK", "MsgpackSizeError", "decode_msgpack", "encode_msgpack"]

MSGPACK = "application/vnd.msgpack"
"""MessagePack's media type, as registered with IANA."""

_MAX_LENGTH = 4096  # elements of one array or map, because the decoder allocates memory for all of them first
_MAX_ELEMENTS = 65_536

_SHORT_NAMES = {"continuation_tokens_packed": "continuation"}
_FULL_NAMES = {short: full for full, short in _SHORT_NAMES.items()}

_msgpack: Any = import_module("msgpack")  # it has no type hints


class MsgpackSizeError(ValueError):
    """The body has more elements than the decoder allows."""


def encode_msgpack(body: Mapping[str, Any]) -> bytes | None:
    """Encode a body. Values are encoded as they would be in JSON, and bytes in the outer map stay bytes.

    Returns None if MessagePack can't express a value (an integer beyond 64 bits), or if the decoder would refuse the size.

    Raises:
        TypeError: JSON can't express a value.
    """
    named = {_SHORT_NAMES.get(name, name): value for name, value in body.items()}
    fields = msgspec.to_builtins(named, builtin_types=(bytes,), str_keys=True)
    try:
        encoded: bytes = _msgpack.packb(fields)
        decode_msgpack(encoded)
    except (ValueError, OverflowError):
        return None
    return encoded


def decode_msgpack(body: bytes) -> dict[str, Any]:
    """Decode a body, and return its fields.

    Raises:
        MsgpackSizeError: the body has too many elements.
        ValueError: the body isn't one MessagePack map, or has a type that no field of the API has.
    """
    counter = _Counter()
    try:
        unpacked = _msgpack.unpackb(
            body,
            max_array_len=_MAX_LENGTH,
            max_map_len=_MAX_LENGTH,
            max_ext_len=0,
            object_hook=counter.take_map,
            list_hook=counter.take_list,
        )
    except RecursionError as error:  # only the pure-Python msgpack recurses
        raise ValueError("expected fewer levels of nesting") from error
    except ValueError as error:
        raise _explain(error) from error
    if not isinstance(unpacked, dict):
        raise ValueError(f"expected a map, got {type(unpacked).__name__}")
    fields: dict[str, Any] = unpacked
    if any(each is not fields for each in counter.maps_with_bytes):
        raise ValueError("expected bytes as a field of the request only, got some further inside")
    named = {_FULL_NAMES.get(name, name): value for name, value in fields.items()}
    if len(named) < len(fields):
        raise ValueError("expected a field under one name, got its full and its short name")
    return named


class _Counter:
    """Counts the elements that the decoder has built so far, and collects the maps that hold bytes."""

    def __init__(self) -> None:
        self.elements = 0
        self.maps_with_bytes: list[dict[Any, Any]] = []

    def take_map(self, fields: dict[Any, Any]) -> dict[Any, Any]:
        self._count(len(fields))
        if not all(isinstance(key, str) for key in fields):
            raise ValueError("expected text as the keys of a map, got bytes")
        if any(isinstance(value, bytes) for value in fields.values()):
            self.maps_with_bytes.append(fields)
        return fields

    def take_list(self, elements: list[Any]) -> list[Any]:
        self._count(len(elements))
        if any(isinstance(element, bytes) for element in elements):
            raise ValueError("expected no bytes in an array, got some")
        return elements

    def _count(self, size: int) -> None:
        self.elements += size + 1
        if self.elements > _MAX_ELEMENTS:
            raise MsgpackSizeError(f"expected at most {_MAX_ELEMENTS} elements, got more")


def _explain(error: ValueError) -> ValueError:
    """Return msgpack's error with a message in this project's words, because some of msgpack's errors have no text."""
    if isinstance(error, MsgpackSizeError):
        return error
    text = str(error)
    if "exceeds max_array_len" in text or "exceeds max_map_len" in text:
        return MsgpackSizeError(f"expected at most {_MAX_LENGTH} elements in an array or map, got {text.split(maxsplit=1)[0]}")
    if type(error).__name__ == "StackError":
        return ValueError("expected fewer levels of nesting")
    return ValueError(f"expected MessagePack, got {text or 'a byte that begins no object'}")
