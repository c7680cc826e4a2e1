"""The access log: one line per request, with an id that the client gets, too.

A line says what was requested and how it ended. It never contains a key, a query or a body, so it shows no prompts or answers. If the
server has several keys, the line also has the name of the request's key.
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

_GIVEN = ("X-Client-Request-Id", "X-Request-Id")  # the names that OpenAI's clients and gateways use
_USUAL_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PROBES = frozenset({"/health", "/metrics"})  # monitoring requests these every few seconds, so they are logged at DEBUG
_MAX_PATH = 100  # characters; a path may hold anything


def access_log(logger: logging.Logger) -> Middleware:
    """Return a middleware that logs each request when its answer has ended, at INFO, or at DEBUG for ``/health`` and ``/metrics``.

    It also gives each request an id: the client's, if it has at most 64 letters, digits, dots, dashes or underscores, or a new one.

    Args:
        logger: the logger that gets the lines.
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
    """Return the id of the request that the running task is answering, or "" if it isn't answering one."""
    return _request_id.get()


async def send_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Put the request's id into the response's headers; a handler for ``on_response_prepare``.

    The header is ``x-request-id``, and for Anthropic's API also ``request-id``, where that API's clients look for it.
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
    """Return the path without its query, made printable and limited in length."""
    return ascii(request.path[:_MAX_PATH])[1:-1]
