"""Errors in OpenAI's form: as an object, inside a stream, and as a response."""

from __future__ import annotations

import json

import pytest
from aiohttp.test_utils import make_mocked_request

from streamco.server.http.errors import (
    QUOTA,
    RequestError,
    error_body,
    error_event,
    error_response,
    invalid,
    overloaded,
    unsupported,
)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_the_type_follows_the_status(status: int, kind: str) -> None:
    assert json.loads(error_body(status, "no", param="n", code="odd")) == {
        "error": {"message": "no", "type": kind, "param": "n", "code": "odd"}
    }


def test_a_budget_that_is_used_up_has_its_own_type() -> None:
    assert json.loads(error_body(429, "no", code=QUOTA))["error"]["type"] == "insufficient_quota"


def test_an_invalid_field_is_named_in_the_text_too() -> None:
    error = invalid("n", "expected 1, got 2", code="odd")
    assert (error.status, str(error), error.param, error.code) == (400, "n: expected 1, got 2", "n", "odd")
    assert str(invalid(None, "body: expected JSON")) == "body: expected JSON"


def test_an_unsupported_field_has_openai_s_code() -> None:
    error = unsupported("tools")
    assert (error.status, error.param, error.code) == (400, "tools", "unsupported_parameter")


@pytest.mark.parametrize(("wait", "header"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (1.5, "2")])
def test_an_overloaded_server_says_in_whole_seconds_when_to_ask_again(wait: float, header: str) -> None:
    error = overloaded("requests: expected fewer", wait)
    assert (error.status, error.headers) == (429, {"Retry-After": header})


def test_an_error_in_a_stream_is_an_event_without_a_done() -> None:
    data = error_event(RequestError(500, "engine: expected more", code="engine_error"))
    assert data.startswith(b"data: {")
    assert data.endswith(b"\n\n")
    assert json.loads(data[6:])["error"]["code"] == "engine_error"
    assert b"[DONE]" not in data


def test_a_response_has_the_error_s_status_headers_and_body() -> None:
    response = error_response(overloaded("requests: expected fewer", 3.0))
    assert (response.status, response.content_type, response.headers["Retry-After"]) == (429, "application/json", "3")
    assert isinstance(response.body, bytes)
    assert json.loads(response.body)["error"]["message"] == "requests: expected fewer"


@pytest.mark.parametrize(
    ("path", "headers", "is_anthropics"),
    [
        ("/v1/messages", {}, True),
        ("/v1/v1/messages", {}, True),
        ("/v1/responses", {}, False),
        ("/v1/models", {"anthropic-version": "2023-06-01"}, True),
    ],
)
def test_the_request_gives_an_error_its_form(path: str, headers: dict[str, str], is_anthropics: bool) -> None:
    refusal = RequestError(404, "gone", param="x", code="y")
    body = error_response(refusal, make_mocked_request("GET", path, headers=headers)).body
    assert isinstance(body, bytes)
    error = {"type": "not_found_error", "message": "gone"} if is_anthropics else None
    found = json.loads(body)
    assert found == ({"type": "error", "error": error} if error else json.loads(error_body(404, "gone", param="x", code="y")))
