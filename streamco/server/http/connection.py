"""A connection of any of this package's servers. It keeps nothing of a refused request, and says little about it.

Any program that can connect can send requests that aren't HTTP, without a key. In aiohttp's handler, each piece that is read after the
first malformed one causes another error, which contains the piece and its quoted form. An error's traceback leads to frames that hold the
error, the request and the part of its body that was read. Only the garbage collector frees such a cycle, and a process that only serves
runs it seldom (``streamco.cli.serving``).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from streamco.endpoints.network.peer_timeout import SecondLook
from streamco.server.http.errors import RequestError, error_response

if TYPE_CHECKING:
    from aiohttp.web_request import BaseRequest

__all__ = ["Runner"]


class _Connection(web.RequestHandler):
    """Reads nothing after a malformed request, and answers it with a sentence that doesn't quote it.

    It doesn't close an idle connection that has a request waiting in its socket: if the loop was blocked, it checks again before it closes
    one (``PeerTimeout``).
    """

    __slots__ = ("_is_malformed", "_look")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._look = SecondLook()
        self._is_malformed = False

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the client."""
        if not self._is_malformed:
            super().data_received(data)
            self._stop_if_malformed()

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Finish sending a response. This is also where aiohttp parses what the client sent after a refused upgrade."""
        self._look.reset()
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._stop_if_malformed()
            if isinstance(resp, web.HTTPException):
                resp.__traceback__ = None

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Return the response to a request that failed before or outside a handler."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        exc.__traceback__ = None
        response = error_response(RequestError(status, "request: expected well-formed HTTP, got something else"))
        response.force_close()
        return response

    def _process_keepalive(self) -> None:
        """Close the connection if it was idle for too long."""
        loop = asyncio.get_running_loop()
        wait = self._look.wait(loop.time() - self._next_keepalive_close_time, self.keepalive_timeout)
        if wait is None:
            super()._process_keepalive()
        else:
            self._keepalive_handle = loop.call_later(wait, self._process_keepalive)

    def _stop_if_malformed(self) -> None:
        """After bytes that aren't HTTP, stop parsing. They are answered last, after the requests before them.

        aiohttp's parser drops requests that it found before them in the same piece.
        """
        for message, _ in self._messages:
            error = getattr(message, "exc", None)  # aiohttp queues errors among the requests
            if isinstance(error, HttpProcessingError):
                error.__traceback__ = None
                self._is_malformed = True


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        """Return the protocol object for a new connection."""
        return _Connection(self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """Runs an application on connections of this kind; use it like ``aiohttp.web.AppRunner``."""

    __slots__ = ()

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        server.__class__ = _Server  # aiohttp has no other way to choose the connections' class
        return server
