"""Refusals to stream, told from other refusals, and what they hold for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamco.endpoints.known_servers.providers import GENERIC, Dialect
from streamco.endpoints.known_servers.stream_refusals import StreamRefusals
from streamco.errors import EndpointStatusError
from streamco.wire.openai.errors import status_error

STREAMED = {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 5}


def refusal(status: int = 400, **error: Any) -> EndpointStatusError:
    return status_error(status, {}, json.dumps({"error": error}).encode())


def body(**fields: Any) -> dict[str, Any]:
    return STREAMED | fields


ABOUT_STREAMS = [
    refusal(message="Your organization must be verified to stream this model. Go to settings.", param="stream", code="unsupported_value"),
    refusal(message="Your organization must be verified to stream this model."),
    refusal(message="Unsupported value: 'stream' does not support true with this model. Only the default (false) value is supported."),
    refusal(message="Unsupported parameter: stream"),
    refusal(message="Streaming is not yet available for this deployment"),
    refusal(message="streaming isn’t enabled"),  # noqa: RUF001  as a server wrote it
    refusal(message="This model can't be streamed."),
    refusal(message="stream must be false"),
    refusal(422, message="stream: streaming is disabled", type="invalid_request_error"),
    refusal(message="tools are not supported with streaming", param="tools"),
    status_error(422, {}, b'{"detail":[{"type":"extra_forbidden","loc":["body","stream"],"msg":"Extra inputs are not permitted"}]}'),
    status_error(400, {}, b'{"type":"error","error":{"type":"invalid_request_error","message":"stream: not supported for this model"}}'),
    status_error(400, {}, b"streaming not supported"),
]

ABOUT_OTHER_THINGS = [
    refusal(message="Unsupported value: 'temperature' does not support 0.2 with this model.", param="temperature"),
    refusal(message="Unrecognized request argument supplied: stream_options"),
    refusal(message="The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options"),
    refusal(message="upstream error: not available"),
    refusal(message="Invalid tool 'stream': the name is not allowed", param="tools[0].function.name"),
    refusal(message="'this is not a stream' has an image, which m can't read", param="messages"),
    refusal(message="the context is too long"),
    refusal(401, message="you are not allowed to stream this model", param="stream"),
    refusal(429, message="too many streams, not now"),
    refusal(500, message="streaming is not supported"),
    status_error(400, {}, b""),
]


@pytest.mark.parametrize("error", ABOUT_STREAMS, ids=lambda error: error.body[:60])
def test_refusals_to_stream_are_known_by_field_or_words(error: EndpointStatusError) -> None:
    refusals = StreamRefusals()
    assert not refusals.find(STREAMED)
    assert refusals.record(error, STREAMED) == "this model"
    assert refusals.find(STREAMED) == "this model"
    assert not refusals.find(body(model="other"))


@pytest.mark.parametrize("error", ABOUT_OTHER_THINGS, ids=lambda error: error.body[:60])
def test_other_refusals_say_nothing_of_streams(error: EndpointStatusError) -> None:
    refusals = StreamRefusals()
    assert not refusals.record(error, STREAMED)
    assert not refusals.find(STREAMED)


@pytest.mark.parametrize("error", ABOUT_STREAMS, ids=lambda error: error.body[:60])
def test_a_request_without_stream_is_not_refused_for_it(error: EndpointStatusError) -> None:
    assert not StreamRefusals().record(error, {"model": "m", "messages": []})


def test_a_field_that_is_not_streamed_leaves_the_models_other_streams() -> None:
    refusals = StreamRefusals()
    shaped = body(response_format={"type": "json_object"})
    error = refusal(message="`response_format` does not support streaming")
    assert refusals.record(error, shaped) == "response_format with this model"
    assert refusals.find(shaped) == "response_format with this model"
    assert not refusals.find(STREAMED)


def test_a_request_that_is_refused_without_stream_too_was_not_refused_for_it() -> None:
    dialect, changes = Dialect(GENERIC), dict[str, str]()
    assert dialect.adapt(ABOUT_STREAMS[0], json.dumps(STREAMED).encode(), changes)
    assert changes == {"stream": "this model"}
    whole = {"model": "m", "messages": []}
    assert not dialect.adapt(ABOUT_OTHER_THINGS[0], json.dumps(whole).encode(), changes)
    assert not changes
    assert not dialect.stream_refusals.find(STREAMED)


def test_a_later_refusal_of_something_else_is_no_reason_to_stream_again() -> None:
    dialect = Dialect(GENERIC)
    assert dialect.adapt(ABOUT_STREAMS[0], json.dumps(STREAMED).encode(), {})
    assert not dialect.adapt(ABOUT_OTHER_THINGS[0], b'{"model": "m", "messages": []}', {})
    assert dialect.stream_refusals.find(STREAMED)
