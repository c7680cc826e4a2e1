"""The parts of streams that several operators look for."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.mutants.stream import DONE, Event, Json, Stream

TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
"""Fields of a chat delta that hold text."""


def choices(stream: Stream) -> Iterator[tuple[Event, Json]]:
    """Yield each choice of a chat stream with its event."""
    for event in stream.events:
        for choice in event.object.get("choices") or []:
            yield event, choice


def deltas(stream: Stream) -> Iterator[Json]:
    """Yield each delta of a chat stream."""
    for _, choice in choices(stream):
        if isinstance(choice.get("delta"), dict):
            yield choice["delta"]


def has_content(event: Event) -> bool:
    """Return True if an event of any API carries a piece of the answer."""
    for choice in event.object.get("choices") or []:
        if any(value for key, value in (choice.get("delta") or {}).items() if key != "role"):
            return True
    return bool(event.object) and (event.type == "content_block_delta" or event.type.endswith(".delta"))


def contents(stream: Stream) -> list[int]:
    """Return the places of the events that carry a piece of the answer."""
    return [place for place, event in enumerate(stream.events) if has_content(event)]


def reasons(stream: Stream) -> list[tuple[Json, str]]:
    """Return where finish reasons stand or could stand: an object and its key."""
    if stream.api == "chat":
        return [(choice, "finish_reason") for _, choice in choices(stream)]
    found = [event.object.get("delta") for event in stream.events if event.type == "message_delta"]
    return [(delta, "stop_reason") for delta in found if isinstance(delta, dict)]


def is_mark(event: Event) -> bool:
    """Return True for the event that ends an answer of its API."""
    return event.data == DONE or event.type in ("message_stop", "response.completed", "response.incomplete")


def finals(stream: Stream) -> list[Event]:
    """Return the events that have the final response."""
    return [event for event in stream.events if is_mark(event) and isinstance(event.object.get("response"), dict)]


def end(stream: Stream) -> int:
    """Return the place of the mark that ends the answer, or the number of events if it has none."""
    return next((place for place, event in enumerate(stream.events) if is_mark(event)), len(stream.events))


def calls(stream: Stream) -> list[list[Json]]:
    """Return the entries of each call of a chat stream; nothing if an entry has no index to know its call by."""
    found: dict[int, list[Json]] = {}
    for delta in deltas(stream):
        for entry in delta.get("tool_calls") or []:
            if not isinstance(entry.get("index"), int):
                return []
            found.setdefault(entry["index"], []).append(entry)
    return list(found.values())


def inner(entry: Json) -> tuple[Json, str]:
    """Return the object of a call's entry that holds its name, and the key of its arguments there."""
    if entry.get("custom"):
        return entry["custom"], "input"
    return entry.setdefault("function", {}), "arguments"


def arguments(entries: list[Json]) -> str:
    """Return the arguments of a call."""
    return "".join(inner(entry)[0].get(inner(entry)[1]) or "" for entry in entries)


def items(stream: Stream) -> Iterator[Json]:
    """Yield each output item of a Responses stream, wherever it stands."""
    for event in stream.events:
        if isinstance(event.object.get("item"), dict):
            yield event.object["item"]
    for event in finals(stream):
        yield from event.object["response"].get("output") or []


def is_json(text: str) -> bool:
    """Return True if a text is a JSON value; another operator may have made it none."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
