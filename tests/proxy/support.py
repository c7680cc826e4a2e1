"""What the proxy's tests share: a proxy over scripted sides, on a real port, that leaves nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from streamco.client.client import Client
from streamco.endpoints.base import Endpoint
from streamco.proxy.app import PROXY, Proxy, make_app
from streamco.proxy.config import ProxyOptions
from streamco.server.http.listening import make_runner
from streamco.testing.endpoint import ScriptedEndpoint
from tests.server.support import Running
from tests.support.leaks import holding_nothing_new
from tests.support.modes import client_options

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}


class RunningProxy(Running):
    """A proxy under test; its requests are those of ``Running``."""

    def __init__(self, client: aiohttp.ClientSession, proxy: Proxy, runner: web.AppRunner) -> None:
        self.client = client
        self.proxy = proxy
        self.runner = runner


@asynccontextmanager
async def proxying(
    device: ScriptedEndpoint | None = None, server: Endpoint | Sequence[Endpoint] | None = None, **options: Any
) -> AsyncIterator[RunningProxy]:
    """A proxy on a free port and an HTTP client for it.

    Args:
        device: one side.
        server: the other.
        options: the client's ``policy``, ``budget``, ``pace``, ``dispatch``; the page's ``extras``; everything else is ``ProxyOptions``.
    """
    settings: dict[str, Any] = {name: options.pop(name) for name in ("policy", "budget", "pace", "dispatch") if name in options}
    extras = options.pop("extras", None)
    chosen = ProxyOptions(**options)
    async with holding_nothing_new(), Client(device, server, seed=1, **client_options(settings)) as client:
        app = make_app(client, chosen, extras)
        runner = make_runner(app, chosen)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as http:
                yield RunningProxy(http, app[PROXY], runner)
        finally:
            await runner.cleanup()
    for endpoint in (device, *(server if isinstance(server, Sequence) else [server])):
        assert not isinstance(endpoint, ScriptedEndpoint) or endpoint.active == 0, f"{endpoint.name} still holds {endpoint.active} streams"
