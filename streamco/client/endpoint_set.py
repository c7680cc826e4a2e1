"""Starts the endpoints that clients from ``with_options`` share, and keeps track of the answers in progress."""

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


_PLANNERS = 16  # planners that are kept; a limit, so that a client with new settings for each request doesn't fill the memory


class _LoopWork(LoopState):
    """The endpoints that have started, and the answers in progress, on one event loop."""

    def __init__(self) -> None:
        self.started: set[str] = set()
        self.unavailable: dict[str, EndpointError] = {}
        self.active: set[AnswerDriver] = set()
        self.lock = asyncio.Lock()

    async def aclose(self) -> None:
        """See ``LoopState``."""
        await asyncio.gather(*(driver.aclose() for driver in list(self.active)))


class Closable(Protocol):
    """Anything that is closed together with a client's endpoints."""

    async def aclose(self) -> None:
        """Release everything; idempotent."""
        ...


ClosableT = TypeVar("ClosableT", bound=Closable)


class EndpointSet:
    """A client's endpoints and its answers in progress, on one event loop at a time; on a new loop, the endpoints are started again.

    Args:
        device: as for ``Client``.
        server: as for ``Client``.

    Attributes:
        device: the device, or None if there is none.
        servers: the servers, in order of use.
        endpoints: the device and the servers, by name.
        planners: the newest planners, kept so that what was learned isn't lost if the caller creates a new mode for each request.

    Raises:
        ConfigError: there is neither a device nor a server, a setting isn't an endpoint, or two endpoints have the same name.
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
        """The endpoints that could not start, with their errors."""
        return self._work.get().unavailable

    @property
    def active(self) -> set[AnswerDriver]:
        """Drivers of answers whose work is still in progress."""
        return self._work.get().active

    @property
    def is_open(self) -> bool:
        """True if answers may begin: the endpoints aren't closed, and the event loop isn't ending."""
        return not self._is_closed and self._work.current is not None

    @property
    def takes_raw_text(self) -> bool:
        """True if there are servers and all of them use the completions API; a prompt is then text to continue, not a message."""
        return bool(self.servers) and all(getattr(server, "api", "chat") == "completions" for server in self.servers)

    def available(self) -> tuple[Endpoint | None, list[Endpoint]]:
        """Return the device and the servers, without endpoints that could not start."""
        unavailable = self.unavailable
        device = self.device if self.device is not None and self.device.name not in unavailable else None
        return device, [server for server in self.servers if server.name not in unavailable]

    def missing(self, kept_out: Kind | None) -> Mapping[str, EndpointError]:
        """Return the endpoints that could not start, with their errors, except those on the excluded side (None excludes neither)."""
        return {name: error for name, error in self.unavailable.items() if self.endpoints[name].kind != kept_out}

    def is_started(self, kept_out: Kind | None = None) -> bool:
        """Return True if every endpoint has started, apart from those on the excluded side.

        Raises:
            ConfigError: another running event loop uses the client, or this process was forked from the one that uses it.
        """
        started = self._work.get().started
        if len(started) == len(self.endpoints):  # the usual case, checked for each answer
            return True
        return all(name in started or endpoint.kind == kept_out for name, endpoint in self.endpoints.items())

    async def start(self, kept_out: Kind | None = None) -> None:
        """Start every endpoint, all at the same time; idempotent in each event loop.

        Args:
            kept_out: the side that must not be used; its endpoints aren't started. None excludes neither side.

        Raises:
            AllEndpointsFailed: no endpoint could start; if there is only one, its own error is raised.
            StreamClosed: the endpoints were closed.
            ConfigError: another running event loop uses the client, or this process was forked from the one that uses it.
        """
        self.check_open()
        work = self._work.get()
        async with work.lock:
            self.check_open()
            wanted = [name for name, each in self.endpoints.items() if name not in work.started and each.kind != kept_out]
            if not wanted:
                return
            results = await asyncio.gather(*(self.endpoints[name].start() for name in wanted), return_exceptions=True)
            if self._is_closed:  # it was closed in the meantime, and what has started since must not stay open
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
            raise StreamClosed("the client is closed")

    async def aclose(self, keep: Collection[str] = ()) -> None:
        """End all work and release the endpoints, except the ones named in ``keep``."""
        self._is_closed = True
        work = self._work.current
        await self._work.aclose()
        await self._close_endpoints(keep)
        if work is not None:
            async with work.lock:  # a start in progress closes what it has started
                pass

    def share(self, key: Hashable, make: Callable[[], ClosableT]) -> ClosableT:
        """Return the object that all clients of these endpoints share under a key; the first call creates it.

        It is closed with the endpoints, before they are closed themselves.

        Args:
            key: identifies the object; equal keys return the same object.
            make: creates the object.
        """
        if key not in self._shared:
            self._shared[key] = make()
        return cast(ClosableT, self._shared[key])

    async def _close_endpoints(self, keep: Collection[str] = ()) -> None:
        """Close the shared objects, then all endpoints that aren't kept. If one of them raises, raise its error once all are closed."""
        errors: list[BaseException | None] = []
        endpoints = [endpoint for name, endpoint in self.endpoints.items() if name not in keep]
        for group in (self._shared.values(), endpoints):
            errors += await asyncio.gather(*(each.aclose() for each in group), return_exceptions=True)
        for error in errors:
            if error is not None:
                raise error


def _failed_to_start(names: Sequence[str], results: Sequence[BaseException | None], *, is_alone: bool) -> dict[str, EndpointError]:
    """Return the endpoints that could not start. Raise an error if none could start and none had before (``is_alone``)."""
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
