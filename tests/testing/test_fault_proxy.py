"""The fault proxy passes bytes on as its faults say, and no further."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from streamco.testing import FaultProxy, Faults, ScriptedResponse, ScriptedServer, Stall

REQUEST = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = b"HTTP/1.1 200 Scripted\r\nConnection: close\r\n\r\n"
BODY = bytes(range(256)) * 400


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer(ScriptedResponse(steps=[BODY], framing="close")) as server:
        yield server


async def ask(proxy: FaultProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(REQUEST)
    return reader, writer


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("faults", [Faults(), Faults(piece_bytes=1000), Faults(delay=0.001, piece_bytes=10000)])
async def test_everything_arrives_in_order_whatever_the_pieces(server: ScriptedServer, faults: Faults) -> None:
    async with FaultProxy(server.port, faults) as proxy:
        reader, writer = await ask(proxy)
        assert await reader.read() == HEAD + BODY
        await hang_up(writer)


async def test_a_cut_passes_exactly_that_many_bytes(server: ScriptedServer) -> None:
    async with FaultProxy(server.port, Faults(cut_after=len(HEAD) + 5)) as proxy:
        reader, writer = await ask(proxy)
        assert await reader.read() == HEAD + BODY[:5]
        await hang_up(writer)


async def test_a_reset_is_seen_as_a_reset(server: ScriptedServer) -> None:
    async with FaultProxy(server.port, Faults(reset_after=10)) as proxy:
        reader, writer = await ask(proxy)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_a_stall_keeps_the_connection_open(server: ScriptedServer) -> None:
    async with FaultProxy(server.port, Faults(stall_after=len(HEAD))) as proxy:
        reader, writer = await ask(proxy)
        assert await reader.readexactly(len(HEAD)) == HEAD
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.05)
        assert proxy.connections_open == 1
        await hang_up(writer)


async def test_a_refusing_proxy_resets_at_once(server: ScriptedServer) -> None:
    async with FaultProxy(server.port, Faults(refuse=True)) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        assert proxy.connections_total == 1


async def test_live_connections_are_stalled_resumed_cut_and_reset_by_hand() -> None:
    async with ScriptedServer(ScriptedResponse(steps=[b"abc", Stall()], framing="close")) as server, FaultProxy(server.port) as proxy:
        first, first_writer = await ask(proxy)
        await first.readuntil(b"abc")
        proxy.stall()
        proxy.resume()
        proxy.cut()
        assert await first.read() == b""
        await hang_up(first_writer)
        second, second_writer = await ask(proxy)
        await second.readuntil(b"abc")
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            await second.read()
        second_writer.close()
        await server.wait_for(lambda server: server.connections_open == 0)


async def test_a_stall_by_hand_holds_bytes_back_until_resumed(server: ScriptedServer) -> None:
    async with FaultProxy(server.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        await server.wait_for(lambda server: server.connections_open == 1)
        proxy.stall()
        writer.write(REQUEST)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.05)
        proxy.resume()
        assert await reader.read() == HEAD + BODY
        await hang_up(writer)


async def test_a_client_that_leaves_is_passed_on_to_the_server() -> None:
    async with ScriptedServer(ScriptedResponse(steps=[b"abc", Stall()])) as server, FaultProxy(server.port) as proxy:
        reader, writer = await ask(proxy)
        await reader.readuntil(b"abc")
        await hang_up(writer)
        await server.wait_for(lambda server: server.connections_open == 0)
        assert server.answers_abandoned == 1


async def test_faults_hold_for_new_connections(server: ScriptedServer) -> None:
    async with FaultProxy(server.port) as proxy:
        proxy.faults = Faults(cut_after=4)
        reader, writer = await ask(proxy)
        assert await reader.read() == b"HTTP"
        await hang_up(writer)
        assert proxy.url.endswith("/v1")


def test_the_smallest_limit_counts() -> None:
    assert Faults().limit() is None
    assert Faults(cut_after=5, reset_after=3, stall_after=9).limit() == 3
