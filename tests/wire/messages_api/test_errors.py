"""Anthropic's error object."""

from __future__ import annotations

import pytest

from streamco.wire.messages_api.errors import message_error


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_an_error_is_named_by_its_status(status: int, kind: str) -> None:
    assert message_error(status, "why") == {"type": "error", "error": {"type": kind, "message": "why"}}


def test_a_prompt_that_is_too_long_is_named_as_agents_know_it() -> None:
    code = "context_length_exceeded"
    assert message_error(400, "why", code=code)["error"]["message"] == "prompt is too long: why"
    told = "server: prompt is too long: 10 tokens > 9 maximum"
    assert message_error(400, told, code=code)["error"]["message"] == told
    assert message_error(400, "why", code="other")["error"]["message"] == "why"
