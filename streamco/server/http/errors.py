"""Request errors: OpenAI's and Anthropic's error objects, and the exception that carries one from a handler to the middleware."""

from __future__ import annotations

import math
from collections.abc import Mapping

from aiohttp import web

from streamco.errors import MAX_NAME, shorten
from streamco.server.http.encoding import Json, encode, event
from streamco.server.http.paths import is_messages_request
from streamco.wire.messages_api.errors import message_error

__all__ = [
    "QUOTA",
    "RequestError",
    "error_body",
    "error_event",
    "error_object",
    "error_response",
    "invalid",
    "overloaded",
    "too_large",
    "unsupported",
]

QUOTA = "insufficient_quota"  # OpenAI's code, and error type, for a budget that is used up
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class RequestError(Exception):
    """A request that gets an error instead of an answer; never leaves the server.

    Args:
        status: HTTP status.
        message: the message for the client; it is cut to 2,000 characters.
        param: the request's field that is at fault, if any; its name is cut to 100 characters.
        code: OpenAI's machine-readable reason, if any.
        headers: additional headers of the response.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(shorten(message))
        self.status = status
        self.param = None if param is None else shorten(param, MAX_NAME)
        self.code = code
        self.headers = dict(headers or {})


def invalid(param: str | None, message: str, *, code: str | None = None) -> RequestError:
    """Return a 400: the request has a value that can't be served. ``param`` is the field at fault, or None for the whole request."""
    return RequestError(400, f"{param}: {message}" if param else message, param=param, code=code)


def unsupported(field: str) -> RequestError:
    """Return a 400: the request uses a field of the API that this server doesn't offer."""
    return invalid(field, "expected none, got some: this server doesn't offer it", code="unsupported_parameter")


def overloaded(message: str, wait: float) -> RequestError:
    """Return a 429 that asks the client to retry in ``wait`` seconds."""
    return RequestError(429, message, code="rate_limit_exceeded", headers={"Retry-After": str(max(1, math.ceil(wait)))})


def too_large(limit: int) -> RequestError:
    """Return a 413: the body has more than ``limit`` bytes."""
    return RequestError(413, f"body: expected at most {limit} bytes, got more")


def error_object(refusal: RequestError) -> Json:
    """Return OpenAI's error object: ``{"message", "type", "param", "code"}``."""
    return _describe(refusal.status, str(refusal), refusal.param, refusal.code)


def error_body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """Return OpenAI's error object as JSON: ``{"error": {"message", "type", "param", "code"}}``."""
    return encode({"error": _describe(status, message, param, code)})


def _describe(status: int, message: str, param: str | None, code: str | None) -> Json:
    kind = QUOTA if code == QUOTA else TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"message": message, "type": kind, "param": param, "code": code}


def error_event(failure: RequestError) -> bytes:
    """Return an error as an event of a stream. No [DONE] follows, so a client that ignores the event sees a truncated answer."""
    return event({"error": error_object(failure)})


def error_response(refusal: RequestError, request: web.Request | None = None) -> web.Response:
    """Return an error's HTTP response, in the format of the request's API, or OpenAI's if it couldn't be read and is None."""
    if request is not None and is_messages_request(request):
        body = encode(message_error(refusal.status, str(refusal), code=refusal.code))
    else:
        body = error_body(refusal.status, str(refusal), param=refusal.param, code=refusal.code)
    return web.Response(status=refusal.status, body=body, content_type="application/json", headers=refusal.headers)
