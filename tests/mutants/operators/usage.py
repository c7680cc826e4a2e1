"""Operators on the counts of tokens."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator

from tests.mutants.operators.parts import choices, end, finals
from tests.mutants.operators.registry import ALL, operator
from tests.mutants.stream import Event, Json, Stream

_RENAMED = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
}
_UNKNOWN = {
    "prompt_tokens": "promptTokenCount",
    "completion_tokens": "candidatesTokenCount",
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
}


def _owners(stream: Stream) -> Iterator[Json]:
    """Yield each object that has a usage with something in it."""
    for event in stream.events:
        for owner in (event.object, event.object.get("message"), event.object.get("response")):
            if isinstance(owner, dict) and isinstance(owner.get("usage"), dict):
                yield owner


@operator(*ALL, touches="usage")
def usage_of_zero(stream: Stream, rng: random.Random) -> Stream | None:
    owners = list(_owners(stream))
    zeros = rng.choice([("prompt", "input"), ("completion", "output"), ("prompt", "input", "completion", "output", "total")])
    for owner in owners:
        for key in owner["usage"]:
            if key.startswith(zeros) and key.endswith("_tokens"):
                owner["usage"][key] = 0
    return stream if owners else None


@operator(*ALL, touches="usage")
def usage_of_nothing(stream: Stream, rng: random.Random) -> Stream | None:
    owners = list(_owners(stream))
    shape = rng.randrange(4)
    for owner in owners:
        match shape:
            case 0:
                owner["usage"] = None
            case 1:
                owner["usage"] = {}
            case 2:
                owner["usage"] = dict.fromkeys(owner["usage"])
            case _:
                del owner["usage"]
    return stream if owners else None


@operator(*ALL, touches="usage")
def usage_renamed(stream: Stream, rng: random.Random) -> Stream | None:
    # Whether a prompt by another name includes what a cache held isn't clear.
    owners = [owner for owner in _owners(stream) if not any(value for key, value in owner["usage"].items() if key.startswith("cache_"))]
    if any(owner["usage"].get("cache_read_input_tokens") for owner in owners):
        return None  # OpenAI's prompt_tokens have those of the cache, Anthropic's input_tokens don't
    names = rng.choice([_RENAMED, _RENAMED, _UNKNOWN])
    for owner in owners:
        owner["usage"] = {
            names.get(key, key): value for key, value in owner["usage"].items() if key != "total_tokens" or rng.random() < 0.5
        }
    return stream if owners else None


@operator("chat", "messages", touches="usage")
def usage_of_zero_after_a_count(stream: Stream, rng: random.Random) -> Stream | None:
    owners = list(_owners(stream))
    if not owners:
        return None
    last = owners[-1]["usage"]
    empty: Json = rng.choice([{}, dict.fromkeys(last, 0), dict.fromkeys(last)])
    if stream.api == "chat":
        later = Event({**_head(stream), "choices": [], "usage": empty})
    else:
        later = Event({"type": "message_delta", "delta": {}, "usage": empty}, "message_delta")
    stream.events.insert(end(stream), later)
    return stream


def _head(stream: Stream) -> Json:
    """The fields that all chunks of a stream share."""
    chunk = next(event.object for event in stream.events if "choices" in event.object)
    return {key: chunk[key] for key in ("id", "object", "created", "model") if key in chunk}


@operator("chat", "messages", touches="usage")
def usage_late(stream: Stream, rng: random.Random) -> Stream | None:
    owners = list(_owners(stream))
    if not owners:
        return None
    usage = owners[-1].pop("usage")
    if stream.api == "chat":
        for owner in owners[:-1]:
            del owner["usage"]
        later = Event({**_head(stream), "choices": [], "usage": usage})
    else:
        later = Event({"type": "message_delta", "delta": {"stop_reason": None}, "usage": usage}, "message_delta")
    stream.events.insert(end(stream), later)
    return stream


@operator("chat", touches="usage")
def usage_early(stream: Stream, rng: random.Random) -> Stream | None:
    owners = list(_owners(stream))
    if not owners:
        return None
    usage = owners[-1]["usage"]
    for owner in owners:
        del owner["usage"]
    first = next(event.object for event in stream.events if "choices" in event.object)
    first["usage"] = usage
    return stream


@operator("chat", touches="usage")
def usage_in_each_chunk(stream: Stream, rng: random.Random) -> Stream | None:
    owners = list(_owners(stream))
    if not owners:
        return None
    last = owners[-1]["usage"]
    is_growing = rng.random() < 0.5
    chunks = [event.object for event in stream.events if "choices" in event.object]
    place = next((place for place, chunk in enumerate(chunks) if chunk is owners[-1]), len(chunks))
    for number, chunk in enumerate(chunks[:place]):
        count = min(number, last.get("completion_tokens") or 0) if is_growing else 0
        prompt = last.get("prompt_tokens") if is_growing else 0
        chunk.setdefault("usage", {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": count})
    return stream


@operator("chat", touches="usage")
def usage_in_the_choice(stream: Stream, rng: random.Random) -> Stream | None:
    owners = list(_owners(stream))
    said = [choice for _, choice in choices(stream) if choice.get("finish_reason")]
    if not owners or not said:
        return None
    usage = copy.deepcopy(owners[-1]["usage"])
    for owner in owners:
        del owner["usage"]
    said[-1]["usage"] = usage
    if said[-1].get("delta") == {} and rng.random() < 0.5:
        del said[-1]["delta"]
    return stream


@operator("responses", touches="usage, response")
def final_response_empty(stream: Stream, rng: random.Random) -> Stream | None:
    found = finals(stream)
    for event in found:
        event.object["response"] = {}
    return stream if found else None
