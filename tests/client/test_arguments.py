"""OpenAI's arguments, right and wrong."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.client.arguments import build_request, check_mapping
from streamco.config import SamplingOptions
from streamco.errors import ConfigError
from streamco.openai_types import ChatCompletionMessage, FunctionCall, ToolCall


def test_a_text_becomes_a_user_message() -> None:
    assert build_request("hi").messages == [{"role": "user", "content": "hi"}]


def test_what_is_not_given_is_not_sent() -> None:
    request = build_request("hi", user=None)
    assert request.sampling == SamplingOptions()
    assert request.extra == {}
    assert request.headers == {}
    assert request.model is None


def test_sampling_is_taken_apart_from_the_rest() -> None:
    request = build_request(
        [{"role": "user", "content": "hi"}],
        model="m",
        temperature=0,
        top_p=1,
        top_k=40,
        min_p=0.05,
        seed=-3,
        max_tokens=1,
        stop="END",
        user="u",
        extra_body={"x": None},
        extra_headers={"A": "b"},
    )
    assert request.sampling == SamplingOptions(temperature=0, top_p=1, top_k=40, min_p=0.05, seed=-3, max_tokens=1, stop=("END",))
    assert request.extra == {"user": "u", "x": None}, "an explicit null in extra_body is sent"
    assert request.headers == {"A": "b"}
    assert request.model == "m"


def test_the_conversation_may_be_any_iterable_and_is_copied() -> None:
    messages = ({"role": role, "content": "x"} for role in ("system", "user"))
    assert [message["role"] for message in build_request(messages).messages or ()] == ["system", "user"]  # type: ignore[arg-type]


def test_max_completion_tokens_goes_before_max_tokens() -> None:
    assert build_request("hi", max_tokens=5, max_completion_tokens=7).sampling.max_tokens == 7


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"messages": []}, "messages: expected at least one message, got none"),
        ({"messages": None}, "messages: expected a text or a list of messages, got NoneType"),
        ({"messages": {"role": "user"}}, "messages: expected a text or a list of messages, got dict"),
        ({"messages": ["hi"]}, 'messages[0]: expected a mapping with "role" and "content", got str'),
        ({"messages": [{"role": "user"}, {"content": "x"}]}, 'messages[1]: expected a "role" that is a text, got None'),
        ({"temperature": 3}, "temperature: expected 0 to 2, got 3"),
        ({"temperature": "hot"}, "temperature: expected 0 to 2, got 'hot'"),
        ({"temperature": float("nan")}, "temperature: expected 0 to 2, got nan"),
        ({"top_p": 0}, "top_p: expected more than 0, at most 1, got 0"),
        ({"min_p": 1.5}, "min_p: expected 0 to 1, got 1.5"),
        ({"top_k": 1.5}, "top_k: expected an integer >= -1, got 1.5"),
        ({"seed": "x"}, "seed: expected an integer, got 'x'"),
        ({"max_tokens": 0}, "max_tokens: expected an integer >= 1, got 0"),
        ({"max_tokens": True}, "max_tokens: expected an integer >= 1, got True"),
        ({"max_completion_tokens": -1}, "max_tokens: expected an integer >= 1, got -1"),
        ({"stop": 5}, "stop: expected a text or a list of texts that are not empty, got 5"),
        ({"stop": ["a", ""]}, "stop: expected a text or a list of texts that are not empty, got ['a', '']"),
        ({"n": 0}, "n: expected an integer >= 1, got 0"),
        ({"n": "two"}, "n: expected an integer >= 1, got 'two'"),
        ({"extra_body": [1]}, "extra_body: expected a mapping, got list"),
        ({"extra_headers": "A: b"}, "extra_headers: expected a mapping, got str"),
        ({"timeout": 5}, "timeout: expected it in OpenAIEndpoint(timeouts=...), got it as an argument of one request"),
        ({"extra_query": {}}, "extra_query: expected it in OpenAIEndpoint(base_url=...), got it as an argument of one request"),
    ],
)
def test_a_wrong_argument_says_what_was_expected_what_was_got_and_where(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_request(**{"messages": "hi", **arguments})
    assert str(caught.value) == text


def test_no_mapping_is_an_empty_one() -> None:
    assert check_mapping("x", None) == {}
    assert check_mapping("x", {"a": 1}) == {"a": 1}


# Response objects as messages


CALL = ToolCall(id="c1", function=FunctionCall(name="f", arguments="{}"))


def test_a_response_object_is_a_message() -> None:
    answer = ChatCompletionMessage(content=None, tool_calls=[CALL])
    request = build_request([{"role": "user", "content": "hi"}, answer, {"role": "tool", "tool_call_id": "c1", "content": "1"}])  # type: ignore[list-item]
    assert request.messages is not None
    assert request.messages[1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }


def test_parts_of_a_response_are_taken_in_a_message() -> None:
    request = build_request([{"role": "assistant", "content": None, "tool_calls": [CALL]}])
    assert request.messages is not None
    assert request.messages[0]["tool_calls"] == [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def test_a_message_of_openais_sdk_is_taken() -> None:
    chat = pytest.importorskip("openai.types.chat")
    message = chat.ChatCompletionMessage.model_validate({"role": "assistant", "content": "x", "citations": ["u"]})
    request = build_request([message])
    assert request.messages == [{"role": "assistant", "content": "x", "citations": ["u"]}]


def test_plain_messages_are_passed_on_as_the_same_objects() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    request = build_request([message])
    assert request.messages is not None
    assert request.messages[0] is message
