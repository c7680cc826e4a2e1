"""Fields that a server sends beyond the declared ones, at every level of an event."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from streamco.openai_types import (
    ChatCompletionChunk,
    ChoiceDelta,
    ChunkChoice,
    CompletionTokensDetails,
    CompletionUsage,
    FunctionDelta,
    PromptTokensDetails,
    ResponseModel,
    ToolCallDelta,
    with_further,
)

__all__ = ["known_part", "unknown_fields", "with_unknown_part"]

_Model = TypeVar("_Model", bound=ResponseModel)

_NESTED: dict[type[ResponseModel], dict[str, type[ResponseModel]]] = {
    ChatCompletionChunk: {"choices": ChunkChoice, "usage": CompletionUsage},
    ChunkChoice: {"delta": ChoiceDelta},
    ChoiceDelta: {"tool_calls": ToolCallDelta, "function_call": FunctionDelta},
    ToolCallDelta: {"function": FunctionDelta},
    CompletionUsage: {"prompt_tokens_details": PromptTokensDetails, "completion_tokens_details": CompletionTokensDetails},
}


@cache
def _names(kind: type[ResponseModel]) -> frozenset[str]:
    return frozenset(kind.__struct_fields__)


def unknown_fields(kind: type[ResponseModel], value: Any, *, excluding: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields of a decoded object that its type doesn't declare.

    Args:
        kind: the type.
        value: the object, or another JSON value, which has none.
        excluding: names that have been read in another way.
    """
    if not isinstance(value, dict):
        return {}
    known = _names(kind)
    return {name: item for name, item in value.items() if name not in known and name not in excluding}


def known_part(kind: type[ResponseModel], value: Any) -> Any:
    """Return a decoded object with only the fields that its type declares, at all levels."""
    if isinstance(value, list):
        return [known_part(kind, item) for item in value]
    if not isinstance(value, dict):
        return value
    nested, known = _NESTED.get(kind, {}), _names(kind)
    return {name: known_part(nested[name], item) if name in nested else item for name, item in value.items() if name in known}


def with_unknown_part(model: _Model, value: dict[str, Any]) -> _Model:
    """Return what was built from the known part of a decoded object, with the object's further fields, at all levels."""
    for name in _NESTED.get(type(model), ()):
        child, source = getattr(model, name), value.get(name)
        if isinstance(child, list) and isinstance(source, list):
            setattr(model, name, [with_unknown_part(item, part) for item, part in zip(child, source, strict=True)])
        elif child is not None and isinstance(source, dict):
            setattr(model, name, with_unknown_part(child, source))
    return with_further(model, unknown_fields(type(model), value))
