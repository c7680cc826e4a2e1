"""A scripted OpenAI-like HTTP server on the loopback, which sends exactly the bytes, pauses and failures of its script.

Each request gets the next ``ScriptedResponse`` of a queue; the last one repeats. Instead of a response, the queue can hold a function from
the request to a response. All requests are kept for inspection, and connections are counted, so a test can check that none is left open.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

from streamco.testing.listener import Listener
from streamco.testing.responses import Cut, Pause, RecordedRequest, Reset, Responder, ScriptedResponse, Stall, stream_answer

__all__ = ["ScriptedServer"]


class ScriptedServer(Listener):
    """A scripted HTTP server; use it as an async context manager.

    Args:
        *answers: the queue of responses, as for ``script``. If there are none, every request gets ``stream_answer()``.
        tls: serve HTTPS with this context.

    Attributes:
        requests: all requests received, in order.
        connections_total: connections accepted so far.
        answers_abandoned: responses during which the client disconnected.
    """

    def __init__(self, *answers: ScriptedResponse | Responder, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[RecordedRequest] = []
        self.connections_total = 0
        self.answers_abandoned = 0
        self._tls = tls
        self._connections: set[_ServedConnection] = set()
        self._changed = asyncio.Event()
        self._default: ScriptedResponse | Responder = stream_answer()
        self._queue: list[ScriptedResponse | Responder] = []
        self._routes: dict[str, ScriptedResponse | Responder] = {}
        self.script(*answers)

    @property
    def url(self) -> str:
        """The base URL of the OpenAI API, ending in ``/v1``."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}/v1"

    @property
    def connections_open(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    def script(self, *answers: ScriptedResponse | Responder) -> None:
        """Replace the queue with these responses; the last one repeats."""
        if answers:
            self._queue = list(answers)

    def route(self, path: str, answer: ScriptedResponse | Responder) -> None:
        """Answer all requests for this path (without the query) with this response, not from the queue."""
        self._routes[path] = answer

    def count(self, path: str) -> int:
        """Return the number of requests for this path (without the query)."""
        return Counter(urlsplit(request.path).path for request in self.requests)[path]

    async def wait_for(self, condition: Callable[[ScriptedServer], bool], *, limit: float = 10.0) -> None:
        """Wait until the condition holds. It is checked whenever a connection or a response changes.

        Raises:
            TimeoutError: the condition didn't become true within ``limit`` seconds.
        """
        async with asyncio.timeout(limit):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(lambda: _ServedConnection(self), host, port, ssl=self._tls)

    async def _drop(self) -> None:
        for connection in list(self._connections):
            connection.abort()
        await self.wait_for(lambda server: not server.connections_open)

    def _answer(self, request: RecordedRequest) -> ScriptedResponse:
        self.requests.append(request)
        answer = self._routes.get(urlsplit(request.path).path)
        if answer is None:
            answer = (self._queue.pop(0) if len(self._queue) > 1 else self._queue[0]) if self._queue else self._default
        self._changed.set()
        return answer if isinstance(answer, ScriptedResponse) else answer(request)


class _ServedConnection(asyncio.Protocol):
    """One client connection, which reads requests one at a time and sends their responses."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._received = bytearray()
        self._playing: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the same methods but a different base class
        self._server.connections_total += 1
        self._server._connections.add(self)
        self._server._changed.set()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._begin_answer()

    def eof_received(self) -> bool:
        self._leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._writable.set()
        self._server._connections.discard(self)
        self._server._changed.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def _leave(self) -> None:
        if self._playing is not None and not self._playing.done():
            self._server.answers_abandoned += 1
            self._playing.cancel()

    def _begin_answer(self) -> None:
        if self._playing is None and (request := self._take_request()) is not None:
            self._playing = asyncio.get_running_loop().create_task(self._play(self._server._answer(request)))
            self._playing.add_done_callback(self._end_answer)

    def _end_answer(self, task: asyncio.Task[None]) -> None:
        self._playing = None
        self._server._changed.set()
        if not task.cancelled():
            task.result()
            self._begin_answer()

    def _take_request(self) -> RecordedRequest | None:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return None
        request_line, *lines = self._received[:end].decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        start, length = end + 4, int(headers.get("content-length", "0"))
        if len(self._received) < start + length:
            return None
        body = bytes(self._received[start : start + length])
        del self._received[: start + length]
        method, path, _ = request_line.split(" ", 2)
        return RecordedRequest(method, path, headers, body)

    async def _play(self, answer: ScriptedResponse) -> None:
        transport = self._transport
        assert transport is not None
        if answer.head_delay:
            await asyncio.sleep(answer.head_delay)
        transport.write(_head(answer))
        for step in answer.steps:
            match step:
                case bytes():
                    transport.write(b"%x\r\n%b\r\n" % (len(step), step) if answer.framing == "chunked" and step else step)
                    await self._writable.wait()
                    await asyncio.sleep(0)
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case Stall():
                    await asyncio.get_running_loop().create_future()
                case Cut():
                    transport.close()
                    return
                case Reset():
                    self._reset()
                    return
        if answer.framing == "chunked":
            transport.write(b"0\r\n\r\n")
        elif answer.framing == "close":
            transport.close()

    def _reset(self) -> None:
        assert self._transport is not None
        raw = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the peer may have disconnected first
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


def _head(answer: ScriptedResponse) -> bytes:
    headers = dict(answer.headers)
    if answer.framing == "chunked":
        headers["Transfer-Encoding"] = "chunked"
    elif answer.framing == "length":
        headers["Content-Length"] = str(sum(len(step) for step in answer.steps if isinstance(step, bytes)))
    else:
        headers["Connection"] = "close"
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {answer.status} Scripted\r\n{lines}\r\n".encode("latin-1")
