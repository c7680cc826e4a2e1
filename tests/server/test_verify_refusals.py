"""What a verifying server refuses, and what goes on behind a refusal: keys, hellos, faults, sizes, readers that don't read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest
import websockets

from streamco.core.verifier.options import LoadLimits
from streamco.server.verify.options import VerifyOptions
from streamco.server.verify.service import PATH, VerifyService
from streamco.sim.workload.token_models import FakeDistribution
from streamco.testing.engine import FakeEngine
from streamco.wire.verify.frames import SUBPROTOCOL, Refusal
from tests.server.verifying import GREEDY, PROMPT, SIZE, Device, connected, connecting, greedy_text, serving, target
from tests.support.leaks import holding_nothing_new, settled

KEY = "sk-verify"
HEADER = {"Authorization": f"Bearer {KEY}"}


@contextlib.asynccontextmanager
async def raw(url: str) -> AsyncIterator[websockets.ClientConnection]:
    async with websockets.connect(url, subprotocols=[SUBPROTOCOL], compression=None) as connection:  # type: ignore[list-item]
        yield connection


async def code_of(device: Device) -> tuple[str, int | None]:
    """The refusal, and the code that the connection is closed with."""
    refusal = await device.hear(Refusal)
    await device.socket.wait_closed()
    return refusal.code, device.socket.close_code


async def end_of(connection: websockets.ClientConnection) -> int | None:
    """Read until the other side closes; its code."""
    with contextlib.suppress(websockets.ConnectionClosed):
        while True:
            await asyncio.wait_for(connection.recv(), 10)
    return connection.close_code


# Who may come


@pytest.mark.parametrize(("token", "headers"), [(None, HEADER), (KEY, {}), (KEY, HEADER)])
async def test_a_key_comes_by_header_or_by_hello(token: str | None, headers: dict[str, str]) -> None:
    async with serving(api_key=KEY) as server, connected(server.url, token=token, additional_headers=headers) as device:
        await device.open()


@pytest.mark.parametrize(("token", "headers"), [(None, {}), ("another", {}), ("another", HEADER), ("ключ", HEADER)])
async def test_another_key_or_none_is_refused(token: str | None, headers: dict[str, str]) -> None:
    async with serving(api_key=KEY) as server, connecting(server.url, token=token, additional_headers=headers) as device:
        assert await code_of(device) == ("unauthorised", 1008)
        assert server.figures["connections"] == 0


async def test_a_wrong_header_is_refused_before_the_socket_is_there() -> None:
    async with serving(api_key=KEY) as server:
        with pytest.raises(websockets.InvalidStatus, match="HTTP 401"):
            async with connecting(server.url, token=KEY, additional_headers={"Authorization": "Bearer another"}):
                pass


async def test_wrong_keys_of_a_hello_are_sent_away_and_lock_out_nobody_with_the_right_one_in_the_header() -> None:
    async with serving(api_key=KEY, verify=VerifyOptions(faults_per_minute=3)) as server:
        for _ in range(3):
            async with connecting(server.url, token="another") as device:
                assert await code_of(device) == ("unauthorised", 1008)
        await settled(lambda: not server.service.peers.connections)
        with pytest.raises(websockets.InvalidStatus, match="HTTP 429"):
            async with connecting(server.url, token="another"):
                pass
        async with connected(server.url, additional_headers=HEADER) as device:
            await device.open()


async def test_wrong_keys_in_the_header_lock_out_nobody() -> None:
    async with serving(api_key=KEY, verify=VerifyOptions(faults_per_minute=3)) as server:
        for _ in range(70):
            with pytest.raises(websockets.InvalidStatus, match="HTTP 401"):
                async with connecting(server.url, token=KEY, additional_headers={"Authorization": "Bearer another"}):
                    pass
        for right in (HEADER, {}):
            async with connected(server.url, token=KEY, additional_headers=right) as device:
                await device.open()


async def test_pages_cannot_lock_their_visitor_out() -> None:
    async with serving(api_key=KEY, verify=VerifyOptions(faults_per_minute=6, peer_connections=4)) as server:
        for number in range(3):  # pages have half of what their address may do wrong
            async with connecting(server.url, token="junk", origin=f"https://{number}.example") as device:
                assert await code_of(device) == ("unauthorised", 1008)
        await settled(lambda: not server.service.peers.connections)
        with pytest.raises(websockets.InvalidStatus, match="HTTP 429"):
            async with connecting(server.url, token=KEY, origin="https://more.example"):
                pass
        async with connected(server.url, token=KEY) as device:
            await device.open()


async def test_who_names_many_pages_has_no_more_connections_for_it_and_keeps_out_nobody_with_the_key() -> None:
    async with (
        serving(api_key=KEY, verify=VerifyOptions(connections=8, peer_connections=6)) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        taken = 0
        for number in range(12):
            for page in ({"origin": f"https://{number}.example"}, {}):
                with contextlib.suppress(websockets.InvalidStatus):
                    await stack.enter_async_context(websockets.connect(server.url, subprotocols=[SUBPROTOCOL], **page))  # type: ignore[list-item,arg-type]
                    taken += 1
        assert taken == server.service.peers.connections == 6
        for _ in range(2):
            device = await stack.enter_async_context(connected(server.url, additional_headers=HEADER))
            await device.open()


async def test_a_header_means_nothing_where_there_is_no_key() -> None:
    async with serving(verify=VerifyOptions(peer_connections=1)) as server, connected(server.url, additional_headers=HEADER):
        with pytest.raises(websockets.InvalidStatus, match="HTTP 429"):
            async with connected(server.url):
                pass


async def test_without_a_key_a_token_means_nothing() -> None:
    async with serving() as server, connected(server.url, token="whatever") as device:
        await device.open()


@pytest.mark.parametrize(("origin", "status"), [("https://evil.example", 403), ("http://localhost:3000", None), ("null", 403)])
async def test_only_pages_of_this_machine_may_use_a_server_without_a_key(origin: str, status: int | None) -> None:
    async with serving() as server:
        if status is None:
            async with connected(server.url, origin=origin) as device:
                await device.open()
        else:
            with pytest.raises(websockets.InvalidStatus, match=f"HTTP {status}"):
                async with connected(server.url, origin=origin):
                    pass


async def test_a_page_with_the_key_may_come_from_anywhere() -> None:
    async with serving(api_key=KEY) as server, connected(server.url, token=KEY, origin="https://app.example") as device:
        await device.open()


@pytest.mark.parametrize(("headers", "status"), [({}, 426), ({"Upgrade": "websocket", "Connection": "upgrade"}, 400)])
async def test_what_is_no_such_websocket_is_refused(headers: dict[str, str], status: int) -> None:
    async with serving() as server, aiohttp.ClientSession() as client, client.get(f"{server.http}{PATH}", headers=headers) as response:
        assert response.status == status
        assert (await response.json())["error"]["message"]


async def test_another_vocabulary_is_refused_by_name() -> None:
    async with serving() as server, connecting(server.url, FakeEngine()) as device:
        refusal = await device.hear(Refusal)
    assert refusal.code == "vocabulary_mismatch"
    assert "of 64 ids" in refusal.message


@pytest.mark.parametrize("message", [b"\x01", b"", "hello", msgspec.msgpack.encode([4, 0, 0, 0, 0, b""])])
async def test_what_is_no_hello_ends_the_connection(message: bytes | str) -> None:
    async with serving() as server, raw(server.url) as connection:
        for _ in range(20):
            await connection.send(message)
        assert await end_of(connection) == 1008


async def test_who_says_nothing_is_sent_away() -> None:
    async with serving(verify=VerifyOptions(hello_timeout=0.05)) as server, raw(server.url) as connection:
        message = await connection.recv()
        assert isinstance(message, bytes)
        assert msgspec.msgpack.decode(message)[:2] == [20, "hello_expected"]
        await connection.wait_closed()
        assert connection.close_code == 1008


# Faults


async def test_malformed_frames_are_answered_and_survived() -> None:
    async with serving() as server, connected(server.url) as device:
        session, _ = await device.open()
        for message in (b"", b"\xc1", b"\x93\x04", msgspec.msgpack.encode([99]), "text", "é" * 50, msgspec.msgpack.encode({"a": 1})):
            await device.socket.send(message)
            assert (await device.hear(Refusal)).code == "malformed"
        verdict = await device.draft(session, 6, [])
        assert verdict.accepted == 0


async def test_sixteen_faults_end_the_connection_and_its_session_can_be_resumed() -> None:
    async with serving() as server:
        async with connected(server.url) as device:
            _, opened = await device.open()
            for _ in range(16):
                await device.socket.send(b"\xc1")
            codes = [(await device.hear(Refusal)).code for _ in range(17)]
            assert codes == ["malformed"] * 16 + ["too_many_faults"]
            await device.socket.wait_closed()
            assert device.socket.close_code == 1008
        async with connected(server.url) as device:
            _, resumed = await device.resume(opened.key, PROMPT)
            assert resumed.base == 6


async def test_who_sends_many_faults_is_not_let_in_again() -> None:
    async with serving(verify=VerifyOptions(faults_per_minute=20)) as server:
        for _ in range(2):
            async with connected(server.url) as device:
                for _ in range(16):
                    await device.socket.send(b"\xc1")
                assert await end_of(device.socket) == 1008
        await settled(lambda: not server.service.peers.connections)
        with pytest.raises(websockets.InvalidStatus, match="HTTP 429") as refused:
            async with connected(server.url):
                pass
    assert 1 <= int(refused.value.response.headers["Retry-After"]) <= 60


async def test_a_frame_above_the_limit_is_refused_and_one_far_above_closes() -> None:
    async with serving(verify=VerifyOptions(frame_bytes=40_000)) as server, connected(server.url) as device:
        await device.open()
        await device.socket.send(bytes(40_001))
        assert (await device.hear(Refusal)).code == "too_large"
        await device.open()
        await device.socket.send(bytes(200_000))
        await device.socket.wait_closed()
        assert device.socket.close_code == 1009
        await settled(lambda: server.figures["sessions_waiting_to_be_resumed"] == 2)


@pytest.mark.parametrize("options", [VerifyOptions(connections=2), VerifyOptions(peer_connections=2)])
async def test_more_connections_than_are_borne_are_refused_until_one_leaves(options: VerifyOptions) -> None:
    async with serving(verify=options) as server, connected(server.url):
        async with connected(server.url):
            with pytest.raises(websockets.InvalidStatus, match="HTTP 429"):
                async with connected(server.url):
                    pass
        await settled(lambda: server.service.peers.connections == 1)
        async with connected(server.url):
            pass


async def test_more_sessions_than_a_connection_may_have_are_refused() -> None:
    async with serving(verify=VerifyOptions(load=LoadLimits(sessions_per_device=2))) as server, connected(server.url) as device:
        for _ in range(2):
            await device.open()
        device.client.open(PROMPT, GREEDY)
        await device.say()
        assert await device.refused() == ("too_many_sessions", 2, None)


async def test_more_sessions_than_an_address_may_have_are_refused_until_one_is_forgotten() -> None:
    async with serving(verify=VerifyOptions(peer_sessions=2, resume_s=0)) as server, connected(server.url) as device:
        await device.open()
        async with connected(server.url) as other:
            await other.open()
            device.client.open(PROMPT, GREEDY)
            await device.say()
            assert await device.refused() == ("overloaded", 1, None)
            assert server.figures["refused"] == {"address limit": 1}
        await settled(lambda: server.figures["sessions"] == 1)
        await device.open()


@pytest.mark.long
async def test_a_device_that_does_not_read_is_dropped_and_others_are_served() -> None:
    engine = target()
    options = VerifyOptions(write_timeout=0.3)
    async with (
        holding_nothing_new(),
        serving(engine, verify=options) as server,
        connected(server.url) as slow,
        connected(server.url) as other,
    ):
        _narrow(server.service)
        slow.socket.transport.pause_reading()
        sending = asyncio.create_task(_flood(slow))
        own = greedy_text(FakeDistribution(1, SIZE), PROMPT, 3)
        session, _ = await other.open()
        while server.service.peers.connections == 2:
            assert (await other.draft(session, 6, own[:2])).token == own[2]
            await asyncio.sleep(0.01)
        with pytest.raises(websockets.ConnectionClosed):
            await sending
        assert (await other.draft(session, 6, own[:2])).token == own[2]


async def _flood(device: Device) -> None:
    """Questions about nothing, each of which is answered."""
    extend = msgspec.msgpack.encode([3, 7, 0, b""])
    while True:
        await device.socket.send(extend)


def _narrow(service: VerifyService) -> None:
    """Small buffers: what isn't read is noticed soon."""
    for connection in service._connections:
        assert connection._request.transport is not None
        connection._request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
