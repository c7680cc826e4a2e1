"""Small well-formed streams of OpenAI's Responses API and Anthropic's Messages API."""

from __future__ import annotations

from typing import Any

from tests.mutants.stream import Event, Json, Stream

_RESPONSE: Json = {"id": "resp_7", "object": "response", "created_at": 1750000000, "model": "m", "error": None}


def _usage(prompt: int, completion: int) -> Json:
    details: Json = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {"input_tokens": prompt, "output_tokens": completion, "total_tokens": prompt + completion, **details}


def _message(item_id: str, part: Json) -> Json:
    return {"id": item_id, "type": "message", "status": "completed", "role": "assistant", "content": [part]}


def _text(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": []}


def _items(*steps: tuple[Json, list[Json]]) -> list[Event]:
    """The events of items that come one after the other; each is its whole form and the events between its start and its end."""
    events = []
    for index, (item, between) in enumerate(steps):
        start = {**item, "status": "in_progress"}
        start |= {key: empty for key, empty in (("content", []), ("summary", []), ("arguments", ""), ("input", "")) if key in item}
        place = {"item_id": item["id"], "output_index": index}
        events.append(Event({"type": "response.output_item.added", "output_index": index, "item": start}))
        events += [Event({**each, **place}) for each in between]
        events.append(Event({"type": "response.output_item.done", "output_index": index, "item": item}))
    return events


def _pieces(kind: str, key: str, pieces: list[str], **place: Any) -> list[Json]:
    """Deltas of a text and the event that has all of it."""
    deltas = [{"type": f"response.{kind}.delta", **place, "delta": piece} for piece in pieces]
    return [*deltas, {"type": f"response.{kind}.done", **place, key: "".join(pieces)}]


def _part(part: Json, kind: str, key: str, pieces: list[str]) -> list[Json]:
    empty = {**part, key: ""}
    return [
        {"type": "response.content_part.added", "content_index": 0, "part": empty},
        *_pieces(kind, key, pieces, content_index=0),
        {"type": "response.content_part.done", "content_index": 0, "part": part},
    ]


def _text_item(item_id: str, pieces: list[str]) -> tuple[Json, list[Json]]:
    part = _text("".join(pieces))
    return _message(item_id, part), _part(part, "output_text", "text", pieces)


def _call_item(item_id: str, call_id: str, name: str, pieces: list[str]) -> tuple[Json, list[Json]]:
    item = {"id": item_id, "type": "function_call", "call_id": call_id, "name": name, "arguments": "".join(pieces), "status": "completed"}
    return item, _pieces("function_call_arguments", "arguments", pieces)


def _response(name: str, usage: Json, *steps: tuple[Json, list[Json]], incomplete: str | None = None) -> Stream:
    state = "incomplete" if incomplete else "completed"
    whole = {**_RESPONSE, "status": state, "output": [item for item, _ in steps], "usage": usage}
    whole["incomplete_details"] = {"reason": incomplete} if incomplete else None
    begun = {**_RESPONSE, "status": "in_progress", "output": [], "usage": None}
    events = [
        Event({"type": "response.created", "response": begun}),
        Event({"type": "response.in_progress", "response": dict(begun)}),
        *_items(*steps),
        Event({"type": f"response.{state}", "response": whole}),
    ]
    for number, event in enumerate(events):
        event.object["sequence_number"] = number
        event.name = event.type
    return Stream("responses", name, events, whole)


_REFUSAL = {"type": "refusal", "refusal": "I can't 🙅 help."}
_SUMMARY = ["**Sum", "ming** 🤔", " up"]
_THOUGHT = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "".join(_SUMMARY)}],
    "encrypted_content": "gAAA",
}
_SHELL = {"id": "ctc_1", "type": "custom_tool_call", "call_id": "call_c", "name": "shell", "input": "ls -l /tmp/🐚", "status": "completed"}
_SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "sky"}}

RESPONSES = [
    _response("text", _usage(11, 9), _text_item("msg_1", ["The sky", " is", " blue 🌌", "、是的。"])),
    _response(
        "reasoning",
        _usage(20, 30),
        (
            _THOUGHT,
            [
                {"type": "response.reasoning_summary_part.added", "summary_index": 0, "part": {"type": "summary_text", "text": ""}},
                *_pieces("reasoning_summary_text", "text", _SUMMARY, summary_index=0),
                {"type": "response.reasoning_summary_part.done", "summary_index": 0, "part": _THOUGHT["summary"][0]},
            ],
        ),
        _text_item("msg_1", ["It is", " 51", "."]),
    ),
    _response(
        "calls",
        _usage(80, 31),
        _call_item("fc_1", "call_a", "weather", ['{"city"', ': "Oslo 🇳', '🇴"}']),
        _call_item("fc_2", "call_b", "clock", ['{"zone":', ' "CET"}']),
    ),
    _response("refusal", _usage(9, 6), (_message("msg_1", _REFUSAL), _part(_REFUSAL, "refusal", "refusal", ["I can't", " 🙅", " help."]))),
    _response("custom call", _usage(60, 12), (_SHELL, _pieces("custom_tool_call_input", "input", ["ls", " -l /tmp", "/🐚"]))),
    _response(
        "hosted search",
        _usage(300, 15),
        (
            _SEARCH,
            [
                {"type": "response.web_search_call.in_progress"},
                {"type": "response.web_search_call.searching"},
                {"type": "response.web_search_call.completed"},
            ],
        ),
        _text_item("msg_1", ["Blue,", " says", " the web."]),
    ),
    _response("cut by its length", _usage(5, 4), _text_item("msg_1", ["One, ", "two,"]), incomplete="max_output_tokens"),
]


def _block(index: int, start: Json, kind: str, key: str, pieces: list[str]) -> list[Json]:
    deltas = [{"type": "content_block_delta", "index": index, "delta": {"type": kind, key: piece}} for piece in pieces]
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *deltas,
        {"type": "content_block_stop", "index": index},
    ]


def _text_block(index: int, pieces: list[str]) -> list[Json]:
    return _block(index, {"type": "text", "text": ""}, "text_delta", "text", pieces)


def _messages(name: str, blocks: list[list[Json]], content: list[Json], reason: str, counts: tuple[int, int]) -> Stream:
    prompt, completion = counts
    head: Json = {
        "id": "msg_7",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }
    events: list[Json] = [
        {"type": "message_start", "message": {**head, "usage": {"input_tokens": prompt, "output_tokens": 1}}},
        {"type": "ping"},
        *[each for block in blocks for each in block],
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": completion}},
        {"type": "message_stop"},
    ]
    whole = {**head, "content": content, "stop_reason": reason, "usage": {"input_tokens": prompt, "output_tokens": completion}}
    return Stream("messages", name, [Event(each, str(each["type"])) for each in events], whole)


def _tool(call_id: str, name: str, value: Json | None = None) -> Json:
    return {"type": "tool_use", "id": call_id, "name": name, "input": value or {}}


_THINKING: Json = {"type": "thinking", "thinking": "", "signature": ""}
_SERVER_TOOL: Json = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
_FOUND: Json = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result", "title": "Sky"}]}

MESSAGES = [
    _messages(
        "text",
        [_text_block(0, ["The sky", " is blue 🌌", ", ja."])],
        [{"type": "text", "text": "The sky is blue 🌌, ja."}],
        "end_turn",
        (11, 9),
    ),
    _messages(
        "thinking",
        [
            [
                *_block(0, _THINKING, "thinking_delta", "thinking", ["Hm, ", "17·3 🤔", " = 51."])[:-1],
                {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "EqQB"}},
                {"type": "content_block_stop", "index": 0},
            ],
            _text_block(1, ["It is", " 51."]),
        ],
        [{"type": "thinking", "thinking": "Hm, 17·3 🤔 = 51.", "signature": "EqQB"}, {"type": "text", "text": "It is 51."}],
        "end_turn",
        (20, 30),
    ),
    _messages(
        "calls",
        [
            _text_block(0, ["Let me ", "look."]),
            _block(1, _tool("toolu_a", "weather"), "input_json_delta", "partial_json", ["", '{"city":', ' "Oslo 🇳🇴"}']),
            _block(2, _tool("toolu_b", "now"), "input_json_delta", "partial_json", []),
        ],
        [{"type": "text", "text": "Let me look."}, _tool("toolu_a", "weather", {"city": "Oslo 🇳🇴"}), _tool("toolu_b", "now")],
        "tool_use",
        (80, 31),
    ),
    _messages(
        "call without arguments",
        [_block(0, _tool("toolu_n", "now"), "input_json_delta", "partial_json", [""])],
        [_tool("toolu_n", "now")],
        "tool_use",
        (40, 8),
    ),
    _messages(
        "hosted search",
        [
            _text_block(0, ["I'll search."]),
            _block(1, _SERVER_TOOL, "input_json_delta", "partial_json", ["", '{"query":', ' "sky"}']),
            _block(2, _FOUND, "", "", []),
            _text_block(3, ["Blue, ", "it says."]),
        ],
        [
            {"type": "text", "text": "I'll search."},
            {**_SERVER_TOOL, "input": {"query": "sky"}},
            _FOUND,
            {"type": "text", "text": "Blue, it says."},
        ],
        "end_turn",
        (300, 25),
    ),
    _messages("cut by its length", [_text_block(0, ["One, ", "two,"])], [{"type": "text", "text": "One, two,"}], "max_tokens", (5, 4)),
]
