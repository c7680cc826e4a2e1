"""Request bodies: what is understood, what is refused, and how the refusal names the field."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.config import SamplingOptions
from streamco.server.http.errors import RequestError
from streamco.server.http.middleware import JSON
from streamco.server.requests import ChatRequest, CompletionRequest, GenerateRequest, convert, parse
from streamco.wire.known_fields import NEUTRAL_VALUES
from streamco.wire.openai.msgpack_body import MSGPACK, encode_msgpack
from streamco.wire.openai.requests import build_chat_request, build_completion_request, encode_request

MESSAGES = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> ChatRequest:
    return parse(json.dumps({"messages": MESSAGES, **fields}).encode(), ChatRequest)


def text(**fields: Any) -> CompletionRequest:
    return parse(json.dumps({"prompt": "Hello", **fields}).encode(), CompletionRequest)


def refused(body: bytes | dict[str, Any], shape: type[GenerateRequest] = ChatRequest) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(body if isinstance(body, bytes) else json.dumps(body).encode(), shape)
    assert caught.value.status == 400
    return caught.value


def test_sampling_options_keep_their_names() -> None:
    sampling = chat(temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=-3, stop=["a", "b"]).sampling(11)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed) == (0.5, 0.9, 7, 0.1, -3)
    assert sampling.stop == ("a", "b")
    assert sampling.max_tokens == 11


def test_what_is_left_out_stays_the_engines_default() -> None:
    sampling = chat().sampling(5)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed, sampling.stop) == (None,) * 5 + ((),)


def test_null_is_as_good_as_left_out() -> None:
    request = chat(temperature=None, stop=None, n=None, stream=None, stream_options=None, logit_bias=None, tools=None, max_tokens=None)
    assert not request.is_streamed
    assert request.sampling(5).temperature is None


def test_top_k_minus_one_turns_it_off_as_at_vllm() -> None:
    assert chat(top_k=-1).sampling(5).top_k == 0


def test_one_stop_string_needs_no_list() -> None:
    assert chat(stop="END").sampling(5).stop == ("END",)


def test_the_newer_name_of_the_token_limit_wins() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).wanted_tokens == ("max_completion_tokens", 7)
    assert chat(max_tokens=5).wanted_tokens == ("max_tokens", 5)
    assert chat(max_tokens=-1).wanted_tokens == text(max_tokens=-1).wanted_tokens == ("max_tokens", None)
    assert chat(max_tokens=5, max_completion_tokens=-1).wanted_tokens == ("max_completion_tokens", None)
    assert text(max_tokens=5).wanted_tokens == ("max_tokens", 5)


def test_usage_is_sent_only_to_those_who_ask_or_get_nothing_else() -> None:
    assert chat(stream=True, stream_options={"include_usage": True}).wants_usage
    assert not chat(stream=True, stream_options={}).wants_usage
    assert not chat(stream=True).wants_usage
    assert chat(stream=True, prefill_only=True).wants_usage
    assert not chat(stream=True, prefill_only=False).wants_usage


def test_unknown_fields_and_harmless_values_of_unsupported_ones_are_ignored() -> None:
    chat(
        user="me",
        metadata={"a": 1},
        presence_penalty=0,
        logit_bias={},
        tools=[],
        n=1,
        response_format={"type": "text"},
        modalities=["text"],
        reasoning_effort="none",
        tool_choice="auto",
        nobody_knows_this=[1, {"a": 2}],
    )


@pytest.mark.parametrize("name", sorted(NEUTRAL_VALUES))
@pytest.mark.parametrize("shape", [ChatRequest, CompletionRequest])
@pytest.mark.parametrize("media_type", [JSON, MSGPACK, "converted"])
def test_every_constraint_that_cannot_be_kept_is_refused_and_its_neutral_values_are_not(
    name: str, shape: type[ChatRequest | CompletionRequest], media_type: str
) -> None:
    def parsed(value: Any) -> Any:
        fields = {("messages" if shape is ChatRequest else "prompt"): MESSAGES if shape is ChatRequest else "Hi", name: value}
        if media_type == "converted":
            return convert(fields, shape)
        return parse(json.dumps(fields).encode() if media_type == JSON else encode_msgpack(fields) or b"", shape, media_type)

    with pytest.raises(RequestError) as caught:
        parsed(["asked"])
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, name, "unsupported_parameter")
    for value in (None, *NEUTRAL_VALUES[name]):
        parsed(value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": -1}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -5}, "max_completion_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"seed": "dice"}, "seed"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": 3}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": None}, "messages"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"functions": [{}]}, "functions"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"verbosity": "low"}, "verbosity"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"continue_final_message": True, "messages": [{"role": "assistant"}]}, "continue_final_message"),
        ({"continue_final_message": True, "continuation_tokens_packed": "VEsB"}, "continuation_tokens_packed"),
        ({"continuation_tokens_packed": "not base64!"}, "continuation_tokens_packed"),
        ({"continuation_tokens_packed": [1, 2]}, "continuation_tokens_packed"),
        ({"prefill_only": 1}, "prefill_only"),
        ({"prefill_only": "true"}, "prefill_only"),
    ],
)
def test_what_cannot_be_served_is_refused_by_the_fields_name(fields: dict[str, Any], param: str) -> None:
    error = refused({"messages": MESSAGES, **fields})
    assert error.param is not None
    assert error.param.split("[")[0] == param
    assert str(error).startswith(param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 3}, "best_of"),
        ({"echo": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [{}]}, "prompt"),
        ({"prompt_tokens_packed": "VEsB"}, "prompt_tokens_packed"),
        ({"prompt": None, "prompt_tokens_packed": "?"}, "prompt_tokens_packed"),
        ({"prefill_only": []}, "prefill_only"),
    ],
)
def test_completions_refuse_theirs(fields: dict[str, Any], param: str) -> None:
    error = refused({"prompt": "Hello", **fields}, CompletionRequest)
    assert str(error).startswith(param)


def test_a_missing_field_is_named() -> None:
    assert (refused({}).param, refused({}, CompletionRequest).param) == ("messages", "prompt")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b"\xff\xfe", b'{"messages": [' * 3, b"[" * 100_000, b'{"messages": "\xff"}'])
def test_a_body_that_is_not_a_json_object_is_refused(body: bytes) -> None:
    assert refused(body).param in {None, "messages"}


def test_a_deep_field_is_named_with_its_path() -> None:
    error = refused({"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": "yes"}})
    assert error.param == "stream_options.include_usage"
    assert str(error) == "stream_options.include_usage: expected bool | null, got str"


@pytest.mark.parametrize(("prompt", "expected"), [("Hi", "Hi"), (["Hi"], "Hi"), ([1, 2], [1, 2]), ([[1, 2]], [1, 2]), ("", "")])
def test_one_prompt_is_taken_in_every_form(prompt: Any, expected: Any) -> None:
    assert text(prompt=prompt).single_prompt == expected


@pytest.mark.parametrize("prompt", [[], ["a", "b"], [[1], [2]], [1, "a"], ["a", 1], [1, [2]]])
def test_several_prompts_and_mixtures_are_refused(prompt: Any) -> None:
    with pytest.raises(RequestError) as caught:
        _ = text(prompt=prompt).single_prompt
    assert caught.value.param == "prompt"


FIELDS = st.sampled_from(["messages", "prompt", "stop", "n", "stream", "top_k"])
SCALARS = st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5)


@given(st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4)))
def test_no_json_makes_the_parser_fail_otherwise(value: Any) -> None:
    for shape in (ChatRequest, CompletionRequest):
        with contextlib.suppress(RequestError):
            parse(json.dumps(value).encode(), shape)


@pytest.mark.parametrize(
    "sampling",
    [SamplingOptions(), SamplingOptions(temperature=0.0, top_p=0.9, top_k=40, min_p=0.05, seed=7, max_tokens=16, stop=("a", "b"))],
)
def test_what_our_own_client_builds_is_read_back(sampling: SamplingOptions) -> None:
    asked = parse(encode_request(build_chat_request([{"role": "user", "content": "hi"}], model="m", sampling=sampling)), ChatRequest)
    assert asked.sampling(16) == msgspec.structs.replace(sampling, max_tokens=16)
    assert (asked.is_streamed, asked.wants_usage, asked.wanted_tokens[1]) == (True, True, sampling.max_tokens)
    plain = parse(encode_request(build_completion_request([1, 2], model="m", sampling=sampling, stream=False)), CompletionRequest)
    assert (plain.sampling(16), plain.is_streamed, plain.single_prompt) == (asked.sampling(16), False, [1, 2])


# The same fields in MessagePack

IN_JSON = st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)  # JSON has no infinity


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("field", ["temperature", "top_p", "stop", "seed"])
def test_numbers_that_json_does_not_have_are_refused_in_messagepack(field: str, number: float) -> None:
    encoded = encode_msgpack({"messages": MESSAGES, field: number})
    assert encoded is not None
    with pytest.raises(RequestError, match=field):
        parse(encoded, ChatRequest, MSGPACK).sampling(16)


@given(st.recursive(IN_JSON, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4)))
def test_a_body_means_the_same_in_messagepack_as_in_json(value: Any) -> None:
    fields = {"messages": MESSAGES, "stop": value, "seed": value, "logit_bias": value}
    encoded = encode_msgpack(fields)
    assert encoded is not None
    assert outcome(encoded, MSGPACK) == outcome(json.dumps(fields).encode(), JSON)


def outcome(body: bytes, media_type: str) -> ChatRequest | str:
    """The request, or the error's text."""
    try:
        return parse(body, ChatRequest, media_type)
    except RequestError as error:
        return str(error)


@pytest.mark.parametrize("shape", [ChatRequest, CompletionRequest])
def test_packed_ids_are_bytes_in_messagepack(shape: type[ChatRequest | CompletionRequest]) -> None:
    encoded = encode_msgpack({"messages": MESSAGES, "prompt": "x", "continuation_tokens_packed": b"\x88\0\0\0", "logit_bias": {7: 1}})
    assert encoded is not None
    request = parse(encoded, shape, MSGPACK)
    assert (request.continuation_tokens_packed, request.logit_bias) == (b"\x88\0\0\0", {7: 1.0})


@given(st.binary(max_size=60))
def test_no_messagepack_makes_the_parser_fail_otherwise(body: bytes) -> None:
    for shape in (ChatRequest, CompletionRequest):
        with contextlib.suppress(RequestError):
            parse(body, shape, MSGPACK)


def test_messagepack_with_too_many_elements_is_413() -> None:
    with pytest.raises(RequestError) as caught:
        parse(b"\x81\xa8messages\xdd\xff\xff\xff\xff", ChatRequest, MSGPACK)
    assert (caught.value.status, str(caught.value)) == (413, "body: expected at most 4096 elements in an array or map, got 4294967295")


def test_a_body_that_is_no_map_names_what_came() -> None:
    with pytest.raises(RequestError, match="body: expected a map, got list") as caught:
        parse(b"\x90", ChatRequest, MSGPACK)
    assert (caught.value.status, caught.value.param) == (400, None)
