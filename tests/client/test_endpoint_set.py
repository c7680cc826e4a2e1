"""The endpoints that clients share: checked, started once at the same time, closed together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamco.client.endpoint_set import EndpointSet
from streamco.errors import AllEndpointsFailed, ConfigError, EndpointConnectError, StreamClosed
from streamco.testing.endpoint import ScriptedEndpoint


class Side(ScriptedEndpoint):
    """An endpoint that counts its starts and closes; ``gate`` holds its start back, ``error`` fails it."""

    def __init__(self, name: str, *, error: Exception | None = None, gate: asyncio.Event | None = None, **options: Any) -> None:
        super().__init__(name, **options)
        self.starts = self.closes = 0
        self._error = error
        self._gate = gate

    async def start(self) -> None:
        self.starts += 1
        if self._gate is not None:
            await self._gate.wait()
        if self._error is not None:
            raise self._error

    async def aclose(self) -> None:
        self.closes += 1


@pytest.mark.parametrize(
    ("device", "server", "message"),
    [
        (None, None, "expected a device, a server or both, got neither"),
        (3, None, "device: expected the path of a GGUF file or an endpoint, got int"),
        (None, [object()], "server: expected a model's name or an endpoint, got object"),
        (Side("it"), Side("it"), r"expected endpoints with names of their own, got \['it', 'it'\]"),
    ],
)
def test_sides_that_are_missing_wrong_or_named_alike_are_refused(device: Any, server: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EndpointSet(device, server)


async def test_endpoints_start_once_and_at_the_same_time() -> None:
    gate = asyncio.Event()
    sides = [Side("device", gate=gate), Side("first", gate=gate), Side("second", gate=gate)]
    endpoints = EndpointSet(sides[0], sides[1:])
    starting = [asyncio.create_task(endpoints.start()) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert [side.starts for side in sides] == [1, 1, 1]
    gate.set()
    await asyncio.gather(*starting)
    assert endpoints.is_started()
    assert [side.starts for side in sides] == [1, 1, 1]
    assert endpoints.available() == (sides[0], sides[1:])


async def test_an_endpoint_that_can_not_start_is_left_out_with_its_error() -> None:
    error = EndpointConnectError("refused")
    device, server = Side("device"), Side("server", error=error)
    endpoints = EndpointSet(device, server)
    await endpoints.start()
    assert endpoints.unavailable == {"server": error}
    assert endpoints.available() == (device, [])


async def test_if_no_endpoint_can_start_their_errors_are_raised() -> None:
    error = EndpointConnectError("refused")
    with pytest.raises(AllEndpointsFailed):
        await EndpointSet(Side("device", error=error), Side("server", error=error)).start()
    with pytest.raises(EndpointConnectError):
        await EndpointSet(None, Side("server", error=error)).start()


async def test_a_close_during_the_start_leaves_nothing_open() -> None:
    gate = asyncio.Event()
    side = Side("server", gate=gate)
    endpoints = EndpointSet(None, side)
    starting = asyncio.create_task(endpoints.start())
    await asyncio.sleep(0)
    closing = asyncio.create_task(endpoints.aclose())
    await asyncio.sleep(0)
    gate.set()
    await closing
    with pytest.raises(StreamClosed):
        await starting
    assert side.closes == 2, "once by the close, and once by the start that ended after it"
    with pytest.raises(StreamClosed):
        endpoints.check_open()


async def test_all_endpoints_are_closed_also_if_one_of_them_raises() -> None:
    class Broken(Side):
        async def aclose(self) -> None:
            await super().aclose()
            raise OSError("busy")

    broken, server = Broken("device"), Side("server")
    with pytest.raises(OSError, match="busy"):
        await EndpointSet(broken, server).aclose()
    assert (broken.closes, server.closes) == (1, 1)


async def test_an_endpoint_that_is_kept_stays_open_for_another_client() -> None:
    device, server = Side("device", kind="device"), Side("server")
    former = EndpointSet(device, server)
    await former.start()
    await former.aclose(keep={"server"})
    assert (device.closes, server.closes) == (1, 0)
    with pytest.raises(StreamClosed):
        former.check_open()
    await EndpointSet(None, server).aclose()
    assert server.closes == 1
