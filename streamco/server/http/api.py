"""The API's paths as an aiohttp application, whoever answers behind them: an engine here, a client in the proxy."""

from __future__ import annotations

from typing import Protocol

from aiohttp import web

from streamco.server.http.middleware import authorize, translate_errors
from streamco.server.http.options import ListenOptions

__all__ = ["Api", "make_application"]


class Api(Protocol):
    """What answers OpenAI's paths."""

    async def health(self, request: web.Request, /) -> web.StreamResponse:
        """``GET /health``: alive, and how busy."""
        ...

    async def models(self, request: web.Request, /) -> web.StreamResponse:
        """``GET /v1/models``."""
        ...

    async def one_model(self, request: web.Request, /) -> web.StreamResponse:
        """``GET /v1/models/NAME``."""
        ...

    async def chat_completions(self, request: web.Request, /) -> web.StreamResponse:
        """``POST /v1/chat/completions``."""
        ...

    async def completions(self, request: web.Request, /) -> web.StreamResponse:
        """``POST /v1/completions``."""
        ...

    async def stop(self, app: web.Application, /) -> None:
        """The server shuts down: admit nobody, end every answer with an error its reader can tell from an end."""
        ...


def make_application(api: Api, options: ListenOptions, *, deferred: frozenset[str] = frozenset()) -> web.Application:
    """Return the application: paths, the key or the guard against other names of this machine, errors in OpenAI's form.

    Args:
        api: answers.
        options: key and sizes.
        deferred: paths that ask for the key themselves.
    """
    app = web.Application(middlewares=[translate_errors, authorize(options, deferred=deferred)], client_max_size=options.max_body_bytes)
    app.add_routes(
        [
            web.get("/health", api.health),
            web.get("/v1/models", api.models),
            web.get("/v1/models/{model:.+}", api.one_model),
            web.post("/v1/chat/completions", api.chat_completions),
            web.post("/v1/completions", api.completions),
        ]
    )
    app.on_shutdown.append(api.stop)
    return app
