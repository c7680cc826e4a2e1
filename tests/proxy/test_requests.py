"""Bodies of requests: what is understood, what is passed on, what is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.proxy.config import ProxyOptions
from streamco.proxy.requests import parse_chat, parse_completion
from streamco.server.http.errors import RequestError

MESSAGES = [{"role": "user", "content": "Hi"}]
OPTIONS = ProxyOptions(models=("small",))


def chat(**fields: Any) -> Any:
    return parse_chat(json.dumps({"messages": MESSAGES, **fields}).encode(), OPTIONS)


def completion(**fields: Any) -> Any:
    return parse_completion(json.dumps({"prompt": "Once", **fields}).encode(), OPTIONS)


def refused(parse: Any, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(**fields)
    assert caught.value.status == 400
    return caught.value


def test_sampling_is_understood() -> None:
    sampling = chat(temperature=0, top_p=1, top_k=5, min_p=0.1, seed=3, max_tokens=9, stop=["a", "b"]).request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed) == (0, 1, 5, 0.1, 3)
    assert (sampling.max_tokens, sampling.stop) == (9, ("a", "b"))
    sampling = chat(frequency_penalty=1, presence_penalty=-0.5, logit_bias={"5": 1}).request.sampling
    assert (sampling.frequency_penalty, sampling.presence_penalty, sampling.logit_bias) == (1, -0.5, ((5, 1),))


def test_the_newer_name_of_the_limit_wins() -> None:
    assert chat(max_tokens=9, max_completion_tokens=4).request.sampling.max_tokens == 4


def test_null_is_as_good_as_nothing() -> None:
    asked = chat(temperature=None, stop=None, stream=None, stream_options=None, tools=None, model=None, n=None)
    assert (asked.is_streamed, asked.wants_usage, asked.model, dict(asked.request.extra)) == (False, False, "", {})


def test_every_other_field_is_passed_on_as_it_is() -> None:
    fields = {"tools": [{"type": "function"}], "response_format": {"type": "json_object"}, "n": 2, "new": "x"}
    assert dict(chat(**fields).request.extra) == fields


def test_stream_options_but_usage_are_passed_on() -> None:
    asked = chat(stream=True, stream_options={"include_usage": True, "include_obfuscation": False})
    assert asked.wants_usage
    assert dict(asked.request.extra) == {"stream_options": {"include_obfuscation": False}}


def test_the_option_for_origins_is_understood_and_not_passed_on() -> None:
    assert not chat(stream=True).wants_origin
    asked = chat(stream=True, stream_options={"include_origin": True, "include_usage": True})
    assert (asked.wants_origin, asked.wants_usage, dict(asked.request.extra)) == (True, True, {})
    asked = completion(stream=True, stream_options={"include_origin": True, "include_obfuscation": False})
    assert (asked.wants_origin, dict(asked.request.extra)) == (True, {"stream_options": {"include_obfuscation": False}})
    assert not chat(stream_options={"include_origin": False}).wants_origin
    assert "only valid with stream" in str(refused(chat, stream_options={"include_origin": True}))


def test_names_of_the_clients_own_arguments_mean_nothing_in_a_body() -> None:
    asked = chat(timeout=3, extra_headers={"a": "b"}, extra_body={"c": 1}, extra_query={})
    assert dict(asked.request.extra) == {"timeout": 3, "extra_headers": {"a": "b"}, "extra_body": {"c": 1}, "extra_query": {}}
    assert dict(asked.request.headers) == {}


@pytest.mark.parametrize(("name", "passed"), [("", None), ("streamco", None), ("small", None), ("other", "other")])
def test_only_a_foreign_models_name_goes_on(name: str, passed: str | None) -> None:
    assert chat(model=name).request.model == passed
    assert completion(model=name).request.model == passed


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"messages": [{"content": "Hi"}]}, "messages[0]"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": 5}, "stop"),
        ({"n": 0}, "n"),
        ({"n": "two"}, "n"),
        ({"model": 4}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": True}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "include_usage"),
        ({"stream_options": {"include_origin": 1}}, "include_origin"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refused(chat, **fields).param == param


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b'"x"', b"null", b"3", b"[" * 100_000])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    for parse in (parse_chat, parse_completion):
        with pytest.raises(RequestError, match="body: expected"):
            parse(body, OPTIONS)


@pytest.mark.parametrize("prompt", ["Once", ["Once"]])
def test_a_prompt_is_one_text(prompt: Any) -> None:
    assert completion(prompt=prompt).request.messages == [{"role": "user", "content": "Once"}]


@pytest.mark.parametrize(
    ("prompt", "got"),
    [
        (None, "got none"),
        ([], "expected one text, got 0"),
        (["a", "b"], "expected one text, got 2"),
        ([1, 2], "got token ids"),
        ([[1, 2]], "got token ids"),
        (5, "got a number"),
        ({}, "got an object"),
        (True, "got true or false"),
    ],
)
def test_any_other_prompt_is_refused(prompt: Any, got: str) -> None:
    refusal = refused(completion, prompt=prompt)
    assert refusal.param == "prompt"
    assert got in str(refusal)


@pytest.mark.parametrize("fields", [{"echo": True}, {"suffix": "end"}, {"best_of": 3}, {"logprobs": 0}, {"logprobs": 5}])
def test_fields_of_completions_that_mean_nothing_here_are_refused(fields: dict[str, Any]) -> None:
    assert refused(completion, **fields).code == "unsupported_parameter"


def test_their_defaults_are_fine_and_go_nowhere() -> None:
    assert dict(completion(echo=False, suffix="", best_of=1, logprobs=None).request.extra) == {}


def test_a_raw_prompt_stays_one() -> None:
    request = parse_completion(b'{"prompt": "Once", "seed": 4}', ProxyOptions(raw_prompts=True)).request
    assert (request.prompt, request.messages, request.sampling.seed) == ("Once", None, 4)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["messages", "prompt", "model", "stream", "stream_options", "temperature", "stop", "n", "max_tokens", "tools", "x"])


@given(st.dictionaries(NAMES, JSON))
def test_any_object_is_understood_or_refused(fields: dict[str, Any]) -> None:
    body = json.dumps(fields).encode()
    for parse in (parse_chat, parse_completion):
        with suppress(RequestError):  # anything else would fail here
            parse(body, OPTIONS)
