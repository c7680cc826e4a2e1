"""Operators that add events: unknown ones, pings, comments and errors."""

from __future__ import annotations

import random

from tests.mutants.operators.parts import contents, end
from tests.mutants.operators.registry import ALL, operator
from tests.mutants.stream import DONE, Event, Json, Stream

PINGS: dict[str, list[Event]] = {
    "chat": [
        Event({}, "ping"),
        Event("ping", "ping"),
        Event({"type": "ping"}),
        Event({"type": "ping"}, "ping"),
        Event("2026-01-01T00:00:00Z", "heartbeat"),
        Event({"object": "keepalive"}),
    ],
    "responses": [
        Event({"type": "keepalive", "sequence_number": 3}, "keepalive"),
        Event({"type": "keepalive"}),
        Event({"type": "response.in_progress", "response": {"id": "resp_0"}}, "response.in_progress"),
        Event({"type": "response.queued", "response": {"id": "resp_0"}}, "response.queued"),
        Event("ping", "ping"),
        Event({}, "ping"),
    ],
    "messages": [
        Event({"type": "ping"}, "ping"),
        Event({"type": "ping"}),
        Event("ping", "ping"),
        Event({}, "ping"),
        Event("ok", "heartbeat"),
    ],
}

UNKNOWN: dict[str, list[Event]] = {
    "chat": [
        Event({"object": "gateway.notice", "notice": "queued"}),
        Event({"step": 3, "of": 5}, "progress"),
        Event("queued", "status"),
        Event({"choices": [], "provider": "x"}),
        Event({"choices": None, "object": "chat.completion.chunk"}),
    ],
    "responses": [
        Event({"type": "gateway.notice", "text": "hi", "delta": "no text"}, "gateway.notice"),
        Event({"type": "response.shimmer", "delta": "no text"}, "response.shimmer"),
        Event({"step": 3}, "progress"),
        Event("queued", "status"),
    ],
    "messages": [
        Event({"type": "vertex_event"}, "vertex_event"),
        Event({"type": "content_block_shimmer", "index": 0, "delta": {"text": "no text"}}, "content_block_shimmer"),
        Event({"step": 3}, "progress"),
        Event("queued", "status"),
    ],
}


def _insert(stream: Stream, rng: random.Random, events: list[Event]) -> Stream:
    """Put events of a list at one place, at several ones, or everywhere."""
    count = rng.choice([1, 1, 2, len(stream.events)])
    for _ in range(count):
        event = rng.choice(events)
        data = dict(event.data) if isinstance(event.data, dict) else event.data
        stream.events.insert(rng.randrange(len(stream.events) + 1), Event(data, event.name, event.comment))
    return stream


@operator(*ALL, touches="events")
def pings(stream: Stream, rng: random.Random) -> Stream | None:
    return _insert(stream, rng, PINGS[stream.api])


@operator(*ALL, touches="events")
def unknown_events(stream: Stream, rng: random.Random) -> Stream | None:
    return _insert(stream, rng, UNKNOWN[stream.api])


@operator(*ALL, touches="comments")
def comments(stream: Stream, rng: random.Random) -> Stream | None:
    texts = [" keep-alive", " OPENROUTER PROCESSING", "", " {not: json", "data: no data"]
    return _insert(stream, rng, [Event(None, comment=text) for text in texts])


@operator(*ALL, touches="comments")
def events_without_data(stream: Stream, rng: random.Random) -> Stream | None:
    return _insert(stream, rng, [Event(None, "ping"), Event("", "ping"), Event(""), Event(None, "content_block_delta")])


@operator(*ALL, touches="unknown fields")
def unknown_fields(stream: Stream, rng: random.Random) -> Stream | None:
    field = rng.choice(["x_trace", "obfuscation", "sla_metrics"])
    value: object = rng.choice(["ab", {"ms": 3}, [1, 2], 7, False])
    for event in stream.events:
        if event.object:
            event.object[field] = value
    return stream


@operator(*ALL, touches="error")
def error_null(stream: Stream, rng: random.Random) -> Stream | None:
    value: object = rng.choice([None, "", {}])
    for event in stream.events:
        if event.object:
            event.object["error"] = value
    return stream


_WORD = "The engine overheated"


def _errors(stream: Stream) -> list[Event]:
    """The forms in which servers send an error within a stream."""
    error: Json = {"message": _WORD, "type": "server_error", "code": 503}
    forms = [
        Event({"error": error}),
        Event({"error": error}, "error"),
        Event({"message": _WORD, "code": 503}, "error"),
        Event({"error": _WORD}),
    ]
    match stream.api:
        case "chat":
            forms += [
                Event({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error", "error": error}]}),
                Event({"object": "error", "message": _WORD, "code": 503}),
                Event({"choices": [], "error": error}),
                Event({"detail": _WORD}),
            ]
        case "responses":
            forms += [
                Event({"type": "error", "code": "server_error", "message": _WORD, "param": None}, "error"),
                Event({"type": "error", "code": "server_error", "message": _WORD, "param": None}),
                Event({"type": "response.failed", "response": {"status": "failed", "error": error, "output": []}}, "response.failed"),
            ]
        case _:
            typed = {"type": "overloaded_error", "message": _WORD}
            forms += [Event({"type": "error", "error": typed}, "error"), Event({"type": "error", "error": typed})]
    return forms


@operator(*ALL, touches="error")
def error_within_the_stream(stream: Stream, rng: random.Random) -> Stream | None:
    place = rng.randint(0, end(stream))
    stream.events.insert(place, rng.choice(_errors(stream)))
    match rng.randrange(3):
        case 0:
            del stream.events[place + 1 :]
        case 1:
            stream.events[place + 1 :] = [Event(DONE)]
    return stream


@operator("chat", touches="first")
def role_missing(stream: Stream, rng: random.Random) -> Stream | None:
    found = [
        choice["delta"] for event in stream.events for choice in event.object.get("choices") or [] if "role" in (choice.get("delta") or {})
    ]
    for delta in found:
        del delta["role"]
    return stream if found else None


@operator(*ALL, touches="large", is_large=True)
def event_of_8_mib(stream: Stream, rng: random.Random) -> Stream | None:
    found = contents(stream)
    if not found:
        return None
    large = "x" * (8 * 1024 * 1024)
    event = stream.events[rng.choice(found)]
    if rng.random() < 0.5:
        event.object["obfuscation"] = large
    elif stream.api == "chat":
        event.object["choices"][0]["delta"]["images"] = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{large}"}}]
    elif stream.api == "responses":
        item: Json = {"id": "ig_1", "type": "image_generation_call", "status": "completed", "result": large}
        done = Event({"type": "response.output_item.done", "output_index": 91, "item": item}, "response.output_item.done")
        stream.events.insert(end(stream), done)
    else:
        block: Json = {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_8", "content": large}
        start: Json = {"type": "content_block_start", "index": 91, "content_block": block}
        stream.events[end(stream) : end(stream)] = [
            Event(start, "content_block_start"),
            Event({"type": "content_block_stop", "index": 91}, "content_block_stop"),
        ]
    return stream
