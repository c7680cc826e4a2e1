"""The page's routes: static files with fixed content types, and a check of the origin of every request that starts work.

The page loads nothing from elsewhere, has no inline script or style, and shows all text as plain text. Its content security policy makes
the browser enforce this. The files contain no secrets, so they need no key; the page sends the key that its user types with each API
request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from msgspec import Struct

from streamco.client.client import Client
from streamco.endpoints.base import Request
from streamco.errors import MAX_NAME, EndpointError, shorten
from streamco.server.http.cors import ANY_ORIGIN
from streamco.server.http.errors import RequestError

__all__ = ["FILES", "HEADERS", "KILL_PATH", "PAGE_PATHS", "PageExtras", "PageFile", "add_page"]

FOLDER = Path(__file__).parent


class PageFile(Struct, frozen=True):
    """A file of the page, and its content type."""

    name: str
    content_type: str

    def read(self) -> bytes:
        """Return the file's bytes."""
        return (FOLDER / self.name).read_bytes()


class PageExtras(Struct, frozen=True):
    """A demo's additions to the chat page.

    Attributes:
        prompts: prompts to click on in an empty conversation, and the client that answers each, or None for the proxy's client.
        kill_server: kills the server, and returns when it is running again. With None there is no button and no path for it.
    """

    prompts: Mapping[str, Client | None] = {}
    kill_server: Callable[[], Awaitable[None]] | None = None

    def client_for(self, request: Request) -> Client | None:
        """Return the client that answers this request if it ends with one of the prompts, or None for the proxy's client."""
        prompt = request.messages[-1].get("content") if request.messages else None
        return self.prompts.get(prompt) if isinstance(prompt, str) else None


_SCRIPTS = ("page.js", "answer.js", "answer_text.js", "api.js", "markdown.js", "markdown_inline.js", "race.js", "saved_turns.js")

FILES: Mapping[str, PageFile] = {
    "/": PageFile("index.html", "text/html; charset=utf-8"),
    "/page.css": PageFile("page.css", "text/css; charset=utf-8"),
    **{f"/{name}": PageFile(name, "text/javascript; charset=utf-8") for name in _SCRIPTS},
    "/icon.svg": PageFile("icon.svg", "image/svg+xml"),
}
SETTINGS_PATH = "/page.json"
PAGE_PATHS = frozenset({*FILES, SETTINGS_PATH})
KILL_PATH = "/streamco/demo/kill"

_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"  # text can't become script or markup, whatever the page's code does
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-DNS-Prefetch-Control": "off",  # don't look up a link in an answer before it is clicked
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # other versions of the package have other pages
}
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def add_page(app: web.Application, cors: tuple[str, ...], extras: PageExtras) -> None:
    """Serve the page, and refuse requests that start work if a page from another origin sends them.

    Args:
        app: the proxy's application.
        cors: other origins that may send such requests.
        extras: additions to the page's chat.
    """
    for path, file in FILES.items():
        app.router.add_get(path, _handler(file.read(), file.content_type))
    settings = {"prompts": list(extras.prompts), "kills_server": extras.kill_server is not None}
    app.router.add_get(SETTINGS_PATH, _handler(msgspec.json.encode(settings), "application/json"))
    if extras.kill_server is not None:
        app.router.add_post(KILL_PATH, _caller(extras.kill_server))
    app.middlewares.append(_refuse_other_origins(frozenset(cors)))


def _handler(body: bytes, content_type: str) -> Handler:
    headers = {**HEADERS, "Content-Type": content_type}

    async def handle(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, headers=headers)

    return handle


def _caller(function: Callable[[], Awaitable[None]]) -> Handler:
    async def handle(_request: web.Request) -> web.StreamResponse:
        try:
            await function()
        except EndpointError as error:
            raise RequestError(502, str(error)) from error
        return web.Response(status=204)

    return handle


def _refuse_other_origins(allowed: frozenset[str]) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin is not None and request.method not in _SAFE_METHODS and origin not in allowed and ANY_ORIGIN not in allowed:
            host = request.headers.get("Host", "")
            # a proxy in front may have changed the host; Sec-Fetch-Site comes from the browser, and no page can set it
            if not _is_same(origin, host) and request.headers.get("Sec-Fetch-Site") != "same-origin":
                expected = f"the page's own, {shorten(host, MAX_NAME)}"
                raise RequestError(403, f"origin: expected {expected}, or none, got {shorten(origin, MAX_NAME)}")
        return await handler(request)

    return middleware


def _is_same(origin: str, host: str) -> bool:
    """Return True if an origin is this host. Its scheme may be different, because a proxy may add TLS."""
    scheme, _, place = origin.partition("://")
    return scheme in {"http", "https"} and bool(place) and place.lower() == host.lower()
