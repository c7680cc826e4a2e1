"""Random JSON schemas of what a device can hold to, and the check whether a value is of one."""

from __future__ import annotations

import json
import re
from datetime import date
from typing import Any

from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "name", "nam", 'q"uote', "back\\slash", "é", "😀", "new\nline", "", "\x7f", "~1/"])
LITERALS = st.one_of(NAMES, st.integers(-20, 120), st.booleans(), st.none(), st.just(1.5), st.just([1, {"x": "y\n"}]))


def _bounded(low: str, high: str, most: int, low_least: int = 0) -> st.SearchStrategy[dict[str, Any]]:
    pairs = st.tuples(st.integers(low_least, most), st.integers(low_least, most)).map(sorted)
    return st.tuples(pairs, st.sampled_from([(low,), (high,), (low, high)])).map(
        lambda drawn: {name: drawn[0][name == high] for name in drawn[1]}
    )


SIMPLE: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([True, {}, {"title": "any"}, {"type": "object"}, {"type": "array"}, {"type": ["string", "null"]}]),
    st.sampled_from(["string", "integer", "number", "boolean", "null"]).map(lambda kind: {"type": kind}),
    st.sampled_from(["date", "time", "date-time", "uuid"]).map(lambda kind: {"type": "string", "format": kind}),
    _bounded("minLength", "maxLength", 5).map(lambda words: {"type": "string", **words}),
    _bounded("minimum", "maximum", 1200, -1200).map(lambda words: {"type": "integer", **words}),
    st.just({"type": "number", "minimum": 0}),
    st.lists(LITERALS, min_size=1, max_size=6).map(lambda values: {"enum": values}),
    LITERALS.map(lambda value: {"const": value}),
    st.just({"$ref": "#/$defs/node"}),
)
NODE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["value", "next"],
    "additionalProperties": False,
}


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(NAMES, inner, max_size=4)
    objects = properties.flatmap(
        lambda found: (
            st.lists(st.sampled_from(sorted(found)), unique=True).map(
                lambda required: {"type": "object", "properties": found, "required": required, "additionalProperties": False}
            )
            if found
            else st.just({"type": "object", "properties": {}, "additionalProperties": False})
        )
    )
    arrays = st.tuples(inner, _bounded("minItems", "maxItems", 3)).map(lambda drawn: {"type": "array", "items": drawn[0], **drawn[1]})
    tuples = st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"type": "array", "prefixItems": parts})
    unions = st.tuples(st.sampled_from(["anyOf", "oneOf"]), st.lists(inner, min_size=1, max_size=3)).map(lambda drawn: {drawn[0]: drawn[1]})
    others = inner.map(lambda value: {"type": "object", "additionalProperties": value})
    single = inner.map(lambda value: {"allOf": [value]})
    return st.one_of(objects, arrays, tuples, unions, others, single)


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    whole = st.recursive(SIMPLE, _larger, max_leaves=5)
    return whole.map(lambda schema: {"$defs": {"node": NODE}, **({} if schema is True else schema)})


def is_valid(value: Any, schema: Any, root: Any = None) -> bool:
    """Return True if a value is of a schema; ``oneOf`` counts as ``anyOf``."""
    root = schema if root is None else root
    if schema is True:
        return True
    if "$ref" in schema:
        return is_valid(value, root["$defs"]["node"], root)
    parts = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if parts:
        return any(is_valid(value, part, root) for part in parts)
    if "enum" in schema or "const" in schema:
        return any(_same(value, each) for each in schema.get("enum", [schema.get("const")]))
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(_is_type(value, kind) for kind in types):
        return False
    return _keeps_to(value, schema, root)


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one) == json.dumps(other)


def _is_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool) or value is None:
        return kind == ("null" if value is None else "boolean")
    known = {"string": str, "object": dict, "array": list, "integer": int, "number": (int, float)}
    return kind in known and isinstance(value, known[kind])  # type: ignore[arg-type]


def _keeps_to(value: Any, schema: dict[str, Any], root: Any) -> bool:
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        if not set(schema.get("required", [])) <= value.keys() or (others is False and not value.keys() <= known.keys()):
            return False
        return all(is_valid(each, known.get(name, others), root) for name, each in value.items())
    if isinstance(value, list):
        parts = schema.get("prefixItems", [])
        items = [*parts, *[schema.get("items", True)] * max(0, len(value) - len(parts))]
        fits = all(is_valid(each, part, root) for each, part in zip(value, items, strict=False))
        return fits and schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
    if isinstance(value, str):
        fits = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        return fits and _is_format(value, schema.get("format"))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    return True


def _is_format(value: str, form: str | None) -> bool:
    if form in ("date", "date-time"):
        try:
            date.fromisoformat(value[:10])
        except ValueError:
            return False
        value = value[11:] if form == "date-time" else ""
    if form in ("time", "date-time"):
        return bool(re.fullmatch(r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", value))
    return form != "uuid" or bool(re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", value))
