"""Turns a request's ``response_format`` into the JSON schema that a device's answer must match.

llguidance reads the schema (``grammar``). A schema that would take it too long, or make it crash the process, is refused here with the
reason, because requests also come from the network.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from math import lcm
from typing import Any

from streamco.errors import MAX_NAME, ConfigError, shorten

__all__ = ["grammar_of", "has_grammars", "schema_grammar"]

MAX_CHARACTERS = 100_000  # of a schema as JSON
MAX_VALUES = 10_000  # objects, lists and other values in a schema, because the time to read one grows with the square
MAX_LEVELS = 5000  # of a schema whose references are followed, if each led to all the others; see ``grammar.STACK``
MAX_PATTERNS = 50  # of patternProperties, each of which is compared with every other
MAX_MULTIPLE = 10_000  # least common multiple of all multipleOf, because llguidance has a state for each remainder, and no limit

_FORMAT_KEYS: Mapping[str, Sequence[str]] = {
    "text": ("type",),
    "json_object": ("type", "schema"),
    "json_schema": ("type", "json_schema"),
}  # of a response_format
_MAPS = frozenset({"$defs", "definitions", "patternProperties", "properties"})  # keywords whose value has schemas by name
_INNER = _MAPS | {"additionalProperties", "allOf", "anyOf", "items", "oneOf", "prefixItems"}
_DATE = (
    "([1-9][0-9]{3}|0([1-9][0-9]{2}|0([1-9][0-9]|0[1-9])))-"
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_TIMES = {"date": _DATE, "time": _TIME, "date-time": f"{_DATE}T{_TIME}"}
_SCHEMA_KEYS = ("name", "description", "schema", "strict")


@lru_cache(maxsize=1)
def has_grammars() -> bool:
    """Return True if llguidance is installed, without which a device's answers can't be constrained to a format."""
    return find_spec("llguidance") is not None


def grammar_of(response_format: object) -> str | None:
    """Return the JSON schema that a request's ``response_format`` asks for, as text, or None if any text may be written.

    Args:
        response_format: None, or as in OpenAI's API: ``{"type": "text"}``, ``{"type": "json_object"}``, or ``{"type": "json_schema",
            "json_schema": {"name": ..., "schema": ...}}``. ``strict`` makes no difference: the schema is always enforced. As in llama.cpp,
            ``json_object`` may have a schema, too: ``{"type": "json_object", "schema": ...}``.

    Raises:
        ConfigError: it is something else or has an unknown key, or the schema can't be enforced. If llguidance isn't installed, only the
            limits of a schema are checked.
    """
    try:
        return _grammar_of(response_format)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"response_format: expected JSON that can be read, got {exc}") from exc


def _grammar_of(response_format: object) -> str | None:
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    known = _FORMAT_KEYS.get(kind) if isinstance(kind, str) else None
    if not isinstance(response_format, Mapping) or known is None:
        wanted = "None or a type of text, json_object or json_schema"
        raise ConfigError(f"response_format: expected {wanted}, got {shorten(repr(response_format), MAX_NAME)}")
    _check_keys("response_format", response_format, known)
    if kind == "text":
        return None
    if kind == "json_object":
        schema = response_format.get("schema")
        return schema_grammar({"type": "object"} if schema in (None, {}) else schema)
    given = response_format.get("json_schema")
    if not isinstance(given, Mapping) or not isinstance(given.get("schema"), Mapping):
        raise ConfigError(f"response_format: json_schema: expected an object with a schema, got {shorten(repr(given), MAX_NAME)}")
    _check_keys("response_format: json_schema", given, _SCHEMA_KEYS)
    return schema_grammar(given["schema"])


def _check_keys(where: str, given: Mapping[Any, Any], known: Sequence[str]) -> None:
    """Check that no unknown key has a value, because it may ask for something that would be ignored."""
    unknown = sorted(shorten(str(key), MAX_NAME) for key, value in given.items() if key not in known and value is not None)
    if unknown:
        raise ConfigError(f"{where}: expected {', '.join(known)}, got {unknown[0]}")


def schema_grammar(schema: object) -> str:
    """Return a JSON schema as text, if answers can be made to match it.

    Raises:
        ConfigError: they can't, because it has an unknown keyword, refers to something outside itself, or is too large.
    """
    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise ConfigError(f"response_format: schema: expected JSON, got {exc}") from exc
    if not isinstance(schema, Mapping):
        raise ConfigError(f"response_format: schema: expected an object, got {shorten(text, MAX_NAME)}")
    if len(text) > MAX_CHARACTERS:
        raise _too_much(f"at most {MAX_CHARACTERS} characters", len(text))
    return _checked(text)


@lru_cache(maxsize=16)  # called twice for a request: to see whether a device can enforce the schema, and to enforce it
def _checked(text: str) -> str:
    from streamco.engines.llamacpp.grammar import check_schema

    schema = json.loads(text)
    _check_limits(schema)
    is_combined = any(_is_combined(value) for value, _ in _values(schema))
    text = json.dumps(_narrowed(schema, closes=not is_combined))
    check_schema(text)
    return text


def _check_limits(schema: Mapping[str, Any]) -> None:
    """Refuse a schema that exceeds limits that llguidance doesn't have itself."""
    from fractions import Fraction

    if "x-guidance" in schema:  # settings of llguidance
        raise ConfigError("response_format: schema: expected keywords of JSON schemas, got x-guidance")
    count, depth, patterns, references, multiples = 0, 0, 0, set(), set()
    for value, level in _values(schema):
        count, depth = count + 1, max(depth, level)
        if isinstance(value, Mapping):
            references.add(str(value.get("$ref", "")))
            inside = value.get("patternProperties")
            patterns += len(inside) if isinstance(inside, Mapping) else 0
            multiple = value.get("multipleOf")
            if isinstance(multiple, int | float) and not isinstance(multiple, bool):
                multiples.add(Fraction(str(multiple)))
    if count > MAX_VALUES:
        raise _too_much(f"at most {MAX_VALUES} values and properties", count)
    if depth * len(references) > MAX_LEVELS:
        raise _too_much(f"at most {MAX_LEVELS} levels times references", depth * len(references))
    if patterns > MAX_PATTERNS:
        raise _too_much(f"at most {MAX_PATTERNS} patternProperties", patterns)
    scale = lcm(*(each.denominator for each in multiples))
    common = lcm(*(int(each * scale) for each in multiples))
    if common > MAX_MULTIPLE:
        raise _too_much(f"multipleOf of a common multiple of at most {MAX_MULTIPLE} of the last digit", common)


def _is_combined(value: Any) -> bool:
    """Return True if a value may be a schema that combines the properties of several schemas."""
    if not isinstance(value, Mapping):
        return False
    parts = value.get("allOf")
    if isinstance(parts, list) and len(parts) > 1:
        return True
    return not value.keys().isdisjoint(("$ref", "allOf", "anyOf", "oneOf")) and not value.keys().isdisjoint(("properties", "required"))


def _narrowed(schema: Any, *, closes: bool) -> Any:
    """Return a narrower schema, whose answers programs can read and a small model can finish.

    JSON schemas allow properties that they don't name unless they say otherwise, and then a small model keeps writing such properties until
    ``max_tokens``. RFC 3339 has dates and times that Python refuses: the year 0, the second 60, and z for Z.

    Args:
        schema: the schema.
        closes: allow no properties besides those that the schema names.
    """
    if not isinstance(schema, Mapping):
        return schema
    found = dict(schema)
    for name in _INNER & found.keys():
        inner = found[name]
        if name in _MAPS and isinstance(inner, Mapping):
            found[name] = {key: _narrowed(value, closes=closes) for key, value in inner.items()}
        elif name not in _MAPS:
            is_list = isinstance(inner, list)
            found[name] = [_narrowed(value, closes=closes) for value in inner] if is_list else _narrowed(inner, closes=closes)
    form = found.get("format")
    if isinstance(form, str) and form in _TIMES:
        found.setdefault("pattern", f"^{_TIMES[form]}$")
    if closes and _is_open(found):
        found["additionalProperties"] = False
    return found


def _is_open(schema: Mapping[str, Any]) -> bool:
    """Return True if a schema names properties, including all that it requires, and says nothing about others."""
    named, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(named, Mapping) or not named or not isinstance(required, list):
        return False
    is_silent = schema.keys().isdisjoint(("additionalProperties", "patternProperties", "minProperties"))
    return is_silent and all(str(name) in named for name in required)


def _too_much(wanted: str, got: int) -> ConfigError:
    return ConfigError(f"response_format: schema: expected {wanted}, got {shorten(str(got), MAX_NAME)}")


def _values(schema: Any) -> Iterator[tuple[Any, int]]:
    """Yield a value and all values in it, each with its level of nesting."""
    waiting = [(schema, 1)]
    while waiting:
        value, level = waiting.pop()
        yield value, level
        inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        waiting += [(each, level + 1) for each in inside]
