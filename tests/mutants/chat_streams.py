"""Small well-formed streams of the three APIs, written by hand from the APIs' documentation."""

from __future__ import annotations

from typing import Any

from tests.mutants.stream import DONE, Event, Framing, Json, Stream

_FLAGS = "🇳🇴"


def _chunk(delta: Json | None = None, reason: str | None = None, **more: Any) -> Event:
    """One chunk of the chat API; without a delta it has no choices."""
    head: Json = {"id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 1750000000, "model": "m"}
    further: Json = {key: more.pop(key) for key in ("logprobs", "content_filter_results") if key in more}
    choice: Json = {"index": 0, "delta": delta, **further, "finish_reason": reason}
    return Event({**head, "choices": [] if delta is None else [choice], **more})


def _usage(prompt: int, completion: int) -> Json:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _completion(message: Json, reason: str, usage: Json) -> Json:
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": reason}
    return {"id": "chatcmpl-7", "object": "chat.completion", "created": 1750000000, "model": "m", "choices": [choice], "usage": usage}


def _call(index: int, call_id: str | None = None, name: str | None = None, arguments: str = "") -> Json:
    head = {"id": call_id, "type": "function"} if call_id else {}
    function: Json = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return {"index": index, **head, "function": function}


def _whole_call(call_id: str, name: str, arguments: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


_ROLE: Json = {"role": "assistant", "content": ""}
_TEXT = ["The", " sky", " is", " blue 🌌", " — heute", "、是的。"]

CHAT = [
    Stream(
        "chat",
        "text",
        [_chunk(_ROLE), *[_chunk({"content": text}) for text in _TEXT], _chunk({}, "stop"), _chunk(usage=_usage(11, 9)), Event(DONE)],
        _completion({"content": "".join(_TEXT)}, "stop", _usage(11, 9)),
    ),
    Stream(
        "chat",
        "reasoning",
        [
            _chunk({"role": "assistant", "content": None, "reasoning_content": ""}),
            *[_chunk({"content": None, "reasoning_content": text}) for text in ("Hm", ", 17", "·3 🤔", " = 51.")],
            *[_chunk({"content": text, "reasoning_content": None}) for text in ("It is", " 51", ".")],
            _chunk({"content": "", "reasoning_content": None}, "stop", usage=_usage(20, 14)),
            Event(DONE),
        ],
        _completion({"content": "It is 51.", "reasoning_content": "Hm, 17·3 🤔 = 51."}, "stop", _usage(20, 14)),
    ),
    Stream(
        "chat",
        "calls",
        [
            _chunk({"role": "assistant", "content": None, "tool_calls": [_call(0, "call_a", "weather")]}),
            *[_chunk({"tool_calls": [_call(0, arguments=text)]}) for text in ('{"city":', ' "Oslo', f' {_FLAGS}"}}')],
            _chunk({"tool_calls": [_call(1, "call_b", "clock")]}),
            *[_chunk({"tool_calls": [_call(1, arguments=text)]}) for text in ('{"zone"', ': "CET"', "}")],
            _chunk({}, "tool_calls"),
            _chunk(usage=_usage(80, 31)),
            Event(DONE),
        ],
        _completion(
            {
                "tool_calls": [
                    _whole_call("call_a", "weather", f'{{"city": "Oslo {_FLAGS}"}}'),
                    _whole_call("call_b", "clock", '{"zone": "CET"}'),
                ]
            },
            "tool_calls",
            _usage(80, 31),
        ),
    ),
    Stream(
        "chat",
        "custom call",
        [
            _chunk({**_ROLE, "content": None}),
            _chunk({"tool_calls": [{"index": 0, "id": "call_c", "type": "custom", "custom": {"name": "shell", "input": ""}}]}),
            *[_chunk({"tool_calls": [{"index": 0, "custom": {"input": text}}]}) for text in ("ls", " -l", " /tmp/🐚")],
            _chunk({}, "tool_calls"),
            _chunk(usage=_usage(60, 12)),
            Event(DONE),
        ],
        _completion(
            {"tool_calls": [{"id": "call_c", "type": "custom", "custom": {"name": "shell", "input": "ls -l /tmp/🐚"}}]},
            "tool_calls",
            _usage(60, 12),
        ),
    ),
    Stream(
        "chat",
        "refusal",
        [
            _chunk({"role": "assistant", "content": None, "refusal": ""}),
            *[_chunk({"refusal": text}) for text in ("I'm", " sorry", " 🙏,", " no.")],
            _chunk({}, "stop"),
            Event(DONE),
        ],
        _completion({"refusal": "I'm sorry 🙏, no."}, "stop", _usage(9, 6)),
    ),
    Stream(
        "chat",
        "logprobs",
        [
            _chunk({"role": "assistant", "content": "", "refusal": None}, logprobs=None),
            *[
                _chunk({"content": text}, logprobs={"content": [{"token": text, "logprob": chance, "bytes": None, "top_logprobs": []}]})
                for text, chance in (("Yes", -0.125), (" it", -0.5), (" is", -0.25))
            ],
            _chunk({}, "stop", logprobs=None),
            _chunk(usage=_usage(8, 3)),
            Event(DONE),
        ],
        _completion({"content": "Yes it is", "refusal": None}, "stop", _usage(8, 3)),
    ),
    Stream(
        "chat",
        "without [DONE]",
        [
            *[
                _chunk({"role": "assistant", "content": text}, usage=_usage(12, count))
                for count, text in enumerate(("Rus", "sia", " 🗺"), 1)
            ],
            _chunk({"role": "assistant", "content": "."}, "stop", usage=_usage(12, 4)),
        ],
        _completion({"content": "Russia 🗺."}, "stop", _usage(12, 4)),
        Framing(newline="\r\n"),
    ),
    Stream(
        "chat",
        "text and a call without arguments",
        [
            _chunk(_ROLE),
            _chunk({"content": "Let me "}),
            _chunk({"content": "look."}),
            _chunk({"tool_calls": [_call(0, "call_d", "now")]}),
            _chunk({}, "tool_calls", usage=_usage(33, 8)),
            Event(DONE),
        ],
        _completion({"content": "Let me look.", "tool_calls": [_whole_call("call_d", "now", "{}")]}, "tool_calls", _usage(33, 8)),
    ),
    Stream(
        "chat",
        "filter results and an image",
        [
            _chunk(prompt_filter_results=[{"prompt_index": 0, "content_filter_results": {}}]),
            _chunk(_ROLE, content_filter_results={}),
            _chunk({"content": "A fox:"}, content_filter_results={"hate": {"filtered": False, "severity": "safe"}}),
            _chunk(
                {"images": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]}, content_filter_results={}
            ),
            _chunk({}, "stop", content_filter_results={}),
            _chunk(usage=_usage(14, 270)),
            Event(DONE),
        ],
        None,
    ),
    Stream(
        "chat",
        "cut by its length",
        [_chunk({**_ROLE, "content": "One, "}), _chunk({"content": "two,"}, "length"), _chunk(usage=_usage(5, 4)), Event(DONE)],
        _completion({"content": "One, two,"}, "length", _usage(5, 4)),
    ),
]
