"""Bodies of the Responses API as chat requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, FunctionDelta, ToolCallDelta
from streamco.wire.request_fields import FieldError
from streamco.wire.responses_api.response_request import read_response_request
from streamco.wire.translated_request import TranslatedRequest
from tests.support.named_events import any_json

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOL = {"type": "function", "name": "f", "description": "does it", "parameters": SCHEMA, "strict": True}
SPACE = {"type": "namespace", "name": "files", "description": "a disk", "tools": [TOOL, {"type": "function", "name": "g"}]}


def read(**fields: Any) -> TranslatedRequest:
    return read_response_request(json.dumps({"input": "Hi", **fields}).encode())


def chat(**fields: Any) -> dict[str, Any]:
    """The chat fields beside the messages."""
    return {name: value for name, value in read(**fields).chat.items() if name != "messages"}


def response(**fields: Any) -> dict[str, Any]:
    """The response that a request gets, before there is an answer."""
    encoder = read(**fields).encoder(name="1", model="m", created=0)
    data = encoder.opening().split(b"data: ")[1].split(b"\n\n")[0]
    return dict(json.loads(data)["response"])


def test_a_short_request_is_short() -> None:
    asked = read(model="m")
    assert asked.chat == {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    assert (asked.is_streamed, asked.ends_open) == (False, False)


def test_a_stream_ends_with_usage_and_its_padding_is_left_out() -> None:
    asked = read(stream=True, stream_options={"include_obfuscation": False})
    assert asked.is_streamed
    assert asked.chat["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_output_tokens": 5}, {"max_completion_tokens": 5}),
        ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"reasoning": None, "text": None, "tools": None, "metadata": None}, {}),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {"verbosity": "low"}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
        ),
        (
            {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
            {
                "tools": [{"type": "function", "function": {name: value for name, value in TOOL.items() if name != "type"}}],
                "tool_choice": "required",
                "parallel_tool_calls": False,
            },
        ),
        ({"tools": [], "tool_choice": "auto"}, {}),
        (
            {"tools": [SPACE], "tool_choice": {"type": "function", "name": "g", "namespace": "files"}},
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "files__f", "description": "a disk\n\ndoes it", "parameters": SCHEMA, "strict": True},
                    },
                    {"type": "function", "function": {"name": "files__g"}},
                ],
                "tool_choice": {"type": "function", "function": {"name": "files__g"}},
            },
        ),
        ({"client_metadata": {"turn_id": "1"}}, {}),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"include": [], "store": True, "truncation": "disabled", "background": False, "max_tool_calls": 3}, {}),
        ({"include": ["reasoning.encrypted_content"]}, {}),
        ({"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]}, {"logprobs": True}),
        ({"metadata": {"a": "b"}}, {}),
        ({"user": "u", "top_k": 3, "seed": 1}, {"user": "u", "top_k": 3, "seed": 1}),
    ],
)
def test_fields_go_where_chat_has_them(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert chat(**fields) == expected


@pytest.mark.parametrize("tools", [None, [], [{**SPACE, "tools": []}]])
@pytest.mark.parametrize("choice", ["auto", "none", "required", {"type": "function", "name": "f"}])
def test_a_choice_of_tools_goes_out_only_with_tools(tools: Any, choice: Any) -> None:
    """Servers refuse ``tool_choice`` and ``parallel_tool_calls`` without ``tools``."""
    assert chat(tools=tools, tool_choice=choice, parallel_tool_calls=True) == {}
    shown = response(tools=tools, tool_choice=choice, parallel_tool_calls=False)
    assert (shown["tool_choice"], shown["parallel_tool_calls"]) == (choice, False)


def test_a_choice_names_the_function_as_chat_does() -> None:
    asked = chat(tools=[TOOL], tool_choice={"type": "function", "name": "f"})
    assert asked["tool_choice"] == {"type": "function", "function": {"name": "f"}}


def test_the_response_repeats_what_was_asked_for() -> None:
    fields: dict[str, Any] = {
        "instructions": "be brief",
        "max_output_tokens": 5,
        "metadata": {"a": "b"},
        "reasoning": {"effort": "low"},
        "temperature": 0.5,
        "text": {"format": {"type": "json_object"}},
        "tool_choice": "required",
        "tools": [TOOL],
        "parallel_tool_calls": False,
        "user": "u",
    }
    shown = response(**fields, store=True)
    assert {name: shown[name] for name in fields} == {**fields, "reasoning": {"effort": "low", "summary": None}}
    assert (shown["store"], shown["background"], shown["previous_response_id"], shown["truncation"]) == (False, False, None, "disabled")
    plain = response()
    assert (plain["metadata"], plain["tools"], plain["tool_choice"], plain["parallel_tool_calls"]) == ({}, [], "auto", True)
    assert (plain["text"], plain["temperature"], plain["instructions"]) == ({"format": {"type": "text"}}, None, None)


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "expected none, got some"),
        ({"conversation": "conv_1"}, "conversation", "expected none, got some"),
        ({"background": True}, "background", "expected none, got some"),
        ({"prompt": {"id": "p"}}, "prompt", "expected none, got some"),
        ({"moderation": {"model": "m"}}, "moderation", "expected none, got some"),
        ({"context_management": [{"type": "compaction"}]}, "context_management", "expected none, got some"),
        ({"truncation": "auto"}, "truncation", "expected disabled, got auto"),
        (
            {"include": ["file_search_call.results"]},
            "include[0]",
            "expected message.output_text.logprobs or reasoning.encrypted_content, got",
        ),
        (
            {"include": ["reasoning.encrypted_content", 5]},
            "include[1]",
            "expected message.output_text.logprobs or reasoning.encrypted_content",
        ),
        ({"top_logprobs": 3}, "top_logprobs", "only valid with message.output_text.logprobs in include"),
        ({"tools": [TOOL, {"type": "web_search"}]}, "tools[1].type", "expected function or namespace, got web_search"),
        ({"tools": [{"type": "file_search"}]}, "tools[0].type", "expected function or namespace, got file_search"),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name", "expected a string, got none"),
        ({"tools": [{**SPACE, "name": ""}]}, "tools[0].name", "expected the namespace's name, got an empty string"),
        (
            {"tools": [{"type": "namespace", "name": "s", "tools": [{"type": "custom"}]}]},
            "tools[0].tools[0].type",
            "expected function, got custom",
        ),
        ({"tools": [{**SPACE, "defer_loading": True}]}, "tools[0].defer_loading", "expected none, got some"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "expected a string, got none"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading", "expected none, got some"),
        ({"tools": [{**TOOL, "allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers", "expected none, got some"),
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice", "expected none, auto, required or a function, got web_search"),
        ({"tool_choice": 5}, "tool_choice", "expected none, auto, required or a function, got a number"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "expected text, json_object or json_schema, got xml"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "expected an object, got null"),
        ({"text": {"stop": "x"}}, "text.stop", "expected none, got some"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode", "expected none, got some"),
        ({"metadata": {"a": 1}}, "metadata", "expected texts, got a number"),
        ({"metadata": []}, "metadata", "expected an object, got a list"),
        ({"max_output_tokens": 0}, "max_output_tokens", "expected an integer >= 1, got 0"),
        ({"stream": 1}, "stream", "expected true or false, got a number"),
        ({"messages": []}, "messages", "expected input in its place on this path, got messages"),
        ({"max_tokens": 5}, "max_tokens", "expected max_output_tokens in its place on this path, got max_tokens"),
        ({"n": 2}, "n", "expected none, got some"),
        ({"input": []}, "input", "expected at least one item, got none"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(fields: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(FieldError) as caught:
        read(**fields)
    assert caught.value.field == field
    assert caught.value.message.startswith(message)


def test_a_call_of_a_function_in_a_namespace_is_named_as_it_was_offered() -> None:
    encoder = read(tools=[SPACE, TOOL]).encoder(name="1", model="m", created=0)
    deltas = [ToolCallDelta(index=index, function=FunctionDelta(name=name)) for index, name in enumerate(("files__g", "f"))]
    encoder.event(ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(tool_calls=deltas))]))
    encoder.ending("tool_calls")
    inside, outside = json.loads(encoder.done().split(b"data: ")[1])["response"]["output"]
    assert (inside["name"], inside["namespace"]) == ("g", "files")
    assert outside["name"] == "f"
    assert "namespace" not in outside


def test_functions_whose_joined_names_are_one_stay_apart_in_tools_choice_history_and_answer() -> None:
    pairs = [("a", "b__c"), ("a__b", "c")]
    spaces = [{"type": "namespace", "name": space, "tools": [{"type": "function", "name": name}]} for space, name in pairs]
    earlier = [{"type": "function_call", "call_id": name, "name": name, "namespace": space, "arguments": "{}"} for space, name in pairs]
    plain = {"type": "function_call", "call_id": "p", "name": "a__b__c", "arguments": "{}"}
    asked = read(
        tools=[*spaces, {"type": "function", "name": "a__b__c"}],
        tool_choice={"type": "function", "namespace": "a__b", "name": "c"},
        input=[{"role": "user", "content": "Hi"}, *earlier, plain],
    )
    names = [tool["function"]["name"] for tool in asked.chat["tools"]]
    assert len(set(names)) == 3
    assert names[2] == "a__b__c"
    assert asked.chat["tool_choice"]["function"]["name"] == names[1]
    assert [call["function"]["name"] for call in asked.chat["messages"][-1]["tool_calls"]] == names
    encoder = asked.encoder(name="1", model="m", created=0)
    deltas = [ToolCallDelta(index=index, function=FunctionDelta(name=name)) for index, name in enumerate(names)]
    encoder.event(ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(tool_calls=deltas))]))
    encoder.ending("tool_calls")
    output = json.loads(encoder.done().split(b"data: ")[1])["response"]["output"]
    assert [(item.get("namespace"), item["name"]) for item in output] == [*pairs, (None, "a__b__c")]


def test_errors_of_chat_fields_have_names_of_this_api() -> None:
    names = read().names
    assert (names["messages"], names["max_completion_tokens"]) == ("input", "max_output_tokens")
    assert (names["response_format"], names["reasoning_effort"]) == ("text.format", "reasoning.effort")


NAMES = (
    "input instructions model tools tool_choice text format reasoning effort include metadata stream role content type "
    "name schema call_id output arguments image_url max_output_tokens truncation message user assistant function "
    "function_call function_call_output input_text output_text refusal input_image json_schema summary"
)
WORDS = st.sampled_from(NAMES.split())
VALUES = any_json(WORDS)


@given(st.dictionaries(WORDS, VALUES, max_size=8))
def test_whatever_is_sent_is_translated_or_refused_by_name(fields: dict[str, Any]) -> None:
    least: dict[str, Any] = {"input": "Hi"}
    try:
        asked = read_response_request(json.dumps({**least, **fields}).encode())
    except FieldError:
        return
    assert all(isinstance(message["role"], str) for message in asked.chat["messages"])
    json.dumps(asked.chat)
    json.loads(asked.encoder(name="1", model="m", created=0).ending(None).split(b"data: ")[1].split(b"\n\n")[0])


@pytest.mark.parametrize("name", ["user", "service_tier", "top_p"])
def test_what_is_nested_too_deep_to_be_repeated_is_refused_when_it_is_read(name: str) -> None:
    repeated = 0
    for depth in range(900, 1000):
        body = f'{{"input":"Hi","{name}":{"[" * depth}{"]" * depth}}}'.encode()
        try:
            asked = read_response_request(body)
        except (FieldError, RecursionError):
            continue
        repeated += 1
        assert _inside(100, lambda: asked.encoder(name="1", model="m", created=0).opening())  # noqa: B023
    assert repeated


def _inside(calls: int, function: Callable[[], bytes]) -> bytes:
    """Return what a function returns, called from further inside than a request is read."""
    return _inside(calls - 1, function) if calls else function()
