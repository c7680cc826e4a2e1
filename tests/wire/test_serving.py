"""Requests at our own server: what is understood, and what an error says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.config import SamplingOptions
from streamco.errors import RequestError, StreamcoError
from streamco.wire.serving import ChatRequest, CompletionRequest, decode_request

USER = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> ChatRequest:
    return decode_request(json.dumps({"messages": [USER], **fields}).encode(), ChatRequest)


def completion(**fields: Any) -> CompletionRequest:
    return decode_request(json.dumps(fields).encode(), CompletionRequest)


# What is understood


def test_a_minimal_chat_request_leaves_everything_to_the_defaults() -> None:
    request = chat()
    assert request.sampling() == SamplingOptions()
    assert (request.model, request.stream, request.include_usage, request.token_limit) == (None, None, False, None)
    assert request.plain_messages() == [USER]


def test_every_option_of_a_chat_request_is_read() -> None:
    request = chat(
        model="m",
        stream=True,
        stream_options={"include_usage": True},
        temperature=0,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        seed=-5,
        max_tokens=9,
        stop="END",
        n=1,
        user="me",
        return_token_ids=True,
        continue_final_message=True,
        add_generation_prompt=False,
        tools=[{"type": "function"}],
        tool_choice="auto",
        response_format={"type": "json_object"},
    )
    assert request.sampling() == SamplingOptions(temperature=0.0, top_p=0.5, top_k=3, min_p=0.1, seed=-5, max_tokens=9, stop=("END",))
    assert (request.include_usage, request.return_token_ids, request.continue_final_message, request.add_generation_prompt) == (
        True,
        True,
        True,
        False,
    )
    assert (request.tools, request.tool_choice) == ([{"type": "function"}], "auto")


def test_nulls_are_the_same_as_nothing_and_unknown_fields_are_ignored() -> None:
    names = (
        "model",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
        "seed",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "n",
        "tools",
    )
    assert chat(**dict.fromkeys(names), frequency_penalty=0.5, whatever={"x": 1}) == chat()


def test_the_newer_name_of_the_token_limit_wins() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).sampling().max_tokens == 7
    assert chat(max_completion_tokens=0).token_limit == 0


def test_text_parts_are_joined_and_absent_keys_stay_absent() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": parts, "name": "me"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "", "tool_call_id": "1"},
    ]
    assert chat(messages=messages).plain_messages() == [
        {"role": "user", "content": "ab", "name": "me"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "", "tool_call_id": "1"},
    ]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("", [""]), ("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_a_prompt_is_text_or_ids_or_a_list_of_them(prompt: Any, prompts: Any) -> None:
    assert completion(prompt=prompt).prompts() == prompts


def test_a_server_can_add_fields_of_its_own() -> None:
    class Packed(CompletionRequest, kw_only=True):
        prompt_packed: str | None = None

    request = decode_request(b'{"prompt_packed": "AAE=", "max_tokens": 3}', Packed)
    assert (request.prompt_packed, request.prompt, request.token_limit) == ("AAE=", None, 3)


# What an error says


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": []}, "messages", "messages: expected array of length >= 1, got []"),
        ({"messages": "hi"}, "messages", "messages: expected array, got str"),
        ({"messages": [{"content": "hi"}]}, "messages[0]", 'messages[0]: expected an object with the field role, got {"content":"hi"}'),
        (
            {"messages": [USER, {"role": "user", "content": 3}]},
            "messages[1].content",
            "messages[1].content: expected str | array | null, got int",
        ),
        ({"temperature": 2.5}, "temperature", "temperature: expected float <= 2.0, got 2.5"),
        ({"top_p": -1}, "top_p", "top_p: expected float >= 0.0, got -1"),
        ({"max_tokens": "many"}, "max_tokens", "max_tokens: expected int | null, got str"),
        ({"max_tokens": -1}, "max_tokens", "max_tokens: expected int >= 0, got -1"),
        ({"n": 0}, "n", "n: expected int >= 1, got 0"),
        ({"stop": [1]}, "stop[0]", "stop[0]: expected str, got int"),
        ({"stream": "yes"}, "stream", "stream: expected bool | null, got str"),
        (
            {"stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
            "stream_options.include_usage: expected bool | null, got int",
        ),
    ],
)
def test_an_error_names_the_field_what_was_expected_and_what_was_got(fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert (str(caught.value), caught.value.param) == (message, param)
    assert isinstance(caught.value, StreamcoError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("body", [b"", b"{", b"nope", b'{"messages": "\xff"}', b"{} {}"])
def test_a_body_that_is_no_json_is_shown(body: bytes) -> None:
    with pytest.raises(RequestError, match="expected a JSON object as the body, got") as caught:
        decode_request(body, ChatRequest)
    assert caught.value.param is None


def test_a_body_that_is_no_object_or_lacks_the_messages_says_so() -> None:
    with pytest.raises(RequestError, match="body: expected object, got array"):
        decode_request(b"[]", ChatRequest)
    with pytest.raises(RequestError, match=r"body: expected an object with the field messages, got \{\}"):
        decode_request(b"{}", ChatRequest)


@pytest.mark.parametrize("part", [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text"}, {"type": "audio", "text": "x"}])
def test_a_part_that_is_no_text_is_refused_where_it_stands(part: dict[str, Any]) -> None:
    request = chat(messages=[USER, {"role": "user", "content": [{"type": "text", "text": "look"}, part]}])
    with pytest.raises(RequestError, match=r"messages\[1\].content\[1\]: expected a part of type 'text'") as caught:
        request.plain_messages()
    assert caught.value.param == "messages[1].content[1]"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, "prompt: expected text, token ids, or a list of them, got nothing"),
        ([], r"prompt: expected text, token ids, or a list of them, got \[\]"),
        (["a", 1], "prompt: expected a list of one kind .*, got a mix of int, str"),
        ([1, -2], r"prompt: expected token ids of at least 0, got -2 at prompt\[1\]"),
        ([[1], []], r"prompt\[1\]: expected token ids of at least 0, got \[\]"),
        ([[1], [2, -3]], r"prompt\[1\]: expected token ids of at least 0, got -3 at prompt\[1\]\[1\]"),
    ],
)
def test_a_prompt_that_cannot_be_one_is_refused(prompt: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        completion(prompt=prompt).prompts()


def test_a_prompt_of_other_things_is_refused_by_its_place() -> None:
    for prompt in ([True], [1.5], [["a"]], {"a": 1}):
        with pytest.raises(RequestError) as caught:
            completion(prompt=prompt)
        assert caught.value.param is not None
        assert caught.value.param.startswith("prompt")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)


@given(st.sampled_from(["messages", "temperature", "stop", "n", "stream_options", "tools", "prompt", "logprobs", "seed"]), _VALUES)
def test_any_value_of_any_field_is_taken_or_refused_by_that_fields_name(name: str, value: Any) -> None:
    for kind in (ChatRequest, CompletionRequest):
        try:
            decode_request(json.dumps({"messages": [USER], name: value}).encode(), kind)
        except RequestError as exc:
            assert exc.param is not None and exc.param.startswith(name)  # noqa: PT017, PT018  both outcomes are right
