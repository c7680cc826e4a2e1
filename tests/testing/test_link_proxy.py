"""An emulated link delivers everything, and never sooner than it could."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from streamco.errors import ConfigError
from streamco.testing import LinkProxy, ScriptedResponse, ScriptedServer
from streamco.testing.link_proxy import HEADERS, SEGMENT, LinkDirection

REQUEST = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = b"HTTP/1.1 200 Scripted\r\nConnection: close\r\n\r\n"
BODY = bytes(range(256)) * 2000


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer(ScriptedResponse(steps=[BODY], framing="close")) as server:
        yield server


def test_pieces_under_way_do_not_wait_for_one_another() -> None:
    direction = LinkDirection(0.05, None)
    assert [direction.send(100, now) for now in (0.0, 0.01, 0.02)] == pytest.approx([0.05, 0.06, 0.07])


def test_the_rate_is_shared_and_counts_headers() -> None:
    direction = LinkDirection(0.1, 1000.0)
    assert direction.send(460, 0.0) == pytest.approx(0.5 + 0.1)
    assert direction.send(2 * SEGMENT, 0.2) == pytest.approx(0.5 + 2 * (SEGMENT + HEADERS) / 1000 + 0.1)
    assert direction.send(60, 100.0) == pytest.approx(100.2)
    assert direction.passed == 520 + 2 * SEGMENT


@pytest.mark.parametrize(("rtt", "mbps"), [(-0.1, None), (float("nan"), None), (0.1, 0.0), (0.1, -1.0)])
def test_a_link_that_cannot_be_is_refused(rtt: float, mbps: float | None) -> None:
    with pytest.raises(ConfigError, match="expected rtt >= 0 s and mbps above 0, got"):
        LinkProxy(1, rtt=rtt, mbps=mbps)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_of_one_direction_that_cannot_be_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="expected down_mbps above 0, got"):
        LinkProxy(1, down_mbps=rate)


async def test_each_direction_can_have_a_rate_of_its_own(server: ScriptedServer) -> None:
    loop = asyncio.get_running_loop()
    async with LinkProxy(server.port, mbps=0.01, down_mbps=400.0) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        began = loop.time()
        writer.write(REQUEST)
        assert await reader.readexactly(len(HEAD)) == HEAD
        assert loop.time() - began >= len(REQUEST) * 8 / 0.01e6
        # 512 kB take 10 ms; at the rate of the other direction 400 s, which the test's time limit would not allow
        assert await reader.read() == BODY
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(("rtt", "mbps"), [(0.0, None), (0.02, None), (0.0, 50.0), (0.01, 100.0)])
async def test_everything_arrives_in_order_and_not_too_early(server: ScriptedServer, rtt: float, mbps: float | None) -> None:
    loop = asyncio.get_running_loop()
    async with LinkProxy(server.port, rtt=rtt, mbps=mbps) as link:
        began = loop.time()
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(REQUEST)
        assert await reader.readexactly(len(HEAD)) == HEAD
        assert loop.time() - began >= 2 * rtt
        assert await reader.read() == BODY
        assert loop.time() - began >= 2 * rtt + (len(BODY) * 8 / (mbps * 1e6) if mbps else 0.0)
        assert (link.bytes_up, link.bytes_down) == (len(REQUEST), len(HEAD) + len(BODY))
        writer.close()
        await writer.wait_closed()


async def test_a_server_that_is_gone_ends_the_connection(server: ScriptedServer) -> None:
    async with LinkProxy(server.port) as link:
        await server.aclose()
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        assert await reader.read() == b""
        writer.close()


async def test_a_client_that_leaves_is_reported_to_the_server(server: ScriptedServer) -> None:
    async with LinkProxy(server.port, rtt=0.01) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(REQUEST)
        await reader.readexactly(len(HEAD))
        writer.transport.abort()
        async with asyncio.timeout(5):
            while server.connections_open:
                await asyncio.sleep(0.01)


async def test_closing_drops_what_is_open(server: ScriptedServer) -> None:
    async with LinkProxy(server.port, rtt=10.0) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(REQUEST)
        await asyncio.sleep(0.05)
    assert await reader.read() == b""
    writer.close()
