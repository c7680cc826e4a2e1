"""Attacks that need no key, on every program that listens: bytes that are no HTTP, and bodies that nobody asked for."""

from __future__ import annotations

import asyncio
import gzip
from contextlib import suppress
from urllib.parse import urlsplit

from tests.attack.attack import Harm, Register
from tests.attack.processes import CHAT, Program

__all__ = ["attack"]

attack = Register("listeners")

GROWTH = 20  # MB more in memory that an attack without a key may leave
HEALTH = 0.2  # seconds in which /health is answered beside it
WAIT = 10.0  # seconds for one answer

HEADS = (
    b"\0" * (1 << 20),
    b"GET / HTTP/1.1\r\nX: " + b"a" * (1 << 20),
    b"GET /" + b"a" * (1 << 20),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * (1 << 20),
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + b"x" * (1 << 20),
    b"GET /health HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n" + b"\0" * (1 << 20),
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: x\r\nContent-Length: 1048576\r\n\r\n" + b"x" * (1 << 20),
)


async def _send(program: Program, *pieces: bytes) -> bytes:
    """Send bytes on a connection of its own, as many as are taken; return the beginning of the answer."""
    parts = urlsplit(program.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    answer = b""
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(WAIT):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            answer = await reader.read(100)
    writer.transport.abort()
    return answer


@attack("120 connections with heads that are no HTTP, 20 MB each, without a key", "400 or closed; memory stays")
async def malformed_heads(program: Program, size: int) -> str:
    before, seen = program.memory(), set()
    for number in range(120 * size or 2 * len(HEADS)):
        head = HEADS[number % len(HEADS)]
        answer = await _send(program, head, *[head[-(1 << 20) :]] * (19 if size else 1))
        seen.add(answer.split(b" ")[1].decode() if answer.startswith(b"HTTP/") else "closed")
    grown = program.memory() - before
    if size and grown > GROWTH:
        raise Harm(f"{grown} MB more in memory")
    return f"{', '.join(sorted(seen))}; {grown} MB more in memory"


@attack("24 gzip bodies of 0.9 MB that hold 0.9 GB, without a key, and where no body is wanted", "none is unpacked: /health in 0.2 s")
async def packed_bodies(program: Program, size: int) -> str:
    before = program.memory()
    bomb = gzip.compress(b" " * (100 << 20 if size else 1 << 20)) * 9
    kind = f"Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
    asked = (f"POST {CHAT}", "GET /health", "POST /v1/nothing", "GET /v1/verify", "POST /v1/messages", "GET /v1/models")
    heads = [f"{each} HTTP/1.1\r\n{kind}".encode() for each in asked]
    sending = [asyncio.create_task(_send(program, heads[number % len(heads)], bomb)) for number in range(24 * max(1, size))]
    await asyncio.sleep(0.05)
    waits = [await program.seconds() for _ in range(10)]
    answers = await asyncio.gather(*sending)
    seen = {answer.split(b" ")[1].decode() if answer.startswith(b"HTTP/") else "closed" for answer in answers}
    grown = program.memory() - before
    if "500" in seen or (size and (max(waits) > HEALTH or grown > GROWTH)):
        raise Harm(f"{', '.join(sorted(seen))}; /health in {max(waits):.2f} s at most, {grown} MB more in memory")
    return f"{', '.join(sorted(seen))}; /health in {max(waits):.3f} s at most, {grown} MB more in memory"
