"""Any application on a port: the address it is given, who may reach it, what its log says."""

from __future__ import annotations

import logging
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from streamco.errors import ConfigError
from streamco.server.http.listening import listening, make_runner
from streamco.server.http.options import ListenOptions
from tests.support.certificates import client_context, write_certificate


async def hello(_request: web.Request) -> web.Response:
    return web.Response(text="hello")


def make_app() -> web.Application:
    app = web.Application()
    app.router.add_get("/", hello)
    return app


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1")])
async def test_the_address_is_where_it_answers(host: str, shown: str) -> None:
    async with listening(make_app(), ListenOptions(host=host)) as address, aiohttp.ClientSession() as client:
        assert address.startswith((f"http://{shown}:", "http://[::1]:"))
        async with client.get(address) as response:
            assert await response.text() == "hello"


async def test_with_a_certificate_it_speaks_tls_alone(tmp_path: Path) -> None:
    options = ListenOptions(host="localhost", tls_cert=str(write_certificate(tmp_path)))
    async with listening(make_app(), options) as address, aiohttp.ClientSession() as client:
        assert address.startswith("https://")
        async with client.get(address, ssl=client_context()) as response:
            assert await response.text() == "hello"
        with pytest.raises(aiohttp.ClientError):
            await client.get(address.replace("https", "http"))


async def test_a_certificate_that_is_none_is_said_before_it_listens(tmp_path: Path) -> None:
    path = tmp_path / "certificate.pem"
    path.write_text("nothing")
    with pytest.raises(ConfigError, match="tls: expected a certificate and its key in PEM"):
        async with listening(make_app(), ListenOptions(tls_cert=str(path))):
            pass


async def test_a_host_that_others_can_reach_needs_a_key() -> None:
    with pytest.raises(ConfigError, match=r"host: expected a loopback address while no api key is set, got 0\.0\.0\.0"):
        async with listening(make_app(), ListenOptions(host="0.0.0.0")):
            pass


async def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_behind() -> None:
    async with listening(make_app(), ListenOptions()) as address:
        taken = ListenOptions(port=int(address.rpartition(":")[2]))
        with pytest.raises(OSError, match="address already in use"):
            async with listening(make_app(), taken):
                pass


async def test_malformed_requests_are_not_logged_with_their_lines() -> None:
    runner = make_runner(make_app(), ListenOptions())
    logger = logging.getLogger("streamco.server.http")
    error = BadHttpMessage("bad line: Authorization: Bearer secret")
    record = logger.makeRecord(logger.name, logging.ERROR, __file__, 1, "failed", (), (BadHttpMessage, error, None))
    assert not logger.filter(record)
    assert logger.filter(logger.makeRecord(logger.name, logging.ERROR, __file__, 1, "failed", (), None))
    await runner.cleanup()


async def test_a_body_that_cannot_be_unpacked_leaves_nothing_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app()
    app.router.add_post("/", hello)  # the rest of the body is read after its answer
    async with (
        listening(app, ListenOptions()) as address,
        aiohttp.ClientSession() as client,
        client.post(address, data=b"no such bytes", headers={"Content-Encoding": "deflate"}) as response,
    ):
        assert response.status == 200
    assert not caplog.records
