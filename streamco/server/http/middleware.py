"""Middleware and admission: which requests are allowed, how large they may be, and how many run at once."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from streamco.endpoints.address import is_loopback
from streamco.endpoints.network.peer_timeout import PeerTimeout
from streamco.server.http.api_keys import KEY_NAME, find_key
from streamco.server.http.body_bounds import has_more_elements
from streamco.server.http.content_codings import coding_of, unpack
from streamco.server.http.errors import RequestError, error_response, overloaded, too_large
from streamco.server.http.options import ListenOptions
from streamco.server.http.paths import explain_path, is_messages_request

__all__ = [
    "BODY_BYTES",
    "JSON",
    "KeyCheck",
    "RequestAdmission",
    "authorize",
    "check_key",
    "given_keys",
    "invalid_key",
    "key_refusal",
    "means_loopback",
    "read_body",
    "trace_headers",
    "translate_errors",
]

KeyCheck = Callable[[web.Request], Awaitable[None]]

logger = logging.getLogger("streamco.server")

BODY_BYTES: web.RequestKey[int] = getattr(web, "RequestKey", lambda name, _: name)("streamco_body_bytes", int)
"""Size of a request's unpacked body, set when it has been read."""

JSON = "application/json"
BODY_SECONDS = 30.0  # enough for a megabyte at 280 kbit/s; a slower client would only occupy a place
MAX_ELEMENTS = 250_000  # commas, [ and { in a body outside strings; as empty objects they take 16 MB and 20 ms
OPEN_PATHS = frozenset({"/health"})  # health probes have no key
_PORT = re.compile(r":[0-9]*$")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
MAX_TRACE_STATE = 512  # characters; the standard asks every system to pass on this many


@web.middleware
async def translate_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer each error in the format of the request's API. Unexpected errors are logged, and answered without details."""
    try:
        return await handler(request)
    except RequestError as refusal:
        return error_response(refusal, request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        error.__traceback__ = None  # the request refers to it, and its frames refer to the request
        return error_response(_refusal_of(request, error), request)
    except ConnectionError:
        return web.Response(status=499, reason="Client Closed Request")  # only for the log, as the client has disconnected
    except Exception:
        logger.exception("%s %s failed", request.method, request.path)
        return error_response(RequestError(500, "server: expected to answer, got an internal error"), request)


def _refusal_of(request: web.Request, error: web.HTTPException) -> RequestError:
    allowed = ", ".join(sorted(error.allowed_methods)) if isinstance(error, web.HTTPMethodNotAllowed) else ""
    headers = {"Allow": allowed} if allowed else {}
    match error.status:
        case 404:
            text = explain_path(request)
        case 405:
            text = f"method: expected {allowed}, got {request.method} on {request.path}"
        case _:
            text = error.reason or ""
    return RequestError(error.status, text, headers=headers)


def authorize(options: ListenOptions, *, deferred: frozenset[str] = frozenset(), key_check: KeyCheck | None = None) -> Middleware:
    """Return a middleware that checks the key. If the server has none, it answers only requests with a loopback name in their Host header.

    Web pages can make a browser send requests to a loopback port under the page's own host name (DNS rebinding). The Host header shows
    that name.

    Args:
        options: the key, or permission to do without one.
        deferred: paths whose handlers check the key themselves, or need none.
        key_check: checks the key instead of ``check_key``, and raises ``RequestError``. None if the options have all keys.
    """
    if key_check is None and options.has_key and not options.keys:
        raise AssertionError("keys that the options don't have need a check of their own")
    is_guarded = not options.has_key and not options.allow_open
    open_paths = OPEN_PATHS | deferred

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if (request.content_length or 0) > request.client_max_size:
            raise too_large(request.client_max_size)
        if request.path not in open_paths:
            if key_check is None:
                check_key(options, request)
            else:
                await key_check(request)
        if is_guarded and not means_loopback(request.headers.get("Host", "")):
            raise RequestError(403, "host: expected a loopback name or address while the server has no api key")
        return await handler(request)

    return middleware


def check_key(options: ListenOptions, request: web.Request) -> None:
    """Check the key in the request's header, if the server has a key. If it has several, ``KEY_NAME`` is set.

    Anthropic's clients send it as ``x-api-key``, which is accepted in their requests in addition to the usual header.

    Raises:
        RequestError: 401 the key is missing or wrong.
    """
    keys = options.keys
    if not keys:
        return
    key = next((found for given in given_keys(request) if (found := find_key(keys, given)) is not None), None)
    if key is None:
        raise key_refusal(request)
    if len(keys) > 1:
        request[KEY_NAME] = key.name


def given_keys(request: web.Request) -> list[str]:
    """Return the keys in the headers of a request. Any of them may be the right one."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    keys = [given.strip()] if scheme.lower() == "bearer" else []
    if is_messages_request(request):
        keys.append(request.headers.get("x-api-key", "").strip())
    return [key for key in keys if key]


def key_refusal(request: web.Request) -> RequestError:
    """Return the 401 for a request without a valid key."""
    given = request.headers.get("Authorization", "").partition(" ")[2]
    headers = "Authorization: Bearer KEY"
    if is_messages_request(request):
        headers = f"x-api-key: KEY or {headers}"
        given = request.headers.get("x-api-key", "") or given
    return invalid_key("another" if given else f"none: send it as {headers}")


def invalid_key(got: str) -> RequestError:
    """Return the 401 for a request whose key isn't valid; ``got`` says what it had instead."""
    message = f"api key: expected a valid key, got {got}"
    return RequestError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def means_loopback(host: str) -> bool:
    """Return True if the host in a request's header is a loopback name of this machine."""
    name = _PORT.sub("", host)
    return not host or is_loopback(name.lower())


def trace_headers(request: web.Request) -> dict[str, str]:
    """Return the request's trace context (W3C), to pass on to the servers that answer it. Malformed headers are left out."""
    parent, state = request.headers.get("traceparent", ""), request.headers.get("tracestate", "")
    if _TRACEPARENT.fullmatch(parent) is None:
        return {}
    return {"traceparent": parent} | ({"tracestate": state} if 0 < len(state) <= MAX_TRACE_STATE and state.isascii() else {})


async def read_body(request: web.Request, media_types: tuple[str, ...] = (JSON,)) -> bytes:
    """Return the unpacked body of a request. The middleware has already checked the declared size, if there is one, and then the key.

    Args:
        request: the request.
        media_types: content types to accept. They must be types that web pages can't send without a preflight request (CORS).

    Raises:
        RequestError: 415 another content type or encoding; 413 too large or too many elements; 408 too slow; 400 broken in transit.
    """
    if request.content_type not in media_types:  # even if there is none: web pages can send such requests anywhere without preflight
        got = request.content_type if "Content-Type" in request.headers else "none"
        raise RequestError(415, f"content type: expected {' or '.join(media_types)}, got {got}")
    limit, coding = request.client_max_size, coding_of(request)
    try:
        async with PeerTimeout(BODY_SECONDS):
            body = await request.read()
    except TimeoutError as error:
        raise RequestError(408, f"body: expected all of it within {BODY_SECONDS:g} s") from error
    except web.HTTPRequestEntityTooLarge as error:
        raise too_large(limit) from error
    except web.RequestPayloadError as error:
        raise RequestError(400, f"body: expected well-formed HTTP, got {error}") from error
    body = await unpack(body, coding, limit=limit)
    request[BODY_BYTES] = len(body)
    if request.content_type == JSON:
        _check_elements(body)
    return body


def _check_elements(body: bytes) -> None:
    """Refuse JSON with so many elements that it would take many times its size in memory, and seconds to decode.

    Raises:
        RequestError: 413 too many elements.
    """
    if has_more_elements(body, MAX_ELEMENTS):
        raise RequestError(413, f"body: expected at most {MAX_ELEMENTS} commas and opening brackets, got more")


class RequestAdmission:
    """Counts and limits the requests that are served at the same time."""

    def __init__(self, options: ListenOptions) -> None:
        self._max_streams = options.max_streams
        self._wait = options.retry_after
        self._present = 0
        self._is_closed = False

    @property
    def present(self) -> int:
        """Number of requests that were admitted and haven't been answered yet."""
        return self._present

    def close(self) -> None:
        """Admit no more requests."""
        self._is_closed = True

    def check_open(self) -> None:
        """Raise 503 once the server is shutting down."""
        if self._is_closed:
            raise RequestError(503, "server: is shutting down", code="shutdown", headers={"Retry-After": "5"})

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count one request as present inside the block.

        Raises:
            RequestError: 429 all places are taken; 503 the server is shutting down.
        """
        self.check_open()
        if self._present >= self._max_streams:
            raise overloaded(f"requests: the limit of {self._max_streams} at once is reached", self._wait)
        self._present += 1
        try:
            yield
        finally:
            self._present -= 1
