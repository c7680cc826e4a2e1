"""A TCP proxy that takes as long as a link does: half the round-trip time each way, and no more bytes a second than it carries.

What is under way is queued, so a later piece waits for none of the delay of an earlier one: only the rate is shared, by all connections.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from streamco.errors import ConfigError
from streamco.testing.listener import Listener

__all__ = ["LinkDirection", "LinkProxy"]

SEGMENT = 1460  # bytes of a TCP segment on Ethernet
HEADERS = 40  # bytes of IPv4 and TCP headers a segment
QUEUE = 262_144  # bytes under way; behind them the sender is slowed down, as a full socket buffer does


class LinkDirection:
    """One direction of a link. Times in seconds.

    Args:
        delay: from one end to the other.
        rate: bytes a second; None: no limit.

    Attributes:
        passed: bytes sent so far, without headers.
    """

    def __init__(self, delay: float, rate: float | None) -> None:
        self.passed = 0
        self._delay = delay
        self._rate = rate
        self._free = 0.0  # when what was sent before has left

    def send(self, size: int, now: float) -> float:
        """When the last of so many bytes, headers added, is at the other end."""
        self.passed += size
        start = max(now, self._free)
        self._free = start if self._rate is None else start + (size + HEADERS * -(-size // SEGMENT)) / self._rate
        return self._free + self._delay


class LinkProxy(Listener):
    """The proxy; use it as an async context manager.

    Setting up a connection takes a round trip, too: what a client says first is held for it. Loss, slow start and TLS are not emulated.

    Args:
        port: the server's port on 127.0.0.1.
        rtt: round-trip time in seconds.
        mbps: megabits a second in each direction; None: no limit.

    Raises:
        ConfigError: a negative time, or a rate that carries nothing.
    """

    def __init__(self, port: int, *, rtt: float = 0.0, mbps: float | None = None) -> None:
        if not rtt >= 0.0 or (mbps is not None and not mbps > 0.0):
            raise ConfigError(f"link: expected rtt >= 0 s and mbps above 0, got {rtt} and {mbps}")
        self.rtt = rtt
        rate = None if mbps is None else mbps * 1e6 / 8
        self._up, self._down = LinkDirection(rtt / 2, rate), LinkDirection(rtt / 2, rate)
        self._target = port
        self._relays: set[asyncio.Task[None]] = set()

    @property
    def bytes_up(self) -> int:
        """From the client to the server so far, without headers."""
        return self._up.passed

    @property
    def bytes_down(self) -> int:
        """From the server to the client so far, without headers."""
        return self._down.passed

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._relay, host, port)

    async def _drop(self) -> None:
        for relay in self._relays:
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a relay is made inside its connection's task"
        self._relays.add(task)
        try:
            await self._run(reader, writer)
        except asyncio.CancelledError:
            pass  # the proxy is closed; the connections are dropped below
        finally:
            self._relays.discard(task)
            writer.transport.abort()

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # the server is gone: so is the connection
            return
        pipes = (_Pipe(self._up, reader, server, held=self.rtt), _Pipe(self._down, server_reader, writer))
        tasks = [asyncio.create_task(part) for pipe in pipes for part in (pipe.take(), pipe.bring())]
        try:
            await asyncio.wait([tasks[1], tasks[3]], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            server.transport.abort()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Pipe:
    """What is under way in one direction of one connection."""

    def __init__(self, lane: LinkDirection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, held: float = 0.0) -> None:
        self._lane = lane
        self._reader = reader
        self._writer = writer
        self._held = held  # seconds that the first piece waits longer
        self._queue: deque[tuple[float, bytes]] = deque()
        self._queued = 0
        self._changed = asyncio.Condition()

    async def take(self) -> None:
        """Put what the sender says on the lane, to the end of the stream."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(SEGMENT):
                held, self._held = self._held, 0.0
                await self._put(self._lane.send(len(data), loop.time() + held), data)
        await self._put(self._lane.send(0, loop.time()), b"")

    async def _put(self, arrival: float, data: bytes) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._queued < QUEUE)
            self._queue.append((arrival, data))
            self._queued += len(data)
            self._changed.notify_all()

    async def bring(self) -> None:
        """Write each piece when it is due; the end of the stream closes the receiver's side."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: bool(self._queue))
                    arrival, data = self._queue.popleft()
                    self._queued -= len(data)
                    self._changed.notify_all()
                if (wait := arrival - loop.time()) > 0:
                    await asyncio.sleep(wait)
                if not data:
                    self._writer.close()
                    await self._writer.wait_closed()
                    return
                self._writer.write(data)
                await self._writer.drain()
