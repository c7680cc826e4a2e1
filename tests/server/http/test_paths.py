"""Paths of the APIs, and base URLs that are off by /v1."""

from __future__ import annotations

import aiohttp
import anthropic
import openai
import pytest

from streamco.server.http.paths import is_messages_path
from tests.server.support import Running, running


def address_of(server: Running) -> str:
    return f"http://127.0.0.1:{server.runner.addresses[0][1]}"


@pytest.mark.parametrize(
    ("path", "is_anthropics"),
    [
        ("/v1/messages", True),
        ("/v1/messages/", True),
        ("/v1/messages/count_tokens", True),
        ("/v1/messages/x", True),
        ("/v1/v1/messages", True),
        ("/messages", True),
        ("//v1/messages", True),
        ("/v1/messagesx", False),
        ("/v1/responses", False),
        ("/v1/chat/messages", False),
        ("/", False),
    ],
)
def test_anthropics_paths_are_known_also_where_v1_is_missing_or_twice(path: str, is_anthropics: bool) -> None:
    assert is_messages_path(path) == is_anthropics


@pytest.mark.parametrize(
    ("method", "path", "meant"),
    [
        ("POST", "/chat/completions", "/v1/chat/completions"),
        ("POST", "/v1/v1/chat/completions", "/v1/chat/completions"),
        ("POST", "/v1/chat/completions/", "/v1/chat/completions"),
        ("POST", "//v1/chat/completions", "/v1/chat/completions"),
        ("POST", "/completions", "/v1/completions"),
        ("POST", "/responses", "/v1/responses"),
        ("POST", "/v1/v1/messages", "/v1/messages"),
        ("POST", "/messages/count_tokens", "/v1/messages/count_tokens"),
        ("GET", "/models", "/v1/models"),
        ("GET", "/v1/models/", "/v1/models"),
        ("GET", "/v1/v1/models/some/name", "/v1/models/some/name"),
    ],
)
async def test_a_path_that_is_off_by_v1_says_what_the_base_url_is(method: str, path: str, meant: str) -> None:
    async with running() as server, aiohttp.ClientSession() as client:
        root = address_of(server)
        async with client.request(method, f"{root}{path}") as response:
            error = (await response.json())["error"]
        assert response.status == 404
        assert error["message"] == (
            f"path: expected {meant}, got {path}: the base URL is {root}/v1 for OpenAI's clients, {root} for Anthropic's"
        )
        assert ("code" in error) == ("messages" not in path), "the error has the form of the API that was meant"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/v1/v1", "/v1", "/x/v1/chat/completions", "/v1/v1/health"])
async def test_other_paths_are_none_of_the_api(path: str) -> None:
    async with running() as server, server.client.get(path) as response:
        assert (await response.json())["error"]["message"] == f"path: expected a path of the API, got {path}"


@pytest.mark.peer
async def test_the_real_clients_are_told_their_base_url() -> None:
    texts = []
    async with running() as server:
        root = address_of(server)
        chat = [{"role": "user", "content": "Hi"}]
        for url in (root, f"{root}/v1/v1"):
            async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
                with pytest.raises(openai.NotFoundError) as caught:
                    await client.chat.completions.create(model="fake", messages=chat)  # type: ignore[arg-type]
                texts.append(caught.value.message)
        async with anthropic.AsyncAnthropic(base_url=f"{root}/v1", api_key="x", max_retries=0) as other:
            with pytest.raises(anthropic.NotFoundError) as refused:
                await other.messages.create(model="fake", max_tokens=5, messages=chat)  # type: ignore[arg-type]
            texts.append(str(refused.value))
        assert all(f"the base URL is {root}/v1 for OpenAI's clients, {root} for Anthropic's" in text for text in texts)


async def test_the_key_is_checked_first_and_may_come_as_either_client_sends_it() -> None:
    async with running(api_key="right") as server:
        for headers, status in (({}, 401), ({"x-api-key": "right"}, 404), ({"Authorization": "Bearer right"}, 404)):
            async with server.client.post("/v1/v1/messages", headers=headers) as response:
                assert response.status == status
                assert (await response.json())["type"] == "error"
