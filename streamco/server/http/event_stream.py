"""The response to a streamed request, which sends server-sent events to one HTTP reader."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

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
    """

    __slots__ = ("_timeout", "_transport", "_writer", "request", "response")

    def __init__(self, request: web.Request, reader_timeout: float | None, headers: Mapping[str, str] = HEADERS) -> None:
        self.request = request
        self.response: web.StreamResponse = _Response(headers=headers)
        self._timeout = reader_timeout
        self._transport = request.transport
        self._writer: AbstractStreamWriter | None = None  # None before the response is prepared

    @property
    def has_begun(self) -> bool:
        """True once the response is prepared, so that its status and headers can't change any more."""
        return self._writer is not None

    async def write(self, data: bytes) -> None:
        """Send bytes, and wait while the reader is slow.

        Raises:
            ConnectionError: the reader disconnected, or didn't read for too long.
        """
        if self._writer is None:
            await self._begin()
        if (writing := self.quick_write(data)) is not None:
            await writing
        else:
            await self._wait(self.response.write(data))

    async def close(self, data: bytes = b"") -> None:
        """Send the last bytes, if there are any, and end the response properly, in one write.

        Raises:
            ConnectionError: see ``write``.
        """
        if self._writer is None:
            await self._begin()
        await self._wait(self.response.write_eof(data))
        self._transport = None  # so that a later write is aiohttp's error, and not a part of the next response

    def quick_write(self, data: bytes) -> Awaitable[None] | None:
        """Return a write, to be awaited at once, or None if the response hasn't begun or the write may have to wait for the reader.

        Such a write needs no time limit, which would take a tenth of an event's time.
        """
        writer, transport = self._writer, self._transport
        if writer is None or transport is None or len(data) > _NEVER_WAITS or transport.get_write_buffer_size():
            return None
        return writer.write(data)

    async def _begin(self) -> None:
        self._writer = await self.response.prepare(self.request)

    async def _wait(self, writing: Awaitable[None]) -> None:
        try:
            async with PeerTimeout(self._timeout):
                await writing
        except TimeoutError as error:
            if self.request.transport is not None:
                self.request.transport.abort()
            raise ConnectionAbortedError(f"reader: has read nothing for {self._timeout:g} s") from error
