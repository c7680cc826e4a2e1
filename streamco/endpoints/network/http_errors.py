"""Translates aiohttp's errors into streamco's own."""

from __future__ import annotations

import re
import ssl

from streamco.config import Timeouts
from streamco.errors import EndpointConnectError, EndpointError, EndpointProtocolError, EndpointStatusError, EndpointTimeoutError

__all__ = ["root_cause", "tells_trouble", "translate"]

_SCOPE = re.compile("scope|permission", re.IGNORECASE)  # OpenAI's restricted keys get 401, "insufficient permissions ... Missing scopes"


def _refuses_key(error: EndpointStatusError) -> bool:
    """Return True if a list of models was refused because the key is invalid, not because a valid key isn't allowed to list models."""
    return error.status in {401, 403} and not _SCOPE.search(error.body)


def tells_trouble(error: EndpointError) -> bool:
    """Return True if an error from listing models means that answers will fail, too: a failed connection or a rejected key."""
    is_lost = isinstance(error, EndpointConnectError) or (isinstance(error, EndpointTimeoutError) and error.phase == "connect")
    return is_lost or (isinstance(error, EndpointStatusError) and _refuses_key(error))


def root_cause(exc: Exception) -> BaseException:
    """Return the TLS error inside an aiohttp error, or else the exception itself."""
    inner = getattr(exc, "certificate_error", None) or getattr(exc, "os_error", None)
    return inner if isinstance(inner, ssl.SSLError) else exc


def translate(exc: Exception, name: str, timeouts: Timeouts, *, partial: str = "") -> EndpointError | None:
    """Return streamco's error for one of aiohttp's, or None for any other exception.

    Args:
        exc: the exception.
        name: the endpoint's name.
        timeouts: the limits that applied.
        partial: the answer's text so far.
    """
    import aiohttp

    broken = _explain_broken_answer(exc)
    if broken is not None:
        return EndpointProtocolError(broken, endpoint=name, partial=partial)
    match exc:
        case EndpointError():
            return exc
        case aiohttp.ConnectionTimeoutError() | aiohttp.ServerTimeoutError():
            limit = timeouts.connect or 0.0
            text = f"expected a connection within {limit:g} s, got none"
            return EndpointTimeoutError(text, phase="connect", limit=limit, endpoint=name)
        case aiohttp.ClientConnectorCertificateError():
            text = f"expected a trusted certificate from {exc.host}, got {exc.certificate_error}"
        case aiohttp.ClientConnectorDNSError():
            text = f"expected an address for the host {exc.host}, got {exc.os_error.strerror or exc.os_error}"
        case aiohttp.ClientConnectorError():
            text = f"expected a connection to {exc.host}:{exc.port}, got {exc.strerror or exc.os_error}"
        case aiohttp.ClientHttpProxyError():
            text = f"expected the proxy to connect, got status {exc.status}: {exc.message}"
        case aiohttp.ServerDisconnectedError():
            text = "expected an answer, got the connection closed"
        case aiohttp.ClientError() | OSError():
            text = f"expected the connection to last, got {exc.strerror if isinstance(exc, OSError) and exc.strerror else exc}"
        case _:
            return None
    if partial:
        return EndpointProtocolError(text, endpoint=name, partial=partial)
    return EndpointConnectError(text, endpoint=name)


def _explain_broken_answer(exc: Exception) -> str | None:
    """Return what is wrong with bytes that should be an HTTP response, or None if the exception is about something else."""
    import aiohttp

    match exc:
        case aiohttp.ClientHttpProxyError():
            return None
        case aiohttp.ClientPayloadError():
            got = "the connection cut" if "not completed" in str(exc) else f"a body that can't be read: {exc}"
            return f"expected the rest of the answer, got {got}"
        case aiohttp.ClientResponseError() | aiohttp.http.HttpProcessingError():
            return f"expected an HTTP answer, got {exc.message!r}"
        case RuntimeError() if exc.args == ("Connection closed.",):  # from aiohttp's reader after broken framing
            return "expected the rest of the answer, got the connection closed"
    return None
