"""Turns a failed answer into an HTTP status and OpenAI's error object.

Errors that a client of the proxy can act on are passed on. Most others become 502 (bad gateway).
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from streamco.errors import (
    CONTEXT_EXCEEDED,
    AllEndpointsFailed,
    ConfigError,
    EndpointError,
    EndpointStatusError,
    EndpointTimeoutError,
    EngineError,
    PromptError,
    StreamClosed,
    StreamcoError,
)
from streamco.proxy.requests import refuse_setting
from streamco.server.http.errors import RequestError
from streamco.wire.openai.errors import find_error

__all__ = ["explain"]

_KEY_REFUSED = frozenset({401, 403, 407})  # these concern the proxy's key at the server; passed on, they would blame the client's key


def explain(error: StreamcoError) -> RequestError:
    """Return the error response for a failed answer, with the error's own text, which names the endpoint."""
    match error:
        case ConfigError():
            return refuse_setting(error)
        case EndpointStatusError():
            return _pass_status(error)
        case EndpointTimeoutError():
            return RequestError(504, str(error), code=f"{error.phase}_timeout")
        case PromptError():
            return RequestError(400, str(error), param="messages")
        case EngineError():
            return RequestError(500, str(error), code="engine_error")
        case EndpointError():
            return RequestError(502, str(error), code="endpoint_failed")
        case AllEndpointsFailed(code=code) if code == CONTEXT_EXCEEDED:
            return _too_long(error, None)
        case AllEndpointsFailed():
            return RequestError(502, str(error), code="all_endpoints_failed")
        case StreamClosed():
            return RequestError(503, "proxy: can't finish the answer because of a shutdown", code="shutdown")
    return RequestError(500, str(error))


def _pass_status(error: EndpointStatusError) -> RequestError:
    status = error.status
    if error.code == CONTEXT_EXCEEDED:
        return _too_long(error, _text(_detail(error.body), "param"))
    if status in _KEY_REFUSED:
        return RequestError(502, f"{error} (the key of the proxy for this endpoint, not yours)", code="endpoint_refused_key")
    if not 400 <= status <= 599:
        return RequestError(502, str(error), code="endpoint_failed")
    headers = {} if error.retry_after is None else {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
    detail = _detail(error.body)
    return RequestError(status, str(error), param=_text(detail, "param"), code=_text(detail, "code"), headers=headers)


def _too_long(error: StreamcoError, param: str | None) -> RequestError:
    """Return the refusal of a prompt that is too long for the servers, whatever status they gave."""
    return RequestError(400, str(error), param=param or "messages", code=CONTEXT_EXCEEDED)


def _detail(body: str) -> Any:
    try:
        return find_error(msgspec.json.decode(body))
    except (msgspec.DecodeError, RecursionError):  # not JSON, or cut off, so there is only the message
        return None


def _text(detail: Any, name: str) -> str | None:
    value = detail.get(name) if isinstance(detail, dict) else None
    return value if isinstance(value, str) else None
