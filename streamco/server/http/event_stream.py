"""The response to a streamed request: server-sent events on their way to one HTTP reader."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import web

from streamco.wire.answer_encoder import KEEPALIVE

__all__ = ["HEADERS", "KEEPALIVE", "EventStream"]

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would gather events into bursts
}

_NEVER_WAITS = 1 << 14  # bytes; asyncio's transports pause their writer at 64 KiB


class EventStream:
    """The response to a streamed request. Its headers leave with its first bytes, so that an early failure can still have a status.

    Args:
        request: the request.
        reader_timeout: seconds that a write may wait for the reader; None: any time.
        headers: the response's, by default those of server-sent events.
    """

    def __init__(self, request: web.Request, reader_timeout: float | None, headers: Mapping[str, str] = HEADERS) -> None:
        self.request = request
        self._timeout = reader_timeout
        self._response = web.StreamResponse(headers=headers)

    @property
    def response(self) -> web.StreamResponse:
        """The response that the handler returns."""
        return self._response

    @property
    def has_begun(self) -> bool:
        """True once the status line was sent."""
        return self._response.prepared

    async def write(self, data: bytes) -> None:
        """Send bytes; wait while the reader is slow.

        Raises:
            ConnectionError: the reader left, or did not read for too long.
        """
        if not self._response.prepared:
            await self._response.prepare(self.request)
        transport = self.request.transport
        if len(data) <= _NEVER_WAITS and transport is not None and transport.get_write_buffer_size() == 0:
            await self._response.write(data)  # no limit is needed, and a timeout for each event costs a tenth of it
            return
        try:
            async with asyncio.timeout(self._timeout):
                await self._response.write(data)
        except TimeoutError as error:
            if self.request.transport is not None:
                self.request.transport.abort()
            raise ConnectionAbortedError(f"reader: expected it to read within {self._timeout:g} s") from error

    async def close(self) -> None:
        """End the response properly."""
        await self._response.write_eof()
