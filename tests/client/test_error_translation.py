"""Errors that endpoints raise, translated to the error tree."""

from __future__ import annotations

import pytest

from streamco.client.error_translation import FailedStream, FinishedStream, translate, with_partial
from streamco.errors import AllEndpointsFailed, EndpointError, EndpointProtocolError, EndpointStatusError, UsageError, VerifierError
from streamco.events import StreamEnded
from streamco.openai_types import CompletionUsage


def test_an_endpoints_error_is_kept_and_gets_its_name() -> None:
    error = EndpointStatusError("busy", status=503)
    assert translate(error, "server") is error
    assert error.endpoint == "server"
    assert translate(EndpointError("x", endpoint="own"), "server").endpoint == "own"


def test_a_mistake_in_the_request_keeps_its_words() -> None:
    mistake = UsageError("request: expected values that have a JSON form, got a set")
    error = translate(mistake, "server")
    assert str(error) == "server: request: expected values that have a JSON form, got a set"
    assert error.__cause__ is mistake


def test_anything_else_is_the_endpoints_fault() -> None:
    bug = KeyError("oops")
    error = translate(bug, "server")
    assert isinstance(error, EndpointProtocolError)
    assert str(error) == "server: expected an event or an EndpointError, got KeyError('oops')"
    assert error.__cause__ is bug


def test_every_answer_that_fails_keeps_its_own_text() -> None:
    shared = EndpointStatusError("busy", status=503, endpoint="server")
    first, second = with_partial(shared, "one", "verifier"), with_partial(shared, "two", "verifier")
    assert isinstance(first, EndpointStatusError)
    assert isinstance(second, EndpointStatusError)
    assert (first.partial, second.partial, shared.partial) == ("one", "two", "")
    assert (first.status, str(first), first.__cause__) == (503, "server: busy", shared)


def test_an_error_that_has_no_place_for_text_becomes_one_of_all_endpoints() -> None:
    alone = with_partial(error := VerifierError("refused"), "so far", "verifier")
    assert isinstance(alone, AllEndpointsFailed)
    assert (alone.partial, alone.errors, alone.__cause__) == ("so far", {"verifier": error}, error)
    assert str(alone) == "no endpoint could finish the answer: verifier: refused"
    several = with_partial(AllEndpointsFailed({"device": error, "remote": error}), "so far", "verifier")
    assert isinstance(several, AllEndpointsFailed)
    assert list(several.errors) == ["device", "remote"]
    assert str(several).startswith("no endpoint could finish")


async def test_the_stream_of_an_endpoint_that_could_not_open_one_says_why() -> None:
    error = EndpointError("no room", endpoint="server")
    stream = FailedStream(error)
    for _ in range(2):
        with pytest.raises(EndpointError, match="no room"):
            await stream.receive()
    await stream.cancel()


async def test_a_finished_stream_has_its_end_and_costs_nothing() -> None:
    stream = FinishedStream("server", "length")
    end = await stream.receive()
    assert isinstance(end, StreamEnded)
    assert (end.source, end.finish_reason, end.usage) == ("server", "length", CompletionUsage())
    await stream.cancel()
