"""A pooled HTTP client that makes sure that connections return to the pool, and opens them before they are needed.

aiohttp is imported when the client starts, not with the package. Only its ``connect`` timeout is used; ``watchdog`` limits the phases of an
answer.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from streamco.config import Timeouts
from streamco.endpoints.address import is_loopback
from streamco.endpoints.network.credentials import ServerKey
from streamco.endpoints.network.environment_proxies import find_proxy
from streamco.endpoints.network.http_errors import root_cause, translate
from streamco.endpoints.network.loop_bound import LoopBound, LoopState
from streamco.endpoints.network.peer_timeout import PeerTimeout
from streamco.errors import MAX_NAME, ConfigError, EndpointError, EndpointProtocolError, EndpointTimeoutError, StreamClosed, shorten
from streamco.wire.openai.errors import status_error

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

__all__ = ["HttpClient"]

_READ_BUFFER = 1 << 16  # bytes; aiohttp pauses the socket at twice this, so a slow reader slows the server down
_KEEP_ALIVE = 60.0  # seconds that an idle connection is kept; the usual limit of the servers in front of APIs is 60 to 75
_POLL = 0.005  # seconds; seldom needed, because a request is usually sent long before its answer is cancelled
_MAX_REQUESTS = 4  # consecutive requests while each response is a redirect
_LINGER = 2.0  # seconds to wait for the formal end of a complete answer if no limit is set
_LARGE_BODY = 1 << 20  # bytes; aiohttp wants larger bodies as a file, to write them in pieces


class _Taking:
    """Context manager that tracks the connections of the request sent in its block.

    If the block fails or is cancelled, the connections that it has taken are aborted. aiohttp would only close them, and closing waits for
    unsent bytes, forever if the peer has stopped reading.

    Args:
        limit: seconds that opening a connection may take, or None for no limit.
    """

    __slots__ = ("_token", "limit", "transports")

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self.transports: list[asyncio.Transport] = []  # transports of its connections

    def __enter__(self) -> None:
        self._token = _taking.set(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _taking.reset(self._token)
        if error is not None:
            for transport in self.transports:
                transport.abort()


_taking: ContextVar[_Taking] = ContextVar("taking")


class _Pool(LoopState):
    """The connections of one event loop.

    Args:
        timeouts: the client's timeouts.
        session: the caller's session; None to create and close one here.

    Raises:
        ConfigError: the caller's session belongs to another loop.
    """

    def __init__(self, timeouts: Timeouts, session: aiohttp.ClientSession | None) -> None:
        self.is_own = session is None
        self.session = _make_session(timeouts) if session is None else session
        if getattr(self.session, "_loop", None) not in {None, asyncio.get_running_loop()}:
            text = "expected one that was made in the running event loop, got one of another loop"
            raise ConfigError(f"session: {text}; without session, an endpoint makes its own for each loop")
        self.finishing: set[aiohttp.ClientResponse] = set()
        self.warming: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        """Close the connections, but leave the caller's session open; see ``LoopState``."""
        if self.warming is not None:
            self.warming.cancel()
            await asyncio.wait([self.warming])
        for response in list(self.finishing):
            self.give_up(response)
        if self.is_own:
            await self.session.close()

    def drop(self) -> None:
        """Drop the connections of a closed loop, because aiohttp would warn that nobody has closed them; see ``LoopState``."""
        connector = self.session.connector
        if self.is_own and connector is not None:
            self.session.detach()
            with suppress(StopIteration, RuntimeError):
                next(connector.close().__await__())  # with a closed loop it drops its connections, and has nothing to wait for

    def give_up(self, response: aiohttp.ClientResponse) -> None:
        """Close the connection of an answer whose end doesn't arrive."""
        self.finishing.discard(response)
        response.close()

    def end_warming(self, task: asyncio.Task[None]) -> None:
        """Record that opening a connection has succeeded or failed."""
        self.warming = None
        if not task.cancelled():
            task.result()


class HttpClient:
    """The connection pool of one endpoint, for whichever event loop the endpoint is used on.

    Args:
        name: the endpoint's name, for errors.
        timeouts: ``connect`` and ``cancel``, in seconds.
        session: a session to use and leave open; None to create and close one.
        key: the server's key, which is removed from every error message, or None.

    Raises:
        ConfigError: ``session`` isn't an aiohttp session.
    """

    def __init__(
        self, name: str, *, timeouts: Timeouts, session: aiohttp.ClientSession | None = None, key: ServerKey | None = None
    ) -> None:
        self._name = name
        self._timeouts = timeouts
        self._key = key or ServerKey(None)
        check_session(session)
        self._has_session = session is not None
        self._pool = LoopBound(partial(_Pool, timeouts, session), owner=name)
        self._is_closed = False
        self._proxies: dict[URL, URL | None] = {}  # proxies by the server's origin

    async def start(self) -> None:
        """Import aiohttp and create the session, once per event loop; idempotent.

        Raises:
            StreamClosed: the client was closed.
            ConfigError: the client is in use on another running event loop.
        """
        await self._start()

    async def _start(self) -> _Pool:
        if (pool := self._pool.current) is None:
            self._check_open()
            # In a thread even if another endpoint has begun the import: sys.modules then has a half-initialised module, and importing it
            # here would block until that is finished.
            await asyncio.to_thread(importlib.import_module, "aiohttp")  # 0.2 s, and it loads the certificate store
            self._check_open()
            pool = self._pool.get()
        return pool

    def _check_open(self) -> None:
        if self._is_closed:
            raise StreamClosed(f"{self._name}: the endpoint is closed")

    async def request(
        self,
        method: str,
        url: URL,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        timeouts: Timeouts | None = None,
        redirects: bool = True,
    ) -> aiohttp.ClientResponse:
        """Send a request and wait for the status and headers of the response.

        A redirect (307, 308) is followed only within the same scheme, host and port, so that no key or prompt goes elsewhere.

        Args:
            method: the HTTP method.
            url: the request's URL.
            headers: the request's headers.
            body: the request's body, or None.
            timeouts: ``connect``, in seconds; None uses the client's.
            redirects: False to return a redirect like any other response.

        Raises:
            ConfigError: the environment names a proxy that can't be used.
            EndpointConnectError: connecting failed, or the connection was lost before the response's headers arrived.
            EndpointTimeoutError: connecting took longer than ``timeouts.connect``.
            EndpointProtocolError: the peer doesn't speak HTTP, or redirects elsewhere or too often.
        """
        pool = await self._start()
        session = pool.session
        proxy = await self.find_proxy(url)
        limits = self._timeouts if timeouts is None else timeouts
        limit = session.timeout if pool.is_own else _only_connect(limits.connect)  # the caller's session's limit would end long answers
        with self._translated(limits), _Taking(limits.connect):
            for _ in range(_MAX_REQUESTS):
                data = io.BytesIO(body) if body is not None and len(body) > _LARGE_BODY else body
                response = await session.request(method, url, data=data, headers=headers, allow_redirects=False, proxy=proxy, timeout=limit)
                if response.status not in {307, 308} or not redirects:
                    _report_lost_connection(response)
                    return response
                response.close()
                url = self._redirected(url, response.headers.get("Location", ""))
        raise EndpointProtocolError(f"expected an answer, got {_MAX_REQUESTS} redirects in a row", endpoint=self._name)

    def _redirected(self, url: URL, location: str) -> URL:
        try:
            target = url.join(type(url)(location))
            origin = target.origin()
        except ValueError as error:  # for example, "file:" has no origin
            text = f"expected an answer, got a redirect to {shorten(location, MAX_NAME)!r}, which isn't an address of a server"
            raise EndpointProtocolError(text, endpoint=self._name) from error
        if origin != url.origin():
            shown = shorten(str(origin), MAX_NAME)
            text = f"expected an answer, got a redirect to {shown}, which is not followed because the key would go there"
            raise EndpointProtocolError(f"{text}: set base_url to it if it is right", endpoint=self._name)
        return target

    def warm(self, url: URL) -> None:
        """Open a connection in the background if none is idle, so that the next request finds one.

        DNS, TCP and TLS take two or three round trips, and a cancelled answer loses its connection. Nothing is sent. Failures are ignored
        here, because the next request will hit them. Does nothing for loopback addresses, where connecting is free, or with the caller's
        session.
        """
        pool = self._pool.current
        if pool is not None and pool.warming is None and pool.is_own and not is_loopback(url.host or ""):
            pool.warming = asyncio.get_running_loop().create_task(self._warm(url, pool.session), name=f"streamco warm {self._name}")
            pool.warming.add_done_callback(pool.end_warming)

    async def _warm(self, url: URL, session: aiohttp.ClientSession) -> None:
        import aiohttp

        assert session.connector is not None, "an own session has a connector"
        loop = asyncio.get_running_loop()
        with suppress(EndpointError, ConfigError), self._translated():
            proxy = await self.find_proxy(url)
            request = aiohttp.ClientRequest("GET", url, loop=loop, proxy=proxy, session=session, headers={})
            connection = await session.connector.connect(request, traces=[], timeout=session.timeout)
            connection.release()

    async def read(self, response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
        """Return the body, or its first ``max_bytes`` bytes. The connection returns to the pool, or is closed if the body was longer.

        Raises:
            EndpointProtocolError: the body was cut off.
        """
        body = bytearray()
        try:
            with self._translated():
                while len(body) <= max_bytes:
                    data = await response.content.readany()
                    if not data:
                        return bytes(body)
                    body += data
            return bytes(body[:max_bytes])
        finally:
            response.close()  # does nothing after the end of the body, when the connection is back in the pool

    async def get_json(
        self, url: URL, *, headers: Mapping[str, str], max_bytes: int, body: bytes | None = None, redirects: bool = True
    ) -> Any:
        """Send a request and return its small JSON response, which must arrive within the connect limit.

        Args:
            url: the request's URL.
            headers: the request's headers.
            max_bytes: maximum number of bytes to read.
            body: the body of a POST; None sends a GET.
            redirects: as in ``request``.

        Raises:
            EndpointError: there was no response, its status isn't 200, or its body isn't JSON.
        """
        limit = self._timeouts.connect
        try:
            async with PeerTimeout(limit):
                response = await self.request("GET" if body is None else "POST", url, headers=headers, body=body, redirects=redirects)
                answer = await self.read(response, max_bytes)
        except TimeoutError:
            text = f"expected an answer from {url} within {limit:g} s, got none"
            raise EndpointTimeoutError(text, phase="connect", limit=limit or 0.0, endpoint=self._name) from None
        if response.status != 200:
            raise self.scrub(status_error(response.status, response.headers, answer, endpoint=self._name))
        try:
            return msgspec.json.decode(answer)
        except msgspec.DecodeError as exc:
            shown = shorten(self._key.hide(answer.decode("utf-8", "replace")), MAX_NAME)
            raise EndpointProtocolError(f"expected JSON from {url}, got {shown!r}", endpoint=self._name) from exc

    def finish(self, response: aiohttp.ClientResponse) -> asyncio.Future[None] | None:
        """Return the connection to the pool once the last bytes of a complete answer have arrived.

        If they don't arrive within ``timeouts.cancel`` seconds, the connection is closed.

        Returns:
            A future that is done when the connection is back in the pool, or None if it already is or was closed.
        """
        content = response.content
        if content.is_eof():
            return None
        if content.exception() is not None:
            response.close()
            return None
        pool = self._pool.current
        if pool is None:  # everything is being closed
            response.close()
            return None
        loop = asyncio.get_running_loop()
        settled: asyncio.Future[None] = loop.create_future()
        limit = _LINGER if self._timeouts.cancel is None else self._timeouts.cancel
        handle = loop.call_later(limit, pool.give_up, response)
        finishing = pool.finishing
        finishing.add(response)

        def settle() -> None:
            handle.cancel()
            finishing.discard(response)
            if not settled.done():
                settled.set_result(None)

        content.on_eof(settle)
        return settled

    async def drop(self, response: aiohttp.ClientResponse) -> None:
        """Close the connection of an answer that is no longer wanted, and wait until it is closed."""
        connection = response.connection
        transport = connection.transport if connection is not None else None
        response.close()
        if transport is None:
            return
        if transport.get_extra_info("sslcontext") is not None:
            transport.abort()  # an orderly TLS shutdown waits up to 30 s for the peer
        try:
            async with PeerTimeout(self._timeouts.cancel):
                while transport.get_write_buffer_size():  # noqa: ASYNC110  a transport has no event for it
                    await asyncio.sleep(_POLL)
        except TimeoutError:  # the peer doesn't read the remaining data
            transport.abort()
        await asyncio.sleep(0)  # the loop closes the socket in its next iteration

    async def aclose(self) -> None:
        """Close every connection; idempotent."""
        self._is_closed = True
        await self._pool.aclose()

    def scrub(self, error: EndpointError) -> EndpointError:
        """Return the same error without the key."""
        return self._key.scrub(error)

    @contextmanager
    def _translated(self, timeouts: Timeouts | None = None) -> Iterator[None]:
        try:
            yield
        except Exception as exc:
            error = translate(exc, self._name, timeouts or self._timeouts)
            if error is None or self.scrub(error) is exc:
                raise
            raise error from root_cause(exc)

    async def find_proxy(self, url: URL) -> URL | None:
        """Return the proxy that the environment names for this server, or None. With the caller's session, the result is always None.

        The proxy is looked up once per host and port, in a thread, because the lookup may read system settings.

        Raises:
            ConfigError: the proxy can't be used.
        """
        origin = url.origin()
        if self._has_session:
            return None
        if origin not in self._proxies:
            host = url.host or ""
            found = None if is_loopback(host) else await asyncio.to_thread(find_proxy, url.scheme, host, url.port or 0)
            self._proxies[origin] = None if found is None else type(url)(found)
        return self._proxies[origin]


def check_session(session: object) -> None:
    """Check that the caller's session is an aiohttp session or None. A caller who has a session has already imported aiohttp.

    Raises:
        ConfigError: the session is something else, such as an httpx client.
    """
    aiohttp = sys.modules.get("aiohttp")
    if session is not None and (aiohttp is None or not isinstance(session, aiohttp.ClientSession)):
        raise ConfigError(f"session: expected an aiohttp.ClientSession or None, got {type(session).__name__}")


def _make_session(timeouts: Timeouts) -> aiohttp.ClientSession:
    """Create this package's own session; aiohttp must be imported."""
    import aiohttp

    class Connector(aiohttp.TCPConnector):
        async def connect(self, *arguments: Any, **options: Any) -> aiohttp.connector.Connection:
            connection = await super().connect(*arguments, **options)
            _record_transport(connection)
            return connection

        async def _create_connection(self, *arguments: Any, **options: Any) -> aiohttp.client_proto.ResponseHandler:
            taking = _taking.get(None)
            async with PeerTimeout(timeouts.connect if taking is None else taking.limit):  # it checks twice, unlike aiohttp's own
                return await super()._create_connection(*arguments, **options)

    return aiohttp.ClientSession(
        connector=Connector(limit=0, keepalive_timeout=_KEEP_ALIVE),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=_only_connect(None),
        auto_decompress=True,
        read_bufsize=_READ_BUFFER,
    )


def _only_connect(seconds: float | None) -> aiohttp.ClientTimeout:
    import aiohttp

    return aiohttp.ClientTimeout(total=None, connect=seconds, sock_read=None)


def _record_transport(connection: aiohttp.connector.Connection) -> None:
    taking = _taking.get(None)
    if taking is not None and connection.transport is not None:
        taking.transports.append(connection.transport)


def _report_lost_connection(response: aiohttp.ClientResponse) -> None:
    """Fail the body's reader when the connection closes without an error.

    If the chunk framing is broken, aiohttp closes the connection and leaves the reader waiting.
    """
    import aiohttp

    content, connection = response.content, response.connection
    protocol = None if connection is None else connection.protocol
    closed: asyncio.Future[None] | None = getattr(protocol, "closed", None)
    if closed is None:
        return

    def on_closed(closed: asyncio.Future[None]) -> None:
        if not closed.cancelled():
            closed.exception()
        if content.exception() is None and not content.is_eof():
            content.set_exception(aiohttp.ClientPayloadError("its framing is broken"))

    def stop_watching() -> None:
        closed.remove_done_callback(on_closed)

    closed.add_done_callback(on_closed)
    content.on_eof(stop_watching)
