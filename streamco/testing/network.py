"""A TCP proxy that misbehaves as told: it delays, splits, stalls, cuts inside an event, or resets.

It sits between a client and a server of a test on the loopback. What it does is data (``Faults``), read anew for each connection; live
connections can also be stalled, cut or reset by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Self

from msgspec import Struct

__all__ = ["FaultProxy", "Faults"]


class Faults(Struct, frozen=True, kw_only=True):
    """What happens to each connection's downstream (server to client); None and 0 mean it does not.

    Args:
        delay: seconds each piece is held, both directions; order is kept.
        piece_bytes: pass on at most so many bytes in one write, with a turn of the event loop between two writes.
        cut_after: close (FIN) after so many downstream bytes.
        reset_after: reset (RST) after so many downstream bytes.
        stall_after: pass on nothing more after so many downstream bytes, and keep the connection open.
        refuse: reset new connections as soon as they arrive.
    """

    delay: float = 0.0
    piece_bytes: int | None = None
    cut_after: int | None = None
    reset_after: int | None = None
    stall_after: int | None = None
    refuse: bool = False

    def limit(self) -> int | None:
        """Downstream bytes that still pass."""
        return min((at for at in (self.cut_after, self.reset_after, self.stall_after) if at is not None), default=None)


class FaultProxy:
    """The proxy; use it as an async context manager.

    Args:
        port: the server's port on 127.0.0.1.
        faults: for each new connection; assign ``faults`` to change it.

    Attributes:
        connections_total: connections ever accepted.
        connections_open: connections that are open now.
    """

    def __init__(self, port: int, faults: Faults | None = None) -> None:
        self.faults = Faults() if faults is None else faults
        self.connections_total = 0
        self._target = port
        self._server: asyncio.Server | None = None
        self._relays: set[_Relay] = set()

    @property
    def port(self) -> int:
        """The port it listens on."""
        assert self._server is not None, "the proxy is not running"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The base URL of an OpenAI API behind the proxy, ending in ``/v1``."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def connections_open(self) -> int:
        """Connections that are open now."""
        return len(self._relays)

    def stall(self) -> None:
        """Pass on nothing more on any open connection until ``resume``."""
        for relay in self._relays:
            relay.passing.clear()

    def resume(self) -> None:
        """Undo ``stall``."""
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

    async def start(self) -> None:
        """Listen on a free port of 127.0.0.1."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)

    async def aclose(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is None:
            return
        self._server.close()
        tasks = [relay.task for relay in self._relays]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_total += 1
        relay = _Relay(self.faults, reader, writer)
        self._relays.add(relay)
        try:
            await relay.run(self._target)
        except asyncio.CancelledError:
            relay.client.transport.abort()
        finally:
            self._relays.discard(relay)


class _Relay:
    """One relayed connection."""

    def __init__(self, faults: Faults, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a relay is made inside its connection's task"
        self.task = task
        self.client = writer
        self.passing = asyncio.Event()
        self.passing.set()
        self._faults = faults
        self._reader = reader

    def reset(self) -> None:
        raw = self.client.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the peer may have left first
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.transport.abort()

    async def run(self, port: int) -> None:
        """Pass bytes both ways until one side ends, then drop both."""
        if self._faults.refuse:
            self.reset()
            return
        server_reader, server = await asyncio.open_connection("127.0.0.1", port)
        ways = [asyncio.create_task(self._pump(self._reader, server, None)), asyncio.create_task(self._downstream(server_reader))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for writer in (server, self.client):
                writer.close()
                with contextlib.suppress(OSError):  # already lost
                    await writer.wait_closed()
        finally:
            for way in ways:
                way.cancel()
            server.transport.abort()
            self.client.transport.abort()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _downstream(self, reader: asyncio.StreamReader) -> None:
        faults = self._faults
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
                most = 65536 if limit is None else limit - passed
                data = await reader.read(min(most, self._faults.piece_bytes or 65536))
                if not data:
                    return False
                await asyncio.sleep(self._faults.delay)
                await self.passing.wait()
                writer.write(data)
                await writer.drain()
                passed += len(data)
            return True
        return False
