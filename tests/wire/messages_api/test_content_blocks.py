"""Messages of Anthropic's API as chat messages."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.wire.messages_api.content_blocks import read_conversation
from streamco.wire.request_fields import FieldError, Fields

USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}}
CALLED = {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "done"}


def read(*messages: Any, **fields: Any) -> list[dict[str, Any]]:
    return read_conversation(Fields({"messages": list(messages), **fields}))


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value, "cache_control": {"type": "ephemeral"}}


HI = {"role": "user", "content": "Hi"}


def test_the_system_prompt_comes_first_as_text_or_blocks() -> None:
    assert read(HI, system="Be brief.") == [{"role": "system", "content": "Be brief."}, HI]
    assert read(HI, system=[text("Be"), text("brief.")])[0] == {"role": "system", "content": "Be\nbrief."}
    assert read(HI, system="") == read(HI, system=[]) == [HI]
    assert read(HI, {"role": "system", "content": [text("Now.")]})[1] == {"role": "system", "content": "Now."}


def test_one_text_block_is_a_text_and_others_are_parts() -> None:
    assert read(user(text("Hi"))) == [HI]
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    linked = {"type": "image", "source": {"type": "url", "url": "https://example.org/x.png"}}
    assert read(user(image, linked, text("What?")))[0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}},
        {"type": "text", "text": "What?"},
    ]


def test_tool_results_are_messages_of_tools_before_the_users() -> None:
    messages = read(
        HI, assistant(text("One "), text("moment."), USE, {**USE, "id": "toolu_2"}), user(RESULT, text("And?"), result("toolu_2"))
    )
    assert messages[1:] == [
        {"role": "assistant", "content": "One moment.", "tool_calls": [CALLED, {**CALLED, "id": "toolu_2"}]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "done"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "a\nb"},
        {"role": "user", "content": "And?"},
    ]
    assert [message["role"] for message in read(HI, assistant(USE), user(RESULT))] == ["user", "assistant", "tool"]


def result(use: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": use, "content": [text("a"), text("b")]}


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({"content": "no such file", "is_error": True}, "Error: no such file"),
        ({"content": "Error 5", "is_error": True}, "Error 5"),
        ({"content": "fine", "is_error": False}, "fine"),
        ({"content": None}, ""),
    ],
)
def test_a_failed_call_says_so_in_its_text(fields: dict[str, Any], content: str) -> None:
    assert read(user({**RESULT, **fields}))[0]["content"] == content


def test_thinking_goes_back_with_the_calls_of_the_last_turn() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    redacted = {"type": "redacted_thinking", "data": "x"}
    messages = read(HI, assistant(thinking, redacted, USE), user(RESULT))
    assert messages[1] == {"role": "assistant", "content": None, "tool_calls": [CALLED], "reasoning_content": "hm"}
    assert "reasoning_content" not in read(HI, assistant(thinking, USE), user(RESULT, text("And?")))[1]
    assert read(HI, assistant(thinking, text("a")))[1] == {"role": "assistant", "content": "a"}


def test_messages_without_blocks_are_empty_texts() -> None:
    assert read(user(), assistant()) == [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]


@pytest.mark.parametrize(
    ("message", "field", "text"),
    [
        ("x", "messages[0]", "expected an object, got a string"),
        ({"content": "x"}, "messages[0].role", "expected a string, got none"),
        ({"role": "tool", "content": "x"}, "messages[0].role", "expected user, assistant, system, got tool"),
        ({"role": "user"}, "messages[0].content", "expected a string or a list of blocks, got none"),
        ({"role": "user", "content": 5}, "messages[0].content", "expected a string or a list of blocks, got a number"),
        (user({"type": "document"}), "messages[0].content[0].type", "expected text, image or tool_result, got document"),
        (user({"type": "text"}), "messages[0].content[0].text", "expected a string, got none"),
        (user({"type": "image"}), "messages[0].content[0].source", "expected an object, got none"),
        (user({"type": "image", "source": {"type": "file"}}), "messages[0].content[0].source.type", "expected base64 or url, got file"),
        (user({"type": "tool_result"}), "messages[0].content[0].tool_use_id", "expected a string, got none"),
        (
            user({**RESULT, "content": [{"type": "document"}]}),
            "messages[0].content[0].content[0].type",
            "expected text, image or tool_reference, got document",
        ),
        (assistant({"type": "server_tool_use"}), "messages[0].content[0].type", "expected text, thinking, redacted_thinking or tool_use"),
        (assistant({**USE, "input": "x"}), "messages[0].content[0].input", "expected an object, got a string"),
        (assistant({**USE, "toolset_name": "x"}), "messages[0].content[0].toolset_name", "expected none, got some"),
    ],
)
def test_what_cannot_be_translated_is_refused_by_its_path(message: Any, field: str, text: str) -> None:
    with pytest.raises(FieldError) as caught:
        read(message)
    assert caught.value.field == field
    assert caught.value.message.startswith(text)


def test_a_conversation_and_a_system_prompt_of_another_form_are_refused() -> None:
    with pytest.raises(FieldError, match=r"^messages: expected at least one message, got none$"):
        read()
    with pytest.raises(FieldError, match=r"^system\[0\]\.type: expected text, got image$"):
        read(HI, system=[{"type": "image"}])
