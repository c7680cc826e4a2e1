"""Operators on the events of the Responses API and the Messages API."""

from __future__ import annotations

import copy
import json
import random

from tests.mutants.operators.parts import end, finals, has_content, is_json, items
from tests.mutants.operators.registry import SHAPE, operator
from tests.mutants.stream import Event, Json, Stream


@operator("responses", "messages", touches="names", stage=SHAPE)
def names_of_events_missing(stream: Stream, rng: random.Random) -> Stream | None:
    found = [event for event in stream.events if event.name and event.object.get("type")]
    for event in found:
        event.name = None
    return stream if found else None


@operator("responses", "messages", touches="names", stage=SHAPE)
def names_of_events_all_message(stream: Stream, rng: random.Random) -> Stream | None:
    found = [event for event in stream.events if event.object.get("type") and event.object["type"] != "error"]
    for event in found:
        event.name = "message"
    return stream if found else None


@operator("responses", "messages", touches="names", stage=SHAPE)
def types_of_events_missing(stream: Stream, rng: random.Random) -> Stream | None:
    found = [event for event in stream.events if event.name and event.object.get("type") == event.name]
    for event in found:
        del event.object["type"]
    return stream if found else None


@operator("responses", "messages", touches="first")
def first_event_missing(stream: Stream, rng: random.Random) -> Stream | None:
    kept = [event for event in stream.events if event.type not in ("message_start", "response.created")]
    if len(kept) == len(stream.events):
        return None
    stream.events = kept
    return stream


@operator("responses", touches="items")
def ids_of_items_change(stream: Stream, rng: random.Random) -> Stream | None:
    found = [event.object for event in stream.events if "item_id" in event.object]
    for owner in found:
        owner["item_id"] = f"x_{rng.randrange(10**6)}"
    if rng.random() < 0.5:
        for item in items(stream):
            item["id"] = f"y_{rng.randrange(10**6)}"
    return stream if found else None


@operator("responses", touches="items")
def ids_of_items_missing(stream: Stream, rng: random.Random) -> Stream | None:
    is_empty = rng.random() < 0.5
    owners = [(event.object, "item_id") for event in stream.events if "item_id" in event.object]
    owners += [(item, "id") for item in items(stream) if "id" in item]
    for owner, key in owners:
        if is_empty:
            owner[key] = ""
        else:
            owner.pop(key, None)
    return stream if owners else None


@operator("responses", touches="items")
def index_of_items(stream: Stream, rng: random.Random) -> Stream | None:
    found = [event.object for event in stream.events if "output_index" in event.object]
    shape = rng.randrange(4)
    for owner in found:
        match shape:
            case 0:
                owner["output_index"] = 0
            case 1:
                owner["output_index"] = str(owner["output_index"])
            case 2:
                del owner["output_index"]
            case _:
                owner["output_index"] += 1
    return stream if found else None


@operator("responses", touches="content index")
def index_of_content(stream: Stream, rng: random.Random) -> Stream | None:
    found = [(event.object, key) for event in stream.events for key in ("content_index", "summary_index") if key in event.object]
    if any(owner[key] != 0 for owner, key in found):
        return None
    is_text = rng.random() < 0.5
    for owner, key in found:
        if is_text:
            owner[key] = str(owner[key])
        else:
            del owner[key]
    return stream if found else None


@operator("responses", touches="call ids")
def ids_of_called_items_missing(stream: Stream, rng: random.Random) -> Stream | None:
    found = [item for item in items(stream) if "call_id" in item]
    for item in found:
        del item["call_id"]
    return stream if found else None


@operator("responses", touches="numbers")
def sequence_numbers_missing(stream: Stream, rng: random.Random) -> Stream | None:
    for event in stream.events:
        event.object.pop("sequence_number", None)
    return stream


@operator("responses", touches="deltas, halves, names of calls")
def content_in_done_events_alone(stream: Stream, rng: random.Random) -> Stream | None:
    kept: list[Event]
    match rng.randrange(4):
        case 0:
            kept = [event for event in stream.events if not event.type.endswith(".delta")]
        case 1:
            kept = [event for event in stream.events if not event.type.endswith((".delta", ".added"))]
        case 2:
            kept = [event for event in stream.events if event.type.count(".") == 1 or event.type.startswith("response.output_item")]
        case _:
            kept = [event for event in stream.events if event.type.count(".") == 1 or event.type == "response.output_item.done"]
    if len(kept) == len(stream.events):
        return None
    stream.events = kept
    return stream


@operator("responses", touches="deltas, halves, response, items, names of calls")
def content_in_the_final_response_alone(stream: Stream, rng: random.Random) -> Stream | None:
    kept = [event for event in stream.events if event.type.count(".") == 1]
    if len(kept) == len(stream.events):
        return None
    stream.events = kept
    return stream


@operator("responses", touches="deltas, response, names of calls")
def content_in_deltas_alone(stream: Stream, rng: random.Random) -> Stream | None:
    kept = [event for event in stream.events if not event.type.endswith(".done")]
    if not any(event.type.endswith(".delta") for event in kept):
        return None
    stream.events = kept
    for event in finals(stream):
        event.object["response"]["output"] = []
    return stream


@operator("responses", touches="deltas, halves")
def arguments_of_items_as_objects(stream: Stream, rng: random.Random) -> Stream | None:
    whole = [item for item in items(stream) if (given := item.get("arguments")) and (not isinstance(given, str) or is_json(given))]
    if not whole:
        return None
    stream.events = [event for event in stream.events if not event.type.startswith("response.function_call_arguments")]
    for item in whole:
        if isinstance(item["arguments"], str):
            item["arguments"] = json.loads(item["arguments"])
    return stream


@operator("responses", touches="names of calls")
def names_of_called_items_late(stream: Stream, rng: random.Random) -> Stream | None:
    found = [
        event.object["item"] for event in stream.events if event.type == "response.output_item.added" and event.object["item"].get("name")
    ]
    for item in found:
        if rng.random() < 0.5:
            item["name"] = ""
        else:
            del item["name"]
    return stream if found else None


@operator("responses", touches="end, response")
def response_incomplete(stream: Stream, rng: random.Random) -> Stream | None:
    found = finals(stream)
    reason = rng.choice(["max_output_tokens", "content_filter"])
    for event in found:
        event.object["type"] = "response.incomplete"
        event.object["response"] |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
        event.name = event.name and "response.incomplete"
    return stream if found else None


@operator("messages", touches="blocks")
def index_of_blocks(stream: Stream, rng: random.Random) -> Stream | None:
    found = [event.object for event in stream.events if "index" in event.object]
    shape = rng.randrange(5)
    for number, owner in enumerate(found):
        match shape:
            case 0:
                owner["index"] = 0
            case 1:
                owner["index"] = str(owner["index"])
            case 2:
                del owner["index"]
            case 3:
                owner["index"] = number
            case _:
                owner["index"] += 3
    return stream if found else None


@operator("messages", touches="blocks")
def ends_of_blocks_missing(stream: Stream, rng: random.Random) -> Stream | None:
    kept = [event for event in stream.events if event.type != "content_block_stop"]
    if len(kept) == len(stream.events):
        return None
    stream.events = kept
    return stream


@operator("messages", touches="call ids")
def ids_of_tools_missing(stream: Stream, rng: random.Random) -> Stream | None:
    found = [block for block in _starts(stream) if block.get("type") == "tool_use"]
    for block in found:
        block.pop("id", None)
        if rng.random() < 0.5:
            block["id"] = ""
    return stream if found else None


def _starts(stream: Stream) -> list[Json]:
    return [event.object["content_block"] for event in stream.events if event.type == "content_block_start"]


def _blocks(stream: Stream) -> list[tuple[Json, list[Event]]]:
    """Return each block's start and its deltas; the blocks come one after the other."""
    found: list[tuple[Json, list[Event]]] = []
    for event in stream.events:
        if event.type == "content_block_start":
            found.append((event.object["content_block"], []))
        elif has_content(event) and found:
            found[-1][1].append(event)
    return found


def _joined(deltas: list[Event], key: str) -> str:
    return "".join(event.object["delta"].get(key) or "" for event in deltas)


@operator("messages", touches="input, halves")
def input_in_the_start(stream: Stream, rng: random.Random) -> Stream | None:
    found = [
        (block, deltas) for block, deltas in _blocks(stream) if block.get("type") == "tool_use" and is_json(_joined(deltas, "partial_json"))
    ]
    keeps_deltas = rng.random() < 0.5
    for block, deltas in found:
        block["input"] = json.loads(_joined(deltas, "partial_json"))
        if not keeps_deltas:
            stream.events = [event for event in stream.events if not any(event is each for each in deltas)]
    return stream if found else None


@operator("messages", touches="input, halves, delta")
def text_in_the_start(stream: Stream, rng: random.Random) -> Stream | None:
    found = [(block, deltas) for block, deltas in _blocks(stream) if block.get("type") in ("text", "thinking") and deltas]
    has_rest = rng.random() < 0.5
    for block, deltas in found:
        moved = deltas[:1] if has_rest else [event for event in deltas if block["type"] in event.object["delta"]]
        block[block["type"]] = _joined(moved, block["type"])
        stream.events = [event for event in stream.events if not any(event is each for each in moved)]
    return stream if found else None


@operator("messages", touches="hosted")
def hosted_tool(stream: Stream, rng: random.Random) -> Stream | None:
    block = {"type": "server_tool_use", "id": "srvtoolu_9", "name": "web_search", "input": {}}
    data: list[Json] = [
        {"type": "content_block_start", "index": 90, "content_block": block},
        {"type": "content_block_delta", "index": 90, "delta": {"type": "input_json_delta", "partial_json": '{"query": "x"}'}},
        {"type": "content_block_stop", "index": 90},
    ]
    places = [place for place, event in enumerate(stream.events[: end(stream)]) if event.type == "content_block_start"]
    place = rng.choice([*places, end(stream)])
    stream.events[place:place] = [Event(each, each["type"]) for each in data]
    return stream


@operator("responses", touches="hosted")
def hosted_item(stream: Stream, rng: random.Random) -> Stream | None:
    item = {"id": "ws_9", "type": "web_search_call", "status": "completed"}
    data: list[Json] = [
        {"type": "response.output_item.added", "output_index": 90, "item": item},
        {"type": "response.web_search_call.searching", "output_index": 90, "item_id": "ws_9"},
        {"type": "response.output_item.done", "output_index": 90, "item": copy.deepcopy(item)},
    ]
    places = [place for place, event in enumerate(stream.events[: end(stream)]) if event.type == "response.output_item.added"]
    place = rng.choice([*places, end(stream)])
    stream.events[place:place] = [Event(each, each["type"]) for each in data]
    return stream
