"""A streamed response: when its headers leave, and a reader that doesn't read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from streamco.server.http.event_stream import EventStream
from streamco.server.http.listening import listening
from streamco.server.http.options import ListenOptions

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(handler: Handler) -> web.Application:
    app = web.Application()
    app.router.add_get("/", handler)
    return app


async def test_headers_leave_with_the_first_bytes() -> None:
    begun = []

    async def handler(request: web.Request) -> web.StreamResponse:
        stream = EventStream(request, None)
        begun.append(stream.has_begun)
        stream.response.headers["x-late"] = "yes"
        await stream.write(b"data: 1\n\n")
        begun.append(stream.has_begun)
        await stream.close()
        return stream.response

    async with listening(make_app(handler), ListenOptions()) as address, aiohttp.ClientSession() as client, client.get(address) as response:
        assert await response.read() == b"data: 1\n\n"
        assert response.headers["x-late"] == "yes"
        assert response.content_type == "text/event-stream"
        assert response.headers["Cache-Control"] == "no-cache"
    assert begun == [False, True]


async def test_a_failure_before_the_first_bytes_still_has_a_status() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        EventStream(request, None)
        return web.Response(status=418)

    async with listening(make_app(handler), ListenOptions()) as address, aiohttp.ClientSession() as client, client.get(address) as response:
        assert response.status == 418


async def test_a_reader_that_does_not_read_is_dropped() -> None:
    dropped = asyncio.get_running_loop().create_future()

    async def handler(request: web.Request) -> web.StreamResponse:
        stream = EventStream(request, 0.05)
        try:
            while True:
                await stream.write(b"x" * (1 << 20))
        except ConnectionError as error:
            dropped.set_result(error)
            raise

    async with listening(make_app(handler), ListenOptions()) as address:
        host, port = address.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with pytest.raises(ConnectionAbortedError, match=r"reader: expected it to read within 0\.05 s"):
            raise await asyncio.wait_for(dropped, 20)
        writer.close()
