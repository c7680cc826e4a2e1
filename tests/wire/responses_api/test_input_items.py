"""Input items of the Responses API as chat messages."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.wire.request_fields import FieldError
from streamco.wire.responses_api.input_items import read_input

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
CALLED = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_a_text_is_a_users_message_after_the_instructions() -> None:
    assert read_input("Hi", None) == [{"role": "user", "content": "Hi"}]
    assert read_input("Hi", "Be brief.") == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def test_messages_keep_their_roles_and_developers_speak_as_the_system() -> None:
    items = [
        {"role": "developer", "content": "a"},
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "b"}]},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    expected = [("system", "a"), ("system", "b"), ("user", "c"), ("assistant", "d")]
    assert [(message["role"], message["content"]) for message in read_input(items, None)] == expected


def test_parts_of_a_users_message_have_chats_forms() -> None:
    parts = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
        {"type": "input_image", "image_url": "https://example.org/x.png"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    ]
    (message,) = read_input([{"role": "user", "content": parts}], None)
    assert message["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    ]


def test_an_answer_that_comes_back_is_the_assistants_message_with_its_calls() -> None:
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [text("One "), text("moment.")]},
        {**CALL, "id": "fc_1", "status": "completed"},
        {**CALL, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "t"}, {"type": "input_text", "text": "u"}],
        },
        CALL,
    ]
    assert read_input(items, None)[1:] == [
        {"role": "assistant", "content": "One moment.", "tool_calls": [CALLED, {**CALLED, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "t\nu"},
        {"role": "assistant", "content": None, "tool_calls": [CALLED]},
    ]


def test_an_image_in_an_output_is_a_users_after_all_outputs() -> None:
    reasoning = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "high"}
    outputs = [
        {"type": "function_call_output", "call_id": "c1", "output": [image]},
        {"type": "function_call_output", "call_id": "c2", "output": "two"},
    ]
    assert read_input([reasoning, CALL, {**CALL, "call_id": "c2"}, *outputs], None) == [
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALLED, {**CALLED, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "[image]"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Images in the result of c1:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "high"}},
            ],
        },
    ]


def test_a_message_after_a_call_comes_before_the_calls_output() -> None:
    said = {"role": "assistant", "content": "One moment."}
    output = {"type": "function_call_output", "call_id": "c1", "output": "one"}
    answered = {"role": "tool", "tool_call_id": "c1", "content": "one"}
    expected = {"role": "assistant", "content": "One moment.", "tool_calls": [CALLED]}
    assert read_input([CALL, said, output], None) == [expected, answered]
    assert read_input([CALL, output, said], None) == [{**expected, "content": None}, answered, said]
    assert read_input([said, CALL, said, output], None)[0] == {**expected, "content": "One moment.One moment."}
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert read_input([CALL, refused], None) == [{**expected, "content": None, "refusal": "No."}]


def test_a_refusal_that_comes_back_is_one() -> None:
    (message,) = read_input([{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}], None)
    assert message == {"role": "assistant", "content": None, "refusal": "No."}


def test_reasoning_goes_back_with_the_calls_of_the_last_turn() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    turn = [{"role": "user", "content": "Hi"}, reasoning, CALL, {"type": "function_call_output", "call_id": "c1", "output": "x"}]
    assert read_input(turn, None)[1] == {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALLED]}
    later = read_input([*turn, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}], None)
    assert not any("reasoning_content" in message for message in later)
    encrypted = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    assert "reasoning_content" not in read_input([encrypted, CALL], None)[0]


def test_a_call_of_a_function_in_a_namespace_has_the_name_that_it_is_offered_under() -> None:
    (message,) = read_input([{**CALL, "namespace": "files"}], None)
    assert message["tool_calls"][0]["function"]["name"] == f"files__{CALL['name']}"


def test_reasoning_between_a_message_and_its_call_is_the_calls() -> None:
    reasoning = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
    items = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a"}, reasoning, CALL]
    assert read_input(items, None)[1] == {"role": "assistant", "content": "a", "reasoning_content": "hm", "tool_calls": [CALLED]}


@pytest.mark.parametrize(
    ("value", "field", "message"),
    [
        (None, "input", "expected a string or a list of items, got none"),
        (5, "input", "expected a string or a list of items, got a number"),
        ([], "input", "expected at least one item, got none"),
        (["x"], "input[0]", "expected an object, got a string"),
        ([{"content": "x"}], "input[0].role", "expected a string, got none"),
        ([{"role": "tool", "content": "x"}], "input[0].role", "expected user, assistant, system, developer, got tool"),
        ([{"role": "user"}], "input[0].content", "expected a string or a list of parts, got none"),
        ([{"role": "user", "content": [1]}], "input[0].content[0]", "expected an object, got a number"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text", "expected a string, got none"),
        ([{"role": "user", "content": [{"type": "video"}]}], "input[0].content[0].type", "expected input_text, output_text, refusal"),
        (
            [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}],
            "input[0].content[0].file_id",
            "expected none, got some",
        ),
        (
            [{"role": "user", "content": [{"type": "input_file", "file_url": "u"}]}],
            "input[0].content[0].file_url",
            "expected none, got some",
        ),
        ([{"role": "assistant", "content": [{"type": "input_image"}]}], "input[0].content[0].type", "expected output_text or refusal, got"),
        ([{"type": "function_call", "name": "f", "arguments": "{}"}], "input[0].call_id", "expected a string, got none"),
        ([{"type": "function_call_output", "output": "x"}], "input[0].call_id", "expected a string, got none"),
        ([{"type": "function_call_output", "call_id": "c", "output": 1}], "input[0].output", "expected a string or a list of parts, got a"),
        (
            [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_file"}]}],
            "input[0].output[0].type",
            "expected input_text or input_image, got input_file",
        ),
        ([{"role": "user", "content": "x"}, {"type": "item_reference", "id": "i"}], "input[1].type", "expected message, function_call, "),
        ([{"type": "web_search_call"}], "input[0].type", "expected message, function_call, function_call_output or reasoning, got web_"),
    ],
)
def test_what_cannot_be_translated_is_refused_by_its_path(value: Any, field: str, message: str) -> None:
    with pytest.raises(FieldError) as caught:
        read_input(value, None)
    assert caught.value.field == field
    assert caught.value.message.startswith(message)


def text(value: str) -> dict[str, Any]:
    return {"type": "output_text", "text": value, "annotations": []}
