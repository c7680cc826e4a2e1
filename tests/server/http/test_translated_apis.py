"""Paths of the translated APIs, the form of their errors, and the names of fields in them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from streamco.server.http.api import make_application
from streamco.server.http.errors import RequestError, invalid
from streamco.server.http.listening import listening
from streamco.server.http.middleware import read_body
from streamco.server.http.options import ListenOptions
from streamco.server.http.translated_apis import add_translated_apis, naming_fields, read_count, read_message, read_response
from tests.server.http.test_api import Echo

HI = [{"role": "user", "content": "Hi"}]


class Translated(Echo):
    """Reads what it is sent, and then refuses it."""

    async def responses(self, request: web.Request) -> web.Response:
        read_response(await read_body(request))
        raise invalid("input", "refused")

    async def messages(self, request: web.Request) -> web.Response:
        read_message(await read_body(request))
        raise RequestError(429, "too many", headers={"Retry-After": "3"})

    async def count_tokens(self, request: web.Request) -> web.Response:
        read_count(await read_body(request))
        return web.json_response({"input_tokens": 1})


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    settings = ListenOptions(**options)
    api = Translated()
    app = make_application(api, settings, logger=logging.getLogger("streamco.test"))
    add_translated_apis(app, api)
    async with listening(app, settings) as address, aiohttp.ClientSession(address) as client:
        yield client


async def test_errors_have_the_form_of_their_path() -> None:
    async with running() as client:
        async with client.post("/v1/responses", json={"input": "Hi"}) as response:
            assert response.status == 400
            error = (await response.json())["error"]
            assert (error["param"], error["type"], error["message"]) == ("input", "invalid_request_error", "input: refused")
        async with client.post("/v1/messages", json={"max_tokens": 1, "messages": HI}) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "3")
            assert await response.json() == {"type": "error", "error": {"type": "rate_limit_error", "message": "too many"}}
            assert response.headers["request-id"] == response.headers["x-request-id"]
        async with client.get("/v1/messages") as response:
            assert response.status == 405
            assert (await response.json())["error"]["message"] == "method: expected POST, got GET on /v1/messages"
        async with client.post("/v1/messages/batches", json={}) as response:
            assert (response.status, (await response.json())["type"]) == (404, "error")
        async with client.post("/v1/messages/count_tokens", json={"messages": HI}) as response:
            assert await response.json() == {"input_tokens": 1}
        async with client.post("/v1/responses", json={"input": []}) as response:
            assert "request-id" not in response.headers


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/messages/count_tokens"])
async def test_bodies_are_bounded_and_must_be_json(path: str) -> None:
    async with running(max_body_bytes=200) as client:
        async with client.post(path, json={"a": "x" * 200}) as response:
            assert response.status == 413
        async with client.post(path, data=b"{}", headers={"Content-Type": "text/plain"}) as response:
            assert response.status == 415
        async with client.post(path, data=b"{", headers={"Content-Type": "application/json"}) as response:
            assert response.status == 400
            assert (await response.json())["error"]["message"].startswith("body: expected JSON")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/messages", {"x-api-key": "right"}, 429),
        ("/v1/messages", {"Authorization": "Bearer right"}, 429),
        ("/v1/messages", {"Authorization": "Bearer wrong", "x-api-key": "right"}, 429),
        ("/v1/messages/count_tokens", {"x-api-key": "right"}, 200),
        ("/v1/messages", {"x-api-key": "wrong"}, 401),
        ("/v1/messages", {"x-api-key": ""}, 401),
        ("/v1/messages", {"Authorization": "Basic right"}, 401),
        ("/v1/messages", {}, 401),
        ("/v1/responses", {"Authorization": "Bearer right"}, 400),
        ("/v1/responses", {"x-api-key": "right"}, 401),
        ("/v1/messagesx", {"x-api-key": "right"}, 401),
    ],
)
async def test_anthropics_header_counts_on_its_paths(path: str, headers: dict[str, str], status: int) -> None:
    body = {"input": "Hi"} if path == "/v1/responses" else {"max_tokens": 1, "messages": HI}
    async with running(api_key="right") as client, client.post(path, json=body, headers=headers) as response:
        assert response.status == status
        if status == 401 and path == "/v1/messages":
            assert (await response.json())["error"]["type"] == "authentication_error"
        if not headers:
            assert "send it as x-api-key: KEY or Authorization: Bearer KEY" in await response.text()


def test_a_field_that_cannot_be_served_is_a_400_that_names_it() -> None:
    with pytest.raises(RequestError) as caught:
        read_response(b'{"input":"Hi","background":true}')
    error = caught.value
    assert (error.status, error.param, error.code) == (400, "background", "unsupported_parameter")
    assert str(error) == "background: expected none, got some: this server doesn't offer it"
    with pytest.raises(RequestError) as caught:
        read_message(b"[]")
    assert (caught.value.param, str(caught.value)) == (None, "body: expected an object, got a list")


def is_refused(depth: int) -> bool:
    """Whether a tool's input of so many levels is refused; every other error is a failure."""
    given = b'{"a":' * depth + b"1" + b"}" * depth
    block = b'{"type":"tool_use","id":"1","name":"f","input":%b}' % given
    try:
        read_message(b'{"max_tokens":1,"messages":[{"role":"assistant","content":[%b]}]}' % block)
    except RequestError as error:
        return error.status == 400
    return False


def test_input_that_is_nested_too_deeply_is_refused_at_whatever_level_that_begins() -> None:
    refused = [is_refused(depth) for depth in range(1, 1200)]
    assert (refused[0], refused[-1]) == (False, True)
    assert refused == sorted(refused)


def test_errors_about_chat_fields_get_the_names_of_the_request() -> None:
    asked = read_response(b'{"input":"Hi"}')
    with pytest.raises(RequestError) as caught, naming_fields(asked.names):
        raise RequestError(413, "max_completion_tokens: expected less", param="max_completion_tokens", code="c", headers={"a": "b"})
    error = caught.value
    assert (error.status, str(error), error.param) == (413, "max_output_tokens: expected less", "max_output_tokens")
    assert (error.code, error.headers) == ("c", {"a": "b"})
    with pytest.raises(RequestError, match=r"^server: it refused$") as caught, naming_fields(asked.names):
        raise RequestError(400, "server: it refused", param="messages")
    assert caught.value.param == "input"
    with pytest.raises(RequestError, match=r"^input: expected less$") as caught, naming_fields(asked.names):
        raise RequestError(400, "messages[3].content: expected less", param="messages[3].content")
    assert caught.value.param == "input"
    kept = RequestError(400, "temperature: expected less", param="temperature")
    with pytest.raises(RequestError) as caught, naming_fields(asked.names):
        raise kept
    assert caught.value is kept
