"""Finds the fields that a server sends in addition to the declared ones, at every level of an event."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from streamco.openai_types import (
    ChatCompletionChunk,
    ChoiceDelta,
    ChunkChoice,
    CompletionTokensDetails,
    CompletionUsage,
    CustomDelta,
    FunctionDelta,
    PromptTokensDetails,
    ResponseModel,
    ToolCallDelta,
    with_further,
)
from streamco.wire.openai.fast_decode import TextChoice, TextChunk

__all__ = ["UnknownPart", "may_hold_text", "put_back", "take_unknown", "unknown_fields"]

_Model = TypeVar("_Model", bound=ResponseModel)

_NESTED: dict[type[Struct], dict[str, type[Struct]]] = {
    TextChunk: {"choices": TextChoice, "usage": CompletionUsage},
    ChatCompletionChunk: {"choices": ChunkChoice, "usage": CompletionUsage},
    ChunkChoice: {"delta": ChoiceDelta},
    ChoiceDelta: {"tool_calls": ToolCallDelta, "function_call": FunctionDelta},
    ToolCallDelta: {"function": FunctionDelta, "custom": CustomDelta},
    CompletionUsage: {"prompt_tokens_details": PromptTokensDetails, "completion_tokens_details": CompletionTokensDetails},
}


@cache
def _names(kind: type[ResponseModel]) -> frozenset[str]:
    return frozenset(kind.__struct_fields__)


def unknown_fields(kind: type[ResponseModel], value: Any, *, excluding: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields of a decoded object that its type doesn't declare and that aren't null.

    Args:
        kind: the object's type.
        value: the object. For any other JSON value the result is empty.
        excluding: names of fields that have already been read in another way.
    """
    if not isinstance(value, dict):
        return {}
    known = _names(kind)
    return {name: item for name, item in value.items() if item is not None and name not in known and name not in excluding}


_READ = frozenset({"content_filter_offsets", "content_filter_result", "error", "usage"})
_TEXT_NAMES = ("text", "content", "parts")


def may_hold_text(fields: dict[str, Any]) -> bool:
    """Return True if additional fields of a choice may hold the answer's text, in a form that nothing here reads.

    This is so for a string, and for an object with a value under ``text``, ``content`` or ``parts``, even inside other objects and lists.
    Fields that are read (Moonshot's ``usage``) or that mean something else (Azure's filter) don't count.
    """
    return any(_is_text_holder(item) for name, item in fields.items() if name not in _READ)


def _is_text_holder(value: Any) -> bool:
    match value:
        case str():
            return bool(value)
        case list():
            return any(map(_is_text_holder, value))
        case dict():
            inner = (item for item in value.values() if isinstance(item, dict | list))
            return any(value.get(name) for name in _TEXT_NAMES) or any(map(_is_text_holder, inner))
    return False


class UnknownPart(Struct, frozen=True):
    """The fields that ``take_unknown`` took out of a decoded object, for ``put_back``.

    Args:
        fields: the object's own unknown fields.
        inner: the unknown parts of inner objects, each with the field's name and, if the field is a list, the index in it.
    """

    fields: dict[str, Any]
    inner: list[tuple[str, int | None, UnknownPart]]

    def all_fields(self) -> Iterator[dict[str, Any]]:
        """Yield the unknown fields of the object and of all inner objects."""
        yield self.fields
        for _, _, part in self.inner:
            yield from part.all_fields()


@cache
def _shape(kind: type[Struct]) -> tuple[frozenset[str], tuple[tuple[str, type[Struct]], ...]]:
    """Return the names that a type declares, except fields that may only be null, and its fields that are objects or lists of objects."""
    known = frozenset(each.name for each in msgspec.structs.fields(kind) if each.type is not type(None))
    return known, tuple(_NESTED.get(kind, {}).items())


def take_unknown(kind: type[Struct], value: dict[str, Any]) -> UnknownPart | None:
    """Remove the fields that a type doesn't declare from a decoded object, at all levels. Returns them, or None if all are null.

    Args:
        kind: the object's type.
        value: the object, which is changed.
    """
    known, nested = _shape(kind)
    fields: dict[str, Any] = {}
    if not value.keys() <= known:
        for name in [name for name in value if name not in known]:
            if (item := value.pop(name)) is not None:
                fields[name] = item
    inner: list[tuple[str, int | None, UnknownPart]] = []
    for name, inner_kind in nested:
        item = value.get(name)
        if type(item) is dict:
            if (part := take_unknown(inner_kind, item)) is not None:
                inner.append((name, None, part))
        elif type(item) is list:
            for place, each in enumerate(item):
                if type(each) is dict and (part := take_unknown(inner_kind, each)) is not None:
                    inner.append((name, place, part))
    return UnknownPart(fields, inner) if fields or inner else None


def put_back(model: _Model, part: UnknownPart) -> _Model:
    """Add the unknown fields that were taken out of a decoded object to the model that was built from it, and return the model."""
    for name, place, inner in part.inner:
        child = getattr(model, name)
        if place is None:
            setattr(model, name, put_back(child, inner))
        else:
            child[place] = put_back(child[place], inner)
    return with_further(model, part.fields)
