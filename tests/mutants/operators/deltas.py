"""Operators on choices and deltas of chat streams, and on characters of every API that are cut in two."""

from __future__ import annotations

import copy
import random

from tests.mutants.operators.parts import TEXTS, choices, deltas, end, has_content, inner
from tests.mutants.operators.registry import ALL, SHAPE, operator
from tests.mutants.stream import Event, Json, Stream


@operator("chat", touches="choice index")
def index_of_the_choice(stream: Stream, rng: random.Random) -> Stream | None:
    shape = rng.randrange(4)
    for number, (_, choice) in enumerate(choices(stream)):
        match shape:
            case 0:
                choice["index"] = number
            case 1:
                choice["index"] = "0"
            case 2:
                choice["index"] = 5
            case _:
                choice.pop("index", None)
    return stream


@operator("chat", touches="chunk id")
def ids_of_chunks(stream: Stream, rng: random.Random) -> Stream | None:
    shape = rng.randrange(4)
    for number, event in enumerate(stream.events):
        if "choices" in event.object:
            match shape:
                case 0:
                    event.object["id"] = f"chatcmpl-{number}"
                case 1:
                    event.object["id"] = ""
                case 2:
                    event.object["id"] = number
                case _:
                    event.object.pop("id", None)
    return stream


@operator("chat", touches="choice key", stage=SHAPE)
def message_for_delta(stream: Stream, rng: random.Random) -> Stream | None:
    return _rename_delta(stream, "message")


@operator("chat", touches="choice key", stage=SHAPE)
def unknown_key_for_delta(stream: Stream, rng: random.Random) -> Stream | None:
    return _rename_delta(stream, rng.choice(["output", "response", "answer"]))


def _rename_delta(stream: Stream, key: str) -> Stream | None:
    texts = [text for delta in deltas(stream) if isinstance(text := delta.get("content"), str) and text]
    is_unclear = len(texts) > 1 and texts[1].startswith(texts[0])  # the text so far, or what is new?
    if is_unclear or any("message" in choice for _, choice in choices(stream)):
        return None
    for _, choice in choices(stream):
        if "delta" in choice:
            choice[key] = choice.pop("delta")
    return stream


@operator("chat", touches="choice key", stage=SHAPE)
def text_for_delta(stream: Stream, rng: random.Random) -> Stream | None:
    if any(value for delta in deltas(stream) for key, value in delta.items() if key not in ("role", "content") or isinstance(value, list)):
        return None
    if any("message" in choice for _, choice in choices(stream)):
        return None
    for _, choice in choices(stream):
        choice["text"] = (choice.pop("delta", None) or {}).get("content") or ""
    return stream


@operator("chat", touches="choice key, empty delta, usage")
def message_beside_delta(stream: Stream, rng: random.Random) -> Stream | None:
    text = ""
    for _, choice in choices(stream):
        piece = (choice.get("delta") or {}).get("content")
        text += piece if isinstance(piece, str) else ""
        choice["message"] = {"role": "assistant", "content": text}
    return stream


@operator("chat", touches="empty delta", stage=SHAPE)
def empty_deltas_missing(stream: Stream, rng: random.Random) -> Stream | None:
    found = [choice for _, choice in choices(stream) if choice.get("delta") == {}]
    is_null = rng.random() < 0.5
    for choice in found:
        choice.pop("delta")
        if is_null:
            choice["delta"] = None
    return stream if found else None


@operator("chat", touches="reasoning", stage=SHAPE)
def reasoning_under_another_name(stream: Stream, rng: random.Random) -> Stream | None:
    found = [delta for delta in deltas(stream) if "reasoning_content" in delta]
    name = rng.choice(["reasoning", "reasoning_text", "thinking", "both"])
    for delta in found:
        if name == "both":
            delta["reasoning"] = delta["reasoning_content"]
        else:
            delta[name] = delta.pop("reasoning_content")
    return stream if found else None


@operator("chat", touches="reasoning, parts", stage=SHAPE)
def content_as_parts(stream: Stream, rng: random.Random) -> Stream | None:
    found = [
        delta for delta in deltas(stream) if any(isinstance(delta.get(key), str) and delta[key] for key in ("content", "reasoning_content"))
    ]
    for delta in found:
        parts: list[Json] = []
        if delta.get("reasoning_content"):
            parts.append({"type": "thinking", "thinking": [{"type": "text", "text": delta.pop("reasoning_content")}]})
        if delta.get("content"):
            parts.append({"type": "text", "text": delta["content"]})
        delta["content"] = parts
    return stream if found else None


@operator("chat", touches="media")
def other_output_in_deltas(stream: Stream, rng: random.Random) -> Stream | None:
    places = [place for place, event in enumerate(stream.events[: end(stream)]) if event.object.get("choices")]
    if not places:
        return None
    event = copy.deepcopy(stream.events[rng.choice(places)])
    field: Json = rng.choice(
        [
            {"audio": {"id": "audio_1", "data": "UklGRg=="}},
            {"images": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]},
            {"reasoning_details": [{"type": "reasoning.encrypted", "data": "gAAA"}]},
            {"executed_tools": [{"type": "search", "index": 0}]},
            {"thinking_blocks": [{"type": "thinking", "signature": "EqQB"}]},
        ]
    )
    event.object.pop("usage", None)
    event.object["choices"] = [{"index": 0, "delta": field, "finish_reason": None}]
    stream.events.insert(rng.randint(0, end(stream)), event)
    return stream


@operator(*ALL, touches="halves")
def halves_of_characters(stream: Stream, rng: random.Random) -> Stream | None:
    return _cut_characters(stream, rng, is_lost=False)


@operator("chat", "messages", touches="halves")
def half_of_a_character_lost(stream: Stream, rng: random.Random) -> Stream | None:
    return _cut_characters(stream, rng, is_lost=True)


def _cut_characters(stream: Stream, rng: random.Random, *, is_lost: bool) -> Stream | None:
    events: list[Event] = []
    cuts = 0
    for event in stream.events:
        found = _owner(event)
        if found is None:
            events.append(event)
            continue
        owner, key = found
        text = owner[key]
        place = rng.choice([place for place, char in enumerate(text) if char > "\uffff"])
        high, low = _halves(text[place])
        owner[key] = text[:place] + high
        rest = ("" if is_lost else low) + text[place + 1 :]
        events += [event, _with_rest(event, key, rest)]
        cuts += 1
    stream.events = events
    return stream if cuts else None


def _halves(char: str) -> tuple[str, str]:
    units = char.encode("utf-16-be")
    return units[:2].decode("utf-16-be", "surrogatepass"), units[2:].decode("utf-16-be", "surrogatepass")


def _owner(event: Event) -> tuple[Json, str] | None:
    """Return the object and the key of a piece with a character beyond the first 65,536."""
    owners: list[tuple[Json, str]] = []
    for choice in event.object.get("choices") or []:
        delta = choice.get("delta") or {}
        owners += [(delta, key) for key in TEXTS]
        if len(delta.get("tool_calls") or []) == 1:
            owners.append(inner(delta["tool_calls"][0]))
    if not has_content(event):
        return None
    if event.type == "content_block_delta":
        owners += [(event.object["delta"], key) for key in ("text", "thinking", "partial_json")]
    elif event.type.endswith(".delta"):
        owners.append((event.object, "delta"))
    return next(((owner, key) for owner, key in owners if isinstance(owner.get(key), str) and max(owner[key], default="") > "\uffff"), None)


def _with_rest(event: Event, key: str, rest: str) -> Event:
    """Return the event that follows with the rest of a piece; a reason and the usage move to it."""
    following = copy.deepcopy(event)
    for choice in following.object.get("choices") or []:
        if key in ("arguments", "input"):
            entry = choice["delta"]["tool_calls"][0]
            kept = {"index": entry["index"]} if "index" in entry else {}
            choice["delta"] = {"tool_calls": [{**kept, "custom" if key == "input" else "function": {key: rest}}]}
        else:
            choice["delta"] = {key: rest}
        choice.pop("logprobs", None)
    for choice in event.object.get("choices") or []:
        choice["finish_reason"] = None
    if following.object.get("choices"):
        event.object.pop("usage", None)
    elif "delta" in following.object and isinstance(following.object["delta"], str):
        following.object["delta"] = rest
    elif following.type == "content_block_delta":
        following.object["delta"][key] = rest
    return following
