"""Chat requests as bodies of the Responses API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamco.config import SamplingOptions
from streamco.wire.responses_api.response_body import build_response_body
from streamco.wire.responses_api.response_request import read_response_request

HI = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "f", "description": "does it", "parameters": SCHEMA, "strict": True}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}


def build(*messages: Any, sampling: SamplingOptions | None = None, **extra: Any) -> dict[str, Any]:
    return build_response_body(messages or [HI], model="m", sampling=sampling or SamplingOptions(), extra=extra)


def test_a_short_request_is_short_and_nothing_is_stored() -> None:
    assert build(stream_options={"include_usage": True}, stream=False, user=None) == {
        "model": "m",
        "input": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "store": False,
    }
    assert build(store=True)["store"] is True


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"tools": [TOOL]}, {"tools": [{"type": "function", **TOOL["function"]}]}),  # type: ignore[dict-item]
        ({"tools": [{"type": "web_search"}]}, {"tools": [{"type": "web_search"}]}),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, {"tool_choice": {"type": "function", "name": "f"}}),
        ({"tool_choice": "required", "parallel_tool_calls": False}, {"tool_choice": "required", "parallel_tool_calls": False}),
        ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}),
        (
            {"response_format": {"type": "json_object"}, "verbosity": "low"},
            {"text": {"format": {"type": "json_object"}, "verbosity": "low"}},
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
        ),
        ({"logprobs": True, "top_logprobs": 2}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
        ({"user": "u", "metadata": {"a": "b"}}, {"user": "u", "metadata": {"a": "b"}}),
    ],
)
def test_fields_go_where_this_api_has_them(extra: dict[str, Any], expected: dict[str, Any]) -> None:
    assert {name: value for name, value in build(**extra).items() if name not in {"model", "input", "stream", "store"}} == expected


def test_sampling_options_have_their_names() -> None:
    sampling = SamplingOptions(temperature=0.5, top_p=0.9, top_k=3, max_tokens=7, stop=("END",), seed=1, logit_bias=((5, 1.0),))
    body = build(sampling=sampling)
    assert (body["temperature"], body["top_p"], body["max_output_tokens"]) == (0.5, 0.9, 7)
    assert (body["top_k"], body["seed"], body["stop"], body["logit_bias"]) == (3, 1, ["END"], {"5": 1.0})


def test_messages_are_items() -> None:
    parts = [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": "https://example.org/x.png", "detail": "low"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:x"}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    ]
    body = build(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": [{"type": "text", "text": "One"}], "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c2", "function": {"name": "g", "arguments": ""}}]},
    )
    assert body["input"] == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What?"},
                {"type": "input_image", "image_url": "https://example.org/x.png", "detail": "low"},
                {"type": "input_file", "filename": "a.pdf", "file_data": "data:x"},
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
            ],
        },
        {"role": "assistant", "content": "One"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
        {"role": "assistant", "content": "No."},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
    ]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "user", "content": [{"type": "video"}]}, "expected parts of type text, image_url, file or input_audio, got 'video'"),
        ({"role": "assistant", "content": [{"type": "image_url"}]}, "expected parts of type text in this message, got 'image_url'"),
        ({"role": "tool", "content": [{"type": "image_url"}]}, "expected parts of type text in this message, got 'image_url'"),
    ],
)
def test_a_part_without_a_form_is_refused(message: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        build(message)


def test_a_request_is_read_as_it_was_built() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "One", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    extra = {
        "tools": [TOOL],
        "tool_choice": "required",
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        "logprobs": True,
        "top_logprobs": 2,
    }
    body = build(*messages, sampling=SamplingOptions(temperature=0.5, max_tokens=7), **extra)
    chat = read_response_request(json.dumps(body).encode()).chat
    expected = {"model": "m", "messages": messages, "temperature": 0.5, "max_completion_tokens": 7, "stream": True, **extra}
    assert chat == {**expected, "stream_options": {"include_usage": True}}
