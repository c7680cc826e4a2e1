"""Requests that are refused, over real sockets: what their connections leave in memory, and what is done with their bodies."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web

from streamco.server.http.listening import listening
from streamco.server.http.options import ListenOptions
from streamco.testing.engine import FakeEngine
from tests.server.support import CHAT, HELLO, Running, running, until
from tests.support.certificates import client_context, write_certificate
from tests.support.leaks import alive, without_collector

KEY = b"Authorization: Bearer sk-right\r\n"
LARGE = 1 << 20
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def post(body: bytes, *more: bytes) -> bytes:
    return POST + b"".join(more) + b"Content-Length: %d\r\n\r\n" % len(body) + body


MALFORMED = {
    "no HTTP at all": bytes(LARGE),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(LARGE),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(LARGE),
    "a header without end": b"GET / HTTP/1.1\r\nX: " + b"a" * LARGE,
    "a path without end": b"GET /" + b"a" * LARGE,
    "headers without end": b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (LARGE // 6),
    "no host": b"GET / HTTP/1.1\r\n\r\n" + b"x" * LARGE,
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello" + b"x" * LARGE,
    "a chunk of no length": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + b"x" * LARGE,
    "a later chunk of no length": POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n" + b"x" * LARGE,
    "a chunk of no length, with the key": POST + KEY + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + b"x" * LARGE,
}
REFUSED = {
    **MALFORMED,
    "bytes that follow a request": HEALTH + b"\r\n" + bytes(LARGE),
    "bytes that follow an upgrade": HEALTH + b"Upgrade: websocket\r\nConnection: upgrade\r\n\r\n" + bytes(LARGE),
    "no key": post(b" " * 900_000),
    "a body where none is wanted": HEALTH + b"Content-Length: 900000\r\n\r\n" + b" " * 900_000,
    "an unknown path": POST.replace(b"chat", b"chats") + KEY + b"Content-Length: 900000\r\n\r\n" + b" " * 900_000,
    "an unknown method": post(b" " * 900_000, KEY).replace(b"POST", b"DELETE", 1),
    "an expectation": post(b" " * 100_000, b"Expect: x\r\n"),
    "too large": post(b" " * (2 * LARGE), KEY),
    "too many elements": post(b"[" * 900_000, KEY),
    "no JSON": post(b"{" * 9000, KEY),
    "no gzip": post(b"no such bytes", KEY, b"Content-Encoding: gzip\r\n"),
    "another coding": post(b"no such bytes" * 1000, KEY, b"Content-Encoding: br\r\n"),
    "half a head": POST,
    "half a body": POST + KEY + b"Content-Length: 900000\r\n\r\n" + b" " * 500_000,
    "nothing": b"",
}


@pytest.fixture
def uncollected() -> Iterator[None]:
    """A collector that looks for no cycles inside the test, after which it goes on."""
    with without_collector():
        yield


def kept() -> list[object]:
    """What still belongs to connections of a server; aiohttp keeps a small cycle for each path that it doesn't know."""
    kinds = (web.RequestHandler, web.BaseRequest, web.StreamResponse)
    return [each for each in alive(*kinds) if not isinstance(each, web.HTTPException)]


async def send(server: Running, data: bytes) -> bytes:
    """Send bytes on a connection of its own; return the beginning of the answer, and leave."""
    reader, writer = await asyncio.open_connection(*server.runner.addresses[0][:2])
    writer.write(data)
    answer = b""
    try:
        async with asyncio.timeout(0.2 if data in (REFUSED["half a head"], REFUSED["half a body"], b"") else 5):
            answer = await reader.read(2000)
    except (TimeoutError, ConnectionError):
        pass
    writer.transport.abort()
    return answer


@pytest.mark.long("after the first case")
@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("kind", REFUSED)
async def test_a_request_that_is_refused_is_forgotten_without_the_collector(kind: str) -> None:
    others = kept()  # of servers that run beside this test
    async with running(api_key="sk-right") as server:
        manager = server.runner.server
        assert manager is not None
        for _ in range(2):
            await send(server, REFUSED[kind])
        await until(lambda: not manager.connections)
        await until(lambda: not {*map(id, kept())} - {*map(id, others)})


@pytest.mark.long
@pytest.mark.parametrize("kind", MALFORMED)
async def test_what_is_no_http_is_answered_in_a_sentence_that_does_not_quote_it(kind: str) -> None:
    async with running(api_key="sk-right") as server:
        answer = await send(server, MALFORMED[kind][:3000])  # of which nothing is unread when the connection closes
        if kind.endswith("without end"):
            answer = await send(server, MALFORMED[kind][:20_000]) or b"HTTP/1.1 400 \r\n"  # or it is reset
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split(b" ")[1] in {b"400", b"401"}
    if body and b"401" not in head:
        assert json.loads(body)["error"]["message"] == "request: expected well-formed HTTP, got something else"
        assert len(answer) < 500


async def test_an_answer_that_has_begun_ends_as_it_should_before_the_connection_is_closed() -> None:
    engine = FakeEngine(mode="manual")
    async with running(engine, api_key="sk-right") as server:
        reader, writer = await asyncio.open_connection(*server.runner.addresses[0][:2])
        writer.write(post(json.dumps({**HELLO, "stream": True}).encode(), KEY))
        await until(lambda: engine.generations)
        engine.step(1)
        answer = await reader.readuntil(b"\n\n")
        writer.write(bytes(1000))
        engine.step(100)
        answer += await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200 OK")
    answer, end, refusal = answer.partition(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert end
    assert refusal.startswith(b"HTTP/1.0 400 ")


@pytest.mark.parametrize("pieces", [[b"garbage\r\n\r\n"], [bytes(1000)] * 50, [b"GET / HTTP/1.1\r\n\r\n", HEALTH + b"\r\n"]])
async def test_requests_that_came_before_malformed_bytes_are_answered_and_none_after_them(pieces: list[bytes]) -> None:
    engine = FakeEngine(mode="manual")
    async with running(engine, api_key="sk-right") as server:
        reader, writer = await asyncio.open_connection(*server.runner.addresses[0][:2])
        writer.write(post(json.dumps(HELLO).encode(), KEY))
        writer.write((HEALTH + b"\r\n") * 2)
        await until(lambda: engine.generations)
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.001)
        engine.step(100)
        answer = await reader.read()
        writer.close()
    assert re.findall(rb"HTTP/1.[01] (\d+)", answer) == [b"200"] * 3 + [b"400"]


@pytest.mark.long
async def test_malformed_bytes_inside_tls_are_forgotten_as_well(tmp_path: Path) -> None:
    options = ListenOptions(host="localhost", tls_cert=str(write_certificate(tmp_path)))
    async with listening(web.Application(), options) as address:
        with without_collector():
            port = int(address.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("localhost", port, ssl=client_context())
            writer.write(bytes(LARGE))
            assert b" 400 " in await reader.readline()
            writer.transport.abort()
            await until(lambda: not alive(web.BaseRequest))


# Bodies that are packed


@pytest.fixture
def unpackers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The arguments of each unpacker that is made."""
    made: list[tuple[Any, ...]] = []
    make = zlib.decompressobj

    def counting(*args: Any, **options: Any) -> Any:
        made.append(args)
        return make(*args, **options)

    monkeypatch.setattr(zlib, "decompressobj", counting)
    return made


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", CHAT, 401),
        ("POST", "/v1/nothing", 401),
        ("POST", "/v1/nothing", 404),
        ("GET", "/health", 200),
        ("GET", "/v1/models", 401),
        ("GET", "/v1/models", 200),
        ("GET", "/v1/verify", 426),
        ("DELETE", CHAT, 405),
    ],
)
async def test_a_body_that_nobody_asks_for_is_never_unpacked(
    unpackers: list[tuple[Any, ...]], coding: str, method: str, path: str, status: int
) -> None:
    key = "" if status == 401 else "sk-right"
    headers = {"Content-Encoding": coding, "Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    packed = (gzip.compress if coding == "gzip" else zlib.compress)(bytes(64 << 20))
    async with (
        running(FakeEngine(), api_key="sk-right") as server,
        server.client.request(method, path, data=packed, headers=headers) as response,
    ):
        assert response.status == status
        await response.read()
    assert unpackers == []


@pytest.mark.parametrize("cancels", [True, False], ids=["our runner", "another runner"])
@pytest.mark.parametrize("coding", ["gzip", "deflate", "identity"])
async def test_a_packed_request_is_answered_like_any_other(coding: str, cancels: bool) -> None:
    packers: dict[str, Any] = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}
    async with running(api_key="sk-right", cancels=cancels) as server:
        headers = {"Authorization": "Bearer sk-right", "Content-Encoding": coding}
        status, body = await server.post(CHAT, packers[coding](json.dumps(HELLO).encode()), **headers)
        assert (status, body["object"]) == (200, "chat.completion")


async def test_a_packed_body_is_bounded_by_its_unpacked_size() -> None:
    async with running(api_key="sk-right", max_body_bytes=10_000) as server:
        headers = {"Authorization": "Bearer sk-right", "Content-Encoding": "gzip"}
        status, body = await server.post(CHAT, gzip.compress(b" " * 10_001), **headers)
        assert (status, body["error"]["message"]) == (413, "body: expected at most 10000 bytes, got more")


@pytest.mark.parametrize("times", [1, 5], ids=["once", "again and again"])
def test_an_idle_connection_with_a_request_in_its_socket_is_not_closed_after_the_loop_stood_still(times: int) -> None:
    async def run() -> None:
        async with running(idle_timeout=0.2) as server:
            loop, (ours, theirs) = asyncio.get_running_loop(), socket.socketpair()
            client = socket.create_connection(server.runner.addresses[0][:2])

            def stand_still() -> None:
                """Send a request and compute, in the phase in which the loop reads: its timers run before it reads again."""
                loop.remove_reader(ours)
                client.sendall(HEALTH + b"\r\n")
                end = time.monotonic() + 0.6
                while time.monotonic() < end:
                    pass

            with ours, theirs, client:
                client.setblocking(False)
                await loop.sock_sendall(client, HEALTH + b"\r\n")
                assert b"200" in await loop.sock_recv(client, 2000)
                theirs.sendall(b"x")
                for _ in range(times):
                    loop.add_reader(ours, stand_still)
                    assert b"HTTP/1.1 200" in await loop.sock_recv(client, 2000)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
