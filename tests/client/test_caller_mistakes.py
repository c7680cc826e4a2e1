"""The caller's own mistakes: an error that names the argument, with a device and without, and no endpoint is to blame."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import httpx
import pytest

import streamco
from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.verifiers.vllm import VLLMVerifier
from streamco.errors import ConfigError, StreamcoError
from streamco.testing import ScriptedServer, stream_answer
from streamco.testing.endpoint import ScriptedEndpoint
from streamco.wire.openai.stream import ChatStreamParser
from tests.client.helpers import HELLO, chunks_text, device, opened, recorded_log, tokens_text, words
from tests.support.modes import client_options

HALF = "half an emoji \ud83d"
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "half an emoji": ({"messages": HALF}, "messages[0].content"),
    "bytes that were no text": ({"messages": b"caf\xe9".decode("utf-8", "surrogateescape")}, "messages[0].content"),
    "half an emoji in a tool": ({"tools": [{"type": "function", "function": {"name": HALF}}]}, "tools[0].function.name"),
    "a line break in a header": ({"extra_headers": {"X-User": "a\nb"}}, 'extra_headers["X-User"]'),
    "a header that is None": ({"extra_headers": {"X-User": None}}, 'extra_headers["X-User"]'),
    "a header that is a number": ({"extra_headers": {"X-User": 5}}, 'extra_headers["X-User"]'),
    "an object": ({"metadata": {"request": object()}}, "metadata.request"),
    "an object for the server alone": ({"extra_body": {"field": object()}}, "field"),
    "a model that is no name": ({"model": 5}, "model"),
    "tools that are no list": ({"tools": 5}, "tools"),
    "one tool in place of a list": ({"tools": {"type": "function"}}, "tools"),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("has_device", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_a_mistake_is_named_before_anything_is_asked_and_no_endpoint_counts_as_failed(name: str, has_device: bool) -> None:
    arguments, argument = MISTAKES[name]
    arguments = {"messages": HELLO, **arguments}
    one = device(words(0.0)) if has_device else None
    policy = "server-first" if has_device else "auto"
    async with ScriptedServer() as server, opened(one, OpenAIEndpoint("m", base_url=server.url), policy=policy) as client:
        with recorded_log() as records:
            for stream in (False, True):
                with pytest.raises(ConfigError) as caught:
                    await client.chat.completions.create(**arguments, stream=stream)
                assert str(caught.value).startswith(f"{argument}: expected ")
            with pytest.raises(ConfigError):
                client.stream(**arguments)
        assert (client.degraded, records) == ((), [])
        assert one is None or not one.streams
        assert server.requests == []
        assert await tokens_text(client.stream(HELLO)) == "Hello world"


MAKERS: dict[str, Any] = {
    "server": lambda **options: streamco.OpenAIEndpoint("m", base_url="http://127.0.0.1:1", **options),
    "Anthropic's API": lambda **options: streamco.AnthropicEndpoint("m", base_url="http://127.0.0.1:1", **options),
    "verifier": lambda **options: VLLMVerifier("http://127.0.0.1:1", **options),
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"headers": {"X-User": "a\r\nX-Other: b"}}, 'headers["X-User"]: expected a string on one line'),
        ({"headers": {"X-User": None}}, 'headers["X-User"]: expected a string, got NoneType'),
        ({"headers": {"X-User": HALF}}, 'headers["X-User"]: expected whole characters'),
        ({"headers": [("X-User", "a")]}, "headers: expected a mapping, got list"),
        ({"session": httpx.AsyncClient()}, "session: expected an aiohttp.ClientSession or None, got AsyncClient"),
        ({"session": object()}, "session: expected an aiohttp.ClientSession or None, got object"),
        ({"session": aiohttp.ClientSession}, "session: expected an aiohttp.ClientSession or None, got type"),
    ],
)
def test_a_wrong_setting_is_named_where_the_endpoint_is_made(maker: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MAKERS[maker](**options)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("variable", ["OPENAI_ORG_ID", "OPENAI_PROJECT_ID"])
def test_an_id_of_the_environment_that_no_header_can_carry_is_named(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv(variable, "org-1\n")
    with pytest.raises(ConfigError, match=f"^{variable}: expected a string on one line"):
        streamco.OpenAIEndpoint("m")


async def test_a_key_function_that_gives_no_key_is_a_mistake_that_no_device_covers() -> None:
    async with ScriptedServer() as server:
        remote = OpenAIEndpoint("m", base_url=server.url, api_key=lambda: None)  # type: ignore[arg-type]
        async with opened(one := device(words(60.0)), remote, policy="both", budget=1.0) as client:
            with pytest.raises(ConfigError, match=r"^api_key: expected a function that returns a string, got one that returns NoneType"):
                await client.chat.completions.create(messages=HELLO)
            assert client.degraded == ()
            assert one.active == 0
        assert server.requests == []


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_a_proxy_that_can_not_be_used_is_named_when_the_client_starts(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for each in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "socks5://127.0.0.1:1080")
    client = Client(device(words(0.0)), OpenAIEndpoint("m", base_url="http://llm.invalid/v1", api_key="k"))
    with pytest.raises(ConfigError, match=f"^{name.upper()}: expected a URL like"):
        await client.start()
    await client.aclose()


class Broken(ScriptedEndpoint):
    """An endpoint with a defect."""

    def open(self, request: Any) -> Any:
        raise ZeroDivisionError("a defect")


async def test_a_defect_is_an_error_and_not_the_failure_of_an_endpoint() -> None:
    async with opened(one := device(words(0.0)), Broken("server"), policy="server-first") as client:
        with pytest.raises(StreamcoError, match=r"^server: expected an event or an EndpointError, got ZeroDivisionError") as caught:
            await client.chat.completions.create(messages=HELLO)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert client.degraded == ()
        assert not one.streams
        stream = client.stream(HELLO)
        with pytest.raises(StreamcoError):
            await tokens_text(stream)


class LateDefect(ScriptedEndpoint):
    """An endpoint whose stream meets a defect after a while."""

    def open(self, request: Any) -> Any:
        stream: Any = super().open(request)
        receive = stream.receive

        async def failing() -> Any:
            await receive()
            raise ZeroDivisionError("a defect")

        stream.receive = failing
        return stream


async def test_what_fails_beside_the_writer_takes_no_answer_away() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    loser = LateDefect("server", words(0.05))
    options: dict[str, Any] = {"policy": "both", "budget": 1.0, "dispatch": Race(explore=1.0)}
    async with Client(device(words(0.0, 0.02, 0.2)), loser, seed=1, **client_options(options)) as client:
        stream = client.stream(HELLO)
        assert await tokens_text(stream) == "w0 w1 w2 "
        (failed,) = [each for each in stream.report.endpoints if each.name == "server"]
        assert "a defect" in (failed.error or "")
    assert [type(each["exception"]) for each in reported] == [ZeroDivisionError]


async def test_a_defect_in_the_middle_keeps_the_text_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = stream_answer(["Hello", " world"], gap=0.05)
    async with ScriptedServer(slow) as server, opened(server=OpenAIEndpoint("m", base_url=server.url)) as client:
        stream = await client.chat.completions.create(messages=HELLO, stream=True)
        monkeypatch.setattr(ChatStreamParser, "feed", lambda *_: 1 / 0)
        with pytest.raises(StreamcoError, match="ZeroDivisionError") as caught:
            await chunks_text(stream)
        assert caught.value.partial == "Hello"
        assert client.degraded == ()
