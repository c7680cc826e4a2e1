"""Error answers of every shape: status, message, how long to wait."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.wire.openai.errors import find_code, find_error, find_message, find_status, parse_retry_after, status_error, stream_error
from tests.support.data import data_path

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "message", "code", "type", "detail", "choices", "details", "retryDelay"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "words", "type": "invalid_request_error", "param": None, "code": None}},  # OpenAI, DeepSeek
        {"error": {"code": "401", "message": "words"}},  # Azure
        {"type": "error", "error": {"type": "overloaded_error", "message": "words"}},  # Anthropic
        {"error": {"code": 400, "message": "words", "status": "INVALID_ARGUMENT"}},  # Google
        [{"error": {"code": 400, "message": "words", "status": "INVALID_ARGUMENT"}}],  # Google, streamed
        {"detail": "words"},  # Mistral, FastAPI
        {"detail": [{"loc": ["body", "n"], "msg": "words", "type": "int_parsing"}]},  # FastAPI's validation
        {"code": "invalid-argument", "error": "words"},  # x.ai
        {"message": "words"},  # Bedrock, Cohere
        {"object": "error", "message": "words", "code": 400},  # vLLM before 0.9
        {"message": {"detail": [{"msg": "words"}]}},  # Mistral's validation
        {"error": {"error": {"message": "words"}}},  # gateways that wrap
        "words",
    ],
)
def test_the_message_is_found_in_every_known_shape(body: Any) -> None:
    error = status_error(400, {}, json.dumps(body).encode(), endpoint="x")
    assert str(error) == "x: expected status 200, got 400: words"
    assert json.loads(error.body) == body


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"", "an empty body"),
        (b"<html>\n <h1>502  Bad Gateway</h1>", "<html> <h1>502 Bad Gateway</h1>"),
        (b"upstream \xff", "upstream \ufffd"),
        (b'{"a": 1}', '{"a": 1}'),
        (b"x" * 1000, "x" * 500 + " ..."),
    ],
)
def test_a_body_without_a_message_is_shown_itself(body: bytes, shown: str) -> None:
    assert str(status_error(502, {}, body)) == f"expected status 200, got 502: {shown}"


def test_at_most_64_kib_of_the_body_are_kept() -> None:
    assert len(status_error(500, {}, b"x" * 100_000).body) == 64 * 1024


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"code": 429}, 429),
        ({"code": 429.0}, 429),
        ({"code": "503"}, 503),
        ({"code": "tool_use_failed", "status_code": 400, "type": "x"}, 400),
        ({"status": "RESOURCE_EXHAUSTED"}, 429),
        ({"code": "invalid-argument"}, 400),
        ({"code": "invalid_api_key", "type": "invalid_request_error"}, 401),
        ({"code": "context_length_exceeded", "type": "invalid_request_error"}, 400),
        ({"code": "insufficient_quota", "type": "insufficient_quota"}, 429),
        ({"code": None, "type": "server_error"}, 500),
        ({"type": "overloaded_error"}, 529),
        ({"type": "Overloaded"}, 529),
        ({"code": 1302, "type": "rate_limit_error"}, 429),  # a provider's own number is no status
        ({"code": True, "type": "timeout"}, 504),
        ({"code": 200}, 500),
        ({"code": "²"}, 500),
        ({"code": "9" * 5_000}, 500),
        ({"code": 10**30}, 500),
        ({"code": "weird"}, 500),
        ("just words", 500),
        ({}, 500),
    ],
)
def test_an_error_object_stands_for_a_status(error: Any, status: int) -> None:
    assert find_status({"error": error}) == status
    assert find_status(error) == status
    assert stream_error({"error": error}).status == status


def test_an_error_is_found_at_the_top_in_a_choice_and_in_x_groq() -> None:
    error = {"message": "x"}
    found = [{"error": error}, [{"error": error}], {"choices": [{}, {"error": error}]}, {"choices": [], "x_groq": {"error": error}}]
    assert [find_error(value) for value in found] == [error] * 4
    nothing: list[Any] = [{}, [], None, "x", {"error": None}, {"error": {}}, {"choices": None}, {"choices": ["x"], "x_groq": None}]
    assert [find_error(value) for value in nothing] == [None] * 8


@given(JSON)
def test_any_json_may_be_an_error(value: Any) -> None:
    assert isinstance(find_message(value), str)
    assert 400 <= find_status(value) <= 599
    find_error(value)
    assert str(status_error(500, {}, json.dumps(value).encode(), now=0.0))
    assert str(stream_error(value))


# Waiting

DATE = "Wed, 21 Oct 2026 07:28:00 GMT"
EPOCH = 1792567680.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"RETRY-AFTER": "0"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "1"}, 1.0),
        ({"retry-after-ms": "0", "retry-after": "1"}, 1.0),
        ({"retry-after-ms": "0", "retry-after": "0"}, 0.0),
        ({"retry-after-ms": "0"}, 0.0),
        ({"Retry-After": DATE, "Date": "Wed, 21 Oct 2026 07:27:30 GMT"}, 30.0),
        ({"Retry-After": DATE}, 10.0),
        ({"Retry-After": "Wednesday, 21-Oct-26 07:28:00 GMT"}, 10.0),
        ({"Retry-After": DATE, "Date": "Wed, 21 Oct 2026 09:00:00 GMT"}, 0.0),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "later"}, None),
        ({"Retry-After": ""}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_seconds_milliseconds_and_dates(headers: dict[str, str], seconds: float | None) -> None:
    assert parse_retry_after(headers, now=EPOCH - 10) == seconds


def test_a_date_without_any_clock_says_nothing() -> None:
    assert parse_retry_after({"Retry-After": DATE}) is None


def test_googles_retry_delay_is_in_the_body() -> None:
    details = [
        {"@type": "type.googleapis.com/google.rpc.Help"},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "18.5s"},
    ]
    body = json.dumps({"error": {"code": 429, "message": "x", "details": details}}).encode()
    assert status_error(429, {}, body).retry_after == 18.5
    assert status_error(429, {"Retry-After": "3"}, body).retry_after == 3


# Recordings


def test_every_recorded_error_answer_gives_its_status_and_the_servers_own_words() -> None:
    lines = data_path("sse", "http_errors.jsonl").read_text().splitlines()
    assert lines
    for line in lines:
        recorded = json.loads(line)
        error = status_error(recorded["status"], recorded["headers"], recorded["body"].encode(), now=0.0, endpoint=recorded["host"])
        value = json.loads(recorded["body"])
        value = value[0] if isinstance(value, list) else value
        inner = value.get("error", value)
        words = inner if isinstance(inner, str) else inner.get("message") or inner["detail"]
        assert error.status == recorded["status"]
        assert " ".join(words.split())[:400] in str(error)
        assert error.endpoint == recorded["host"]
        assert error.retry_after is None or error.retry_after >= 0


def test_recorded_error_objects_stand_for_the_status_they_came_with_where_they_say_it() -> None:
    agreed = 0
    for line in data_path("sse", "http_errors.jsonl").read_text().splitlines():
        recorded = json.loads(line)
        status = find_status(json.loads(recorded["body"]))
        agreed += status // 100 == recorded["status"] // 100
    assert agreed >= 33  # of 42; the others have no code, or one of their own


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (400, {"message": "m", "code": "context_length_exceeded"}, "context_length_exceeded"),
        (400, {"message": "the request exceeds the available context size, try increasing it"}, "context_length_exceeded"),
        (400, {"message": "m", "type": "exceed_context_size_error", "code": 400}, "context_length_exceeded"),
        (400, {"message": "This model's maximum context length is 9 tokens. However, you requested 10"}, "context_length_exceeded"),
        (400, {"message": "This model's maximum prompt length is 9 but the request contains 10 tokens"}, "context_length_exceeded"),
        (400, {"message": "prompt is too long: 10 tokens > 9 maximum", "type": "invalid_request_error"}, "context_length_exceeded"),
        (
            400,
            {"message": "The input token count (10) exceeds the maximum number of tokens allowed (9).", "code": 400},
            "context_length_exceeded",
        ),
        (422, {"message": "The input (10 tokens) is longer than the model's context length (9 tokens)."}, "context_length_exceeded"),
        (413, {"message": "Prompt contains 10 tokens, too large for model with 9 maximum context length"}, "context_length_exceeded"),
        (500, {"message": "This model's maximum context length is 9 tokens."}, None),
        (400, {"message": "expected a shorter name", "code": "bad_name"}, "bad_name"),
        (400, {"message": "m", "code": 400}, None),
        (429, {"message": "m", "code": "rate_limit_exceeded"}, "rate_limit_exceeded"),
    ],
)
def test_a_prompt_that_is_too_long_has_one_code_whatever_the_server_calls_it(status: int, error: dict[str, Any], code: str | None) -> None:
    assert find_code({"error": error}, status=status) == code
    assert status_error(status, {}, json.dumps({"error": error}).encode()).code == code


def test_a_code_is_found_in_the_other_forms_of_errors_too() -> None:
    assert find_code({"code": "x", "message": "m"}, status=400) == "x"
    assert find_code({"detail": "maximum context length is 9"}, status=400) == "context_length_exceeded"
    odd: list[Any] = [None, [], "text", {"error": "text"}]
    assert [find_code(each, status=400) for each in odd] == [None] * 4
    assert stream_error({"error": {"code": "context_length_exceeded", "message": "m"}}).code == "context_length_exceeded"
