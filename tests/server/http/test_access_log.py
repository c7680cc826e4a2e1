"""The access log: one line a request, its id, and nothing that a client wrote."""

from __future__ import annotations

import logging

import aiohttp
import pytest
from aiohttp import web

from streamco.server.http.access_log import access_log, current_request_id, send_request_id
from streamco.server.http.errors import RequestError
from streamco.server.http.listening import listening
from streamco.server.http.middleware import translate_errors
from streamco.server.http.options import ListenOptions


async def ask(handler: object, path: str = "/v1/x", **headers: str) -> tuple[int, str]:
    """Ask an application that logs to ``streamco.test``; return the status and the request id of the answer."""
    app = web.Application(middlewares=[access_log(logging.getLogger("streamco.test")), translate_errors])
    app.on_response_prepare.append(send_request_id)
    app.router.add_route("*", "/{path:.*}", handler)  # type: ignore[arg-type]
    options = ListenOptions()
    async with listening(app, options) as address, aiohttp.ClientSession(address) as client, client.get(path, headers=headers) as response:
        await response.read()
        return response.status, response.headers["x-request-id"]


async def hello(_request: web.Request) -> web.Response:
    return web.Response(text=f"hello {current_request_id()}")


async def refuse(_request: web.Request) -> web.Response:
    raise RequestError(418, "pot: expected coffee, got tea")


async def test_each_request_is_a_line_with_its_status_size_and_id(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamco.test")
    status, request_id = await ask(hello)
    (record,) = [each for each in caplog.records if each.name == "streamco.test"]
    assert status == 200
    assert record.getMessage().startswith(f"{request_id}: 127.0.0.1 GET /v1/x: 200, {len('hello ') + len(request_id)} bytes in ")


async def test_the_clients_own_id_is_kept_if_it_is_a_plain_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamco.test")
    assert (await ask(hello, **{"X-Client-Request-Id": "order-66"}))[1] == "order-66"
    assert (await ask(hello, **{"X-Request-Id": "a.b_c"}))[1] == "a.b_c"
    assert (await ask(hello, **{"X-Client-Request-Id": "two words"}))[1] != "two words"
    assert len((await ask(hello, **{"X-Client-Request-Id": "x" * 65}))[1]) == 16


async def test_refusals_are_logged_with_their_status(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamco.test")
    assert (await ask(refuse))[0] == 418
    assert ": 418, " in caplog.text


async def test_neither_query_nor_headers_nor_line_breaks_reach_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "streamco.test")
    await ask(hello, "/v1/a%0Ab%1B" + "c" * 300 + "?key=SECRET", Authorization="Bearer SECRET")
    (record,) = [each for each in caplog.records if each.name == "streamco.test"]
    assert "SECRET" not in caplog.text
    assert "/v1/a\\nb\\x1b" in record.getMessage()
    assert len(record.getMessage()) < 300


async def test_health_is_for_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamco.test")
    await ask(hello, "/health")
    assert "/health" not in caplog.text
    caplog.set_level(logging.DEBUG, "streamco.test")
    await ask(hello, "/health")
    assert "/health" in caplog.text
