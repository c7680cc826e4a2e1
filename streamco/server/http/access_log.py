"""The access log: one line a request, with an id that the client gets, too.

A line holds what was asked for and how it ended, never a key, a query or a body: neither prompts nor answers. If the server has several
keys, the name of the request's key is in the line.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from contextvars import ContextVar
from secrets import token_hex

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from streamco.server.http.api_keys import KEY_NAME
from streamco.server.http.paths import is_messages_request

__all__ = ["access_log", "current_request_id", "send_request_id"]

_request_id: ContextVar[str] = ContextVar("streamco_request_id", default="")

_GIVEN = ("X-Client-Request-Id", "X-Request-Id")  # as OpenAI's clients name theirs; as gateways do
_USUAL_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PROBES = frozenset({"/health", "/metrics"})  # asked for every few seconds by whatever watches a server: for DEBUG
_MAX_PATH = 100  # characters; a path may hold anything


def access_log(logger: logging.Logger) -> Middleware:
    """Return a middleware that logs each request when its answer has ended: INFO, or DEBUG for ``/health`` and ``/metrics``.

    It gives each request its id: the client's own, if that is one of at most 64 letters, digits, dots, dashes or underscores.

    Args:
        logger: gets the lines.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        request_id = _given_id(request) or token_hex(8)
        _request_id.set(request_id)
        began = time.monotonic()
        outcome = "failed"
        try:
            response = await handler(request)
            outcome = f"{response.status}, {response.body_length or response.content_length or 0} bytes"  # a whole body is sent later
            return response
        except asyncio.CancelledError:
            outcome = "the client left"
            raise
        except web.HTTPException as error:
            outcome = str(error.status)
            raise
        finally:
            level = logging.DEBUG if request.path in _PROBES else logging.INFO
            if logger.isEnabledFor(level):
                client = " ".join(filter(None, (request.remote, request.get(KEY_NAME))))
                what = f"{client} {request.method} {_path(request)}"
                logger.log(level, "%s: %s: %s in %.3f s", request_id, what, outcome, time.monotonic() - began)

    return middleware


def current_request_id() -> str:
    """Return the id of the request that the running task answers; "": it answers none."""
    return _request_id.get()


async def send_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Put the request's id into the response's headers; for ``on_response_prepare``.

    It is ``x-request-id``, and for Anthropic's API also ``request-id``, where that API's clients look for it.
    """
    if request_id := current_request_id():
        response.headers["x-request-id"] = request_id
        if is_messages_request(request):
            response.headers["request-id"] = request_id


def _given_id(request: web.Request) -> str | None:
    for header in _GIVEN:
        given = request.headers.get(header, "")
        if _USUAL_ID.fullmatch(given):
            return given
    return None


def _path(request: web.Request) -> str:
    """Return the path without its query, printable and bounded."""
    return ascii(request.path[:_MAX_PATH])[1:-1]
