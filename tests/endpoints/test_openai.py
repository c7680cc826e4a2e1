"""The endpoint: what it sends, what it says of itself, what it finds out, what it keeps to itself."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import subprocess
import sys
import traceback
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from streamco.config import SamplingOptions
from streamco.endpoints.base import Capabilities, Endpoint, EndpointStream, Request, TokenPrices
from streamco.endpoints.known_servers.declared import CapabilityChanges
from streamco.endpoints.known_servers.probe import ServerInfo
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import ConfigError, EndpointConnectError, EndpointError, EndpointStatusError, StreamClosed
from streamco.testing import DONE, RecordedRequest, ScriptedResponse, ScriptedServer, json_answer, sse_event, stream_answer
from tests.endpoints.helpers import HELLO, NO_RETRIES, USAGE, ask, opened, read_all

KEY = "sk-very-secret-0123456789"


def test_it_is_an_endpoint() -> None:
    endpoint: Endpoint = OpenAIEndpoint("m", base_url="http://127.0.0.1:1/v1")
    assert endpoint.kind == "server"
    assert endpoint.name == "127.0.0.1:1/m"


async def test_its_streams_are_endpoint_streams() -> None:
    stream: EndpointStream = OpenAIEndpoint("m", base_url="http://127.0.0.1:1/v1").open(HELLO)
    await stream.cancel()


def test_a_name_prices_and_capabilities_come_from_the_provider_or_the_caller() -> None:
    known = OpenAIEndpoint("gpt-4o-mini", base_url="https://api.openai.com/v1", api_key="k")
    assert known.name == "openai/gpt-4o-mini"
    assert known.prices.prompt == pytest.approx(0.15e-6)
    assert known.capabilities.tools
    emitted = OpenAIEndpoint(
        "m", provider="openai", api_key="k", name="cloud", prices=TokenPrices(prompt=1.0), capabilities=Capabilities(tools=False)
    )
    assert (emitted.name, emitted.prices.prompt, emitted.capabilities.tools) == ("cloud", 1.0, False)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"model": ""}, "model: expected the name of a model"),
        ({"model": "m", "api": "assistants"}, 'api: expected "chat", "completions" or "responses", got .assistants.'),
        ({"model": "m", "provider": "openia"}, "provider: expected one of"),
        ({"model": "m", "base_url": "nonsense"}, "base_url: expected"),
    ],
)
def test_wrong_settings_are_named(arguments: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        OpenAIEndpoint(**arguments)  # type: ignore[arg-type]


# What is sent


async def test_a_chat_request_goes_to_chat_completions() -> None:
    request = Request(
        messages=[{"role": "user", "content": "hi"}],
        sampling=SamplingOptions(temperature=0, max_tokens=9, stop=("\n",)),
        extra={"tools": [], "user": "u"},
        headers={"X-Trace": "1"},
    )
    async with ScriptedServer() as server, opened(server.url, model="big", headers={"X-Team": "a"}) as endpoint:
        await ask(endpoint, request)
        sent = server.requests[0]
        assert (sent.method, sent.path) == ("POST", "/v1/chat/completions")
        assert sent.json() == {
            "messages": [{"role": "user", "content": "hi"}],
            "model": "big",
            "temperature": 0.0,
            "max_tokens": 9,
            "stop": ["\n"],
            "tools": [],
            "user": "u",
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        assert (sent.headers["x-team"], sent.headers["x-trace"]) == ("a", "1")
        assert sent.headers["content-type"] == "application/json"


@pytest.mark.parametrize(("own", "sent"), [(None, 77), (5, 5)])
async def test_the_limit_for_servers_counts_if_a_request_has_no_other(own: int | None, sent: int) -> None:
    async with ScriptedServer() as server, opened(server.url) as endpoint:
        await ask(endpoint, Request(messages=[], sampling=SamplingOptions(max_tokens=own), server_limit=77))
        assert server.requests[-1].json()["max_tokens"] == sent


@pytest.mark.parametrize(
    ("provider", "sent"),
    [("llama-server", -1), ("ollama", -1), ("streamco", -1), ("generic", None), ("vllm", None), ("openai", None), ("mistral", None)],
)
@pytest.mark.parametrize("asked", [Request(messages=[]), Request(prompt_ids=[1])])
async def test_a_limit_of_minus_one_goes_to_the_servers_that_take_it(provider: str, sent: int | None, asked: Request) -> None:
    unlimited = SamplingOptions(is_unlimited=True)
    async with ScriptedServer() as server, opened(server.url, provider=provider, api_key="k") as endpoint:
        await ask(endpoint, replace(asked, sampling=unlimited))
        body = server.requests[-1].json()
        assert body.get("max_tokens", body.get("max_completion_tokens")) == sent
        await ask(endpoint, replace(asked, sampling=unlimited, server_limit=77))
        body = server.requests[-1].json()
        assert body.get("max_tokens", body.get("max_completion_tokens")) == 77, "a budget's limit holds"


async def test_a_request_may_name_another_model() -> None:
    async with ScriptedServer() as server, opened(server.url) as endpoint:
        await ask(endpoint, Request(messages=[], model="other"))
        assert server.requests[0].json()["model"] == "other"


async def test_a_prompt_is_one_user_message_in_the_chat_api() -> None:
    async with ScriptedServer() as server, opened(server.url) as endpoint:
        await ask(endpoint, Request(prompt="hi"))
        assert server.requests[0].json()["messages"] == [{"role": "user", "content": "hi"}]


TEXT = [
    sse_event({"id": "1", "object": "text_completion", "choices": [{"index": 0, "text": "Hel", "finish_reason": None}]}),
    sse_event({"id": "1", "object": "text_completion", "choices": [{"index": 0, "text": "lo", "finish_reason": "length"}]}),
    sse_event({"id": "1", "object": "text_completion", "choices": [], "usage": USAGE}),
    DONE,
]


async def test_a_prompt_is_a_prompt_in_the_completions_api() -> None:
    async with ScriptedServer(ScriptedResponse(steps=TEXT)) as server, opened(server.url, api="completions") as endpoint:
        answered = await ask(endpoint, Request(prompt="hi"))
        assert (server.requests[0].path, server.requests[0].json()["prompt"]) == ("/v1/completions", "hi")
        assert answered.text == "Hello"
        assert answered.end is not None
        assert answered.end.finish_reason == "length"
        assert answered.usage is not None


async def test_token_ids_go_to_the_completions_api() -> None:
    async with ScriptedServer(ScriptedResponse(steps=TEXT)) as server, opened(server.url) as endpoint:
        assert (await ask(endpoint, Request(prompt_ids=[1, 2, 3]))).text == "Hello"
        assert (server.requests[0].path, server.requests[0].json()["prompt"]) == ("/v1/completions", [1, 2, 3])


async def test_chat_messages_for_the_completions_api_are_refused() -> None:
    async with ScriptedServer() as server, opened(server.url, api="completions") as endpoint:
        assert "expected a prompt for the completions API" in str((await ask(endpoint)).failure())
        assert server.requests == []


async def test_what_has_no_json_form_is_the_callers_error() -> None:
    async with ScriptedServer() as server, opened(server.url) as endpoint:
        for content in (object(), "half \ud83d", {"half \ud83d": 1}):
            with pytest.raises(ConfigError, match="request: expected values that JSON has a form for"):
                await endpoint.open(Request(messages=[{"role": "user", "content": content}])).receive()
        with pytest.raises(ConfigError, match=r'^headers\["X-User"\]: expected a string on one line'):
            await endpoint.open(Request(messages=[], headers={"X-User": "a\nb"})).receive()
        assert server.requests == []


async def test_a_large_prompt_is_sent_whole() -> None:
    content = "é" * (1 << 20)
    async with ScriptedServer() as server, opened(server.url) as endpoint:
        assert (await ask(endpoint, Request(messages=[{"role": "user", "content": content}]))).text == "Hello world"
        assert server.requests[0].json()["messages"][0]["content"] == content


async def test_a_large_prompt_is_sent_whole_again_after_a_redirect_and_a_retry() -> None:
    content = "x" * (2 << 20)
    redirect = ScriptedResponse(status=307, headers={"Location": "/v1/other"}, framing="length")
    async with ScriptedServer(redirect, json_answer({}, status=503), stream_answer()) as server, opened(server.url) as endpoint:
        assert (await ask(endpoint, Request(messages=[{"role": "user", "content": content}]))).text == "Hello world"
        assert [len(request.body) for request in server.requests] == [len(server.requests[0].body)] * 3


# Providers


async def test_mistral_is_not_sent_what_it_refuses() -> None:
    async with ScriptedServer() as server, opened(server.url, provider="mistral", api_key="k") as endpoint:
        await ask(endpoint, Request(messages=[], sampling=SamplingOptions(max_tokens=5)))
        body = server.requests[0].json()
        assert "stream_options" not in body
        assert body["max_tokens"] == 5


async def test_openai_is_sent_max_completion_tokens() -> None:
    async with ScriptedServer() as server, opened(server.url, provider="openai", api_key="k") as endpoint:
        await ask(endpoint, Request(messages=[], sampling=SamplingOptions(max_tokens=5)))
        assert server.requests[0].json()["max_completion_tokens"] == 5
        assert server.requests[0].headers["authorization"] == "Bearer k"


async def test_azure_gets_its_key_header_deployment_and_version() -> None:
    async with ScriptedServer() as server, opened(server.url.removesuffix("/v1"), provider="azure", api_key="k", model="prod") as endpoint:
        await ask(endpoint)
        sent = server.requests[0]
        assert sent.path == "/openai/deployments/prod/chat/completions?api-version=2024-10-21"
        assert sent.headers["api-key"] == "k"
        assert "authorization" not in sent.headers


async def test_a_refused_field_is_left_out_at_once_and_from_then_on() -> None:
    def strict(request: RecordedRequest) -> ScriptedResponse:
        if "stream_options" in request.json():
            detail = [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}]
            return json_answer({"detail": detail}, status=422)
        return stream_answer()

    async with ScriptedServer(strict) as server, opened(server.url, retry=NO_RETRIES) as endpoint:
        assert (await ask(endpoint)).text == "Hello world"
        assert (await ask(endpoint)).text == "Hello world"
        assert ["stream_options" in request.json() for request in server.requests] == [True, False, False]


REFUSALS = [
    (
        422,
        {
            "detail": [
                {"type": "extra_forbidden", "loc": ["body", "messages", 1, "assistant", "{}"], "msg": "Extra inputs are not permitted"}
            ]
        },
    ),
    (400, {"error": {"message": "Additional properties are not allowed ('{}' was unexpected) - 'messages.1'"}}),  # OpenAI
    (400, {"error": {"message": "'messages.1' : property '{}' is unsupported"}}),  # Groq
]


@pytest.mark.parametrize(("status", "body"), REFUSALS)
async def test_a_message_field_of_another_provider_is_left_out_once_it_is_refused(status: int, body: Any) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "a", "reasoning_content": "b", "annotations": [], "token": "keep"},
        {"role": "user", "content": "more", "reasoning_content": "of the caller"},
    ]

    def strict(request: RecordedRequest) -> ScriptedResponse:
        for name in ("reasoning_content", "annotations"):
            if name in request.json()["messages"][1]:
                return json_answer(json.loads(json.dumps(body).replace("{}", name)), status=status)
        return stream_answer()

    async with ScriptedServer(strict) as server, opened(server.url, retry=NO_RETRIES) as endpoint:
        stream = endpoint.open(Request(messages=messages))
        assert (await read_all(stream)).text == "Hello world"
        assert "annotations" in stream.changes["message fields"]
        assert (await ask(endpoint, Request(messages=messages))).text == "Hello world"
        assert len(server.requests) == 4
        assert server.requests[-1].json()["messages"] == [messages[0], {"role": "assistant", "content": "a", "token": "keep"}, messages[2]]


@pytest.mark.parametrize("messages", ["text", ["text"], {"role": "assistant"}, None, 5])
async def test_messages_of_a_wrong_type_are_the_servers_to_refuse(messages: Any) -> None:
    refused = json_answer({"error": {"message": "invalid type of messages"}}, status=400)
    async with ScriptedServer(refused) as server, opened(server.url, retry=NO_RETRIES) as endpoint:
        error = (await ask(endpoint, Request(messages=[], extra={"messages": messages}))).failure()
        assert isinstance(error, EndpointStatusError)
        assert len(server.requests) == 1


async def test_a_refused_field_that_the_caller_adds_to_the_body_is_not_asked_for_again_and_again() -> None:
    refused = json_answer({"error": {"message": "property 'odd' is unsupported"}}, status=400)
    extra = {"messages": [{"role": "assistant", "content": "a", "odd": "b"}]}
    async with ScriptedServer(refused) as server, opened(server.url, retry=NO_RETRIES) as endpoint:
        assert isinstance((await ask(endpoint, Request(messages=[], extra=extra))).failure(), EndpointStatusError)
        assert len(server.requests) == 2


async def test_a_server_that_refuses_a_field_under_either_name_is_not_asked_for_ever() -> None:
    def stubborn(request: RecordedRequest) -> ScriptedResponse:
        field = "max_tokens" if "max_tokens" in request.json() else "max_completion_tokens"
        text = f"Unsupported parameter: '{field}'. Neither max_tokens nor max_completion_tokens is supported."
        return json_answer({"error": {"message": text}}, status=400)

    async with ScriptedServer(stubborn) as server, opened(server.url) as endpoint:
        error = (await ask(endpoint, Request(messages=[], sampling=SamplingOptions(max_tokens=5)))).failure()
        assert isinstance(error, EndpointStatusError)
        assert len(server.requests) == 4


# Keys


async def test_the_key_is_sent_and_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    echo = {"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}}
    cases = [
        json_answer(echo, status=401),
        ScriptedResponse(steps=[sse_event(echo)]),
        json_answer(echo),
        ScriptedResponse(steps=[b"nonsense " + KEY.encode()]),
    ]
    async with ScriptedServer() as server, opened(server.url, api_key=KEY, retry=NO_RETRIES) as endpoint:
        shown = [repr(endpoint), str(vars(endpoint)["_client"])]
        for case in cases:
            server.script(case)
            error = (await ask(endpoint)).failure()
            shown += [str(error), repr(error), "".join(traceback.format_exception(error)), getattr(error, "body", "")]
        server.script(json_answer(echo, status=401))
        with pytest.raises(EndpointStatusError) as info:
            await endpoint.models()
        shown += [str(info.value), info.value.body]
        assert all(request.headers["authorization"] == f"Bearer {KEY}" for request in server.requests)
    shown.append(caplog.text)
    assert not [text for text in shown if KEY in text]


# Finding out


async def test_models_lists_their_ids() -> None:
    async with ScriptedServer() as server, opened(server.url) as endpoint:
        server.route("/v1/models", json_answer({"data": [{"id": "a"}, {"id": "b"}]}))
        assert await endpoint.models() == ["a", "b"]
        assert server.requests[0].method == "GET"


async def test_probing_a_vllm_server_teaches_its_capabilities_and_context() -> None:
    async with ScriptedServer(json_answer({"detail": "Not Found"}, status=404)) as server, opened(server.url) as endpoint:
        assert endpoint.capabilities == Capabilities(tools=True, json_schema=True, images=True, choices=True)
        server.route("/v1/models", json_answer({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 2048}]}))
        server.route("/version", json_answer({"version": "0.32.0"}))
        info = await endpoint.probe()
        assert info == ServerInfo(kind="vllm", models=("m",), context_tokens=2048, version="0.32.0")
        assert endpoint.capabilities.continuation == "continue_final_message"
        assert endpoint.capabilities.takes_token_ids
        assert endpoint.capabilities.context_tokens == 2048


async def test_probing_llama_cpp_pythons_server_drops_the_field_it_does_not_know() -> None:
    async with ScriptedServer(stream_answer()) as server, opened(server.url) as endpoint:
        server.route("/v1/models", json_answer({"data": [{"id": "m", "owned_by": "me"}]}))
        for path in ("/props", "/version", "/get_model_info", "/api/version"):
            server.route(path, json_answer({}, status=404))
        assert (await endpoint.probe()).kind == "llama-cpp-python"
        await ask(endpoint)
        assert "stream_options" not in server.requests[-1].json()


async def test_single_abilities_change_what_is_known_before_and_after_a_probe() -> None:
    async with ScriptedServer(json_answer({}, status=404)) as server, opened(server.url, capabilities={"tools": False}) as endpoint:
        assert endpoint.capabilities == Capabilities(json_schema=True, images=True, choices=True)
        server.route("/v1/models", json_answer({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 2048}]}))
        await endpoint.probe()
        assert (endpoint.capabilities.tools, endpoint.capabilities.images, endpoint.capabilities.context_tokens) == (False, True, 2048)
        assert endpoint.capabilities.continuation == "continue_final_message"
    responses = OpenAIEndpoint("m", base_url="http://127.0.0.1:1/v1", api="responses", provider="vllm", capabilities={"choices": True})
    assert responses.capabilities.choices
    assert responses.capabilities.continuation == "none"


async def test_single_abilities_are_not_overruled_by_a_probe() -> None:
    declared: CapabilityChanges = {"continuation": "none", "vocabulary": None}
    async with ScriptedServer(json_answer({}, status=404)) as server, opened(server.url, capabilities=declared) as endpoint:
        endpoint._apply(ServerInfo(kind="streamco", vocabulary="abc", vocabulary_size=9, context_tokens=64))
        assert (endpoint.capabilities.continuation, endpoint.capabilities.vocabulary) == ("none", None)
        assert (endpoint.capabilities.pre_copy, endpoint.capabilities.context_tokens) == ("append", 64)


async def test_what_was_declared_is_not_overruled_by_a_probe() -> None:
    declared = Capabilities(tools=True, context_tokens=100)
    async with ScriptedServer(json_answer({}, status=404)) as server, opened(server.url, capabilities=declared) as endpoint:
        server.route("/v1/models", json_answer({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 2048}]}))
        await endpoint.probe()
        assert endpoint.capabilities == declared


async def test_a_probe_without_an_answer_is_an_error() -> None:
    async with ScriptedServer() as server:
        url = server.url
    async with opened(url) as endpoint:
        with pytest.raises(EndpointConnectError):
            await endpoint.probe()


async def test_a_probe_that_gets_no_json_says_so() -> None:
    async with ScriptedServer(ScriptedResponse(steps=[b"<html>"])) as server, opened(server.url) as endpoint:
        with pytest.raises(EndpointError, match="expected JSON from"):
            await endpoint.models()


# Life


async def test_starting_is_idempotent_and_sends_nothing() -> None:
    async with ScriptedServer() as server:
        endpoint = OpenAIEndpoint("m", base_url=server.url)
        await asyncio.gather(*(endpoint.start() for _ in range(5)))
        assert server.connections_total == 0
        await endpoint.aclose()


async def test_a_request_starts_what_was_not_started() -> None:
    async with ScriptedServer() as server:
        endpoint = OpenAIEndpoint("m", base_url=server.url)
        assert (await read_all(endpoint.open(HELLO))).text == "Hello world"
        await endpoint.aclose()


async def test_a_closed_endpoint_can_not_start() -> None:
    endpoint = OpenAIEndpoint("m", base_url="http://127.0.0.1:1/v1")
    await endpoint.aclose()
    with pytest.raises(StreamClosed):
        await endpoint.start()


async def test_a_stream_that_was_never_used_is_forgotten() -> None:
    async with ScriptedServer() as server, opened(server.url) as endpoint:
        for _ in range(10):
            endpoint.open(HELLO)
        gc.collect()
        assert not endpoint._answers.get().streams


async def test_a_session_of_the_callers_is_used_and_left_open() -> None:
    async with ScriptedServer() as server, aiohttp.ClientSession(headers={"X-Mine": "1"}) as session:
        async with opened(server.url, session=session) as endpoint:
            assert (await ask(endpoint)).text == "Hello world"
        assert not session.closed
        assert server.requests[0].headers["x-mine"] == "1"


async def test_the_environments_proxy_is_used_for_remote_hosts_and_not_for_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer() as proxy, ScriptedServer() as server:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        async with opened(server.url) as endpoint:
            assert (await ask(endpoint)).text == "Hello world"
        async with opened("http://llm.invalid/v1", api_key="k") as endpoint:
            assert (await ask(endpoint)).text == "Hello world"
        assert len(server.requests) == len(proxy.requests) == 1
        assert proxy.requests[0].path == "http://llm.invalid/v1/chat/completions"


async def test_two_ports_of_one_host_may_have_different_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer() as proxy, ScriptedServer() as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("ALL_PROXY", f"127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", f"0.0.0.0/8:{server.port}")
        async with opened(f"http://0.0.0.0:{server.port}/v1", api_key="k") as endpoint:  # not the loopback by name
            assert (await ask(endpoint)).text == "Hello world"
            assert (len(server.requests), len(proxy.requests)) == (1, 0)
        async with opened("http://0.0.0.0:9/v1", api_key="k") as endpoint:
            assert (await ask(endpoint)).text == "Hello world"
            assert (len(server.requests), len(proxy.requests)) == (1, 1)


async def test_a_socks_proxy_is_a_wrong_setting_and_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer() as server:
        monkeypatch.setenv("HTTP_PROXY", f"socks5://127.0.0.1:{server.port}")
        monkeypatch.setenv("http_proxy", f"socks5://127.0.0.1:{server.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        endpoint = OpenAIEndpoint("m", base_url="http://llm.invalid/v1", api_key="k")
        for asks in (endpoint.start, lambda: ask(endpoint), endpoint.models):
            with pytest.raises(ConfigError, match=r"HTTP_PROXY: expected a URL like .* got 'socks5://"):
                await asks()
        await endpoint.aclose()
        assert server.requests == []


def test_making_an_endpoint_imports_no_http_library() -> None:
    code = (
        "import sys; from streamco.endpoints.openai import OpenAIEndpoint; OpenAIEndpoint('m', base_url='http://127.0.0.1:1/v1');"
        "print(sorted(name for name in ('aiohttp', 'yarl', 'tiktoken', 'numpy', 'llama_cpp') if name in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_endpoints_that_start_at_once_wait_for_no_import_in_the_loop() -> None:
    code = """
import asyncio
from blockbuster import blockbuster_ctx
from streamco.endpoints.openai import OpenAIEndpoint

async def main():
    endpoints = [OpenAIEndpoint("m", base_url="http://127.0.0.1:1/v1", name=name) for name in "abc"]
    with blockbuster_ctx():
        await asyncio.gather(*(endpoint.start() for endpoint in endpoints))
    await asyncio.gather(*(endpoint.aclose() for endpoint in endpoints))

asyncio.run(main())
print("started")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "started", result.stderr


def test_counting_tokens_needs_no_network_and_no_start() -> None:
    endpoint = OpenAIEndpoint("m", base_url="http://127.0.0.1:1/v1")
    assert endpoint.estimate_tokens(HELLO) == 3 + 3 + 1 + 1
    assert endpoint.count_tokens(HELLO) is None, "an estimate is no count"
    image = Request(messages=[{"role": "user", "content": [{"type": "image_url"}]}])
    assert endpoint.count_tokens(image) is endpoint.estimate_tokens(image) is None
    assert endpoint.count_tokens(Request(prompt_ids=[1, 2])) == 2


def test_one_process_may_run_several_loops_with_an_endpoint_each() -> None:
    async def once() -> str:
        async with ScriptedServer() as server, opened(server.url) as endpoint:
            return (await ask(endpoint)).text

    assert [asyncio.run(once()) for _ in range(2)] == ["Hello world"] * 2
