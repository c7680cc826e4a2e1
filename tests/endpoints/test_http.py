"""The pooled client: starting, connections given back, dropped and warmed, errors in our words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from yarl import URL

from streamco.config import Timeouts
from streamco.endpoints import http
from streamco.endpoints.http import HttpClient
from streamco.endpoints.network.credentials import ServerKey
from streamco.endpoints.retry import is_transient
from streamco.errors import (
    EndpointConnectError,
    EndpointProtocolError,
    EndpointStatusError,
    EndpointTimeoutError,
    StreamClosed,
)
from streamco.testing import Pause, ScriptedResponse, ScriptedServer, Stall

TIMEOUTS = Timeouts(connect=5, cancel=0.2)


@pytest_asyncio.fixture
async def client() -> AsyncIterator[HttpClient]:
    client = HttpClient("remote", timeouts=TIMEOUTS, key=ServerKey("sk-secret"))
    await client.start()
    yield client
    await client.aclose()


async def get(client: HttpClient, server: ScriptedServer) -> aiohttp.ClientResponse:
    return await client.request("GET", URL(server.url), headers={})


# Bodies and connections


async def test_a_body_is_read_and_its_connection_given_back(client: HttpClient) -> None:
    async with ScriptedServer(ScriptedResponse(steps=[b"abc", Pause(0.01), b"def"])) as server:
        for _ in range(3):
            assert await client.read(await get(client, server), 100) == b"abcdef"
        assert server.connections_total == 1


async def test_of_a_body_beyond_the_limit_the_beginning_is_read_and_the_connection_closed(client: HttpClient) -> None:
    async with ScriptedServer(ScriptedResponse(steps=[b"x" * 1000, Stall()])) as server:
        assert await client.read(await get(client, server), 10) == b"x" * 10
        await server.wait_for(lambda server: server.connections_open == 0)


async def test_a_body_of_exactly_the_limit_is_whole(client: HttpClient) -> None:
    async with ScriptedServer(ScriptedResponse(steps=[b"x" * 10], framing="length")) as server:
        assert await client.read(await get(client, server), 10) == b"x" * 10
        assert await client.read(await get(client, server), 10) == b"x" * 10
        assert server.connections_total == 1


async def test_a_cut_body_is_a_protocol_error(client: HttpClient) -> None:
    from streamco.testing import Cut

    async with ScriptedServer(ScriptedResponse(steps=[b"abc", Cut()])) as server:
        with pytest.raises(EndpointProtocolError, match="the connection cut"):
            await client.read(await get(client, server), 100)


async def test_a_body_that_is_not_in_its_encoding_is_a_protocol_error(client: HttpClient) -> None:
    async with ScriptedServer(ScriptedResponse(headers={"Content-Encoding": "gzip"}, steps=[b"not gzip at all"])) as server:
        with pytest.raises(EndpointProtocolError, match="can't be read"):
            await client.read(await get(client, server), 100)


async def test_finishing_waits_for_the_last_bytes_in_the_background(client: HttpClient) -> None:
    async with ScriptedServer(ScriptedResponse(steps=[b"end", Pause(0.02)])) as server:
        response = await get(client, server)
        assert await response.content.readany() == b"end"
        settled = client.finish(response)
        assert settled is not None
        await asyncio.wait_for(settled, 5)
        (await get(client, server)).close()
        assert server.connections_total == 1


async def test_finishing_what_has_ended_is_settled_at_once(client: HttpClient) -> None:
    async with ScriptedServer(ScriptedResponse(steps=[b"end"], framing="length")) as server:
        response = await get(client, server)
        await response.content.readany()
        assert client.finish(response) is None


async def test_finishing_gives_up_on_an_end_that_does_not_come(client: HttpClient) -> None:
    async with ScriptedServer(ScriptedResponse(steps=[b"end", Stall()])) as server:
        response = await get(client, server)
        await response.content.readany()
        client.finish(response)
        await server.wait_for(lambda server: server.connections_open == 0)


async def test_closing_ends_what_is_still_finishing() -> None:
    client = HttpClient("remote", timeouts=Timeouts(cancel=None))
    await client.start()
    async with ScriptedServer(ScriptedResponse(steps=[b"end", Stall()])) as server:
        response = await get(client, server)
        await response.content.readany()
        client.finish(response)
        await client.aclose()
        await server.wait_for(lambda server: server.connections_open == 0)


async def test_dropping_closes_the_connection_before_it_returns(client: HttpClient) -> None:
    async with ScriptedServer(ScriptedResponse(steps=[b"abc", Stall()])) as server:
        response = await get(client, server)
        connection = response.connection
        assert connection is not None
        transport = connection.transport
        assert transport is not None
        await client.drop(response)
        assert transport.is_closing()
        await client.drop(response)
        await server.wait_for(lambda server: server.connections_open == 0)


# Warming


@pytest.fixture
def everything_is_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "is_loopback", lambda host: False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("everything_is_remote")
async def test_a_warmed_connection_is_the_one_the_next_request_takes(client: HttpClient) -> None:
    async with ScriptedServer(ScriptedResponse(steps=[b"abc"])) as server:
        client.warm(URL(server.url))
        client.warm(URL(server.url))
        await server.wait_for(lambda server: server.connections_open == 1)
        await asyncio.sleep(0.01)
        assert await client.read(await get(client, server), 10) == b"abc"
        client.warm(URL(server.url))
        await asyncio.sleep(0.02)
        assert server.connections_total == 1
        assert len(server.requests) == 1


@pytest.mark.usefixtures("everything_is_remote")
async def test_a_connection_that_can_not_be_warmed_is_nobodys_problem_yet(client: HttpClient) -> None:
    async with ScriptedServer() as server:
        url = URL(server.url)
    client.warm(url)
    await asyncio.sleep(0.02)
    with pytest.raises(EndpointConnectError):
        await client.request("GET", url, headers={})


@pytest.mark.usefixtures("everything_is_remote")
async def test_closing_ends_a_warming_under_way() -> None:
    client = HttpClient("remote", timeouts=TIMEOUTS)
    await client.start()
    client.warm(URL("http://host.invalid/v1"))
    await client.aclose()
    client.warm(URL("http://host.invalid/v1"))
    assert not [task for task in asyncio.all_tasks() if "warm" in task.get_name()]


async def test_nothing_is_warmed_on_the_loopback_or_in_the_callers_session(monkeypatch: pytest.MonkeyPatch, client: HttpClient) -> None:
    async with ScriptedServer() as server, aiohttp.ClientSession() as session:
        client.warm(URL(server.url))
        monkeypatch.setattr(http, "is_loopback", lambda host: False)
        HttpClient("other", timeouts=TIMEOUTS, session=session).warm(URL(server.url))
        await asyncio.sleep(0.02)
        assert server.connections_total == 0


# The caller's session


async def test_the_limits_of_the_callers_session_end_no_long_answer() -> None:
    answer = ScriptedResponse(steps=[b"one ", Pause(0.3), b"two"])
    async with ScriptedServer(answer) as server, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=0.1)) as session:
        client = HttpClient("remote", timeouts=TIMEOUTS, session=session)
        assert await client.read(await get(client, server), 100) == b"one two"


async def test_the_callers_session_has_its_own_proxies(monkeypatch: pytest.MonkeyPatch, client: HttpClient) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    url = URL("http://host.invalid/v1")
    assert await client.find_proxy(url) == URL("http://127.0.0.1:1")
    async with aiohttp.ClientSession() as session:
        assert await HttpClient("remote", timeouts=TIMEOUTS, session=session).find_proxy(url) is None


# Life


async def test_a_closed_client_stays_closed() -> None:
    client = HttpClient("remote", timeouts=TIMEOUTS)
    await client.aclose()
    await client.aclose()
    with pytest.raises(StreamClosed, match="remote: the endpoint is closed"):
        await client.start()


# Errors


async def test_the_secret_is_scrubbed_from_text_and_body(client: HttpClient) -> None:
    error = EndpointStatusError("bad key sk-secret", status=401, body='{"key": "sk-secret"}')
    client.scrub(error)
    assert str(error) == "bad key ***"
    assert error.body == '{"key": "***"}'


async def test_an_answer_that_is_no_json_is_shown_without_the_key(client: HttpClient) -> None:
    async with ScriptedServer(ScriptedResponse(steps=[b"bad key sk-secret"])) as server:
        with pytest.raises(EndpointProtocolError, match=r"got 'bad key [*]{3}'"):
            await client.get_json(URL(server.url), headers={}, max_bytes=100)


async def test_a_small_answer_that_does_not_come_is_a_passing_fault() -> None:
    client = HttpClient("remote", timeouts=Timeouts(connect=0.1, cancel=0.2))
    async with ScriptedServer(ScriptedResponse(steps=[Stall()])) as server:
        with pytest.raises(EndpointTimeoutError) as caught:
            await client.get_json(URL(server.url), headers={}, max_bytes=100)
    assert is_transient(caught.value)
    await client.aclose()


async def test_an_error_of_a_redirect_is_not_its_own_cause(client: HttpClient) -> None:
    async with ScriptedServer(ScriptedResponse(status=307, headers={"Location": "http://host.invalid/"})) as server:
        with pytest.raises(EndpointProtocolError, match="redirect") as caught:
            await get(client, server)
    assert caught.value.__cause__ is None
