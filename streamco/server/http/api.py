"""The API's paths as an aiohttp application, which the server answers with an engine and the proxy with a client."""

from __future__ import annotations

import logging
from typing import Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry

from streamco.server.http.access_log import access_log, send_request_id
from streamco.server.http.cors import allow_origins
from streamco.server.http.middleware import KeyCheck, authorize, translate_errors
from streamco.server.http.options import ListenOptions
from streamco.server.http.prometheus import PATH, metrics_handler

__all__ = ["Api", "make_application"]


class Api(Protocol):
    """The handlers of OpenAI's paths."""

    async def health(self, request: web.Request, /) -> web.StreamResponse:
        """Answer ``GET /health``: whether the server is alive, and how busy it is."""
        ...

    async def models(self, request: web.Request, /) -> web.StreamResponse:
        """Answer ``GET /v1/models``."""
        ...

    async def one_model(self, request: web.Request, /) -> web.StreamResponse:
        """Answer ``GET /v1/models/NAME``."""
        ...

    async def chat_completions(self, request: web.Request, /) -> web.StreamResponse:
        """Answer ``POST /v1/chat/completions``."""
        ...

    async def completions(self, request: web.Request, /) -> web.StreamResponse:
        """Answer ``POST /v1/completions``."""
        ...

    async def stop(self, app: web.Application, /) -> None:
        """Shut down: stop admitting requests, and end each answer with an error that its reader can distinguish from a normal end."""
        ...


def make_application(
    api: Api,
    options: ListenOptions,
    *,
    logger: logging.Logger,
    deferred: frozenset[str] = frozenset(),
    registry: CollectorRegistry | None = None,
    key_check: KeyCheck | None = None,
) -> web.Application:
    """Return the application, with paths, access log, the check of the key or the host name, and errors in OpenAI's format.

    Args:
        api: the handlers.
        options: key and limits.
        logger: the logger that gets a line for each request.
        deferred: paths whose handlers check the key themselves, or need none.
        registry: the figures for ``GET /metrics``, or None to leave that path out.
        key_check: see ``authorize``.
    """
    middlewares = [access_log(logger), translate_errors, authorize(options, deferred=deferred, key_check=key_check)]
    app = web.Application(middlewares=middlewares, client_max_size=options.max_body_bytes)
    app.on_response_prepare.append(send_request_id)
    app.add_routes(
        [
            web.get("/health", api.health),
            web.get("/v1/models", api.models),
            web.get("/v1/models/{model:.+}", api.one_model),
            web.post("/v1/chat/completions", api.chat_completions),
            web.post("/v1/completions", api.completions),
        ]
    )
    if registry is not None:
        app.router.add_get(PATH, metrics_handler(registry))
    allow_origins(app, options.cors)
    app.on_shutdown.append(api.stop)
    return app
