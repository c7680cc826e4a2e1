"""Chat requests as bodies of the Messages API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamco.config import SamplingOptions
from streamco.wire.messages_api.message_body import build_message_body
from streamco.wire.messages_api.message_request import read_message_request

HI = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "f", "description": "does it", "parameters": SCHEMA}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
USE = {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}}


def build(*messages: Any, sampling: SamplingOptions | None = None, **extra: Any) -> dict[str, Any]:
    return build_message_body(messages or [HI], model="m", sampling=sampling or SamplingOptions(), max_tokens=99, extra=extra)


def test_a_short_request_is_short_and_has_a_limit() -> None:
    expected = {"model": "m", "messages": [HI], "max_tokens": 99, "stream": True}
    assert build(stream_options={"include_usage": True}, stream=False, user=None) == expected
    assert build(sampling=SamplingOptions(max_tokens=5))["max_tokens"] == 5


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"tools": [TOOL]}, {"tools": [{"name": "f", "description": "does it", "input_schema": SCHEMA}]}),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
            {"tools": [{"name": "f", "strict": True, "input_schema": {"type": "object", "properties": {}}}]},
        ),
        ({"tools": [{"type": "web_search_20250305"}]}, {"tools": [{"type": "web_search_20250305"}]}),
        ({"tool_choice": "auto"}, {"tool_choice": {"type": "auto"}}),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"tool_choice": {"type": "none"}}),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        ),
        ({"parallel_tool_calls": False}, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
        ({"parallel_tool_calls": True}, {}),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, {"tool_choice": {"type": "tool", "name": "f"}}),
        ({"reasoning_effort": "low"}, {"output_config": {"effort": "low"}}),
        ({"response_format": {"type": "text"}}, {}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        ),
        ({"user": "u"}, {"metadata": {"user_id": "u"}}),
        ({"thinking": {"type": "adaptive"}}, {"thinking": {"type": "adaptive"}}),
    ],
)
def test_fields_go_where_this_api_has_them(extra: dict[str, Any], expected: dict[str, Any]) -> None:
    assert {name: value for name, value in build(**extra).items() if name not in {"model", "messages", "stream", "max_tokens"}} == expected


def test_sampling_options_have_their_names() -> None:
    body = build(sampling=SamplingOptions(temperature=0.5, top_p=0.9, top_k=3, stop=("END",), logit_bias=((5, 1.0),)))
    assert (body["temperature"], body["top_p"], body["top_k"], body["stop_sequences"]) == (0.5, 0.9, 3, ["END"])
    assert body["logit_bias"] == {"5": 1.0}


def test_the_system_prompt_is_apart_and_results_of_tools_are_a_users_message() -> None:
    body = build(
        {"role": "system", "content": "Be"},
        {"role": "developer", "content": [{"type": "text", "text": "brief."}]},
        HI,
        {"role": "assistant", "content": "One", "tool_calls": [CALL, {**CALL, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "a"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c3", "function": {"name": "g", "arguments": ""}}]},
        {"role": "tool", "tool_call_id": "c3", "content": None},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "user", "content": [{"type": "text", "text": "And?"}]},
    )
    assert body["system"] == "Be\nbrief."
    assert body["messages"] == [
        HI,
        {"role": "assistant", "content": [{"type": "text", "text": "One"}, USE, {**USE, "id": "c2"}]},
        {"role": "user", "content": [result("c1", "a"), result("c2", "b")]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c3", "name": "g", "input": {}}]},
        {"role": "user", "content": [result("c3", "")]},
        {"role": "assistant", "content": "No."},
        {"role": "user", "content": [{"type": "text", "text": "And?"}]},
    ]


def result(call: str, text: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": text}


def test_images_are_data_or_links() -> None:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in ("data:image/png;base64,AA==", "https://example.org/x.png")]
    assert build({"role": "user", "content": parts})["messages"][0]["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/x.png"}},
    ]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "user", "content": [{"type": "input_audio"}]}, "expected parts of type text or image_url, got 'input_audio'"),
        ({"role": "assistant", "content": [{"type": "image_url"}]}, "expected parts of type text in this message, got 'image_url'"),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{x"}}]},
            "expected arguments of the call of 'f' that are a JSON object",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "[1]"}}]},
            "expected arguments of the call of 'f' that are a JSON object",
        ),
    ],
)
def test_what_has_no_form_is_refused(message: dict[str, Any], text: str) -> None:
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
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}},
    }
    body = build(*messages, sampling=SamplingOptions(temperature=0.5, stop=("END",)), **extra)
    chat = read_message_request(json.dumps(body).encode()).chat
    expected = {
        "model": "m",
        "messages": messages,
        "temperature": 0.5,
        "max_completion_tokens": 99,
        "stop": ["END"],
        "stream": True,
        **extra,
    }
    assert chat == {**expected, "stream_options": {"include_usage": True}}
