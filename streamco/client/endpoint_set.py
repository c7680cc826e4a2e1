"""The endpoints that clients from ``with_options`` share, started once, and the answers under way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from streamco.client.access_check import AccessCheck
from streamco.client.driver import AnswerDriver
from streamco.client.speculation.verifier_binding import VerifierBinding
from streamco.endpoints.address import is_url
from streamco.endpoints.base import Endpoint, Kind
from streamco.errors import AllEndpointsFailed, ConfigError, EndpointError, StreamClosed

__all__ = ["DeviceSetting", "ServerSetting", "EndpointSet"]

DeviceSetting = str | Path | Endpoint | None
ServerSetting = str | Endpoint | Sequence[Endpoint] | Sequence[str] | None


class EndpointSet:
    """One client's endpoints and its answers under way.

    Args:
        device: as for ``Client``.
        server: as for ``Client``.
        checks_access: servers that no answer has shown anything of are asked for their list of models.

    Attributes:
        device: the device; None: there is none.
        servers: the servers, in the order of their use.
        endpoints: all of them, by name.
        unavailable: endpoints that could not start, with their errors.
        binding: the device with its verifier; None: the client has not set it yet.
        access: finds out which servers refuse their keys; None: nothing is asked beside answers.
        active: drivers of answers that have work under way.

    Raises:
        ConfigError: neither device nor server, not an endpoint, names that are not unique.
    """

    def __init__(self, device: DeviceSetting, server: ServerSetting, *, checks_access: bool = True) -> None:
        self.device = _make_device(device)
        self.servers = _make_servers(server)
        all_endpoints = [*([self.device] if self.device is not None else []), *self.servers]
        if not all_endpoints:
            raise ConfigError("client: expected a device, a server or both, got neither")
        self.endpoints: Mapping[str, Endpoint] = {endpoint.name: endpoint for endpoint in all_endpoints}
        if len(self.endpoints) != len(all_endpoints):
            raise ConfigError(f"client: expected endpoints with names of their own, got {[endpoint.name for endpoint in all_endpoints]}")
        self.unavailable: dict[str, EndpointError] = {}
        self.binding: VerifierBinding | None = None  # set by the client; closed with the endpoints
        self.access = AccessCheck() if checks_access else None
        self.active: set[AnswerDriver] = set()
        self._started: set[str] = set()
        self._is_closed = False
        self._lock = asyncio.Lock()

    @property
    def takes_raw_text(self) -> bool:
        """True if there are servers and all of them have the completions API: then a prompt is text to continue and no message."""
        return bool(self.servers) and all(getattr(server, "api", "chat") == "completions" for server in self.servers)

    def available(self) -> tuple[Endpoint | None, list[Endpoint]]:
        """Return the device and the servers without those that could not start."""
        device = self.device if self.device is not None and self.device.name not in self.unavailable else None
        return device, [server for server in self.servers if server.name not in self.unavailable]

    def missing(self, kept_out: Kind | None) -> Mapping[str, EndpointError]:
        """Return the endpoints that could not start, with their errors, without those of the side that is kept out; None: no side is."""
        return {name: error for name, error in self.unavailable.items() if self.endpoints[name].kind != kept_out}

    def is_started(self, kept_out: Kind | None = None) -> bool:
        """Return True if every endpoint was started that is not on the side that is kept out."""
        if len(self._started) == len(self.endpoints):  # each answer asks
            return True
        return all(name in self._started or endpoint.kind == kept_out for name, endpoint in self.endpoints.items())

    async def start(self, kept_out: Kind | None = None) -> None:
        """Start every endpoint, all at the same time; idempotent.

        Args:
            kept_out: the side that must not be used: its endpoints are not started. None: no side.

        Raises:
            AllEndpointsFailed: no endpoint could start; a single endpoint raises its own error.
            StreamClosed: the endpoints were closed.
        """
        async with self._lock:
            self.check_open()
            wanted = [name for name, each in self.endpoints.items() if name not in self._started and each.kind != kept_out]
            if not wanted:
                return
            results = await asyncio.gather(*(self.endpoints[name].start() for name in wanted), return_exceptions=True)
            if self._is_closed:  # in the meantime; what has started since must not stay open
                await self._close_endpoints()
                self.check_open()
            self.unavailable |= self._failed_to_start(wanted, results)
            self._started.update(wanted)

    def _failed_to_start(self, names: Sequence[str], results: Sequence[BaseException | None]) -> dict[str, EndpointError]:
        """Return the endpoints that could not start; raise if no endpoint could."""
        failed: dict[str, EndpointError] = {}
        for name, result in zip(names, results, strict=True):
            if isinstance(result, EndpointError):
                failed[name] = result
            elif result is not None:
                raise result
        if len(failed) == len(names) and not self._started:
            raise AllEndpointsFailed(failed) if len(failed) > 1 else next(iter(failed.values()))
        return failed

    def check_open(self) -> None:
        """Check that the endpoints were not closed.

        Raises:
            StreamClosed: they were closed.
        """
        if self._is_closed:
            raise StreamClosed("expected an open client, got a request after it was closed")

    async def aclose(self) -> None:
        """End all work and release the endpoints."""
        self._is_closed = True
        self._started.clear()
        await asyncio.gather(*(driver.aclose() for driver in list(self.active)))
        await self._close_endpoints()
        async with self._lock:  # a start that runs closes what it has started
            pass

    async def _close_endpoints(self) -> None:
        """Close all endpoints, also if one of them raises; then raise its error."""
        closings = [endpoint.aclose() for endpoint in self.endpoints.values()]
        if self.access is not None:
            await self.access.aclose()
        if self.binding is not None:
            closings.append(self.binding.aclose())
        results = await asyncio.gather(*closings, return_exceptions=True)
        for error in results:
            if error is not None:
                raise error


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
