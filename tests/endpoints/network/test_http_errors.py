"""aiohttp's errors become streamco's, with the cause that decides about a retry."""

from __future__ import annotations

import ssl

import aiohttp
import pytest

from streamco.config import Timeouts
from streamco.endpoints.network.http_errors import root_cause, translate
from streamco.errors import EndpointConnectError, EndpointError, EndpointProtocolError, EndpointTimeoutError

TIMEOUTS = Timeouts(connect=5)


def connector_error(cause: OSError) -> aiohttp.ClientError:
    from aiohttp.client_reqrep import ConnectionKey

    key = ConnectionKey("host.example", 443, True, True, None, None, None)
    match cause:
        case ssl.SSLCertVerificationError():
            return aiohttp.ClientConnectorCertificateError(key, cause)
        case ssl.SSLError():
            return aiohttp.ClientConnectorSSLError(key, cause)
    return aiohttp.ClientConnectorError(key, cause)


@pytest.mark.parametrize(
    ("exception", "kind", "text"),
    [
        (aiohttp.ConnectionTimeoutError(), EndpointTimeoutError, "expected a connection within 5 s"),
        (connector_error(OSError(111, "refused")), EndpointConnectError, "expected a connection to host.example:443"),
        (connector_error(ssl.SSLError(1, "bad version")), EndpointConnectError, "host.example:443"),
        (
            connector_error(ssl.SSLCertVerificationError(1, "self-signed")),
            EndpointConnectError,
            "expected a trusted certificate from host.example",
        ),
        (aiohttp.ServerDisconnectedError(), EndpointConnectError, "got the connection closed"),
        (aiohttp.ClientOSError(104, "Connection reset by peer"), EndpointConnectError, "got Connection reset by peer"),
        (ConnectionResetError(104, "Connection reset by peer"), EndpointConnectError, "got Connection reset by peer"),
        (aiohttp.ClientPayloadError("Response payload is not completed"), EndpointProtocolError, "got the connection cut"),
        (aiohttp.ClientConnectionError("odd"), EndpointConnectError, "got odd"),
        (aiohttp.http_exceptions.TransferEncodingError("xyz"), EndpointProtocolError, "expected an HTTP answer, got 'xyz'"),
        (RuntimeError("Connection closed."), EndpointProtocolError, "got the connection closed"),
    ],
)
def test_foreign_errors_are_told_in_our_words(exception: Exception, kind: type[EndpointError], text: str) -> None:
    error = translate(exception, "remote", TIMEOUTS)
    assert type(error) is kind
    assert text in str(error)
    assert str(error).startswith("remote: expected")


def test_a_connection_lost_after_text_is_a_protocol_error_with_that_text() -> None:
    error = translate(aiohttp.ClientOSError(104, "reset"), "remote", TIMEOUTS, partial="Hel")
    assert isinstance(error, EndpointProtocolError)
    assert error.partial == "Hel"


def test_our_own_errors_and_bugs_pass_as_they_are() -> None:
    ours = EndpointError("x")
    assert translate(ours, "remote", TIMEOUTS) is ours
    assert translate(ZeroDivisionError(), "remote", TIMEOUTS) is None


def test_the_root_of_a_tls_error_is_the_ssl_error() -> None:
    cause = ssl.SSLCertVerificationError(1, "self-signed")
    assert root_cause(connector_error(cause)) is cause
    plain = connector_error(OSError(111, "refused"))
    assert root_cause(plain) is plain
