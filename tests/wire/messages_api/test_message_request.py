"""Bodies of the Messages API as chat requests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice
from streamco.wire.messages_api.message_request import read_count_request, read_message_request
from streamco.wire.request_fields import FieldError
from streamco.wire.translated_request import TranslatedRequest
from tests.support.named_events import any_json

HI = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOL = {"name": "f", "description": "does it", "input_schema": SCHEMA}


def read(**fields: Any) -> TranslatedRequest:
    return read_message_request(json.dumps({"max_tokens": 9, "messages": [HI], **fields}).encode())


def chat(**fields: Any) -> dict[str, Any]:
    """The chat fields beside those that every request has."""
    return {name: value for name, value in read(**fields).chat.items() if name not in {"messages", "max_completion_tokens"}}


def test_a_short_request_is_short() -> None:
    asked = read(model="m")
    assert asked.chat == {"model": "m", "messages": [HI], "max_completion_tokens": 9}
    assert (asked.is_streamed, asked.ends_open) == (False, False)
    assert read(stream=True).chat["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 5}, {"temperature": 0.5, "top_p": 0.9, "top_k": 5}),
        ({"stop_sequences": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"stop_sequences": []}, {}),
        (
            {"tools": [TOOL, {**TOOL, "type": "custom", "strict": True, "cache_control": {"type": "ephemeral"}}]},
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "description": "does it", "parameters": SCHEMA}},
                    {"type": "function", "function": {"name": "f", "description": "does it", "parameters": SCHEMA, "strict": True}},
                ]
            },
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"reasoning_effort": "low"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 4000}}, {"reasoning_effort": "medium"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 32_000}}, {"reasoning_effort": "high"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "max"}}, {"reasoning_effort": "max"}),
        ({"thinking": {"type": "adaptive", "display": "summarized"}}, {}),
        ({"thinking": {"type": "disabled"}}, {}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}},
        ),
        ({"metadata": {"user_id": "u"}, "service_tier": "auto", "speed": "standard", "cache_control": {"type": "ephemeral"}}, {}),
        ({"container": None, "mcp_servers": []}, {}),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}, {}),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 9}}]}}, {}),
        ({"min_p": 0.1, "seed": 3}, {"min_p": 0.1, "seed": 3}),
    ],
)
def test_fields_go_where_chat_has_them(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert chat(**fields) == expected


@pytest.mark.parametrize(
    ("thinking", "is_shown"),
    [(None, True), ({"type": "disabled"}, False), ({"type": "adaptive", "display": "omitted"}, False), ({"type": "adaptive"}, True)],
)
def test_thinking_is_shown_unless_it_is_turned_off(thinking: Any, is_shown: bool) -> None:
    encoder = read(thinking=thinking).encoder(name="1", model="m", created=0)
    data = encoder.event(ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(reasoning_content="hm"))]))
    assert (b"thinking_delta" in data) == is_shown


@pytest.mark.parametrize(("role", "is_open"), [("user", False), ("assistant", True), ("system", False)])
def test_an_assistants_message_at_the_end_is_to_be_continued(role: str, is_open: bool) -> None:
    assert read(messages=[HI, {"role": role, "content": "It"}]).ends_open == is_open


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"max_tokens": None}, "max_tokens", "expected an integer >= 1, got none"),
        ({"max_tokens": 0}, "max_tokens", "expected an integer >= 1, got 0"),
        ({"messages": []}, "messages", "expected at least one message, got none"),
        ({"messages": "Hi"}, "messages", "expected a list, got a string"),
        ({"container": "c"}, "container", "expected none, got some"),
        ({"mcp_servers": [{}]}, "mcp_servers", "expected none, got some"),
        ({"context_management": []}, "context_management", "expected an object, got a list"),
        (
            {"context_management": {"edits": [{"type": "clear_thinking_20251015"}, {"type": "compact_20260112"}]}},
            "context_management.edits[1].type",
            "expected an edit that clears, got compact_20260112",
        ),
        ({"context_management": {"other": 1}}, "context_management.other", "expected none, got some"),
        ({"speed": "fast"}, "speed", "expected standard, got fast"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type", "expected custom, got web_search_20250305"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema", "expected an object, got none"),
        ({"tools": [{**TOOL, "defer_loading": 1}]}, "tools[0].defer_loading", "expected true or false, got a number"),
        ({"tools": [{**TOOL, "allowed_callers": ["code"]}]}, "tools[0].allowed_callers", "expected none, got some"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type", "expected auto, any, tool or none, got some"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name", "expected a string, got none"),
        ({"tool_choice": "any"}, "tool_choice", "expected an object, got a string"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type", "expected enabled, disabled or adaptive, got between_tools"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "expected an integer >= 1, got none"),
        ({"thinking": {"type": "adaptive", "other": 1}}, "thinking.other", "expected none, got some"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format", "expected type json_schema and a schema"),
        ({"output_config": {"other": 1}}, "output_config.other", "expected none, got some"),
        ({"stop": ["x"]}, "stop", "expected stop_sequences in its place on this path, got stop"),
        ({"n": 2}, "n", "expected none, got some"),
        ({"stream": "yes"}, "stream", "expected true or false, got a string"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(fields: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(FieldError) as caught:
        read(**fields)
    assert caught.value.field == field
    assert caught.value.message.startswith(message)


def test_a_deferred_tool_is_offered_once_a_search_has_found_it() -> None:
    tools = [{**TOOL, "name": name, "defer_loading": is_deferred} for name, is_deferred in (("search", False), ("f", True), ("g", True))]
    search = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "search", "input": {}}]}
    references = [{"type": "tool_reference", "tool_name": "f"}]
    found = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": references}]}
    assert [tool["function"]["name"] for tool in read(tools=tools).chat["tools"]] == ["search"]
    asked = read(tools=tools, messages=[HI, search, found]).chat
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["search", "f"]
    assert asked["messages"][-1] == {"role": "tool", "tool_call_id": "1", "content": "The tool f can be called from now on."}
    assert "tools" not in read(tools=tools[1:]).chat


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"tool_choice": "required", "parallel_tool_calls": False}),
        ({"type": "tool", "name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ],
)
def test_a_choice_of_tools_goes_out_only_with_tools(choice: dict[str, Any], expected: dict[str, Any]) -> None:
    """Servers refuse ``tool_choice`` and ``parallel_tool_calls`` without ``tools``."""
    assert chat(tools=[TOOL], tool_choice=choice) == {**chat(tools=[TOOL]), **expected}
    for tools in (None, [], [{**TOOL, "name": "other", "defer_loading": True}]):
        assert chat(tools=tools, tool_choice=choice) == {}


def test_a_deferred_tool_is_offered_if_the_choice_names_it() -> None:
    tools = [{**TOOL, "name": name, "defer_loading": True} for name in ("f", "g")]
    asked = chat(tools=tools, tool_choice={"type": "tool", "name": "g"})
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["g"]
    assert asked["tool_choice"] == {"type": "function", "function": {"name": "g"}}


def test_errors_of_chat_fields_have_the_names_of_this_request() -> None:
    assert read().names["max_completion_tokens"] == "max_tokens"
    assert read(thinking={"type": "enabled", "budget_tokens": 1024}).names["reasoning_effort"] == "thinking"
    assert read(output_config={"effort": "low"}).names["reasoning_effort"] == "output_config.effort"


def test_a_request_that_is_only_counted_needs_no_limit() -> None:
    asked = read_count_request(json.dumps({"model": "m", "messages": [HI], "system": "Be brief.", "tools": [TOOL]}).encode())
    assert asked.chat["messages"][0] == {"role": "system", "content": "Be brief."}
    assert asked.chat.keys() == {"model", "messages", "tools"}
    with pytest.raises(FieldError, match=r"^messages: expected at least one message"):
        read_count_request(b"{}")


NAMES = (
    "system messages max_tokens model tools tool_choice thinking output_config format stop_sequences stream role content "
    "type name input_schema id input tool_use_id source user assistant text image base64 url tool_use tool_result "
    "enabled budget_tokens any tool is_error defer_loading tool_reference tool_name"
)
WORDS = st.sampled_from(NAMES.split())
VALUES = any_json(WORDS)


@given(st.dictionaries(WORDS, VALUES, max_size=8))
def test_whatever_is_sent_is_translated_or_refused_by_name(fields: dict[str, Any]) -> None:
    least: dict[str, Any] = {"max_tokens": 1, "messages": [HI]}
    try:
        asked = read_message_request(json.dumps({**least, **fields}).encode())
    except FieldError:
        return
    assert all(isinstance(message["role"], str) for message in asked.chat["messages"])
    json.dumps(asked.chat)
    json.loads(asked.encoder(name="1", model="m", created=0).ending(None).split(b"data: ")[1].split(b"\n\n")[0])
