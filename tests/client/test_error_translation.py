"""Errors that endpoints raise, translated to the error tree."""

from __future__ import annotations

import pytest

from streamco.client.error_translation import FailedStream, FinishedStream, raisable, translate, with_partial
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


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """The error after it was raised, with its traceback."""
    try:
        raise error from cause
    except type(error):
        return error


def test_an_endpoints_error_and_those_of_its_network_lose_their_frames_and_defects_keep_theirs() -> None:
    lost, bug = raised(OSError("reset")), raised(KeyError("oops"))
    error = translate(raised(EndpointError("no end"), lost), "server")  # type: ignore[arg-type]
    assert (error.__traceback__, error.__cause__, lost.__traceback__) == (None, lost, None)
    translate(raised(EndpointError("no end"), bug), "server")  # type: ignore[arg-type]
    assert bug.__traceback__ is not None


def test_errors_that_cause_one_another_are_translated_once_each() -> None:
    first, second = EndpointError("first"), EndpointError("second")
    first.__cause__, second.__cause__ = second, first
    assert translate(first, "server") is first


def test_a_copy_that_is_raised_has_all_of_the_kept_error() -> None:
    kept = EndpointStatusError("busy", status=503, endpoint="server", partial="so far")
    kept.__context__ = KeyError("before")
    kept.add_note("asked twice")
    copy = raisable(kept)
    assert copy is not kept
    assert isinstance(copy, EndpointStatusError)
    assert (str(copy), copy.status, copy.partial, copy.__context__) == (str(kept), 503, "so far", kept.__context__)
    assert (copy.__cause__, copy.__suppress_context__) == (None, False)
    copy.add_note("once more")
    assert kept.__notes__ == ["asked twice"]


def test_an_error_of_a_callers_own_class_is_raised_itself() -> None:
    class OwnError(EndpointError):
        """Has a state that no copy has."""

    kept = OwnError("no")
    assert raisable(kept) is kept


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
