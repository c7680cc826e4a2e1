"""Answers whose right reading was written by hand, byte by byte, to check the oracle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tests.mutants.oracle.reading import Call, Ends, Reading


@dataclass(frozen=True, slots=True)
class Written:
    """A body and its right reading."""

    name: str
    body: bytes
    reading: Reading
    api: Literal["chat", "responses", "messages"] = "chat"
    ends: Ends = "clean"
    status: int = 200


def _chat(delta: str, reason: str = "null", more: str = "") -> bytes:
    return f'data: {{"choices":[{{"index":0,"delta":{delta},"finish_reason":{reason}}}]{more}}}\n\n'.encode()


def _text(text: str, reason: str = "null") -> bytes:
    return _chat(f'{{"content":"{text}"}}', reason)


def _call(fields: str) -> bytes:
    return _chat(f'{{"tool_calls":[{{{fields}}}]}}')


def _typed(kind: str, fields: str = "") -> bytes:
    return f'event: {kind}\ndata: {{"type":"{kind}"{fields}}}\n\n'.encode()


_DONE = b"data: [DONE]\n\n"
_STOP = _chat("{}", '"stop"')
_WHOLE = Reading("The sky is", reason="stop")
_CUT = Reading("The sky", whole=False, failure="cut")
_SKY, _IS = _text("The sky"), _text(" is")

_TEXTS = [
    Written("a reason and [DONE]", _SKY + _IS + _STOP + _DONE, _WHOLE),
    Written("a cut after a reason", _SKY + _IS + _STOP, _WHOLE, ends="cut"),
    Written("a cut after a blank reason", _text("The sky", '""'), _CUT, ends="cut"),
    Written("blank reasons and a clean end", _text("The sky", '"null"') + _chat("{}", "false"), _CUT),
    Written("[DONE] without a reason", _SKY + _IS + _DONE, replace(_WHOLE, reason=None)),
    Written(
        "a reason in each chunk, then silence",
        _text("The sky", '"stop"') + _text(" is", '"stop"'),
        replace(_CUT, text="The sky is"),
        ends="stall",
    ),
    Written("a reason in each chunk, then a clean end", _text("The sky", '"stop"') + _text(" is", '"stop"'), _WHOLE),
    Written(
        "a reason before the text, then silence", _chat('{"role":"assistant"}', '"stop"'), Reading(whole=False, failure="cut"), ends="stall"
    ),
    Written(
        "a failure as a reason",
        _SKY + _chat('{"content":" is"}', '"abort"') + _DONE,
        replace(_CUT, text="The sky is", failure="failed", word="abort"),
    ),
    Written(
        "an error after a reason",
        _SKY + _STOP + b'data: {"error":{"message":"worn out"}}\n\n',
        replace(_CUT, failure="failed", word="worn out"),
    ),
    Written("a torn event after a reason", _SKY + _IS + _STOP + b'data: {"usa', _WHOLE),
    Written("a last event without its empty line", _SKY + _IS + _STOP.rstrip(), _WHOLE),
    Written("the same with a cut", _SKY + _IS + _STOP.rstrip(), replace(_CUT, text="The sky is"), ends="cut"),
    Written(
        "unknown keys in the choices and no content",
        b'data: {"choices":[{"output":"The sky","finish_reason":"stop"}]}\n\n' + _DONE,
        Reading(whole=False, failure="malformed"),
    ),
    Written(
        "the same, and a reason that explains it",
        b'data: {"choices":[{"output":"The sky","finish_reason":"length"}]}\n\n' + _DONE,
        Reading(reason="length"),
    ),
    Written(
        "keys that can hold no text",
        b'data: {"choices":[{"score":1,"note":"","why":{"type":"stop"},"finish_reason":"stop"}]}\n\n' + _DONE,
        Reading(reason="stop"),
    ),
    Written(
        "a key with a text deep inside",
        b'data: {"choices":[{"why":[{"more":{"parts":["The sky"]}}],"finish_reason":"stop"}]}\n\n' + _DONE,
        Reading(whole=False, failure="malformed"),
    ),
    Written("an empty answer with a reason", _chat('{"role":"assistant","content":""}') + _STOP + _DONE, Reading(reason="stop")),
    Written("[DONE] alone", _DONE, Reading(whole=False, failure="malformed")),
    Written("message for delta", b'data: {"choices":[{"message":{"content":"The sky is"},"finish_reason":"stop"}]}\n\n', _WHOLE),
    Written(
        "halves of a character",
        _text("a\\ud83d") + b": ping\n\n" + _text("\\ude00b\\ud83d") + _STOP + _DONE,
        Reading("a\U0001f600b\ufffd", reason="stop"),
    ),
    Written("a half before a cut", _text("a\\ud83d"), Reading("a", whole=False, failure="cut"), ends="cut"),
    Written(
        "CRLF, a byte order mark and status 201", b"\xef\xbb\xbf" + (_SKY + _IS + _STOP + _DONE).replace(b"\n", b"\r\n"), _WHOLE, status=201
    ),
    Written("a page", b"<html>data: no</html>", Reading(whole=False, failure="malformed")),
    Written("JSON in place of events", b'\n\n{"choices":[{"index":0,"message":{"content":"The sky is"},"finish_reason":"stop"}]}', _WHOLE),
]

_ZERO = ',"usage":{"prompt_tokens":0,"completion_tokens":0}'
_COUNT = ',"usage":{"input_tokens":30,"output_tokens":10}'

_COUNTS = [
    Written("usage of zero", _text("The sky is", '"stop"') + _chat("{}", more=_ZERO) + _DONE, _WHOLE),
    Written(
        "other names, then zero",
        _text("The sky is", '"stop"') + _chat("{}", more=_COUNT) + _chat("{}", more=_ZERO) + _DONE,
        replace(_WHOLE, prompt_tokens=30, completion_tokens=10),
    ),
]

_RUN = Reading(calls=(Call("run", '{"a":1}', "c1"), Call("see", '{"b":2}', "c2")), reason="tool_calls")
_CALLED = _chat("{}", '"tool_calls"') + _DONE

_CALLS = [
    Written(
        "ids that change",
        _call('"index":0,"id":"c1","function":{"name":"run","arguments":""}')
        + _call('"index":0,"id":"x","function":{"arguments":"{\\"a\\":"}')
        + _call('"index":0,"id":"y","function":{"arguments":"1}"}')
        + _call('"index":1,"id":"c2","function":{"name":"see","arguments":"{\\"b\\":2}"}')
        + _CALLED,
        _RUN,
    ),
    Written(
        "index 0 for all and no ids",
        _call('"index":0,"function":{"name":"run","arguments":"{\\"a\\":"}')
        + _call('"index":0,"function":{"arguments":"1}"}')
        + _call('"index":0,"function":{"name":"see","arguments":"{\\"b\\":2}"}')
        + _CALLED,
        replace(_RUN, calls=(Call("run", '{"a":1}'), Call("see", '{"b":2}'))),
    ),
    Written(
        "an index that comes late",
        _call('"id":"c1","function":{"name":"run","arguments":"{\\"a\\":"}')
        + _call('"index":0,"function":{"arguments":"1}"}')
        + _call('"index":1,"id":"c2","function":{"name":"see","arguments":"{\\"b\\":2}"}')
        + _CALLED,
        _RUN,
    ),
    Written(
        "custom calls without ids, whose pieces repeat their name",
        _call('"index":0,"custom":{"name":"shell","input":"ls "}')
        + _call('"index":0,"custom":{"name":"shell","input":"-l"}')
        + _call('"index":0,"custom":{"name":"print","input":"1"}')
        + _CALLED,
        replace(_RUN, calls=(Call("shell", "ls -l", is_custom=True), Call("print", "1", is_custom=True))),
    ),
    Written(
        "indexes as texts, and a name after the arguments",
        _call('"index":"0","id":"c1","function":{"arguments":"{\\"a\\":1}"}')
        + _call('"index":"1","id":"c2","function":{"name":"see","arguments":"{\\"b\\":2}"}')
        + _call('"index":"0","function":{"name":"run"}')
        + _CALLED,
        _RUN,
    ),
    Written(
        "a custom call beside a function call without arguments",
        _call('"index":0,"id":"c1","type":"custom","custom":{"name":"shell","input":"ls"}')
        + _call('"index":0,"custom":{"input":" -l"}')
        + _call('"index":1,"id":"c2","custom":{},"function":{"name":"now","arguments":""}')
        + _CALLED,
        replace(_RUN, calls=(Call("shell", "ls -l", "c1", is_custom=True), Call("now", "{}", "c2"))),
    ),
]

_ITEM = '{"type":"function_call","id":"f1","call_id":"c1","name":"run","arguments":"{\\"a\\":1}"}'
_SKY_ITEM = '{"type":"message","id":"m","content":[{"type":"output_text","text":"The sky"}]}'
_BLOCK = ',"index":0,"content_block":{"type":"tool_use","id":"c1","name":"run","input":{"a":1}}'
_RUN_ONE = Reading(calls=(Call("run", '{"a":1}', "c1"),), reason="tool_calls")
_BEGUN = _typed("message_start", ',"message":{"usage":{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":1}}')
_OK = _typed("content_block_delta", ',"index":0,"delta":{"type":"text_delta","text":"ok"}')
_ENDED = _typed("message_delta", ',"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}')

_TYPED = [
    Written(
        "text in a done event, a call in the final response alone",
        _typed("response.in_progress")
        + _typed("response.output_text.done", ',"output_index":0,"text":"The sky"')
        + _typed(
            "response.completed",
            f',"response":{{"output":[{{"type":"message","content":[{{"type":"output_text","text":"The sky"}}]}},{_ITEM}]}}',
        ),
        replace(_RUN_ONE, text="The sky"),
        "responses",
    ),
    Written(
        "arguments in item.done, and the same item in the final response",
        _typed("response.output_item.added", f',"output_index":0,"item":{_ITEM}'.replace('"{\\"a\\":1}"', '""'))
        + _typed("response.output_item.done", f',"output_index":0,"item":{_ITEM}')
        + _typed("response.completed", f',"response":{{"output":[{_ITEM}]}}'),
        _RUN_ONE,
        "responses",
    ),
    Written(
        "a part whose index is not its place in the item",
        _typed("response.output_text.delta", ',"item_id":"m","output_index":1,"content_index":1,"delta":"The sky"')
        + _typed("response.output_item.done", f',"output_index":1,"item":{_SKY_ITEM}')
        + _typed("response.completed", f',"response":{{"output":[{{"type":"reasoning","summary":[]}},{_SKY_ITEM}]}}'),
        Reading("The sky", reason="stop"),
        "responses",
    ),
    Written("no end event", _typed("response.output_text.delta", ',"delta":"The sky"') + _DONE, _CUT, "responses"),
    Written(
        "a failed response",
        _typed("response.failed", ',"response":{"error":{"message":"worn out"}}'),
        Reading(whole=False, failure="failed", word="worn out"),
        "responses",
    ),
    Written(
        "a ping that is no JSON, an unknown event first, [DONE] for message_stop",
        b"event: ping\ndata: ping\n\n" + _typed("vertex_event") + _BEGUN + _OK + _ENDED + _DONE,
        Reading("ok", reason="stop", prompt_tokens=7, completion_tokens=9),
        "messages",
    ),
    Written(
        "content after the reason, then a cut",
        _BEGUN + _OK + _ENDED + _OK + _ENDED,
        Reading("okok", prompt_tokens=7, completion_tokens=9, whole=False, failure="cut"),
        "messages",
        "cut",
    ),
    Written(
        "the input in the start and in deltas",
        _typed("content_block_start", _BLOCK)
        + _typed("content_block_delta", ',"index":0,"delta":{"type":"input_json_delta","partial_json":"{\\"a\\":1}"}')
        + _typed("message_delta", ',"delta":{"stop_reason":"tool_use"}')
        + _typed("message_stop"),
        _RUN_ONE,
        "messages",
    ),
    Written(
        "an overloaded server",
        _BEGUN + _OK + _typed("error", ',"error":{"message":"busy"}'),
        Reading("ok", prompt_tokens=7, whole=False, failure="failed", word="busy"),
        "messages",
    ),
]

WRITTEN = [*_TEXTS, *_COUNTS, *_CALLS, *_TYPED]
