"""OpenAI's arguments, right and wrong."""

from __future__ import annotations

import inspect
import re
from collections import OrderedDict
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.client.arguments import ChatOptions, RequestTimeout, build_request, check_mapping
from streamco.config import SamplingOptions, Timeouts
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
    assert [message["role"] for message in build_request(messages).messages or ()] == ["system", "user"]


def test_max_completion_tokens_goes_before_max_tokens() -> None:
    assert build_request("hi", max_tokens=5, max_completion_tokens=7).sampling.max_tokens == 7
    assert build_request("hi", max_tokens=-1, max_completion_tokens=7).sampling == SamplingOptions(max_tokens=7)


@pytest.mark.parametrize("given", [{"max_tokens": -1}, {"max_completion_tokens": -1}, {"extra_body": {"max_tokens": -1}}])
def test_a_limit_of_minus_one_is_none(given: dict[str, Any]) -> None:
    assert build_request("hi", **given).sampling == SamplingOptions(max_tokens=None, is_unlimited=True)


PARTS = {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "\ude00"}]}
JSON_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"messages": []}, "messages: expected at least one message, got none"),
        ({"messages": None}, "messages: expected a string or a list of messages, got NoneType"),
        ({"messages": {"role": "user"}}, "messages: expected a string or a list of messages, got dict"),
        ({"messages": ChatCompletionMessage(content="x")}, "messages: expected a string or a list of messages, got ChatCompletionMessage"),
        ({"messages": ["hi"]}, 'messages[0]: expected a mapping with "role" and "content", got str'),
        ({"messages": [{"role": "user"}, {"content": "x"}]}, 'messages[1]: expected a "role" that is a string, got None'),
        ({"temperature": 3}, "temperature: expected 0 to 2, got 3"),
        ({"temperature": "hot"}, "temperature: expected 0 to 2, got 'hot'"),
        ({"temperature": float("nan")}, "temperature: expected 0 to 2, got nan"),
        ({"top_p": 0}, "top_p: expected more than 0, at most 1, got 0"),
        ({"top_p": 1e-308}, "top_p: expected more than 0, at most 1, got 1e-308"),
        ({"top_k": 1 << 63}, "top_k: expected an integer <= 2147483647, got a larger one"),
        ({"min_p": 1.5}, "min_p: expected 0 to 1, got 1.5"),
        ({"top_k": 1.5}, "top_k: expected an integer >= -1, got 1.5"),
        ({"seed": "x"}, "seed: expected an integer, got 'x'"),
        ({"max_tokens": 0}, "max_tokens: expected an integer >= 1, got 0"),
        ({"max_tokens": True}, "max_tokens: expected an integer >= 1, got True"),
        ({"max_completion_tokens": -2}, "max_tokens: expected an integer >= 1, got -2"),
        ({"max_tokens": -1.0}, "max_tokens: expected an integer >= 1, got -1.0"),
        ({"stop": 5}, "stop: expected a string or a list of strings that are not empty, got 5"),
        ({"stop": ["a", ""]}, "stop: expected a string or a list of strings that are not empty, got ['a', '']"),
        ({"n": 0}, "n: expected an integer >= 1, got 0"),
        ({"n": "two"}, "n: expected an integer >= 1, got 'two'"),
        ({"extra_body": [1]}, "extra_body: expected a mapping, got list"),
        ({"extra_headers": "A: b"}, "extra_headers: expected a mapping, got str"),
        ({"extra_headers": {"x-streamco-task": 5}}, "extra_headers: x-streamco-task: expected text, got int"),
        ({"timeout": 0}, "timeout: expected seconds above 0, None, Timeouts or httpx.Timeout, got 0"),
        ({"timeout": "soon"}, "timeout: expected seconds above 0, None, Timeouts or httpx.Timeout, got 'soon'"),
        ({"max_retries": -1}, "max_retries: expected an integer >= 0, got -1"),
        ({"extra_query": "a=b"}, "extra_query: expected a mapping, got str"),
        ({"extra_query": {"a": [1]}}, "extra_query: a: expected a string, a number, True or False, got list"),
        ({"model": 5}, "model: expected the name of a model, got int"),
        # what no request can carry
        ({"messages": "hi \ud83d"}, "messages[0].content: expected whole characters, got half of one (U+D83D at 3)"),
        ({"messages": [PARTS]}, "messages[0].content[1].text: expected whole characters, got half of one (U+DE00 at 0)"),
        ({"messages": [{"role": "user", "na\udcffme": 1}]}, "messages[0]: expected whole characters, got half of one (U+DCFF at 2)"),
        (
            {"messages": [{"role": "user", "content": {1, object}}]},
            "messages[0].content: expected a value that JSON has a form for, got set",
        ),
        ({"model": "m\ud83d"}, "model: expected whole characters, got half of one (U+D83D at 1)"),
        ({"stop": ["a", "\ud83d"]}, "stop: expected whole characters, got half of one (U+D83D at 0)"),
        ({"user": "\ud83d"}, "user: expected whole characters, got half of one (U+D83D at 0)"),
        (
            {"tools": [{"function": {"a b": "\ud83d"}}]},
            "tools[0].function['a b']: expected whole characters, got half of one (U+D83D at 0)",
        ),
        ({"metadata": {"at": object}}, "metadata.at: expected a value that JSON has a form for, got type"),
        ({"extra_body": {"x": iter("a")}}, "x: expected a value that JSON has a form for, got str_ascii_iterator"),
        ({"extra_body": {"x": {(1, 2): 3}}}, "x[(1, 2)]: expected a value that JSON has a form for, got dict"),
        ({"extra_query": {"a": "\ud83d"}}, "extra_query: expected whole characters, got half of one (U+D83D at 2)"),
        (
            {"extra_headers": {"X-User": "a\nb"}},
            """extra_headers["X-User"]: expected a string on one line, got the control character '\\n' at 1""",
        ),
        (
            {"extra_headers": {"X-User": "a\0"}},
            """extra_headers["X-User"]: expected a string on one line, got the control character '\\x00' at 1""",
        ),
        ({"extra_headers": {"X-User": None}}, 'extra_headers["X-User"]: expected a string, got NoneType'),
        ({"extra_headers": {"X-User": 5}}, 'extra_headers["X-User"]: expected a string, got int'),
        ({"extra_headers": {"X-User": b"5"}}, 'extra_headers["X-User"]: expected a string, got bytes'),
        ({"extra_headers": {"X-User": "\ud83d"}}, 'extra_headers["X-User"]: expected whole characters, got half of one (U+D83D at 0)'),
        ({"extra_headers": {"X User": "a"}}, "extra_headers: expected names of headers, got 'X User'"),
        ({"extra_headers": {"X-User:": "a"}}, "extra_headers: expected names of headers, got 'X-User:'"),
        ({"extra_headers": {5: "a"}}, "extra_headers: expected names of headers, got 5"),
        ({"extra_headers": {"": "a"}}, "extra_headers: expected names of headers, got ''"),
    ],
)
def test_a_wrong_argument_says_what_was_expected_what_was_got_and_where(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_request(**{"messages": "hi", **arguments})
    found = re.sub(r"(JSON has a form for, got \w+) \(.*\)$", r"\1", str(caught.value))  # msgspec's own words follow
    assert found == text.replace("str_ascii_iterator", type(iter("a")).__name__)


@given(st.recursive(JSON_LEAVES, lambda each: st.lists(each) | st.dictionaries(st.text(), each), max_leaves=10))
def test_everything_that_json_has_a_form_for_is_taken(value: Any) -> None:
    request = build_request([{"role": "user", "content": value}], extra_body={"other": value}, metadata={"a": value})
    msgspec.json.encode([request.messages, request.extra])


@given(st.text(st.characters(categories=("Cs", "L"))), st.integers(0, 3))
def test_what_is_taken_can_be_sent_and_what_is_refused_can_not(text: str, depth: int) -> None:
    value: Any = text
    for _ in range(depth):
        value = {"a": [value]}
    try:
        request = build_request([{"role": "user", "content": value}])
    except ConfigError:
        with pytest.raises(UnicodeEncodeError):
            text.encode()
    else:
        msgspec.json.encode(request.messages)


def test_mappings_of_every_kind_are_dicts_for_a_server() -> None:
    frozen = MappingProxyType({"role": "user", "content": MappingProxyType({"a": 1})})
    request = build_request([frozen], extra_body=MappingProxyType({"x": OrderedDict(b=2)}))
    assert (request.messages, request.extra) == ([{"role": "user", "content": {"a": 1}}], {"x": {"b": 2}})
    msgspec.json.encode([request.messages, request.extra])


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (lambda deep: {"messages": [{"role": "user", "content": deep}]}, "messages[0]"),
        (lambda deep: {"messages": "Hi", "tools": deep}, "tools"),
        (lambda deep: {"messages": "Hi", "extra_body": {"other": deep}}, "extra_body"),
    ],
)
def test_what_is_nested_too_deep_is_an_error(arguments: Callable[[object], dict[str, Any]], name: str) -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ConfigError) as caught:
        build_request(**arguments(deep))
    assert str(caught.value) == f"{name}: expected fewer levels of nesting, got more"


def test_no_mapping_is_an_empty_one() -> None:
    assert check_mapping("x", None) == {}
    assert check_mapping("x", {"a": 1}) == {"a": 1}


# Response objects as messages


CALL = ToolCall(id="c1", function=FunctionCall(name="f", arguments="{}"))


def test_a_response_object_is_a_message() -> None:
    answer = ChatCompletionMessage(content=None, tool_calls=[CALL])
    request = build_request([{"role": "user", "content": "hi"}, answer, {"role": "tool", "tool_call_id": "c1", "content": "1"}])
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


# Names


@pytest.mark.parametrize(("name", "hint"), [("temprature", "did you mean 'temperature'?"), ("max_token", "did you mean 'max_tokens'?")])
def test_a_misspelt_argument_is_an_error(name: str, hint: str) -> None:
    arguments: dict[str, Any] = {name: 1}
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'; {re.escape(hint)}"):
        build_request("hi", **arguments)


def test_a_field_that_only_a_server_knows_goes_into_extra_body() -> None:
    with pytest.raises(TypeError, match="extra_body"):
        build_request("hi", zzz=1)  # type: ignore[call-arg]
    assert build_request("hi", extra_body={"zzz": 1}).extra == {"zzz": 1}


def test_every_argument_of_openais_sdk_is_known() -> None:
    completions = pytest.importorskip("openai.resources.chat.completions").AsyncCompletions
    theirs = set(inspect.signature(completions.create).parameters) - {"self", "messages", "model", "stream"}
    assert theirs - set(ChatOptions.__annotations__) == set()
    assert set(ChatOptions.__annotations__) - theirs == {"max_retries", "top_k", "min_p"}


# What is not given


class Omit:
    """As in OpenAI's SDK."""

    def __bool__(self) -> Literal[False]:
        return False


class NotGiven(Omit):
    """As in OpenAI's SDK."""


@pytest.mark.parametrize("mark", [Omit(), NotGiven()], ids=["omit", "NOT_GIVEN"])
def test_openais_marks_mean_not_given(mark: Omit) -> None:
    names: dict[str, Any] = dict.fromkeys(ChatOptions.__annotations__, mark)
    assert build_request("hi", model=mark, **names) == build_request("hi")


def test_marks_of_the_installed_sdk_mean_not_given() -> None:
    openai = pytest.importorskip("openai")
    for mark in (openai.omit, openai.NOT_GIVEN):
        assert build_request("hi", temperature=mark, tools=mark, timeout=mark) == build_request("hi")


# Limits


class Phases:
    """As ``httpx.Timeout``."""

    connect: float | None = 2.0
    read: float | None = None
    write = pool = 7.0


@pytest.mark.parametrize(
    ("timeout", "limits"),
    [
        (5, Timeouts(connect=5, first_token=5, next_token=5, socket=5)),
        (None, Timeouts(connect=None, first_token=None, next_token=None, socket=None)),
        (Phases(), Timeouts(connect=2.0, first_token=None, next_token=None, socket=None)),
        (Timeouts(first_token=3), Timeouts(first_token=3)),
    ],
)
def test_a_timeout_limits_each_phase(timeout: RequestTimeout, limits: Timeouts) -> None:
    assert build_request("hi", timeout=timeout).timeouts == limits


@pytest.mark.parametrize("module", ["httpx", "httpx2"])
def test_a_timeout_of_httpx_is_taken(module: str) -> None:
    timeout = pytest.importorskip(module).Timeout(4, connect=1)
    assert build_request("hi", timeout=timeout).timeouts == Timeouts(connect=1, first_token=4, next_token=4, socket=4)


def test_without_a_timeout_the_endpoints_own_hold() -> None:
    request = build_request("hi")
    assert request.timeouts is None
    assert request.max_retries is None


def test_query_values_are_texts() -> None:
    assert build_request("hi", extra_query={"a": 1, "b": True, "c": "x"}).query == {"a": "1", "b": "true", "c": "x"}


# extra_body


def test_sampling_in_extra_body_holds_for_every_endpoint() -> None:
    request = build_request("hi", temperature=1, extra_body={"temperature": 0, "top_k": 5, "provider": {"order": ["x"]}})
    assert request.sampling == SamplingOptions(temperature=0, top_k=5)
    assert request.extra == {"provider": {"order": ["x"]}}


# Penalties and biases


def test_penalties_and_biases_are_sampling() -> None:
    sampling = build_request("hi", frequency_penalty=1, presence_penalty=-2, logit_bias={"5": 1, "7": -100}).sampling
    assert sampling == SamplingOptions(frequency_penalty=1, presence_penalty=-2, logit_bias=((5, 1), (7, -100)))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"frequency_penalty": 3}, "frequency_penalty: expected -2 to 2, got 3"),
        ({"presence_penalty": "much"}, "presence_penalty: expected -2 to 2, got 'much'"),
        ({"logit_bias": {"word": 1}}, "logit_bias: expected token ids as keys, got 'word'"),
        ({"logit_bias": {"9" * 5000: 1}}, str(ConfigError(f"logit_bias: expected token ids as keys, got '{'9' * 5000}'"))),
        ({"logit_bias": {5: 101}}, "logit_bias: expected -100 to 100 for token 5, got 101"),
        ({"logit_bias": [5]}, "logit_bias: expected a mapping, got list"),
    ],
)
def test_a_wrong_penalty_or_bias_is_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_request("hi", **arguments)
    assert str(caught.value) == text


def test_the_header_of_a_task_is_not_sent() -> None:
    request = build_request("hello", extra_headers={"A": "b", "X-Streamco-Task": "title"})
    assert (request.task, request.headers) == ("title", {"A": "b"})
    assert build_request("hello", extra_headers={"x-streamco-task": ""}).task is None


def test_a_text_of_another_type_is_its_text() -> None:
    class Markup(str):
        __slots__ = ()

    (message,) = build_request([{"role": "user", "content": Markup("hi")}]).messages or ()
    assert type(message["content"]) is str
    assert message["content"] == "hi"
