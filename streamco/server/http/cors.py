"""Cross-origin requests: which web pages may call the API from a browser (the Fetch standard's CORS protocol)."""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from streamco.errors import ConfigError

__all__ = ["ANY_ORIGIN", "allow_origins", "check_origin"]

ANY_ORIGIN = "*"
PREFLIGHT_SECONDS = 600  # how long a browser remembers the answer; Chrome allows at most 7200
METHODS = "GET, POST"
EXPOSED = ", ".join(
    [
        *("X-Request-ID", "Retry-After"),
        *("x-streamco-mode", "x-streamco-winner", "x-streamco-ttft-ms", "x-streamco-cost-usd", "x-streamco-model-note"),
        *("x-streamco-policy", "x-streamco-reason", "x-streamco-notes", "x-streamco-budget"),
        *("x-streamco-acceptance", "x-streamco-offloaded-share", "x-streamco-hit-rate", "x-streamco-rounds", "x-streamco-exact"),
        *("x-streamco-trips", "x-streamco-tokens-per-trip", "x-streamco-sessions", "x-streamco-bytes-up", "x-streamco-bytes-down"),
    ]
)
"""Headers that a page may read; without this list browsers hide them."""


def check_origin(origin: str) -> None:
    """Check an origin, which must be ``*`` or have the form that browsers send, like ``https://example.org`` or ``http://localhost:3000``.

    Raises:
        ConfigError: it isn't an origin.
    """
    if origin == ANY_ORIGIN:
        return
    try:
        parts = urlsplit(origin)
        is_origin = parts.scheme in {"http", "https"} and f"{parts.scheme}://{parts.netloc}" == origin and parts.port != 0
    except ValueError:
        is_origin = False
    if not is_origin or not parts.hostname or "@" in parts.netloc or origin != origin.lower():
        raise ConfigError(f"cors: expected an origin such as https://example.org or http://localhost:3000, or *, got {origin!r}")


def allow_origins(app: web.Application, origins: tuple[str, ...]) -> None:
    """Let pages of these origins call the application's paths and read the answers, including errors. Does nothing without origins.

    A preflight request is answered before the key is checked, because browsers don't send the key with it.
    """
    if not origins:
        return
    allowed = frozenset(origins)

    def origin_of(request: web.Request) -> str | None:
        origin = request.headers.get("Origin")
        return origin if origin is not None and (origin in allowed or ANY_ORIGIN in allowed) else None

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.add("Vary", "Origin")
        if (origin := origin_of(request)) is not None:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = EXPOSED

    @web.middleware
    async def answer_preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers or origin_of(request) is None:
            return await handler(request)
        headers = {
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", ""),
            "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
        }
        return web.Response(status=204, headers={name: value for name, value in headers.items() if value})

    app.middlewares.insert(0, answer_preflight)
    app.on_response_prepare.append(add_headers)
