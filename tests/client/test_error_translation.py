"""Errors that endpoints raise, translated to the error tree."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamco.client.error_translation import FailedStream, FinishedStream, as_failure, as_raised, failure_of, raisable, with_partial
from streamco.errors import (
    AllEndpointsFailed,
    ConfigError,
    EndpointError,
    EndpointProtocolError,
    EndpointStatusError,
    StreamClosed,
    StreamcoError,
    UsageError,
    VerifierError,
)
from streamco.events import StreamEnded
from streamco.openai_types import CompletionUsage


@pytest.mark.parametrize("translate", [failure_of, as_failure])
def test_an_endpoints_error_is_kept_and_gets_its_name(translate: Callable[[Exception, str], EndpointError]) -> None:
    error = EndpointStatusError("busy", status=503)
    assert translate(error, "server") is error
    assert error.endpoint == "server"
    assert translate(EndpointError("x", endpoint="own"), "server").endpoint == "own"


@pytest.mark.parametrize("translate", [failure_of, as_failure])
def test_an_error_of_what_an_endpoint_asks_is_its_failure(translate: Callable[[Exception, str], EndpointError]) -> None:
    refused = VerifierError("another vocabulary")
    failure = translate(refused, "split")
    assert isinstance(failure, EndpointProtocolError)
    assert (str(failure), failure.__cause__) == ("split: another vocabulary", refused)


@pytest.mark.parametrize("mistake", [ConfigError("headers: expected a text"), UsageError("session: closed"), StreamClosed("closed")])
def test_a_mistake_of_the_callers_is_nobodys_failure(mistake: StreamcoError) -> None:
    with pytest.raises(type(mistake)) as caught:
        failure_of(mistake, "server")
    assert caught.value is mistake
    raised = as_raised(mistake, "race", "so far")
    assert (type(raised), str(raised), raised.partial) == (type(mistake), str(mistake), "so far")


@pytest.mark.parametrize("bug", [KeyError("oops"), OSError("oops"), TimeoutError(), RuntimeError("Event loop is closed")])
def test_a_defect_is_nobodys_failure_and_is_named_with_the_text_so_far(bug: Exception) -> None:
    with pytest.raises(StreamcoError) as caught:
        failure_of(bug, "server")
    assert not isinstance(caught.value, EndpointError)
    assert (str(caught.value), caught.value.__cause__) == (f"server: expected an event or an EndpointError, got {bug!r}", bug)
    assert as_raised(caught.value, "race", "so far").partial == "so far"
    direct = as_raised(bug, "race", "so far")
    assert (type(direct), str(direct)) == (StreamcoError, f"race: expected events it can handle, got {bug!r}")
    assert (direct.partial, direct.__cause__) == ("so far", bug)


def test_where_nothing_else_can_come_of_it_a_defect_is_the_endpoints() -> None:
    bug = OSError("can't let go")
    failure = as_failure(bug, "server")
    assert (str(failure), failure.__cause__) == ('server: OSError("can\'t let go")', bug)


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """The error after it was raised, with its traceback."""
    try:
        raise error from cause
    except type(error):
        return error


def test_an_endpoints_error_and_those_of_its_network_lose_their_frames_and_defects_keep_theirs() -> None:
    lost, bug = raised(OSError("reset")), raised(KeyError("oops"))
    error = as_failure(raised(EndpointError("no end"), lost), "server")  # type: ignore[arg-type]
    assert (error.__traceback__, error.__cause__, lost.__traceback__) == (None, lost, None)
    as_failure(raised(EndpointError("no end"), bug), "server")  # type: ignore[arg-type]
    assert bug.__traceback__ is not None


def test_errors_that_cause_one_another_are_translated_once_each() -> None:
    first, second = EndpointError("first"), EndpointError("second")
    first.__cause__, second.__cause__ = second, first
    assert as_failure(first, "server") is first


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
