"""Web pages that may call the API, and those that may not."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from streamco.errors import ConfigError
from streamco.server.http.api import make_application
from streamco.server.http.listening import listening
from streamco.server.http.options import ListenOptions
from tests.server.http.test_api import Echo

PAGE = "http://localhost:3000"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    chosen = ListenOptions(**options)
    app = make_application(Echo(), chosen, logger=logging.getLogger("streamco.test"))
    async with listening(app, chosen) as address, aiohttp.ClientSession(address) as http:
        yield http


async def test_a_preflight_is_answered_without_the_key_that_browsers_do_not_send_with_it() -> None:
    async with serving(cors=(PAGE,), api_key="key") as http:
        async with http.options("/v1/chat/completions", headers={"Origin": PAGE, **PREFLIGHT}) as response:
            assert response.status == 204
            assert response.headers["Access-Control-Allow-Origin"] == PAGE
            assert response.headers["Access-Control-Allow-Methods"] == "GET, POST"
            assert response.headers["Access-Control-Allow-Headers"] == "authorization, content-type"
        async with http.post("/v1/chat/completions", headers={"Origin": PAGE}, json={}) as response:
            assert response.status == 401, "the request itself still needs the key"
            assert response.headers["Access-Control-Allow-Origin"] == PAGE, "and the page may read why"


async def test_a_page_that_is_allowed_reads_answers_and_errors() -> None:
    async with serving(cors=("https://example.org", PAGE)) as http:
        for path, status in (("/v1/models", 200), ("/nowhere", 404)):
            async with http.get(path, headers={"Origin": PAGE}) as response:
                assert response.status == status
                assert response.headers["Access-Control-Allow-Origin"] == PAGE
                assert "x-streamco-winner" in response.headers["Access-Control-Expose-Headers"]
                assert response.headers["Vary"] == "Origin"


@pytest.mark.parametrize("origin", ["http://localhost:3001", "https://localhost:3000", "http://localhost:3000.evil.example", "null"])
async def test_other_pages_get_nothing_to_read(origin: str) -> None:
    async with serving(cors=(PAGE,)) as http:
        async with http.get("/v1/models", headers={"Origin": origin}) as response:
            assert "Access-Control-Allow-Origin" not in response.headers
        async with http.options("/v1/chat/completions", headers={"Origin": origin, **PREFLIGHT}) as response:
            assert response.status == 405


async def test_without_origins_nothing_is_allowed() -> None:
    async with serving() as http:
        async with http.options("/v1/chat/completions", headers={"Origin": PAGE, **PREFLIGHT}) as response:
            assert response.status == 405
        async with http.get("/v1/models", headers={"Origin": PAGE}) as response:
            assert not {name for name in response.headers if name.startswith("Access-Control")}


async def test_every_page_may_call_only_if_there_is_a_key() -> None:
    with pytest.raises(ConfigError, match=r"cors: expected an api key with \*"):
        ListenOptions(cors=("*",))
    headers = {"Origin": PAGE, "Authorization": "Bearer key"}
    async with serving(cors=("*",), api_key="key") as http, http.get("/v1/models", headers=headers) as response:
        assert response.headers["Access-Control-Allow-Origin"] == PAGE


@pytest.mark.parametrize(
    "origin", ["", "localhost:3000", "http://localhost:3000/", "http://a.example/path", "ftp://a.example", "http://", "https://A.example"]
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="cors: expected an origin such as"):
        ListenOptions(cors=(origin,))
