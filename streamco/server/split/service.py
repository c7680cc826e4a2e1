"""Serves middle layers over WebSockets, at the path ``/v1/verify`` of ``streamco serve --middle`` (docs/split-protocol.md).

The other paths are the same as every server's. The split server has no vocabulary, so it refuses requests for text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

from aiohttp import web

from streamco.endpoints.engine_health import check_engine
from streamco.engines.split.middle_engine import LayerEngine
from streamco.errors import MAX_NAME, ConfigError, shorten
from streamco.policies.serving.batching import CHUNK, Mixed
from streamco.profiles.row_costs import RowCosts
from streamco.server.http.api import make_application
from streamco.server.http.errors import RequestError
from streamco.server.http.listening import listening
from streamco.server.http.model_list import model_answer, model_list_answer
from streamco.server.http.prometheus import FiguresCollector, make_registry
from streamco.server.options import ServeOptions
from streamco.server.split.sessions import SplitSessions
from streamco.server.split.stats import SPLIT_METRICS
from streamco.server.verify.frame_service import FrameService
from streamco.server.verify.options import VerifyOptions
from streamco.server.verify.service import STATS_PATH
from streamco.wire.split.codec import SplitCodec
from streamco.wire.split.frames import LayersMark, ServerBatches, SplitLimits
from streamco.wire.split.server import SplitServer
from streamco.wire.verify.frames import PATH

__all__ = ["ROOM", "SPLIT", "SplitService", "default_room", "make_split_app", "serving_middle"]

ROOM = 256
"""Default for the largest number of rows in a batch. Prompts get the rows that the verifications leave free."""

_SMALLEST = CHUNK + 16  # smallest number of rows that a batch may be limited to
_STRETCH = 2.5  # a batch takes at most this many times as long as the smallest, so that on a CPU verifications hardly wait for prompts


class SplitService(FrameService[SplitServer]):
    """The handlers of a split server.

    Args:
        engine: computes the middle layers; the caller closes it.
        options: limits on devices, connections and load.
        listen: settings of the server; only the key, the name and the health check are used.
        room: largest number of rows in a batch, or None to choose it with ``default_room``.

    Raises:
        ConfigError: the room is smaller than a verification, or larger than the engine's batches.
    """

    def __init__(self, engine: LayerEngine, options: VerifyOptions, listen: ServeOptions, *, room: int | None = None) -> None:
        super().__init__(options, listen)
        self._costs = RowCosts(engine.row_costs())
        room = default_room(self._costs, engine.batch_rows) if room is None else room
        if room > engine.batch_rows:
            raise ConfigError(f"room: expected at most {engine.batch_rows} rows, which the engine computes at once, got {room}")
        info = engine.info
        self._engine = engine
        self._policy = Mixed(room=room)
        self._health_timeout = listen.health_timeout
        self.model = listen.model or "middle"
        self.mark = LayersMark(info.source, info.first_layer, info.layers, info.width)
        frame_rows = min(engine.cells, SplitLimits().rows)
        self._limits = SplitLimits(context_rows=engine.cells, rows=frame_rows, sessions=options.load.sessions_per_device)
        self.frame_bytes = SplitCodec(info.width, self._limits).frame_bytes
        self._created = int(time.time())
        self._manager: SplitSessions | None = None

    @property
    def manager(self) -> SplitSessions:
        """The session manager. It is created at first use, in the event loop that serves."""
        if self._manager is None:
            self._manager = SplitSessions(self._engine, self.options, policy=self._policy, costs=self._costs)
        return self._manager

    def make_server(self) -> SplitServer:
        """Return the server's end of the protocol for a new connection."""
        codec = SplitCodec(self.mark.width, self._limits)
        exact = self._engine.is_exact
        load = self.manager.load
        return SplitServer(
            codec,
            self.mark,
            model=self.model[:256],
            row_costs=self.manager.row_costs,
            batches=ServerBatches(self._policy.room, round(load.rows), round(load.steady_rows)),
            resume_s=self.options.resume_s,
            is_exact=exact,
        )

    async def close(self, _app: web.Application | None = None) -> None:
        """Drop all sessions; idempotent."""
        if self._manager is not None:
            self._manager.close()

    # The paths that every server has

    async def health(self, _request: web.Request) -> web.Response:
        """Answer ``GET /health``: whether the engine's thread responds (503 if not), and how many devices are connected."""
        failure = await check_engine(self._engine, self._health_timeout)
        figures = {"model": self.model, "devices": len(self._connections)}
        if failure is not None:
            return web.json_response({"status": "error", "reason": failure, **figures}, status=503)
        return web.json_response({"status": "ok", **figures})

    async def models(self, request: web.Request) -> web.Response:
        """Answer ``GET /v1/models`` with the server's one model."""
        return model_list_answer(request, [self._card()])

    async def one_model(self, request: web.Request) -> web.Response:
        """Answer ``GET /v1/models/NAME`` with the server's one model, and refuse any other name."""
        name = request.match_info["model"]
        if name != self.model:
            raise RequestError(404, f"model: expected {self.model}, got {shorten(name, MAX_NAME)}", param="model", code="model_not_found")
        return model_answer(request, self._card())

    async def chat_completions(self, _request: web.Request) -> web.StreamResponse:
        """Refuse ``POST /v1/chat/completions``."""
        self._refuse_text()

    async def completions(self, _request: web.Request) -> web.StreamResponse:
        """Refuse ``POST /v1/completions``."""
        self._refuse_text()

    def _refuse_text(self) -> NoReturn:
        message = f"server: expected hidden states at {PATH}, got a request for text: it has a model's middle layers and no vocabulary"
        raise RequestError(404, message, code="middle_layers_only")

    def _card(self) -> dict[str, object]:
        mark = self.mark
        return {
            "id": self.model,
            "object": "model",
            "created": self._created,
            "owned_by": "streamco",
            "max_model_len": self._engine.cells,
            "first_layer": mark.first_layer,
            "layers": mark.layers,
            "width": mark.width,
            "source": mark.source,
        }


def default_room(costs: RowCosts, batch_rows: int) -> int:
    """Return the most rows for a batch: 256, or fewer if the engine allows fewer or if they take over 2.5 times as long as 48 rows."""
    longest = _STRETCH * costs.seconds(_SMALLEST)
    return max((rows for rows in range(_SMALLEST, min(ROOM, batch_rows) + 1) if costs.seconds(rows) <= longest), default=_SMALLEST)


SPLIT: web.AppKey[SplitService] = web.AppKey("split", SplitService)


def make_split_app(engine: LayerEngine, options: ServeOptions | None = None, *, room: int | None = None) -> web.Application:
    """Return the split server as an aiohttp application.

    Args:
        engine: computes the middle layers; the caller closes it.
        options: limits and key, or None for the defaults.
        room: largest number of rows in a batch, or None to choose it with ``default_room``.
    """
    options = options or ServeOptions()
    service = SplitService(engine, options.verify or VerifyOptions(), options, room=room)
    registry = make_registry() if options.metrics else None
    app = make_application(service, options, logger=logging.getLogger("streamco.server"), deferred=frozenset({PATH}), registry=registry)
    if registry is not None:
        registry.register(FiguresCollector(service.figures, SPLIT_METRICS))
    app.add_routes([web.get(PATH, service.handle), web.get(STATS_PATH, service.stats)])
    app.on_cleanup.append(service.close)
    app[SPLIT] = service
    return app


@asynccontextmanager
async def serving_middle(engine: LayerEngine, options: ServeOptions | None = None, *, room: int | None = None) -> AsyncIterator[str]:
    """Serve inside this process, and yield the address, ``http://HOST:PORT``.

    When the block is left, devices are told that the service is ending. The engine stays open.

    Raises:
        ConfigError: other machines can reach the host and there is no key.
        OSError: the port is taken.
    """
    options = options or ServeOptions()
    async with listening(make_split_app(engine, options, room=room), options) as address:
        yield address
