"""A WebSocket to a verifier, shared by all sessions of a client: its reader, its writer, and the pings that show it is alive.

``websockets`` is imported when the first connection is made, not with the package. All sessions are informed of a failure in one of two
ways: the connection is *lost*, and a new one may work; or it has *failed*, and a new one wouldn't help.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from streamco.config import Timeouts
from streamco.endpoints.address import is_loopback
from streamco.endpoints.network.credentials import ServerKey
from streamco.endpoints.network.environment_proxies import find_proxy
from streamco.endpoints.network.headers import key_header
from streamco.endpoints.network.peer_timeout import PeerTimeout
from streamco.errors import (
    EndpointConnectError,
    EndpointError,
    EndpointProtocolError,
    EndpointStatusError,
    EndpointTimeoutError,
    StreamcoError,
)
from streamco.wire.openai.errors import status_error
from streamco.wire.split.client import SplitClient
from streamco.wire.split.frames import SplitWelcome
from streamco.wire.verify.client import VerifyClient
from streamco.wire.verify.errors import VerifyProtocolError
from streamco.wire.verify.frames import SUBPROTOCOL, Refusal, Welcome

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

__all__ = ["VerifierAddress", "SessionListener", "VerifierConnection", "connect_verifier", "is_lasting", "load_websockets"]

_logger = logging.getLogger("streamco")

_SMOOTHING = 0.3  # weight of a new round-trip time
_BUSY = frozenset({408, 425, 429})  # temporary statuses, like 5xx


ClientT = TypeVar("ClientT", VerifyClient, SplitClient)
FrameT_contra = TypeVar("FrameT_contra", contravariant=True)


class SessionListener(Protocol[FrameT_contra]):
    """The interface through which a connection tells a session about frames and about the connection's end."""

    def frame_received(self, frame: FrameT_contra, size: int) -> None:
        """Handle a frame of ``size`` bytes for this session."""
        ...

    def connection_lost(self, error: StreamcoError) -> None:
        """Handle the loss of the connection; ``error`` says why."""
        ...


class VerifierAddress(Struct, frozen=True):
    """A verifier's address and credentials.

    Args:
        url: the URL, with scheme ``ws`` or ``wss``.
        name: the endpoint's name, for errors.
        token: bearer token, which is read for each connection.
        tls: certificates to trust, by default the system's.
    """

    url: str
    name: str
    token: ServerKey = ServerKey(None)
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"VerifierAddress({self.url!r}, name={self.name!r}, token={self.token!r})"


async def load_websockets() -> None:
    """Import the modules that connections need, in a thread, because that takes a tenth of a second."""
    await asyncio.to_thread(importlib.import_module, "websockets.asyncio.client")


async def connect_verifier(
    address: VerifierAddress, client: ClientT, *, timeouts: Timeouts, ping_interval: float
) -> VerifierConnection[ClientT]:
    """Connect, say hello, and wait for the welcome.

    Args:
        address: the verifier's address and credentials.
        client: the protocol's state for the new connection.
        timeouts: ``connect`` limits the time until the welcome.
        ping_interval: seconds between two pings.

    Raises:
        EndpointError: connecting failed, or the server isn't a verifier.
        VerifyProtocolError: the verifier refuses, or breaks the protocol.
    """
    try:
        async with PeerTimeout(timeouts.connect):
            with _translated(address.name):
                socket = await _open(address, client)
            try:
                await _handshake(socket, client, address.name)
            except BaseException:
                socket.transport.abort()
                raise
    except StreamcoError as error:
        raise address.token.scrub(error) from error.__cause__
    except TimeoutError:
        limit = timeouts.connect or 0.0
        text = f"expected a welcome within {limit:g} s, got none"
        raise EndpointTimeoutError(text, phase="connect", limit=limit, endpoint=address.name) from None
    return VerifierConnection(socket, client, name=address.name, timeouts=timeouts, ping_interval=ping_interval)


def is_lasting(error: StreamcoError) -> bool:
    """Return True if another connection would fail in the same way, because the server refuses this client or isn't a verifier."""
    match error:
        case VerifyProtocolError():
            return error.code != "shutting_down"
        case EndpointStatusError(status=status):
            return status < 500 and status not in _BUSY
        case EndpointConnectError():
            return isinstance(error.__cause__, ssl.SSLCertVerificationError)
        case EndpointTimeoutError():
            return False
    return True


class VerifierConnection(Generic[ClientT]):
    """A connection that has received its welcome. Once ``drop``, ``aclose`` or the peer ends it, ``is_over`` is True.

    Args:
        socket: the WebSocket.
        client: the protocol's state, after the welcome.
        name: the endpoint's name, for errors.
        timeouts: ``socket`` limits the reply to a ping, ``cancel`` the closing; in seconds.
        ping_interval: seconds between two pings.
    """

    def __init__(self, socket: ClientConnection, client: ClientT, *, name: str, timeouts: Timeouts, ping_interval: float) -> None:
        assert client.welcome is not None, "a connection begins after its welcome"
        self.client: ClientT = client
        self.rtt: float | None = None
        self.is_over = False
        self._name = name
        self._socket = socket
        self._timeouts = timeouts
        self._ping_interval = ping_interval
        self._sessions: dict[int, SessionListener[Any]] = {}
        self._unsent: asyncio.Queue[bytes] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self._reader = loop.create_task(self._read(), name=f"streamco verifier reader {name}")
        self._tasks = [
            loop.create_task(self._write(), name=f"streamco verifier writer {name}"),
            loop.create_task(self._keep_pinging(), name=f"streamco verifier pings {name}"),
        ]

    def add_session(self, number: int, session: SessionListener[Any]) -> None:
        """Pass this session the frames with its number from now on."""
        self._sessions[number] = session

    def remove_session(self, number: int) -> None:
        """Stop passing frames to this session."""
        self._sessions.pop(number, None)

    def flush(self) -> int:
        """Send the client's messages without waiting; return their size in bytes."""
        size = 0
        for message in self.client.take_messages():
            size += len(message)
            self._unsent.put_nowait(message)
        return size

    async def check_alive(self) -> bool:
        """Return True if the server replies to a ping; if it doesn't, the connection is dropped."""
        if self.is_over:
            return False
        try:
            await self._ping()
        except EndpointError as error:
            self.drop(error)
        return not self.is_over

    def drop(self, error: StreamcoError) -> None:
        """Give up the connection, and inform every session at once."""
        if self.is_over:
            return
        self.is_over = True
        for task in self._tasks:
            task.cancel()
        self._socket.transport.abort()
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.connection_lost(error)

    async def aclose(self) -> None:
        """Send the remaining messages, and close the connection; idempotent."""
        self.is_over = True
        self._sessions.clear()
        for task in self._tasks:
            task.cancel()
        try:
            async with PeerTimeout(self._timeouts.cancel):
                with suppress(EndpointError), _translated(self._name):  # the connection is already lost
                    while not self._unsent.empty():
                        await self._socket.send(self._unsent.get_nowait())
                await self._socket.close()
        except TimeoutError:
            self._socket.transport.abort()
        await asyncio.wait([self._reader, *self._tasks])

    async def _read(self) -> None:
        try:
            with _translated(self._name):
                while not self.is_over:
                    message = await self._socket.recv()
                    self._receive(message)
        except (EndpointError, VerifyProtocolError) as error:
            self.drop(error)
        except Exception as exc:  # noqa: BLE001  # a reader that ends must not leave a connection that looks alive
            kind = type(exc).__name__
            _logger.error("connection to %s: expected to handle a frame, got %s; it is closed", self._name, kind)
            failure = EndpointProtocolError(f"expected to handle a frame, got {kind}", endpoint=self._name)
            failure.__cause__ = exc
            self.drop(failure)

    def _receive(self, message: bytes | str) -> None:
        frame = self.client.receive(message)
        if frame is None or isinstance(frame, Welcome | SplitWelcome):
            return
        if isinstance(frame, Refusal):
            error = frame.error()
            if error.is_fatal or (error.scope == "frame" and error.is_fault):
                raise error
        session = None if frame.session is None else self._sessions.get(frame.session)
        if session is not None:
            session.frame_received(frame, len(message))

    async def _write(self) -> None:
        with suppress(EndpointError), _translated(self._name):  # the reader gets the same error, and reports it
            while True:
                await self._socket.send(await self._unsent.get())

    async def _keep_pinging(self) -> None:
        try:
            while True:
                await self._ping()
                await asyncio.sleep(self._ping_interval)
        except EndpointTimeoutError as error:
            self.drop(error)
        except EndpointError:
            pass  # the reader reports it

    async def _ping(self) -> None:
        limit = self._timeouts.socket
        try:
            with _translated(self._name):
                async with PeerTimeout(limit):
                    seconds = await (await self._socket.ping())
        except TimeoutError:
            text = f"expected the answer to a ping within {limit:g} s, got none"
            raise EndpointTimeoutError(text, phase="next_token", limit=limit or 0.0, endpoint=self._name) from None
        self.rtt = seconds if self.rtt is None else self.rtt + _SMOOTHING * (seconds - self.rtt)


async def _open(address: VerifierAddress, client: VerifyClient | SplitClient) -> ClientConnection:
    from websockets.asyncio.client import connect
    from websockets.typing import Subprotocol

    class Connect(connect):
        def process_redirect(self, exc: Exception) -> Exception | str:
            return exc  # a token or a prompt must not go elsewhere

    parts = urlsplit(address.url)
    headers = key_header("authorization", await address.token.read())
    tls: dict[str, Any] = {"ssl": address.tls} if address.tls is not None else {}
    return await Connect(
        address.url,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        compression=None,  # a round has about 20 bytes, and ids are already packed
        additional_headers=headers,
        user_agent_header="streamco",
        proxy=await _find_proxy(parts),
        open_timeout=None,
        ping_interval=None,
        close_timeout=None,
        max_size=client.frame_bytes,
        logger=_quiet_logger(),
        **tls,
    )


async def _find_proxy(url: SplitResult) -> str | None:
    """Return the proxy that the environment names for a verifier, or None. A verifier on this machine never has one."""
    host, scheme = url.hostname or "", "https" if url.scheme == "wss" else "http"
    if is_loopback(host):
        return None
    return await asyncio.to_thread(find_proxy, scheme, host, url.port or (443 if scheme == "https" else 80))


def _quiet_logger() -> logging.Logger:
    """Return a logger for ``websockets`` without debug messages, because these contain headers and frames, with tokens and prompts."""
    logger = logging.getLogger("streamco.websockets")
    logger.setLevel(logging.INFO)
    return logger


async def _handshake(socket: ClientConnection, client: VerifyClient | SplitClient, name: str) -> None:
    with _translated(name):
        if socket.subprotocol != SUBPROTOCOL:
            raise EndpointProtocolError(f"expected the subprotocol {SUBPROTOCOL}, got {socket.subprotocol}", endpoint=name)
        for message in client.take_messages():
            await socket.send(message)
        while client.welcome is None:
            answer = client.receive(await socket.recv())
            if isinstance(answer, Refusal):
                raise answer.error()


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """Translate foreign exceptions into streamco's own."""
    try:
        yield
    except (TimeoutError, StreamcoError):
        raise
    except Exception as exc:
        error = _translate(exc, name)
        if error is None:
            raise
        raise error from exc


def _translate(exc: Exception, name: str) -> EndpointError | None:
    from websockets import exceptions

    match exc:
        case exceptions.InvalidStatus():
            response = exc.response
            headers = dict(response.headers.raw_items())
            return status_error(response.status_code, headers, bytes(response.body or b""), endpoint=name)
        case exceptions.ConnectionClosed():
            return EndpointConnectError(f"expected the connection to last, got {_describe_close(exc)}", endpoint=name)
        case exceptions.ProxyError():
            return EndpointConnectError(f"expected the proxy to connect, got {exc}", endpoint=name)
        case exceptions.InvalidMessage() if isinstance(exc.__cause__, EOFError | OSError):
            return EndpointConnectError("expected an answer, got the connection closed", endpoint=name)
        case exceptions.WebSocketException():
            return EndpointProtocolError(f"expected a WebSocket, got {exc}", endpoint=name)
        case ssl.SSLCertVerificationError():
            return EndpointConnectError(f"expected a trusted certificate, got {exc.verify_message}", endpoint=name)
        case ssl.SSLError() if exc.reason == "WRONG_VERSION_NUMBER":
            return EndpointConnectError("expected TLS, got an answer without it; the server may be one for http:// or ws://", endpoint=name)
        case OSError():
            return EndpointConnectError(f"expected a connection, got {exc.strerror or exc}", endpoint=name)
    return None


def _describe_close(exc: Any) -> str:
    received = exc.rcvd
    if received is None:
        return "the connection cut"
    return f"it closed with {received.code}" + (f" {received.reason[:80]!r}" if received.reason else "")
