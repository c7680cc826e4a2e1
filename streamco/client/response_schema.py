"""Pydantic classes as ``response_format``: makes a request's JSON schema from a class, and parses an answer's text into an object.

Nothing else needs pydantic, so it is imported only once a caller gives such a class.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

from streamco.errors import ConfigError

__all__ = ["read_object", "read_partly", "schema_format"]

ParsedT = TypeVar("ParsedT")
_MAX_SCHEMA_NAME = 64  # characters; OpenAI's limit for a schema's name


def schema_format(kind: type) -> dict[str, Any]:
    """Return the ``response_format`` that requests JSON for a class, in OpenAI's strict form.

    Args:
        kind: a pydantic model, or a dataclass from ``pydantic.dataclasses``.

    Raises:
        ConfigError: it is another kind of class, or a class that has no JSON schema.
    """
    describe = _methods(kind)[0]
    try:
        described = describe()
        schema = _strict(described, described)
    except RecursionError as error:
        raise ConfigError(f"response_format: expected a class whose schema ends, got {kind.__name__}, which holds itself") from error
    except Exception as error:  # pydantic's own errors; it must not be imported just to name them
        if not type(error).__module__.startswith("pydantic"):
            raise
        raise ConfigError(f"response_format: expected a class with a JSON schema, got {kind.__name__} ({error})") from error
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", kind.__name__)[:_MAX_SCHEMA_NAME]
    return {"type": "json_schema", "json_schema": {"schema": schema, "name": name, "strict": True}}


def read_object(kind: type[ParsedT], text: str) -> ParsedT:
    """Parse an answer's text, which is JSON, into an object of a class.

    Raises:
        ValueError: the text isn't JSON, or doesn't fit the class (pydantic's ``ValidationError``).
    """
    return cast("ParsedT", _methods(kind)[1](text))


def read_partly(text: str) -> object | None:
    """Parse the beginning of a JSON text, without an incomplete value; return None if there is nothing yet, or if it isn't JSON."""
    from pydantic_core import from_json

    try:
        return cast("object", from_json(text, allow_partial=True))
    except ValueError:
        return None


def _methods(kind: type) -> tuple[Callable[[], dict[str, Any]], Callable[[str], Any]]:
    """Return the function that returns a class's JSON schema, and the function that parses its JSON."""
    describe, read = getattr(kind, "model_json_schema", None), getattr(kind, "model_validate_json", None)
    if callable(describe) and callable(read):
        return describe, read
    if hasattr(kind, "__pydantic_config__"):
        from pydantic import TypeAdapter

        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        return adapter.json_schema, adapter.validate_json
    raise ConfigError(f"response_format: expected a mapping or a class of pydantic, got the class {kind.__name__}")


def _strict(part: Any, root: dict[str, Any]) -> Any:
    """Convert a part of a schema, in place, to the form that OpenAI's strict mode requires, as OpenAI's SDK does.

    Objects may have only the properties that are listed, and all of these are required. A reference has no siblings, and a default of null
    is removed.
    """
    if not isinstance(part, dict):
        return part
    for name in ("$defs", "definitions"):
        for each in _items(part.get(name)):
            _strict(each, root)
    if part.get("type") == "object":
        part.setdefault("additionalProperties", False)
    if isinstance(properties := part.get("properties"), dict):
        part["required"] = list(properties)
        part["properties"] = {name: _strict(each, root) for name, each in properties.items()}
    if "items" in part:
        part["items"] = _strict(part["items"], root)
    for name in ("anyOf", "allOf"):
        if isinstance(part.get(name), list):
            part[name] = [_strict(each, root) for each in part[name]]
    if len(_items(part.get("allOf"))) == 1:
        part.update(part.pop("allOf")[0])
    if "default" in part and part["default"] is None:
        del part["default"]
    if isinstance(reference := part.get("$ref"), str) and len(part) > 1:
        part.update({**_resolve(reference, root), **part})
        del part["$ref"]
        return _strict(part, root)
    return part


def _items(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _resolve(reference: str, root: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a schema that a pydantic reference (``#/$defs/Name``) points to."""
    found: Any = root
    for key in reference.removeprefix("#/").split("/"):
        found = found[key]
    return cast("dict[str, Any]", found)
