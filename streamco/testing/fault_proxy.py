"""A TCP proxy with scripted faults: it delays, splits, stalls, cuts inside an event, resets, or answers in the server's place.

It runs between a test's client and server on the loopback. Its faults are data (``Faults``), which it reads for each new connection. A test
can also stall, cut or reset open connections directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable

from streamco.testing.faults import BodyFault, Faults
from streamco.testing.http_framing import BodyPositionFinder, ObjectPositionFinder, ResponseReader
from streamco.testing.listener import Listener
from streamco.testing.server import ScriptedServer
from streamco.wire.openai.msgpack_body import MSGPACK

__all__ = ["FaultProxy"]


class FaultProxy(Listener):
    """A TCP proxy with scripted faults; use it as an async context manager.

    Args:
        port: the server's port on 127.0.0.1.
        faults: the faults of each new connection, or a function that returns them and is called for each one (such as a ``FaultPlan``).
            Assign to the attribute ``faults`` to change them for later connections.

    Attributes:
        connections_total: connections accepted so far.
    """

    def __init__(self, port: int, faults: Faults | Callable[[], Faults] | None = None) -> None:
        self.faults: Faults | Callable[[], Faults] = Faults() if faults is None else faults
        self.connections_total = 0
        self._target = port
        self._relays: set[_Relay] = set()

    @property
    def url(self) -> str:
        """The base URL of the server's OpenAI API through the proxy, ending in ``/v1``."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def connections_open(self) -> int:
        """Connections that are open now."""
        return len(self._relays)

    def stall(self) -> None:
        """Stop passing bytes on, on all open connections, until ``resume``."""
        for relay in self._relays:
            relay.passing.clear()

    def resume(self) -> None:
        """Pass bytes on again after ``stall``."""
        for relay in self._relays:
            relay.passing.set()

    def cut(self) -> None:
        """Close (FIN) every open connection."""
        for relay in self._relays:
            relay.client.close()

    def reset(self) -> None:
        """Reset (RST) every open connection."""
        for relay in self._relays:
            relay.reset()

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._relay, host, port)

    async def _drop(self) -> None:
        tasks = [relay.task for relay in self._relays]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_total += 1
        faults = self.faults if isinstance(self.faults, Faults) else self.faults()
        relay = _Relay(faults, reader, writer)
        self._relays.add(relay)
        try:
            async with _target(self._target, faults) as port:
                await relay.run(port)
        except asyncio.CancelledError:
            relay.client.transport.abort()
        finally:
            self._relays.discard(relay)


@contextlib.asynccontextmanager
async def _target(port: int, faults: Faults) -> AsyncIterator[int]:
    """Yield the port to pass bytes on to: the server's, or the port of a scripted server that gives the proxy's own answer."""
    if faults.answer is None:
        yield port
        return
    async with ScriptedServer(faults.answer) as server:
        yield server.port


class _Relay:
    """One relayed connection."""

    def __init__(self, faults: Faults, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a relay runs inside its connection's task"
        self.task = task
        self.client = writer
        self.passing = asyncio.Event()
        self.passing.set()
        self._faults = faults
        self._reader = reader

    def reset(self) -> None:
        raw = self.client.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the peer may have disconnected first
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.transport.abort()

    async def run(self, port: int) -> None:
        """Pass bytes both ways until one side ends, then close both."""
        if self._faults.refuse:
            self.reset()
            return
        try:
            server_reader, server = await asyncio.open_connection("127.0.0.1", port)
        except OSError:  # the server is gone, so the connection ends
            self.reset()
            return
        pipes = [asyncio.create_task(self._pump(self._reader, server, None)), asyncio.create_task(self._downstream(server_reader))]
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
            for writer in (server, self.client):
                writer.close()
                with contextlib.suppress(OSError):  # already lost
                    await writer.wait_closed()
        finally:
            for pipe in pipes:
                pipe.cancel()
            server.transport.abort()
            self.client.transport.abort()
            await asyncio.gather(*pipes, return_exceptions=True)
        for pipe in pipes:
            if not pipe.cancelled():
                pipe.result()

    async def _downstream(self, reader: asyncio.StreamReader) -> None:
        faults = self._faults
        if faults.body_fault is not None:
            with contextlib.suppress(ConnectionError):
                await self._relay_responses(reader, faults.body_fault)
            return
        was_limited = await self._pump(reader, self.client, faults.limit())
        if was_limited and faults.limit() == faults.reset_after:
            self.reset()
        elif was_limited and faults.limit() == faults.stall_after:
            await asyncio.get_running_loop().create_future()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None) -> bool:
        """Pass bytes on until the sender ends (False) or ``limit`` bytes have passed (True)."""
        passed = 0
        with contextlib.suppress(ConnectionError):
            while limit is None or passed < limit:
                max_bytes = 65536 if limit is None else limit - passed
                data = await reader.read(min(max_bytes, self._faults.piece_bytes or 65536))
                if not data:
                    return False
                await self._pass(writer, data)
                passed += len(data)
            return True
        return False

    async def _pass(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        size = self._faults.piece_bytes or len(data)
        for start in range(0, len(data), size or 1):
            await asyncio.sleep(self._faults.delay)
            await self.passing.wait()
            if writer.is_closing():
                raise ConnectionResetError("the receiver has left")
            writer.write(data[start : start + size])
            await writer.drain()

    async def _relay_responses(self, reader: asyncio.StreamReader, body_fault: BodyFault) -> None:
        """Pass responses on, with new framing, until the fault or the server ends the connection."""
        responses = ResponseReader()
        finder: BodyPositionFinder | ObjectPositionFinder | None = None
        untouched, is_dropping, is_over = body_fault.answers, False, False
        while data := await reader.read(65536):
            for part, piece in responses.feed(data):
                position = None
                if part == "body" and not untouched and not is_over:
                    finder = finder or _find_in(responses.media_type, body_fault)
                    position = finder.find(piece)
                if position is not None:
                    is_over = True
                    if not await self._apply(body_fault, piece, position, is_chunked=responses.is_chunked):
                        return
                    is_dropping = body_fault.kind == "end"
                elif part == "head":
                    await self._pass(self.client, piece)
                elif part == "body" and not is_dropping:
                    await self._pass(self.client, _framed(piece, is_chunked=responses.is_chunked))
                elif part == "end":
                    if responses.is_chunked and not is_dropping:
                        await self._pass(self.client, b"0\r\n\r\n")
                    untouched, is_dropping = max(0, untouched - 1), False

    async def _apply(self, body_fault: BodyFault, piece: bytes, position: int, *, is_chunked: bool) -> bool:
        """Apply the fault at this position in a piece of the body, and return False if it ends the connection."""
        before, rest = piece[:position], piece[position:]
        if body_fault.kind in {"pause", "end"} or not rest:
            await self._pass(self.client, _framed(before, is_chunked=is_chunked))
        elif before or body_fault.kind != "garbage":
            whole = _framed(piece, is_chunked=is_chunked)
            await self._pass(self.client, whole[: len(whole) - len(rest) - (2 if is_chunked else 0)])
        await self._pass(self.client, body_fault.data if body_fault.kind == "garbage" else _framed(body_fault.data, is_chunked=is_chunked))
        match body_fault.kind:
            case "reset":
                self.reset()
            case "stall":
                await asyncio.get_running_loop().create_future()
            case "pause":
                await asyncio.sleep(body_fault.seconds)
                await self._pass(self.client, _framed(rest, is_chunked=is_chunked))
                return True
            case "end" if is_chunked:
                await self._pass(self.client, b"0\r\n\r\n")
                return True
        return False


def _find_in(media_type: str, fault: BodyFault) -> BodyPositionFinder | ObjectPositionFinder:
    """Return the finder of a fault's position in a body of this type. In MessagePack, each object counts as an event."""
    if media_type == MSGPACK:
        return ObjectPositionFinder(fault.events, fault.offset)
    return BodyPositionFinder(fault.events, fault.offset, in_character=fault.in_character)


def _framed(piece: bytes, *, is_chunked: bool) -> bytes:
    """Return a piece of a body with its framing. An empty piece stays empty, because an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked and piece else piece
