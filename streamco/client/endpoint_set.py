"""What clients from ``with_options`` have in common: the endpoints, started once, and the answers under way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from streamco.client.driver import AnswerDriver
from streamco.client.speculation.verifier_binding import VerifierBinding
from streamco.endpoints.base import Endpoint
from streamco.engines.base import EngineOptions
from streamco.errors import AllEndpointsFailed, ConfigError, EndpointError, StreamClosed

__all__ = ["DeviceSetting", "ServerSetting", "EndpointSet"]

_log = logging.getLogger("streamco")

DeviceSetting = str | Path | Endpoint | None
ServerSetting = str | Endpoint | Sequence[Endpoint] | None


class EndpointSet:
    """The endpoints and the answers under way.

    Args:
        device: as for ``Client``.
        server: as for ``Client``.
        engine: how a device is run that is named by its file.

    Attributes:
        endpoints: all, by name.
        unavailable: those that could not start, with their errors.
        binding: the device with its verifier, where there is one.
        active: answers that have work under way.

    Raises:
        ConfigError: neither device nor server, not an endpoint, names that are not unique.
    """

    def __init__(self, device: DeviceSetting, server: ServerSetting, *, engine: EngineOptions | None = None) -> None:
        self.device = _make_device(device, engine)
        self.servers = _make_servers(server)
        everyone = [*([self.device] if self.device is not None else []), *self.servers]
        if not everyone:
            raise ConfigError("client: expected a device, a server or both, got neither")
        self.endpoints: Mapping[str, Endpoint] = {endpoint.name: endpoint for endpoint in everyone}
        if len(self.endpoints) != len(everyone):
            raise ConfigError(f"client: expected endpoints with names of their own, got {[endpoint.name for endpoint in everyone]}")
        self.unavailable: dict[str, EndpointError] = {}
        self.binding: VerifierBinding | None = None  # closed with the endpoints
        self.active: set[AnswerDriver] = set()
        self.is_started = False
        self._is_closed = False
        self._lock = asyncio.Lock()

    def available(self) -> tuple[Endpoint | None, list[Endpoint]]:
        """Return the device and the servers without those that could not start."""
        device = self.device if self.device is not None and self.device.name not in self.unavailable else None
        return device, [server for server in self.servers if server.name not in self.unavailable]

    async def start(self) -> None:
        """Start every endpoint, at once.

        Raises:
            AllEndpointsFailed: none could; a single endpoint raises its own error.
            StreamClosed: it was closed.
        """
        async with self._lock:
            self.check_open()
            if self.is_started:
                return
            results = await asyncio.gather(*(endpoint.start() for endpoint in self.endpoints.values()), return_exceptions=True)
            if self._is_closed:  # in the meantime; what has started since must not stay behind
                await self._close_endpoints()
                self.check_open()
            self.unavailable = self._sort_out(results)
            self.is_started = True

    def _sort_out(self, results: Sequence[BaseException | None]) -> dict[str, EndpointError]:
        """Return the endpoints that could not start, unless none could."""
        failed: dict[str, EndpointError] = {}
        for name, result in zip(self.endpoints, results, strict=True):
            if isinstance(result, EndpointError):
                failed[name] = result
            elif result is not None:
                raise result
        if len(failed) == len(self.endpoints):
            raise AllEndpointsFailed(failed) if len(failed) > 1 else next(iter(failed.values()))
        for error in failed.values():
            _log.warning("endpoint left out, it could not start: %s", error)
        return failed

    def check_open(self) -> None:
        """Refuse what comes after closing.

        Raises:
            StreamClosed: it was closed.
        """
        if self._is_closed:
            raise StreamClosed("expected an open client, got a request after it was closed")

    async def aclose(self) -> None:
        """End all work and release the endpoints."""
        self._is_closed = True
        self.is_started = False
        await asyncio.gather(*(driver.aclose() for driver in list(self.active)))
        await self._close_endpoints()
        async with self._lock:  # a start under way clears up after itself
            pass

    async def _close_endpoints(self) -> None:
        """Close them all, whatever one of them has to say about it."""
        closings = [endpoint.aclose() for endpoint in self.endpoints.values()]
        if self.binding is not None:
            closings.append(self.binding.aclose())
        results = await asyncio.gather(*closings, return_exceptions=True)
        for error in results:
            if error is not None:
                raise error


def _make_device(setting: DeviceSetting, engine: EngineOptions | None) -> Endpoint | None:
    if isinstance(setting, str | Path):
        from streamco.endpoints.device import DeviceEndpoint

        return DeviceEndpoint(setting, options=engine)
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
