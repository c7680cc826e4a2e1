"""The endpoints that clients from ``with_options`` share, started once, and the answers under way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar, cast

from streamco.client.driver import AnswerDriver
from streamco.endpoints.address import is_url
from streamco.endpoints.base import Endpoint, Kind
from streamco.endpoints.network.loop_bound import LoopBound, LoopState
from streamco.errors import AllEndpointsFailed, ConfigError, EndpointError, StreamClosed

__all__ = ["DeviceSetting", "ServerSetting", "EndpointSet"]

DeviceSetting = str | Path | Endpoint | None
ServerSetting = str | Endpoint | Sequence[Endpoint] | Sequence[str] | None


_PLANNERS = 16  # that are kept, so that a client with other settings for each request doesn't fill the memory


class _LoopWork(LoopState):
    """What was started and is under way on one event loop."""

    def __init__(self) -> None:
        self.started: set[str] = set()
        self.unavailable: dict[str, EndpointError] = {}
        self.active: set[AnswerDriver] = set()
        self.lock = asyncio.Lock()

    async def aclose(self) -> None:
        """See ``LoopState``."""
        await asyncio.gather(*(driver.aclose() for driver in list(self.active)))


class Closable(Protocol):
    """What is closed with a client's endpoints."""

    async def aclose(self) -> None:
        """Release everything; idempotent."""
        ...


ClosableT = TypeVar("ClosableT", bound=Closable)


class EndpointSet:
    """One client's endpoints and its answers under way, on one event loop at a time: in another one they are started again.

    Args:
        device: as for ``Client``.
        server: as for ``Client``.

    Attributes:
        device: the device; None: there is none.
        servers: the servers, in the order of their use.
        endpoints: all of them, by name.
        planners: the newest planners of modes that may be made anew for each request and learn all the same.

    Raises:
        ConfigError: neither device nor server, not an endpoint, names that are not unique.
    """

    def __init__(self, device: DeviceSetting, server: ServerSetting) -> None:
        self.device = _make_device(device)
        self.servers = _make_servers(server)
        all_endpoints = [*([self.device] if self.device is not None else []), *self.servers]
        if not all_endpoints:
            raise ConfigError("client: expected a device, a server or both, got neither")
        self.endpoints: Mapping[str, Endpoint] = {endpoint.name: endpoint for endpoint in all_endpoints}
        if len(self.endpoints) != len(all_endpoints):
            raise ConfigError(f"client: expected endpoints with names of their own, got {[endpoint.name for endpoint in all_endpoints]}")
        self.planners: deque[object] = deque(maxlen=_PLANNERS)
        self._shared: dict[Hashable, Closable] = {}
        self._work = LoopBound(_LoopWork, owner="client")
        self._is_closed = False

    @property
    def unavailable(self) -> Mapping[str, EndpointError]:
        """Endpoints that could not start, with their errors."""
        return self._work.get().unavailable

    @property
    def active(self) -> set[AnswerDriver]:
        """Drivers of answers that have work under way."""
        return self._work.get().active

    @property
    def is_open(self) -> bool:
        """True if answers may begin: the endpoints were not closed, and the event loop isn't ending."""
        return not self._is_closed and self._work.current is not None

    @property
    def takes_raw_text(self) -> bool:
        """True if there are servers and all of them have the completions API: then a prompt is text to continue and no message."""
        return bool(self.servers) and all(getattr(server, "api", "chat") == "completions" for server in self.servers)

    def available(self) -> tuple[Endpoint | None, list[Endpoint]]:
        """Return the device and the servers without those that could not start."""
        unavailable = self.unavailable
        device = self.device if self.device is not None and self.device.name not in unavailable else None
        return device, [server for server in self.servers if server.name not in unavailable]

    def missing(self, kept_out: Kind | None) -> Mapping[str, EndpointError]:
        """Return the endpoints that could not start, with their errors, without those of the side that is kept out; None: no side is."""
        return {name: error for name, error in self.unavailable.items() if self.endpoints[name].kind != kept_out}

    def is_started(self, kept_out: Kind | None = None) -> bool:
        """Return True if every endpoint was started that is not on the side that is kept out.

        Raises:
            ConfigError: another event loop is running with the client, or this process was forked from the one that uses it.
        """
        started = self._work.get().started
        if len(started) == len(self.endpoints):  # each answer asks
            return True
        return all(name in started or endpoint.kind == kept_out for name, endpoint in self.endpoints.items())

    async def start(self, kept_out: Kind | None = None) -> None:
        """Start every endpoint, all at the same time; idempotent in each event loop.

        Args:
            kept_out: the side that must not be used: its endpoints are not started. None: no side.

        Raises:
            AllEndpointsFailed: no endpoint could start; a single endpoint raises its own error.
            StreamClosed: the endpoints were closed.
            ConfigError: another event loop is running with the client, or this process was forked from the one that uses it.
        """
        self.check_open()
        work = self._work.get()
        async with work.lock:
            self.check_open()
            wanted = [name for name, each in self.endpoints.items() if name not in work.started and each.kind != kept_out]
            if not wanted:
                return
            results = await asyncio.gather(*(self.endpoints[name].start() for name in wanted), return_exceptions=True)
            if self._is_closed:  # in the meantime; what has started since must not stay open
                await self._close_endpoints()
                self.check_open()
            work.unavailable |= _failed_to_start(wanted, results, is_alone=not work.started)
            work.started.update(wanted)

    def check_open(self) -> None:
        """Check that the endpoints were not closed.

        Raises:
            StreamClosed: they were closed.
        """
        if self._is_closed:
            raise StreamClosed("expected an open client, got a request after it was closed")

    async def aclose(self, keep: Collection[str] = ()) -> None:
        """End all work and release the endpoints, without those whose names are in ``keep``."""
        self._is_closed = True
        work = self._work.current
        await self._work.aclose()
        await self._close_endpoints(keep)
        if work is not None:
            async with work.lock:  # a start that runs closes what it has started
                pass

    def share(self, key: Hashable, make: Callable[[], ClosableT]) -> ClosableT:
        """Return what all clients over these endpoints share under a key; the first one that asks makes it.

        It is closed with the endpoints, before they are closed themselves.

        Args:
            key: what it is: equal keys stand for one kind of object.
            make: returns a new one.
        """
        if key not in self._shared:
            self._shared[key] = make()
        return cast(ClosableT, self._shared[key])

    async def _close_endpoints(self, keep: Collection[str] = ()) -> None:
        """Close what is shared, then all endpoints that aren't kept, also if one of them raises; then raise its error."""
        errors: list[BaseException | None] = []
        endpoints = [endpoint for name, endpoint in self.endpoints.items() if name not in keep]
        for group in (self._shared.values(), endpoints):
            errors += await asyncio.gather(*(each.aclose() for each in group), return_exceptions=True)
        for error in errors:
            if error is not None:
                raise error


def _failed_to_start(names: Sequence[str], results: Sequence[BaseException | None], *, is_alone: bool) -> dict[str, EndpointError]:
    """Return the endpoints that could not start; raise if no endpoint could, and ``is_alone``: no other one was started before."""
    failed: dict[str, EndpointError] = {}
    for name, result in zip(names, results, strict=True):
        if isinstance(result, EndpointError):
            failed[name] = result
        elif result is not None:
            raise result
    if len(failed) == len(names) and is_alone:
        raise AllEndpointsFailed(failed) if len(failed) > 1 else next(iter(failed.values()))
    return failed


def _make_device(setting: DeviceSetting) -> Endpoint | None:
    if isinstance(setting, str) and is_url(setting):
        from streamco.endpoints.local_server import LocalServerEndpoint

        return LocalServerEndpoint(setting)
    if isinstance(setting, str | Path):
        from streamco.endpoints.device import DeviceEndpoint

        return DeviceEndpoint(setting)
    if setting is not None:
        _check_endpoint("device", setting)
    return setting


def _make_servers(setting: ServerSetting) -> tuple[Endpoint, ...]:
    if setting is None:
        return ()
    if isinstance(setting, str):
        from streamco.endpoints.openai import OpenAIEndpoint

        return (OpenAIEndpoint(setting),)
    servers = tuple(cast(Sequence[Endpoint], setting)) if isinstance(setting, Sequence) else (setting,)
    for server in servers:
        _check_endpoint("server", server)
    return servers


def _check_endpoint(side: str, endpoint: object) -> None:
    if not (hasattr(endpoint, "open") and hasattr(endpoint, "name")):
        what = "the path of a GGUF file" if side == "device" else "a model's name"
        raise ConfigError(f"{side}: expected {what} or an endpoint, got {type(endpoint).__name__}")
