"""Operators on the tool calls of chat streams."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from tests.mutants.operators.parts import arguments, calls, choices, inner, is_json
from tests.mutants.operators.registry import operator
from tests.mutants.stream import Json, Stream


def _drop_ids(found: list[list[Json]]) -> None:
    for entries in found:
        for entry in entries:
            entry.pop("id", None)


def _is_apart_without_ids(found: list[list[Json]]) -> bool:
    """Return True if each call can be told from the next by its name and its arguments alone."""
    return all(is_json(arguments(entries)) for entries in found[:-1]) and all(inner(entries[0])[0].get("name") for entries in found)


def _each_later(stream: Stream, change: Callable[[Json, Json], None]) -> Stream | None:
    """Change each entry of a call after its first."""
    later = [(entries[0], entry) for entries in calls(stream) for entry in entries[1:]]
    for first, entry in later:
        change(first, entry)
    return stream if later else None


@operator("chat", touches="calls")
def ids_of_calls_change(stream: Stream, rng: random.Random) -> Stream | None:
    return _each_later(stream, lambda _, entry: entry.update(id=f"x-{rng.randrange(10**6)}"))


@operator("chat", touches="calls")
def ids_of_calls_repeat(stream: Stream, rng: random.Random) -> Stream | None:
    has_names = rng.random() < 0.5

    def change(first: Json, entry: Json) -> None:
        if first.get("id"):
            entry["id"] = first["id"]
            if has_names:
                inner(entry)[0]["name"] = inner(first)[0].get("name")

    return _each_later(stream, change)


@operator("chat", touches="calls")
def ids_of_calls_missing(stream: Stream, rng: random.Random) -> Stream | None:
    found = calls(stream)
    _drop_ids(found)
    return stream if found else None


@operator("chat", touches="calls")
def ids_of_calls_empty(stream: Stream, rng: random.Random) -> Stream | None:
    found = calls(stream)
    empty = rng.choice(["", None])
    for entries in found:
        for entry in entries[rng.randrange(2) :]:
            entry["id"] = empty
    return stream if found else None


@operator("chat", touches="calls")
def ids_of_calls_late(stream: Stream, rng: random.Random) -> Stream | None:
    found = [entries for entries in calls(stream) if len(entries) > 1 and entries[0].get("id")]
    for entries in found:
        entries[-1]["id"] = entries[0].pop("id")
    return stream if found else None


@operator("chat", touches="calls")
def index_of_calls_is_text(stream: Stream, rng: random.Random) -> Stream | None:
    found = calls(stream)
    for entries in found:
        for entry in entries:
            entry["index"] = str(entry["index"])
    return stream if found else None


@operator("chat", touches="calls")
def index_of_calls_grows_in_steps(stream: Stream, rng: random.Random) -> Stream | None:
    found = calls(stream)
    start, step = rng.randint(0, 3), rng.randint(1, 3)
    for entries in found:
        for entry in entries:
            entry["index"] = start + step * entry["index"]
    return stream if found else None


@operator("chat", touches="calls")
def index_of_calls_always_zero(stream: Stream, rng: random.Random) -> Stream | None:
    return _one_index(stream, rng, lambda entry: entry.update(index=0))


@operator("chat", touches="calls")
def index_of_calls_missing(stream: Stream, rng: random.Random) -> Stream | None:
    return _one_index(stream, rng, lambda entry: entry.pop("index"))


def _one_index(stream: Stream, rng: random.Random, change: Callable[[Json], object]) -> Stream | None:
    found = calls(stream)
    has_ids = all(entries[0].get("id") for entries in found)
    may_drop = _is_apart_without_ids(found)
    if not found or not (has_ids or may_drop):
        return None
    if may_drop and (not has_ids or rng.random() < 0.5):
        _drop_ids(found)
    for entries in found:
        for entry in entries:
            change(entry)
    return stream


@operator("chat", touches="calls")
def index_of_a_call_late(stream: Stream, rng: random.Random) -> Stream | None:
    found = calls(stream)
    if len(found) != 1 or any(entry.get("id") or inner(entry)[0].get("name") for entry in found[0][1:]):
        return None
    for entry in found[0][: rng.randint(1, len(found[0]))]:
        del entry["index"]
    return stream


@operator("chat", touches="calls")
def names_of_custom_calls_repeat(stream: Stream, rng: random.Random) -> Stream | None:
    found = [entries for entries in calls(stream) if entries[0].get("custom") and len(entries) > 1]
    for entries in found:
        for entry in entries[1:]:
            inner(entry)[0]["name"] = inner(entries[0])[0].get("name")
    return stream if found else None


@operator("chat", touches="calls, halves")
def calls_in_one_delta(stream: Stream, rng: random.Random) -> Stream | None:
    found = calls(stream)
    if not found:
        return None
    whole = _collapse(stream, found)
    shape = rng.randrange(3)
    for entry in whole:
        if shape == 1 and _is_apart_without_ids(found):
            entry["index"] = 0
            entry.pop("id", None)
        elif shape == 2 and _is_apart_without_ids(found):
            entry.pop("index")
            entry.pop("id", None)
    return stream


def _collapse(stream: Stream, found: list[list[Json]]) -> list[Json]:
    """Put whole calls into the delta in which the first of them began."""
    for entries in found:
        owner, key = inner(entries[0])
        owner[key] = arguments(entries)
    whole = [entries[0] for entries in found]
    for _, choice in choices(stream):
        delta = choice.get("delta") or {}
        if delta.get("tool_calls"):
            is_first = any(entry is whole[0] for entry in delta["tool_calls"])
            if is_first:
                delta["tool_calls"] = whole
            else:
                del delta["tool_calls"]
    return whole


@operator("chat", touches="calls")
def names_of_calls_late(stream: Stream, rng: random.Random) -> Stream | None:
    found = [entries for entries in calls(stream) if len(entries) > 1 and inner(entries[0])[0].get("name") and "custom" not in entries[0]]
    for entries in found:
        name = inner(entries[0])[0].pop("name")
        inner(entries[rng.randrange(1, len(entries))])[0]["name"] = name
    return stream if found else None


@operator("chat", touches="calls, halves")
def arguments_as_objects(stream: Stream, rng: random.Random) -> Stream | None:
    found = calls(stream)
    if not found or not all(is_json(arguments(entries)) and not entries[0].get("custom") for entries in found):
        return None
    for entry in _collapse(stream, found):
        entry["function"]["arguments"] = json.loads(entry["function"]["arguments"])
    return stream


@operator("chat", touches="calls, halves")
def arguments_repeated_at_the_end(stream: Stream, rng: random.Random) -> Stream | None:
    found = [entries for entries in calls(stream) if len(entries) > 1 and not inner(entries[-1])[0].get("name")]
    for entries in found:
        owner, key = inner(entries[-1])
        owner[key] = (owner.get(key) or "") + arguments(entries)
    return stream if found else None


@operator("chat", touches="custom key")
def custom_beside_function(stream: Stream, rng: random.Random) -> Stream | None:
    found = [entry for entries in calls(stream) for entry in entries if "function" in entry]
    for entry in found:
        entry["custom"] = {}
    return stream if found else None


@operator("chat", touches="type of calls")
def types_of_calls_missing(stream: Stream, rng: random.Random) -> Stream | None:
    found = [entry for entries in calls(stream) for entry in entries if "type" in entry]
    for entry in found:
        del entry["type"]
    return stream if found else None
