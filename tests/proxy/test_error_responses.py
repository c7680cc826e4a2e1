"""Which status an answer that failed leaves with."""

from __future__ import annotations

import pytest

from streamco.errors import (
    AllEndpointsFailed,
    ConfigError,
    EndpointConnectError,
    EndpointError,
    EndpointProtocolError,
    EndpointStatusError,
    EndpointTimeoutError,
    EngineError,
    PromptError,
    StreamClosed,
    StreamcoError,
)
from streamco.proxy.error_responses import explain

CASES: list[tuple[StreamcoError, int, str | None]] = [
    (ConfigError("temperature: expected 0 to 2, got 9"), 400, None),
    (EndpointTimeoutError("too late", phase="first_token", limit=60.0, endpoint="cloud"), 504, "first_token_timeout"),
    (EndpointTimeoutError("too late", phase="connect", limit=10.0, endpoint="cloud"), 504, "connect_timeout"),
    (EndpointConnectError("refused", endpoint="cloud"), 502, "endpoint_failed"),
    (EndpointProtocolError("cut", endpoint="cloud"), 502, "endpoint_failed"),
    (EndpointError("odd", endpoint="cloud"), 502, "endpoint_failed"),
    (EngineError("out of memory", endpoint="device"), 500, "engine_error"),
    (PromptError("messages[0].role: expected letters, got others", endpoint="device"), 400, None),
    (StreamClosed("closed"), 503, "shutdown"),
    (StreamcoError("odd"), 500, None),
]


@pytest.mark.parametrize(("error", "status", "code"), CASES, ids=lambda value: type(value).__name__)
def test_each_kind_of_failure_has_its_status(error: StreamcoError, status: int, code: str | None) -> None:
    refusal = explain(error)
    assert (refusal.status, refusal.code) == (status, code)


@pytest.mark.parametrize("status", [400, 402, 404, 408, 413, 422, 429, 500, 503, 529])
def test_an_endpoints_status_is_passed_on_with_its_text(status: int) -> None:
    refusal = explain(EndpointStatusError(f"expected status 200, got {status}: no", status=status, endpoint="cloud"))
    assert (refusal.status, str(refusal)) == (status, f"cloud: expected status 200, got {status}: no")


def test_its_code_and_parameter_are_passed_on_too() -> None:
    body = '{"error": {"message": "too long", "code": "context_length_exceeded", "param": "messages", "type": "x"}}'
    refusal = explain(EndpointStatusError("got 400", status=400, body=body))
    assert (refusal.code, refusal.param) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize("body", ["", "<html>", '{"error": "no"}', '{"error": {"code": 7}}', '[{"error": {}}]', "[" * 100_000])
def test_a_body_that_says_nothing_of_use_is_no_trouble(body: str) -> None:
    refusal = explain(EndpointStatusError("got 500", status=500, body=body))
    assert (refusal.status, refusal.code, refusal.param) == (500, None, None)


@pytest.mark.parametrize("status", [401, 403, 407])
def test_a_refused_key_is_the_proxys_and_not_the_callers(status: int) -> None:
    refusal = explain(EndpointStatusError(f"expected status 200, got {status}: bad key", status=status, endpoint="cloud"))
    assert refusal.status == 502
    assert str(refusal).startswith("cloud: ")
    assert "the key of the proxy for this endpoint" in str(refusal)


@pytest.mark.parametrize("status", [204, 301, 600])
def test_a_status_that_is_no_error_is_a_bad_gateway(status: int) -> None:
    assert explain(EndpointStatusError("odd", status=status)).status == 502


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.4, "1"), (2.1, "3"), (20.0, "20")])
def test_the_time_to_wait_is_told_in_whole_seconds(seconds: float, header: str) -> None:
    assert explain(EndpointStatusError("slow down", status=429, retry_after=seconds)).headers == {"Retry-After": header}
    assert explain(EndpointStatusError("slow down", status=429)).headers == {}


def test_when_all_failed_each_ones_own_error_is_told() -> None:
    errors: dict[str, Exception] = {
        "device": EngineError("out of memory", endpoint="device"),
        "cloud": EndpointStatusError("expected status 200, got 500: oops", status=500, endpoint="cloud"),
    }
    refusal = explain(AllEndpointsFailed(errors))
    assert (refusal.status, refusal.code) == (502, "all_endpoints_failed")
    assert "device: out of memory" in str(refusal)
    assert "cloud: expected status 200, got 500: oops" in str(refusal)


@pytest.mark.parametrize(
    ("text", "param"),
    [("temperature: expected 0 to 2, got 9", "temperature"), ("messages[3]: expected a role", "messages[3]"), ("no name here", None)],
)
def test_a_wrong_argument_is_named(text: str, param: str | None) -> None:
    assert explain(ConfigError(text)).param == param
