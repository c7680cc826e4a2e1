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


async def test_nothing_can_be_written_after_the_end() -> None:
    late = []

    async def handler(request: web.Request) -> web.StreamResponse:
        stream = EventStream(request, None)
        await stream.write(b"data: 1\n\n")
        await stream.close()
        late.append(stream.quick_write(b"late"))
        with pytest.raises(RuntimeError, match="write_eof"):
            await stream.write(b"late")
        return stream.response

    async with listening(make_app(handler), ListenOptions()) as address, aiohttp.ClientSession() as client:
        for _ in range(2):  # on one connection
            async with client.get(address) as response:
                assert await response.read() == b"data: 1\n\n"
    assert late == [None, None]


async def test_a_failure_before_the_first_bytes_still_has_a_status() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        EventStream(request, None)
        return web.Response(status=418)

    async with listening(make_app(handler), ListenOptions()) as address, aiohttp.ClientSession() as client, client.get(address) as response:
        assert response.status == 418


async def drop_of(write: Callable[[EventStream], Awaitable[None]]) -> ConnectionError:
    """The error of a handler that writes to a reader that does not read."""
    dropped: asyncio.Future[ConnectionError] = asyncio.get_running_loop().create_future()

    async def handler(request: web.Request) -> web.StreamResponse:
        stream = EventStream(request, 0.05)
        try:
            await write(stream)
        except ConnectionError as error:
            dropped.set_result(error)
            raise
        return stream.response

    async with listening(make_app(handler), ListenOptions()) as address:
        host, port = address.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        error = await asyncio.wait_for(dropped, 20)
        writer.close()
    return error


async def write_without_end(stream: EventStream) -> None:
    while True:
        await stream.write(b"x" * (1 << 20))


async def close_with_much(stream: EventStream) -> None:
    await stream.close(b"x" * (1 << 26))


@pytest.mark.parametrize("write", [write_without_end, close_with_much])
async def test_a_reader_that_does_not_read_is_dropped(write: Callable[[EventStream], Awaitable[None]]) -> None:
    with pytest.raises(ConnectionAbortedError, match=r"reader: has read nothing for 0\.05 s"):
        raise await drop_of(write)


async def answer_of(handler: Handler) -> bytes:
    """Everything that the server writes in answer to one request."""
    async with listening(make_app(handler), ListenOptions()) as address:
        host, port = address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
    return answer


async def test_the_last_bytes_leave_with_the_end() -> None:
    written: list[bytes] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        write = transport.write

        def count_and_write(data: bytes) -> None:
            written.append(bytes(data))
            write(data)

        transport.write = count_and_write  # type: ignore[method-assign,assignment]
        stream = EventStream(request, None)
        await stream.write(b"data: 1\n\n")
        await stream.close(b"data: 2\n\n")
        return stream.response

    answer = await answer_of(handler)
    assert answer.endswith(b"9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n")
    assert len(written) == 2  # the headers with the first bytes, the end with the last ones
    assert written[0].startswith(b"HTTP/1.1 200")


async def test_a_response_may_be_its_last_bytes_alone() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        stream = EventStream(request, None)
        await stream.close(b"data: 1\n\n")
        return stream.response

    assert (await answer_of(handler)).endswith(b"\r\n\r\n9\r\ndata: 1\n\n\r\n0\r\n\r\n")
