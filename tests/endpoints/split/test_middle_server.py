"""One server of a split model: the time that it asks for, and the error of an answer that no server can continue."""

from __future__ import annotations

import pytest

from streamco.config import Timeouts
from streamco.endpoints.split.middle_server import RETRY, MiddleServer, explained, final_error, is_busy
from streamco.endpoints.verifiers.connection import VerifierAddress
from streamco.errors import EndpointConnectError, EndpointStatusError, EndpointTimeoutError, StreamcoError
from streamco.wire.split.frames import LayersMark
from streamco.wire.verify.errors import (
    EvictedError,
    ModelMismatchError,
    OverloadedError,
    SessionLimitError,
    UnauthorisedError,
    VersionError,
)


def test_a_server_is_put_off_by_as_much_as_it_asks_for() -> None:
    server = MiddleServer(VerifierAddress("ws://127.0.0.1:1", "one"), LayersMark("digest", 2, 28, 8), Timeouts(), exact=False)
    server.put_off(EvictedError("evicted"), 100.0)
    server.put_off(EndpointConnectError("refused"), 100.0)
    assert server.not_before == 0.0
    server.put_off(OverloadedError("full", retry_after=2.5), 100.0)
    assert server.not_before == 102.5


def test_a_server_that_is_busy_and_names_no_time_is_tried_again_soon() -> None:
    server = MiddleServer(VerifierAddress("ws://127.0.0.1:1", "one"), LayersMark("digest", 2, 28, 8), Timeouts(), exact=False)
    server.put_off(SessionLimitError("full"), 100.0)
    assert server.not_before == 100.0 + RETRY
    server.put_off(EndpointStatusError("too many", status=429, retry_after=3.0), 100.0)
    assert server.not_before == 103.0


def test_a_server_at_which_a_place_became_free_may_be_tried_at_once() -> None:
    server = MiddleServer(VerifierAddress("ws://127.0.0.1:1", "one"), LayersMark("digest", 2, 28, 8), Timeouts(), exact=False)
    server.put_off(OverloadedError("full", retry_after=30.0), 100.0)
    server.free()
    assert (server.not_before, server.frees) == (0.0, 1)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OverloadedError("full"), True),
        (SessionLimitError("full"), True),
        (EndpointStatusError("too many", status=429), True),
        (EndpointStatusError("ending", status=503), False),
        (EndpointConnectError("refused"), False),
        (EvictedError("evicted"), False),
    ],
)
def test_a_busy_server_is_one_that_is_there_and_has_no_place(error: StreamcoError, *, expected: bool) -> None:
    assert is_busy(error) == expected


def test_the_last_error_says_what_the_server_asked_for_and_how_long_was_waited() -> None:
    full = final_error(OverloadedError("full", retry_after=2.5), 45.0)
    assert isinstance(full, EndpointTimeoutError)
    expected = "expected a place at a split server within 45 s, got none, because they are busy with other answers: full"
    assert str(full) == f"{expected}; the server asks for 2.5 s before the next try"
    gone = final_error(EvictedError("evicted"))
    assert isinstance(gone, EndpointConnectError)
    assert "asks for" not in str(gone)
    late = EndpointTimeoutError("late", phase="connect", limit=1.0)
    assert final_error(late) is late


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            VersionError("hello: expected a version from 1 to 1, got 2 to 2"),
            "h:1: hello: expected a version from 1 to 1, got 2 to 2; version 2",
        ),
        (
            UnauthorisedError("token: expected a valid one, got none"),
            "h:1: token: expected a valid one, got none; the key is given as",
        ),
        (
            ModelMismatchError("hello: expected a, got b"),
            "h:1: hello: expected a, got b; the device's and the server's parts",
        ),
        (ModelMismatchError("welcome: expected a server in exact mode, got one that isn't"), "got one that isn't"),
        (OverloadedError("sessions: expected at most 1, got 2"), "h:1: sessions: expected at most 1, got 2"),
        (EndpointConnectError("expected a connection, got the connection closed", endpoint="h:1"), "h:1: expected a connection, got the"),
    ],
)
def test_the_error_of_a_failed_connection_says_which_server_it_was_and_what_to_do(error: StreamcoError, text: str) -> None:
    with pytest.raises(type(error)) as caught, explained("h:1"):
        raise error
    assert caught.value is error
    assert text in str(error)
    assert str(error).count("h:1") == 1
