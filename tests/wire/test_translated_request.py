"""What the translations of requests have in common."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.wire.request_fields import FieldError, Fields
from streamco.wire.translated_request import function_tool, keep_open_reasoning, refuse_chat_names, stream_fields

CALL = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def test_a_stream_always_ends_with_usage() -> None:
    assert stream_fields(True) == {"stream": True, "stream_options": {"include_usage": True}}
    assert stream_fields(False) == {}


def test_reasoning_is_kept_with_the_calls_of_the_last_turn_alone() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user"},
        {"role": "assistant", "tool_calls": CALL, "reasoning_content": "old"},
        {"role": "tool"},
        {"role": "assistant", "reasoning_content": "old, too"},
        {"role": "user"},
        {"role": "assistant", "tool_calls": CALL, "reasoning_content": "kept"},
        {"role": "tool"},
        {"role": "assistant", "reasoning_content": "no call"},
    ]
    keep_open_reasoning(messages)
    assert [message.get("reasoning_content") for message in messages] == [None, None, None, None, None, "kept", None, None]


def test_a_tool_has_only_what_was_given() -> None:
    assert function_tool("f", None, None, None) == {"type": "function", "function": {"name": "f"}}
    whole = function_tool("f", "does it", {"type": "object"}, True)
    assert whole["function"] == {"name": "f", "description": "does it", "parameters": {"type": "object"}, "strict": True}


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("stop", "expected stop_sequences in its place on this path, got stop"),
        ("n", "expected none, got some: this server doesn't offer it"),
    ],
)
def test_a_name_of_chats_is_refused_because_it_would_be_overwritten(field: str, message: str) -> None:
    with pytest.raises(FieldError) as caught:
        refuse_chat_names(Fields({field: 1, "top_k": 2}), {"stop": "stop_sequences", "n": ""})
    assert (caught.value.field, caught.value.message, caught.value.code) == (field, message, "unsupported_parameter")
    refuse_chat_names(Fields({"top_k": 2}), {"stop": "stop_sequences"})
