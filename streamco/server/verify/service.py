"""Verifies drafts over WebSockets: the path ``/v1/verify`` of ``streamco serve`` (docs/verifier-protocol.md)."""

from __future__ import annotations

from aiohttp import web

from streamco.engines.base import HoldingEngine
from streamco.server.http.options import ListenOptions
from streamco.server.verify.frame_service import FrameService
from streamco.server.verify.options import VerifyOptions
from streamco.server.verify.sessions import SessionManager
from streamco.wire.row_costs import table_of_costs
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.frames import PATH, VerifyLimits
from streamco.wire.verify.server import VerifyServer

__all__ = ["PATH", "STATS_PATH", "VerifyService"]

STATS_PATH = f"{PATH}/stats"


class VerifyService(FrameService[VerifyServer]):
    """The handlers of a server that verifies.

    Args:
        engine: holds the sequences; the caller closes it.
        options: limits on devices, connections and load.
        listen: settings of the server; only the key is used.
        model: name of the model in the welcome.
    """

    def __init__(self, engine: HoldingEngine, options: VerifyOptions, listen: ListenOptions, *, model: str) -> None:
        super().__init__(options, listen)
        self.frame_bytes = options.frame_bytes
        self._engine = engine
        self._model = model
        self._manager: SessionManager | None = None

    async def close(self, _app: web.Application | None = None) -> None:
        """Drop all sessions; idempotent."""
        if self._manager is not None:
            self._manager.close()

    @property
    def manager(self) -> SessionManager:
        """The session manager. It is created at first use, in the event loop that serves."""
        if self._manager is None:
            self._manager = SessionManager(self._engine, self.options)
        return self._manager

    def make_server(self) -> VerifyServer:
        """Return the server's end of the protocol for a new connection."""
        options, info = self.options, self._engine.info
        limits = VerifyLimits(
            frame_bytes=options.frame_bytes,
            context_tokens=info.context_tokens,
            draft_tokens=options.draft_tokens,
            top_k=options.top_k,
            sessions=options.load.sessions_per_device,
            paths=self._engine.draft_paths,
        )
        codec = VerifyCodec(info.vocabulary_size, limits)
        costs = table_of_costs(self._engine.row_costs())
        model, resume_s = self._model[:256], options.resume_s
        return VerifyServer(codec, info.vocabulary, model=model, resume_s=resume_s, is_exact=True, row_costs=costs)
