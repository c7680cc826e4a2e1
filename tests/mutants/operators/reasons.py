"""Operators on finish reasons and on the marks that end answers."""

from __future__ import annotations

import copy
import random

from tests.mutants.operators.parts import contents, end, has_content, is_mark, reasons
from tests.mutants.operators.registry import ALL, SHAPE, operator
from tests.mutants.stream import DONE, Event, Json, Stream

BLANKS = ["", " ", "null", False, 0]
FAILURES = ["abort", "error", "network_error", "insufficient_system_resource", "error_finish", "timeout", "cancelled", "ABORT"]


def _said(stream: Stream) -> list[tuple[Json, str]]:
    return [(owner, key) for owner, key in reasons(stream) if owner.get(key)]


def _replace(stream: Stream, value: object) -> Stream | None:
    said = _said(stream)
    for owner, key in said:
        owner[key] = value
    return stream if said else None


def _put_early(stream: Stream, rng: random.Random, reason: object) -> None:
    """Give a reason in an event after which content comes."""
    if stream.api == "chat":
        last = contents(stream)[-1]
        early = [choice for event in stream.events[:last] for choice in event.object.get("choices") or []]
        rng.choice(early)["finish_reason"] = reason
    else:
        place = rng.choice(contents(stream))
        data = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}}
        stream.events.insert(place, Event(data, stream.events[place].name and "message_delta"))


def _has_early_place(stream: Stream) -> bool:
    found = contents(stream)
    return bool(found) and (stream.api != "chat" or any(event.object.get("choices") for event in stream.events[: found[-1]]))


@operator("chat", "messages", touches="reason")
def reason_blank(stream: Stream, rng: random.Random) -> Stream | None:
    return _replace(stream, rng.choice(BLANKS))


@operator("chat", touches="reason")
def reason_blank_in_each_chunk(stream: Stream, rng: random.Random) -> Stream | None:
    blank = rng.choice(BLANKS)
    keeps_last = rng.random() < 0.5
    for owner, key in reasons(stream):
        if not (keeps_last and owner.get(key)):
            owner[key] = blank
    return stream


@operator("chat", "messages", touches="reason")
def reason_early(stream: Stream, rng: random.Random) -> Stream | None:
    said = _said(stream)
    if not said or not _has_early_place(stream):
        return None
    reason = said[-1][0][said[-1][1]]
    if rng.random() < 0.4:
        _replace(stream, None)
    _put_early(stream, rng, reason)
    return stream


@operator("chat", touches="reason")
def reason_in_each_chunk(stream: Stream, rng: random.Random) -> Stream | None:
    last = contents(stream)
    if not last:
        return None
    is_shown_after = rng.random() < 0.5
    for event in stream.events[: None if is_shown_after else last[-1] + 1]:
        for choice in event.object.get("choices") or []:
            choice["finish_reason"] = "stop"
    return stream


@operator("chat", "messages", touches="reason")
def reason_twice(stream: Stream, rng: random.Random) -> Stream | None:
    for place, event in enumerate(stream.events):
        owners = [choice.get("finish_reason") for choice in event.object.get("choices") or []]
        if event.type == "message_delta":
            owners.append((event.object.get("delta") or {}).get("stop_reason"))
        if any(owners):
            again = copy.deepcopy(event)
            for choice in again.object.get("choices") or []:
                choice["delta"] = {}
                choice.pop("logprobs", None)
            stream.events.insert(place + 1, again)
            return stream
    return None


@operator("chat", "messages", touches="reason")
def reason_failing(stream: Stream, rng: random.Random) -> Stream | None:
    return _replace(stream, rng.choice(FAILURES))


@operator("chat", "messages", touches="reason")
def reason_failing_early(stream: Stream, rng: random.Random) -> Stream | None:
    if not _has_early_place(stream):
        return None
    _put_early(stream, rng, rng.choice(FAILURES))
    return stream


@operator("chat", "messages", touches="reason")
def reason_missing(stream: Stream, rng: random.Random) -> Stream | None:
    found = reasons(stream)
    for owner, key in found:
        owner.pop(key, None)
    return stream if found else None


@operator("chat", "messages", touches="reason")
def reason_unknown(stream: Stream, rng: random.Random) -> Stream | None:
    return _replace(stream, rng.choice(["eos", "STOP", "content_filter", "repetition"]))


@operator(*ALL, touches="end")
def end_mark_missing(stream: Stream, rng: random.Random) -> Stream | None:
    kept = [event for event in stream.events if not is_mark(event)]
    if len(kept) == len(stream.events):
        return None
    stream.events = kept
    return stream


@operator(*ALL, touches="end")
def end_mark_twice(stream: Stream, rng: random.Random) -> Stream | None:
    marks = [event for event in stream.events if is_mark(event)]
    stream.events += [copy.deepcopy(event) for event in marks]
    return stream if marks else None


@operator("responses", "messages", touches="end, reason")
def done_in_a_typed_api(stream: Stream, rng: random.Random) -> Stream | None:
    place = end(stream)
    match rng.randrange(4):
        case 0:
            stream.events.insert(rng.randrange(len(stream.events) + 1), Event(DONE))
        case 1:
            stream.events[place : place + 1] = [Event(DONE)]
        case 2:
            stream.events.insert(place, Event(DONE))
        case _:
            stream.events.append(Event(DONE))
    return stream


@operator(*ALL, touches="end", stage=SHAPE)
def content_after_the_end(stream: Stream, rng: random.Random) -> Stream | None:
    found = contents(stream)
    if not found or end(stream) == len(stream.events):
        return None
    stream.events.append(copy.deepcopy(stream.events[rng.choice(found)]))
    return stream


@operator("chat", "messages", touches="delta, calls, choice key, halves, items, reasoning, response, usage, input")
def nothing_delivered(stream: Stream, rng: random.Random) -> Stream | None:
    kept = [event for event in stream.events if not has_content(event) and not event.type.startswith("content_block")]
    if stream.api == "chat" and not any(event.object.get("choices") for event in kept):
        return None
    stream.events = kept
    return stream
