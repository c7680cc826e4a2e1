"""What endpoints raise, in the words of the error tree."""

from __future__ import annotations

import pytest

from streamco.client.failures import Unopened, translate
from streamco.errors import EndpointError, EndpointProtocolError, EndpointStatusError, UsageError


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


async def test_the_stream_of_an_endpoint_that_could_not_open_one_says_why() -> None:
    error = EndpointError("no room", endpoint="server")
    stream = Unopened(error)
    for _ in range(2):
        with pytest.raises(EndpointError, match="no room"):
            await stream.receive()
    await stream.cancel()
