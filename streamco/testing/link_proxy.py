"""A TCP proxy that emulates a link: half the round-trip time each way, and a limited rate.

Bytes in transit are queued, so a later piece doesn't wait for the delay of an earlier one. All connections share the rate.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from streamco.errors import ConfigError
from streamco.testing.listener import Listener

__all__ = ["LinkDirection", "LinkProxy"]

SEGMENT = 1460  # bytes of a TCP segment on Ethernet
HEADERS = 40  # bytes of IPv4 and TCP headers in a segment
QUEUE = 262_144  # bytes in transit; beyond that the sender is slowed down, as by a full socket buffer


class LinkDirection:
    """One direction of a link.

    Args:
        delay: seconds from one end to the other.
        rate: bytes per second, or None for no limit.

    Attributes:
        passed: bytes sent so far, without headers.
    """

    def __init__(self, delay: float, rate: float | None) -> None:
        self.passed = 0
        self._delay = delay
        self._rate = rate
        self._free_at = 0.0  # time at which the last byte sent before leaves

    def send(self, size: int, now: float) -> float:
        """Send this number of bytes, with headers added, and return the time at which the last one arrives at the other end."""
        self.passed += size
        start = max(now, self._free_at)
        self._free_at = start if self._rate is None else start + (size + HEADERS * -(-size // SEGMENT)) / self._rate
        return self._free_at + self._delay


class LinkProxy(Listener):
    """A TCP proxy that emulates a link; use it as an async context manager.

    Setting up a connection also takes a round trip, by which the client's first bytes are delayed. Loss, slow start and TLS are not
    emulated.

    Args:
        port: the server's port on 127.0.0.1.
        rtt: round-trip time in seconds.
        mbps: megabits per second in each direction, or None for no limit.
        down_mbps: megabits per second from the server to the client, if different from ``mbps``, as on home and mobile connections.

    Raises:
        ConfigError: ``rtt`` is negative, or a rate isn't above 0.
    """

    def __init__(self, port: int, *, rtt: float = 0.0, mbps: float | None = None, down_mbps: float | None = None) -> None:
        if not rtt >= 0.0 or (mbps is not None and not mbps > 0.0):
            raise ConfigError(f"link: expected rtt >= 0 s and mbps above 0, got {rtt} and {mbps}")
        if down_mbps is not None and not down_mbps > 0.0:
            raise ConfigError(f"link: expected down_mbps above 0, got {down_mbps}")
        self.rtt = rtt
        self._up = LinkDirection(rtt / 2, _bytes_a_second(mbps))
        self._down = LinkDirection(rtt / 2, _bytes_a_second(mbps if down_mbps is None else down_mbps))
        self._target = port
        self._relays: set[asyncio.Task[None]] = set()

    @property
    def bytes_up(self) -> int:
        """Bytes from the client to the server so far, without headers."""
        return self._up.passed

    @property
    def bytes_down(self) -> int:
        """Bytes from the server to the client so far, without headers."""
        return self._down.passed

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._relay, host, port)

    async def _drop(self) -> None:
        for relay in self._relays:
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a relay runs inside its connection's task"
        self._relays.add(task)
        try:
            await self._run(reader, writer)
        except asyncio.CancelledError:
            pass  # the proxy is being closed; the connection is dropped below
        finally:
            self._relays.discard(task)
            writer.transport.abort()

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # the server is gone, so the connection ends
            return
        pipes = (_Pipe(self._up, reader, server, setup_s=self.rtt), _Pipe(self._down, server_reader, writer))
        tasks = [asyncio.create_task(part) for pipe in pipes for part in (pipe.receive(), pipe.deliver())]
        try:
            await asyncio.wait([tasks[1], tasks[3]], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            server.transport.abort()
            await asyncio.gather(*tasks, return_exceptions=True)


def _bytes_a_second(mbps: float | None) -> float | None:
    return None if mbps is None else mbps * 1e6 / 8


class _Pipe:
    """The bytes in transit in one direction of one connection."""

    def __init__(
        self, direction: LinkDirection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, setup_s: float = 0.0
    ) -> None:
        self._direction = direction
        self._reader = reader
        self._writer = writer
        self._setup_s = setup_s  # extra seconds that the first piece waits
        self._queue: deque[tuple[float, bytes]] = deque()
        self._queued = 0
        self._changed = asyncio.Condition()

    async def receive(self) -> None:
        """Put the sender's bytes on the link, up to the end of the stream."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(SEGMENT):
                setup_s, self._setup_s = self._setup_s, 0.0
                await self._put(self._direction.send(len(data), loop.time() + setup_s), data)
        await self._put(self._direction.send(0, loop.time()), b"")

    async def _put(self, arrival: float, data: bytes) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._queued < QUEUE)
            self._queue.append((arrival, data))
            self._queued += len(data)
            self._changed.notify_all()

    async def deliver(self) -> None:
        """Write each piece when it is due. The end of the stream closes the receiver's side."""
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
