"""Converts a file's data to options, with helpful errors: the setting, what was expected, what was found, and a close match."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from streamco.errors import ConfigError
from streamco.sim.experiment.yaml_document import Location

__all__ = ["convert_options", "pick"]

T = TypeVar("T", bound=Struct)

NAMES: Mapping[object, str] = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "true or false",
    type(None): "nothing",
    Any: "a value",
}
MAX_CHARACTERS = 60  # most characters of a value that an error quotes


def convert_options(data: Any, kind: type[T], where: Callable[[Location], str]) -> T:
    """Convert data to options.

    Args:
        data: the value of a YAML document.
        kind: a Struct. Structs inside it, including those in lists and unions, are checked, too.
        where: returns the text by which an error names a location in ``data``.

    Raises:
        ConfigError: a key is unknown, a value doesn't fit, or a setting is missing.
    """
    for location, name, known in _unknown_keys(data, kind, ()):
        raise ConfigError(f"{where((*location, name))}: {pick(name, known, 'a key that is unknown')}")
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), data, kind, where)) from error


def pick(got: object, known: Mapping[str, Any] | tuple[str, ...], instead: str | None = None) -> str:
    """Return text like "expected one of a, b, got c; did you mean a?".

    Args:
        got: the unknown value.
        known: the known values.
        instead: text to show instead of the value, or None to show the value.
    """
    near = get_close_matches(str(got), [str(name) for name in known], n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"expected {'one of ' if len(known) > 1 else ''}{', '.join(known) or 'nothing'}, got {instead or _show(got)}{hint}"


def _unknown_keys(data: Any, hint: Any, location: Location) -> Iterator[tuple[Location, str, tuple[str, ...]]]:
    """Yield (location of the mapping, key, keys that it may have) for each unknown key."""
    if isinstance(data, list):
        inner = next((args[0] for one in _parts(hint) if get_origin(one) in {tuple, list} and (args := get_args(one))), Any)
        for index, each in enumerate(data):
            yield from _unknown_keys(each, inner, (*location, index))
    elif isinstance(data, dict):
        kind = next((one for one in _parts(hint) if isinstance(one, type) and issubclass(one, Struct)), None)
        if kind is None:
            return
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
        for name, each in data.items():
            if name not in fields:
                yield location, str(name), tuple(fields)
            else:
                yield from _unknown_keys(each, fields[name], (*location, name))


def _parts(hint: Any) -> Iterator[Any]:
    """Yield the members of a union, or the type hint itself if it isn't a union."""
    if get_origin(hint) in {Union, types.UnionType}:
        for part in get_args(hint):
            yield from _parts(part)
    elif get_origin(hint) is Annotated and not isinstance(get_args(hint)[1], Meta):
        yield from _parts(get_args(hint)[0])
    else:
        yield hint


def _explain(text: str, data: Any, kind: type[Struct], where: Callable[[Location], str]) -> str:
    """Return msgspec's error in the format of this package's errors.

    msgspec's text looks like ``Expected `int`, got `str` - at `$.world.devices```.
    """
    reason, _, path = text.rpartition(" - at `$")
    if not reason:
        reason, path = text, ""
    location: Location = tuple(
        int(index) if index else name for name, index in re.findall(r"([^.\[\]`]+)|\[(\d+)\]", path.removesuffix("`"))
    )
    if missing := re.search(r"missing required field `(.+)`", reason):
        location = (*location, missing[1])
        return f"{where(location)}: expected {_describe(_hint_at(kind, location))}, got nothing"
    if not reason.startswith(("Expected `", "Invalid ")):
        return f"{where(location)}: {reason}"  # a Struct's own check, whose text follows this package's format
    value, hint = _value_at(data, location), _hint_at(kind, location)
    choices = tuple(str(choice) for one in _parts(hint) if get_origin(one) is Literal for choice in get_args(one))
    near = get_close_matches(str(value), choices, n=1) if isinstance(value, str) else []
    note = f"; did you mean {near[0]}?" if near else _note_on_exponents(value)
    return f"{where(location)}: expected {_describe(hint)}, got {_show(value)}{note}"


def _hint_at(hint: Any, location: Location) -> Any:
    """Return the type hint of a location, or ``Any`` if the types have no such location."""
    for name in location:
        if isinstance(name, int):
            hint = next((args[0] for one in _parts(hint) if get_origin(one) in {tuple, list} and (args := get_args(one))), Any)
        else:
            kinds = [one for one in _parts(hint) if isinstance(one, type) and issubclass(one, Struct)]
            found = [field.type for one in kinds for field in msgspec.structs.fields(one) if field.encode_name == name]
            hint = found[0] if found else Any
    return hint


def _value_at(data: Any, location: Location) -> Any:
    for name in location:
        try:
            data = data[name]
        except (KeyError, IndexError, TypeError):
            return data
    return data


def _describe(hint: Any) -> str:
    """Describe a type in words."""
    words = [word for part in _parts(hint) if part is not type(None) for word in _words(part)]
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words) or "nothing"


def _words(part: Any) -> list[str]:
    origin, args = get_origin(part), get_args(part)
    if origin is Annotated:
        return [f"{_describe(args[0])}{_bounds(args[1])}"]
    if origin is Literal:
        return [str(choice) for choice in args]
    if origin in {tuple, list}:
        return [f"a list of {_describe(args[0])} each" if args else "a list"]
    if isinstance(part, type) and issubclass(part, Struct):
        return [f"settings ({', '.join(field.encode_name for field in msgspec.structs.fields(part))})"]
    return ["settings" if origin is dict or part is dict else NAMES.get(part, str(part))]


def _bounds(meta: Meta) -> str:
    words = [f"above {meta.gt:g}" if meta.gt is not None else "", f"of {meta.ge:g} or more" if meta.ge is not None else ""]
    words += [f"below {meta.lt:g}" if meta.lt is not None else "", f"up to {meta.le:g}" if meta.le is not None else ""]
    return "".join(f" {word}" for word in words if word)


def _show(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."


def _note_on_exponents(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
        return "; YAML takes it for a string without a point and a sign, as in 1.0e+3"
    return ""
