"""What the translations of requests have in common."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.wire.request_fields import FieldError, Fields
from streamco.wire.translated_request import (
    function_tool,
    keep_open_reasoning,
    place_images,
    refuse_chat_names,
    stream_fields,
    tool_message,
)

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


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
SHOWN = [{"type": "text", "text": "Images in the result of 1:"}, IMAGE]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ([], [{"role": "user", "content": SHOWN}]),
        ([tool_message("2", "x")], [tool_message("2", "x"), {"role": "user", "content": SHOWN}]),
        ([{"role": "user", "content": "x"}], [{"role": "user", "content": [*SHOWN, {"type": "text", "text": "x"}]}]),
        ([{"role": "user", "content": [IMAGE]}], [{"role": "user", "content": [*SHOWN, IMAGE]}]),
        ([{"role": "assistant", "content": "x"}], [{"role": "user", "content": SHOWN}, {"role": "assistant", "content": "x"}]),
        (
            [tool_message("2", [IMAGE, {"type": "text", "text": "x"}]), {"role": "system", "content": "y"}],
            [
                {"role": "tool", "tool_call_id": "2", "content": "[image]\nx"},
                {"role": "user", "content": [*SHOWN, {"type": "text", "text": "Images in the result of 2:"}, IMAGE]},
                {"role": "system", "content": "y"},
            ],
        ),
    ],
)
def test_images_of_results_are_a_users_after_all_results_of_a_turn(after: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    placed = place_images([dict(message) for message in (tool_message("1", [IMAGE]), *after)])
    assert placed == [{"role": "tool", "tool_call_id": "1", "content": "[image]"}, *expected]


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
