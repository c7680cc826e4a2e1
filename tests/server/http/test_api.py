"""The paths of the API, whoever answers behind them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from streamco.server.http.api import make_application
from streamco.server.http.errors import RequestError
from streamco.server.http.listening import listening
from streamco.server.http.middleware import read_body
from streamco.server.http.options import ListenOptions


class Echo:
    """Says which of its methods was asked."""

    def __init__(self) -> None:
        self.was_stopped = False

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response(text="health")

    async def models(self, _request: web.Request) -> web.Response:
        return web.Response(text="models")

    async def one_model(self, request: web.Request) -> web.Response:
        return web.Response(text=request.match_info["model"])

    async def chat_completions(self, request: web.Request) -> web.Response:
        return web.Response(body=await read_body(request))

    async def completions(self, _request: web.Request) -> web.Response:
        raise RequestError(409, "echo: expected nothing, got something", code="odd")

    async def stop(self, _app: web.Application) -> None:
        self.was_stopped = True


@asynccontextmanager
async def running(api: Echo, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    settings = ListenOptions(**options)
    async with (
        listening(make_application(api, settings, logger=logging.getLogger("streamco.test")), settings) as address,
        aiohttp.ClientSession(address) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("path", "text"),
    [("/health", "health"), ("/v1/models", "models"), ("/v1/models/one", "one"), ("/v1/models/org/one-1.5", "org/one-1.5")],
)
async def test_each_path_has_its_method(path: str, text: str) -> None:
    async with running(Echo()) as client, client.get(path) as response:
        assert await response.text() == text


async def test_bodies_are_bounded_and_errors_are_openais() -> None:
    async with running(Echo(), max_body_bytes=10) as client:
        async with client.post("/v1/chat/completions", data=b'{"a": 1}', headers={"Content-Type": "application/json"}) as response:
            assert await response.read() == b'{"a": 1}'
        async with client.post("/v1/chat/completions", json={"a": "x" * 10}) as response:
            assert response.status == 413
        async with client.post("/v1/completions") as response:
            assert response.status == 409
            assert (await response.json())["error"]["code"] == "odd"
        async with client.get("/v1/other") as response:
            assert (await response.json())["error"]["message"] == "path: expected a path of the API, got /v1/other"


async def test_the_key_is_asked_for_on_every_path_but_health() -> None:
    async with running(Echo(), api_key="right") as client:
        for path, status in (("/health", 200), ("/v1/models", 401)):
            async with client.get(path) as response:
                assert response.status == status
        async with client.get("/v1/models", headers={"Authorization": "Bearer right"}) as response:
            assert response.status == 200


async def test_it_is_told_of_the_end() -> None:
    api = Echo()
    async with running(api):
        assert not api.was_stopped
    assert api.was_stopped
