"""Serves devices on a WebSocket path, for any kind of frames, with keys, limits, keep-alive and shutdown (docs/verifier-protocol.md).

It is a path of the HTTP server, so both share a port, a certificate and a key. Each connection has two coroutines: the handler reads
frames and passes them on, and the writer sends messages. The handler stops reading while the client doesn't read its answers.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from aiohttp import WSCloseCode, WSMsgType, web

from streamco.endpoints.network.peer_timeout import PeerTimeout, SecondLook
from streamco.server.http.api_keys import KEY_NAME, find_key
from streamco.server.http.errors import RequestError, overloaded
from streamco.server.http.middleware import check_key, means_loopback
from streamco.server.http.options import ListenOptions
from streamco.server.verify.address_limits import AddressLimits, Source
from streamco.server.verify.options import VerifyOptions
from streamco.server.wakeup import WakeEvent
from streamco.wire.split.frames import SplitHello
from streamco.wire.verify.errors import HelloExpectedError, ShuttingDownError, UnauthorisedError, VerifyProtocolError
from streamco.wire.verify.frames import PATH, SUBPROTOCOL, Hello

__all__ = ["DeviceConnection", "FrameService", "ProtocolServer", "SessionHost"]

logger = logging.getLogger("streamco.server.verify")

_MAX_UNSENT = 256  # messages; while a client leaves this many unread, its frames aren't read
_MAX_UNSENT_BYTES = 4 << 20  # the same in bytes, because one message may have the states of a whole prompt
_CLOSE_SECONDS = 2.0  # time for the client's part of the closing handshake
_WEBSOCKET_BYTES = 1 << 16  # tolerance above the limit: messages within it get an error, longer ones close the connection with 1009


class ProtocolServer(Protocol):
    """The interface of the server's end of a protocol."""

    faults: int
    is_closed: bool

    def take_messages(self) -> list[bytes]:
        """Return the messages to send."""
        ...

    def receive(self, message: bytes | str, /) -> object:
        """Return the frame to carry out, or None if there is nothing to do."""
        ...

    def welcome(self) -> None:
        """Accept the hello."""
        ...

    def refuse(self, error: VerifyProtocolError, /) -> None:
        """Send an error, and end the round, session or connection that it is about."""
        ...


ServerT = TypeVar("ServerT", bound=ProtocolServer)


class SessionHost(Protocol):
    """Carries out the frames of all connections, which use the same protocol."""

    def join(self, connection: Any, /) -> None:
        """Add a connection whose hello was accepted."""
        ...

    def leave(self, connection: Any, /) -> None:
        """Remove a lost connection."""
        ...

    def handle(self, connection: Any, frame: Any, /) -> None:
        """Handle a frame that the connection's ``server`` has accepted."""
        ...

    def figures(self) -> dict[str, object]:
        """Return counters and sizes as a JSON object."""
        ...

    def close(self) -> None:
        """Drop all sessions; idempotent."""
        ...


class FrameService(ABC, Generic[ServerT]):
    """The handlers of a server for one protocol.

    Args:
        options: limits on devices, connections and load.
        listen: settings of the server; only the key is used.
    """

    frame_bytes: int
    """Largest number of bytes in a message."""

    def __init__(self, options: VerifyOptions, listen: ListenOptions) -> None:
        self.options = options
        self.peers = AddressLimits(
            connections=options.connections,
            peer_connections=options.peer_connections,
            faults_per_minute=options.faults_per_minute,
            has_keys=listen.has_key,
        )
        self._listen = listen
        self._connections: set[DeviceConnection[ServerT]] = set()
        self._joined = 0
        self.is_stopping = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve one connection of ``GET /v1/verify`` until it ends.

        Raises:
            RequestError: 400 or 426 not a WebSocket of this protocol; 401 wrong key; 403 a foreign web page; 429 too many connections or
                faults; 503 the server is shutting down.
        """
        self._check(request)
        source = self._source_of(request)
        refusal = self.peers.refusal(source, now=asyncio.get_running_loop().time())
        if refusal is not None:
            raise overloaded(*refusal)
        socket = _Socket(
            protocols=(SUBPROTOCOL,),
            compress=False,
            heartbeat=self.options.ping_interval,
            max_msg_size=self.frame_bytes + _WEBSOCKET_BYTES,
            timeout=_CLOSE_SECONDS,
        )
        self._joined += 1
        connection = DeviceConnection(self, request, socket, f"device{self._joined}", source)
        self.peers.join(source)
        self._connections.add(connection)
        try:
            await socket.prepare(request)
            await connection.run()
        finally:
            self._connections.discard(connection)
            self.peers.leave(source)
            faults = connection.faults
            if faults:
                self.peers.record_faults(source, faults, now=asyncio.get_running_loop().time())
        return socket

    def figures(self) -> dict[str, object]:
        """Return counters and sizes as a JSON object."""
        return self.manager.figures()

    async def stats(self, _request: web.Request) -> web.Response:
        """Answer the stats path with the counters."""
        return web.json_response(self.figures())

    async def stop(self, _app: web.Application | None = None) -> None:
        """Tell every device that the service is ending."""
        self.is_stopping = True
        for connection in list(self._connections):
            connection.stop()

    @abstractmethod
    async def close(self, _app: web.Application | None = None) -> None:
        """Drop all sessions; idempotent."""

    @property
    @abstractmethod
    def manager(self) -> SessionHost:
        """The session manager. It is created at first use, in the event loop that serves."""

    @abstractmethod
    def make_server(self) -> ServerT:
        """Return the server's end of the protocol for a new connection."""

    def is_authorised(self, token: str | None, request: web.Request) -> bool:
        """Return True if a hello has a valid token, or if it has none but a valid key was in the header.

        Sets ``KEY_NAME`` like the header check.
        """
        keys = self._listen.keys
        if not keys:
            return True
        if token is None:
            return "Authorization" in request.headers  # the service has checked it
        key = find_key(keys, token)
        if key is not None and len(keys) > 1:
            request[KEY_NAME] = key.name
        return key is not None

    def _check(self, request: web.Request) -> None:
        if self.is_stopping:
            raise RequestError(503, "server: is shutting down", code="shutdown", headers={"Retry-After": "5"})
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise RequestError(426, f"{PATH}: expected a WebSocket, got a plain request", headers={"Upgrade": "websocket"})
        offered = {each.strip() for each in request.headers.get("Sec-WebSocket-Protocol", "").split(",")}
        if SUBPROTOCOL not in offered:
            raise RequestError(400, f"subprotocol: expected {SUBPROTOCOL}, got {', '.join(sorted(offered)) or 'none'}")
        origin = request.headers.get("Origin")
        page = None if origin is None else urlsplit(origin).netloc  # empty for a sandboxed page
        if page is not None and not self._listen.has_key and not (page and means_loopback(page)):
            raise RequestError(403, "origin: expected a page of this machine while the server has no api key")
        if "Authorization" in request.headers:  # otherwise the key comes with the hello
            check_key(self._listen, request)

    def _source_of(self, request: web.Request) -> Source:
        """Return the source under which the connection and its faults are counted. The header's key has been checked already."""
        has_key = self._listen.has_key and "Authorization" in request.headers
        return Source(request.remote or "", request.get(KEY_NAME, "") if has_key else None, "Origin" in request.headers)


class _Socket(web.WebSocketResponse):
    """A WebSocket that counts as lost only if a ping is still unanswered when checked a second time (``PeerTimeout``)."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._look = SecondLook()

    def _cancel_pong_response_cb(self) -> None:
        """Stop waiting for the answer, because something has arrived or another ping is sent."""
        self._look.reset()
        super()._cancel_pong_response_cb()

    def _pong_not_received(self) -> None:
        loop, timer = asyncio.get_running_loop(), self._pong_response_cb
        wait = None if timer is None else self._look.wait(loop.time() - timer.when(), self._pong_heartbeat)
        if wait is None:
            super()._pong_not_received()
        else:
            self._pong_response_cb = loop.call_later(wait, self._pong_not_received)


class DeviceConnection(Generic[ServerT]):
    """One WebSocket of a device. Implements ``sessions.Connection``."""

    def __init__(
        self, service: FrameService[ServerT], request: web.Request, socket: web.WebSocketResponse, device: str, source: Source
    ) -> None:
        self.server = service.make_server()
        self.device = device
        self.peer = source.address
        self.owner: str | None = None
        self._service = service
        self._request = request
        self._socket = socket
        self._is_welcome = False
        self._is_over = False
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._has_messages = WakeEvent()
        self._has_space = WakeEvent()

    @property
    def faults(self) -> int:
        """Number of protocol faults on this connection."""
        return self.server.faults + (self.server.is_closed and not self._is_welcome and not self._service.is_stopping)

    async def run(self) -> None:
        """Read and write until either side ends the connection."""
        manager = self._service.manager
        writer = asyncio.create_task(self._write(), name="streamco-verify-writer")
        try:
            await self._read(manager)
            self._is_over = True
            self._has_messages.wake()
            await writer
        finally:
            if self._is_welcome:
                manager.leave(self)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    def flush(self) -> None:
        """Queue the messages that ``server`` has to send."""
        messages = self.server.take_messages()
        self._unsent += messages
        self._unsent_bytes += sum(map(len, messages))
        self._has_messages.wake()

    def stop(self) -> None:
        """Tell the client that the service is ending."""
        self.server.refuse(ShuttingDownError("server: is shutting down"))
        self.flush()

    async def _read(self, manager: SessionHost) -> None:
        while not self.server.is_closed:
            message = await self._receive()
            if message is None:
                break
            frame = self.server.receive(message)
            if isinstance(frame, Hello | SplitHello):
                self._greet(manager, frame)
            elif frame is not None:
                manager.handle(self, frame)
            self.flush()
            while self._is_behind and not self._is_over:
                await self._has_space.wait(None)

    @property
    def _is_behind(self) -> bool:
        return len(self._unsent) > _MAX_UNSENT or self._unsent_bytes > _MAX_UNSENT_BYTES

    async def _receive(self) -> bytes | str | None:
        """Return the next message, or None if the connection is over."""
        limit = None if self._is_welcome else self._service.options.hello_timeout
        try:
            async with PeerTimeout(limit):
                message = await self._socket.receive()
        except TimeoutError:
            self.server.refuse(HelloExpectedError(f"connection: expected a hello within {limit:g} s, got none"))
            self.flush()
            return None
        return message.data if message.type in {WSMsgType.BINARY, WSMsgType.TEXT} else None

    def _greet(self, manager: SessionHost, hello: Hello | SplitHello) -> None:
        if self._service.is_authorised(hello.token, self._request):
            self._is_welcome = True
            self.owner = self._request.get(KEY_NAME)
            self.server.welcome()
            manager.join(self)
        else:
            message = "token: expected a valid one, got " + ("none" if hello.token is None else "another")
            self.server.refuse(UnauthorisedError(message))

    async def _write(self) -> None:
        """Send messages until the connection is over, and close it after the last one."""
        while not self._socket.closed:
            while self._unsent:
                message = self._unsent.popleft()
                self._unsent_bytes -= len(message)
                if not await self._send(message):
                    self._is_over = True
                    self._has_space.wake()
                    return
                self._has_space.wake()
            if self.server.is_closed:
                code = WSCloseCode.GOING_AWAY if self._service.is_stopping else WSCloseCode.POLICY_VIOLATION
                await self._socket.close(code=code)
                return
            if self._is_over:
                return
            await self._has_messages.wait(None)

    async def _send(self, message: bytes) -> bool:
        """Send one message. Return False if the connection is lost."""
        try:
            async with PeerTimeout(self._service.options.write_timeout):
                await self._socket.send_bytes(message)
        except TimeoutError:
            logger.info("dropped a device that had stopped reading")
            if self._request.transport is not None:
                self._request.transport.abort()
            return False
        except ConnectionError:
            return False
        return True
