"""The response to a streamed request, which sends server-sent events to one HTTP reader."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from aiohttp import web

from streamco.endpoints.network.peer_timeout import PeerTimeout
from streamco.wire.answer_encoder import KEEPALIVE

__all__ = ["HEADERS", "KEEPALIVE", "EventStream"]

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would gather events into bursts
}

_NEVER_WAITS = 1 << 14  # bytes; asyncio's transports pause their writer at 64 KiB


class _Response(web.StreamResponse):
    """A response that sends its headers with its first bytes, in one write."""

    _send_headers_immediately = False  # aiohttp's own switch, which it sets for whole responses


class EventStream:
    """The response to a streamed request. Its headers are sent with its first bytes, so that an early failure can still set the status.

    Args:
        request: the request.
        reader_timeout: seconds that a write may wait for the reader, or None for no limit.
        headers: the response's headers, by default the headers for server-sent events.

    Attributes:
        request: as given.
        response: the response that the handler returns.
        has_begun: True once the status line was sent.
    """

    __slots__ = ("_timeout", "_transport", "has_begun", "request", "response")

    def __init__(self, request: web.Request, reader_timeout: float | None, headers: Mapping[str, str] = HEADERS) -> None:
        self.request = request
        self.response: web.StreamResponse = _Response(headers=headers)
        self._timeout = reader_timeout
        self._transport = request.transport
        self.has_begun = False

    async def write(self, data: bytes) -> None:
        """Send bytes, and wait while the reader is slow.

        Raises:
            ConnectionError: the reader disconnected, or didn't read for too long.
        """
        if not self.has_begun:
            await self._begin()
        if self.needs_no_wait(data):
            await self.response.write(data)
        else:
            await self._wait(self.response.write(data))

    async def close(self, data: bytes = b"") -> None:
        """Send the last bytes, if there are any, and end the response properly, in one write.

        Raises:
            ConnectionError: see ``write``.
        """
        if not self.has_begun:
            await self._begin()
        if self.needs_no_wait(data):
            await self.response.write_eof(data)
        else:
            await self._wait(self.response.write_eof(data))

    def needs_no_wait(self, data: bytes) -> bool:
        """Return True if the response has begun, and a write of these bytes can't have to wait for the reader.

        Such a write needs no time limit, which would take a tenth of an event's time.
        """
        transport = self._transport
        has_room = len(data) <= _NEVER_WAITS and transport is not None and transport.get_write_buffer_size() == 0
        return has_room and self.has_begun

    async def _begin(self) -> None:
        await self.response.prepare(self.request)
        self.has_begun = True

    async def _wait(self, writing: Awaitable[None]) -> None:
        try:
            async with PeerTimeout(self._timeout):
                await writing
        except TimeoutError as error:
            if self.request.transport is not None:
                self.request.transport.abort()
            raise ConnectionAbortedError(f"reader: has read nothing for {self._timeout:g} s") from error
