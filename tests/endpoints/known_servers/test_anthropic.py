"""AnthropicEndpoint: what it sends, what it reads, what it can't do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamco.client.client import Client
from streamco.config import SamplingOptions, Timeouts
from streamco.endpoints.base import Capabilities, Endpoint, Request
from streamco.endpoints.known_servers.anthropic import AnthropicEndpoint
from streamco.errors import ConfigError, EndpointError, EndpointProtocolError, EndpointStatusError
from streamco.openai_types import CompletionUsage, PromptTokensDetails
from streamco.server.app import ServeOptions, serving
from streamco.testing import Cut, ScriptedResponse, ScriptedServer, json_answer, stream_answer
from streamco.testing.engine import FakeEngine
from tests.endpoints.helpers import NO_RETRIES, QUICK_RETRIES, ask
from tests.wire.recorded import recordings
from tests.wire.test_event_stream_parser import START, STOP, delta, event

KEY = "sk-ant-very-secret"


def streamed(*steps: Any) -> ScriptedResponse:
    return ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=steps)


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[AnthropicEndpoint]:
    options.setdefault("retry", QUICK_RETRIES)
    limits = Timeouts(connect=5, first_token=5, next_token=5, socket=5, cancel=1)
    endpoint = AnthropicEndpoint("claude", base_url=url, api_key=KEY, name="far", timeouts=limits, **options)
    try:
        await endpoint.start()
        yield endpoint
    finally:
        await endpoint.aclose()


def test_it_is_an_endpoint() -> None:
    endpoint: Endpoint = AnthropicEndpoint("claude", api_key=KEY)
    assert (endpoint.name, endpoint.kind) == ("anthropic/claude", "server")
    assert AnthropicEndpoint("claude", api_key=KEY).provider == "anthropic"
    assert endpoint.capabilities == Capabilities(tools=True, json_schema=True, images=True)
    assert KEY not in repr(endpoint)


async def test_the_limit_for_servers_takes_the_place_of_its_own() -> None:
    async with ScriptedServer(streamed(START, delta("Hi"), STOP)) as server, opened(server.url) as endpoint:
        await ask(endpoint, Request(messages=[{"role": "user", "content": "Hi"}], server_limit=77))
        assert server.requests[0].json()["max_tokens"] == 77


def test_address_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    with pytest.raises(ConfigError, match="api_key: expected a key, got none; set ANTHROPIC_API_KEY"):
        AnthropicEndpoint("claude")
    assert AnthropicEndpoint("claude", api_key=KEY).base_url == "https://api.anthropic.com/v1"
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://gateway.example")
    assert AnthropicEndpoint("claude").base_url == "https://gateway.example/v1"


async def test_a_key_of_the_environment_is_not_for_a_server_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    async with ScriptedServer(streamed(START, delta("Hi"), STOP)) as server:
        endpoint = AnthropicEndpoint("claude", base_url=server.url)
        assert (await ask(endpoint)).text == "Hi"
        await endpoint.aclose()
    assert KEY not in str(server.requests[0].headers)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_tokens": 0}, "max_tokens: expected an integer >= 1, got 0"),
        ({"max_tokens": "5"}, "max_tokens: expected an integer >= 1, got '5'"),
        ({"base_url": "nonsense"}, "base_url: expected a URL"),
        ({"base_url": "http://[::1:8000/v1"}, "base_url: expected a URL"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        AnthropicEndpoint("claude", api_key=KEY, **options)


async def test_a_request_goes_to_its_path_with_its_headers_and_the_answer_comes_as_chunks() -> None:
    request = Request(
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}],
        sampling=SamplingOptions(stop=("END",)),
        model="claude-2",
    )
    async with ScriptedServer(streamed(START, delta("Hi"), STOP)) as server, opened(server.url, max_tokens=50) as endpoint:
        answered = await ask(endpoint, request)
    (sent,) = server.requests
    assert (sent.path, sent.headers["x-api-key"], sent.headers["anthropic-version"]) == ("/v1/messages", KEY, "2023-06-01")
    assert "authorization" not in sent.headers
    assert sent.json() == {
        "model": "claude-2",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 50,
        "stop_sequences": ["END"],
        "stream": True,
    }
    assert (answered.text, answered.usage) == ("Hi", CompletionUsage(3, 5, 8, PromptTokensDetails(cached_tokens=0)))


async def test_headers_of_the_caller_go_before_its_own() -> None:
    headers = {"authorization": "Bearer other", "anthropic-beta": "x"}
    async with ScriptedServer(streamed(START, delta("Hi"), STOP)) as server, opened(server.url, headers=headers) as endpoint:
        await ask(endpoint)
    sent = server.requests[0].headers
    assert (sent["authorization"], sent["anthropic-beta"]) == ("Bearer other", "x")


async def test_recorded_answers_are_read_over_a_socket() -> None:
    found = recordings(apis=("messages",))[:6]
    bodies = [ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=[recording.body]) for recording in found]
    async with ScriptedServer(*bodies) as server, opened(server.url) as endpoint:
        answers = [await ask(endpoint) for _ in found]
    assert all(answer.error is None and answer.usage is not None for answer in answers)


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (json_answer({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}, status=400), EndpointStatusError),
        (json_answer({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, status=529), EndpointStatusError),
        (streamed(START, delta("Hi"), Cut()), EndpointError),
        (streamed(START, event("error", error={"type": "overloaded_error", "message": "busy"})), EndpointStatusError),
        (stream_answer(["chat"]), EndpointProtocolError),
    ],
)
async def test_failures_are_the_usual_errors(response: ScriptedResponse, kind: type[EndpointError]) -> None:
    async with ScriptedServer(response) as server, opened(server.url, retry=NO_RETRIES) as endpoint:
        answered = await ask(endpoint)
    assert isinstance(answered.failure(), kind)
    assert KEY not in str(answered.failure())


async def test_a_busy_server_is_asked_again() -> None:
    busy = json_answer({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, status=529)
    async with ScriptedServer(busy, streamed(START, delta("Hi"), STOP)) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
    assert (answered.text, len(server.requests)) == ("Hi", 2)


async def test_a_message_without_a_form_is_refused_before_anything_is_sent() -> None:
    async with ScriptedServer() as server, opened(server.url) as endpoint:
        answered = await ask(endpoint, Request(messages=[{"role": "user", "content": [{"type": "input_audio"}]}]))
    assert "expected parts of type text or image_url, got 'input_audio'" in str(answered.failure())
    assert not server.requests


async def test_a_client_reads_it_like_every_server() -> None:
    async with (
        serving(FakeEngine("one two three"), ServeOptions(api_key=KEY)) as url,
        Client(None, AnthropicEndpoint("fake", base_url=url, api_key=KEY), seed=1) as client,
    ):
        stream = await client.chat.completions.create(messages=[{"role": "user", "content": "Hello"}], stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        report = stream.report
    assert (text, report.finish_reason, report.winner) == ("one two three", "stop", "anthropic/fake")
    assert report.usage.completion_tokens == 3
    assert not report.usage.is_estimated
