"""Requests of each API with all that it has, and each of their fields changed: to other types, sizes, depths and signs."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from tests.attack.processes import CHAT, TEXT

__all__ = ["COUNT", "FULL", "MESSAGES", "ODD", "PLAIN", "RESPONSES", "changed", "nested"]

RESPONSES, MESSAGES, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"

Place = tuple[str | int, ...]

_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
_IMAGE = "data:image/png;base64,AAAA"


def _chat() -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": _IMAGE}}], "name": "u"},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "r"},
            {"role": "tool", "tool_call_id": "c1", "content": "4"},
            {"role": "user", "content": "Hi"},
        ],
        "max_tokens": 2,
        "n": 1,
        "temperature": 0,
        "top_p": 1.0,
        "top_k": 5,
        "min_p": 0.1,
        "seed": 1,
        "stop": ["x"],
        "logit_bias": {"5": 1},
        "frequency_penalty": 0.1,
        "presence_penalty": 0.1,
        "logprobs": True,
        "top_logprobs": 1,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": _SCHEMA, "strict": True}}],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "metadata": {"a": "b"},
        "user": "u",
        "service_tier": "auto",
        "stream": False,
        "stream_options": {"include_usage": True, "streamco_origin": False},
        "return_token_ids": False,
        "reasoning_effort": "low",
        "chat_template_kwargs": {"a": 1},
    }


def _text() -> dict[str, Any]:
    return {"model": "m", "prompt": "Hi", "max_tokens": 2, "temperature": 0, "stop": ["x"], "echo": False, "best_of": 1, "stream": False}


def _response() -> dict[str, Any]:
    function = {"type": "function", "name": "f", "parameters": _SCHEMA, "strict": True, "description": "d"}
    return {
        "model": "m",
        "input": [
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}]},
            {"type": "function_call", "name": "f", "namespace": "n", "arguments": "{}", "call_id": "c1"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "4"}]},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "x"}, {"type": "refusal", "refusal": "y"}],
            },
            {"role": "user", "content": [{"type": "input_image", "image_url": _IMAGE, "detail": "low"}]},
        ],
        "instructions": "Be brief.",
        "max_output_tokens": 2,
        "temperature": 0,
        "top_p": 1.0,
        "metadata": {"a": "b"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "s", "schema": _SCHEMA, "strict": True}, "verbosity": "low"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 1,
        "tools": [function, {"type": "namespace", "name": "n", "description": "d", "tools": [dict(function)]}],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": True,
        "truncation": "disabled",
        "service_tier": "auto",
        "store": False,
        "stream": False,
        "stream_options": {"include_obfuscation": False},
        "user": "u",
    }


def _message() -> dict[str, Any]:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "4"}, dict(image)], "is_error": True}
    return {
        "model": "m",
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, image]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "t", "signature": "s"},
                    {"type": "text", "text": "x"},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": "b"}},
                ],
            },
            {"role": "user", "content": [result]},
            {"role": "user", "content": "Hi"},
        ],
        "max_tokens": 2,
        "stop_sequences": ["x"],
        "temperature": 0,
        "top_p": 1.0,
        "top_k": 5,
        "tools": [{"name": "f", "description": "d", "input_schema": _SCHEMA, "type": "custom", "strict": True, "defer_loading": False}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": _SCHEMA}},
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "stream": False,
    }


FULL: dict[str, dict[str, Any]] = {CHAT: _chat(), TEXT: _text(), RESPONSES: _response(), MESSAGES: _message(), COUNT: _message()}

_KEPT = {"temperature", "top_p", "top_k", "min_p", "seed", "stop", "logit_bias", "frequency_penalty", "stream", "metadata", "user"}
_HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
_OWN: dict[str, dict[str, Any]] = {
    CHAT: {**_HELLO, "logprobs": True, "top_logprobs": 1},
    TEXT: {"prompt": "Hi", "max_tokens": 2, "logprobs": 1},
    RESPONSES: {"input": [{"role": "user", "content": "Hi"}], "max_output_tokens": 2, "tool_choice": "none"},
    MESSAGES: {**_HELLO, "system": [{"type": "text", "text": "Be brief."}], "stop_sequences": ["x"]},
    COUNT: {**_HELLO, "system": "Be brief."},
}
PLAIN: dict[str, dict[str, Any]] = {  # what a device's model can do
    path: {name: value for name, value in body.items() if name in _KEPT} | _OWN[path] for path, body in FULL.items()
}


def nested(depth: int, kind: str = "list") -> Any:
    """Return a value of this many levels."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 1e308, -1e308, 1e-320, 1 << 63, 1 << 64, -(1 << 63), 10**300, 10**4000, -(10**4000)),
    *("", " ", "\x00", "x" * 5000, "\x1b]0;evil\x07", "\u202e\ufffe\U0010ffff", "%s{0}{model}", "1", "٣", "9" * 5000, "user\r\nX-Evil: 1"),
    *([], [None], [[]], [{}], [""], [1, "a", None], ["x"] * 1000, {}, {"": ""}, {"type": None}, {"type": []}, {"type": {}}),
    *({"type": "x" * 500}, {"type": "text"}, {"9" * 5000: 1}, {"x" * 5000: "y"}, {"__class__": 1, "__proto__": {}}),
    *(nested(depth, kind) for depth in (50, 300) for kind in ("list", "object")),
)


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield where each value is, the inner ones after the outer."""
    if place:
        yield place
    if isinstance(value, dict):
        for name, each in value.items():
            yield from places(each, (*place, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from places(each, (*place, index))


def changed(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the body with one field changed, and what was changed."""
    for place in places(body):
        for odd in ODD:
            copy = deepcopy(body)
            _parent(copy, place)[place[-1]] = odd
            yield f"{'.'.join(map(str, place))} = {str(odd)[:60] if not isinstance(odd, int) else 'a number'}", copy
        copy = deepcopy(body)
        del _parent(copy, place)[place[-1]]
        yield f"no {'.'.join(map(str, place))}", copy


def _parent(body: dict[str, Any], place: Place) -> Any:
    value: Any = body
    for step in place[:-1]:
        value = value[step]
    return value
