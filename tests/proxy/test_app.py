"""The proxy as a whole: routes, answers that aren't streamed, who may ask, many requests, embedding."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp
import msgspec
import pytest

from streamco.client.answer import PendingAnswer
from streamco.client.client import Client
from streamco.config import Timeouts
from streamco.endpoints.base import Capabilities, TokenPrices
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import ConfigError, EndpointConnectError
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage, FunctionDelta, ToolCallDelta
from streamco.proxy.app import serving
from streamco.proxy.config import ProxyOptions
from streamco.testing import DONE, Pause, ScriptedResponse, ScriptedServer, chunk_event, json_answer, sse_event, stream_answer
from streamco.testing.engine import FakeEngine
from tests.client.helpers import device, server, words
from tests.proxy.support import CHAT, HELLO, TEXT, proxying
from tests.server.support import until
from tests.support.leaks import alive, without_collector

pytestmark = pytest.mark.usefixtures("no_blocked_loop")

USAGE = CompletionUsage(10, 3, 13)
PRICES = TokenPrices(prompt=1e-6, completion=2e-6)
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


async def test_health_tells_that_it_is_alive_and_how_busy() -> None:
    async with proxying(server=server()) as proxy, proxy.client.get("/health") as response:
        assert await response.json() == {"status": "ok", "model": "streamco", "requests": 0}


async def test_health_is_503_when_the_devices_engine_has_stopped() -> None:
    engine = FakeEngine()
    device = DeviceEndpoint(engine)
    async with Client(device) as client, serving(client, ProxyOptions()) as address, aiohttp.ClientSession() as http:
        async with http.get(address.removesuffix("/v1") + "/health") as response:
            assert response.status == 200
        engine.is_closed = True
        async with http.get(address.removesuffix("/v1") + "/health") as response:
            assert response.status == 503
            assert "closed" in (await response.json())["reason"]


async def test_models_are_the_proxy_itself_and_those_of_its_configuration() -> None:
    async with proxying(server=server(), models=("gpt-4o-mini", "cloud/large")) as proxy:
        async with proxy.client.get("/v1/models") as response:
            listed = await response.json()
        assert [card["id"] for card in listed["data"]] == ["streamco", "gpt-4o-mini", "cloud/large"]
        async with proxy.client.get("/v1/models/cloud/large") as response:
            assert (await response.json())["id"] == "cloud/large"
        async with proxy.client.get("/v1/models/other") as response:
            assert response.status == 404
            assert (await response.json())["error"]["code"] == "model_not_found"


async def test_a_whole_answer_has_message_finish_usage_and_a_report_in_its_headers() -> None:
    side = server([(0.0, "one"), (0.0, " two")], usage=USAGE, prices=PRICES)
    async with proxying(server=side, policy="server-only") as proxy, proxy.client.post(CHAT, json=HELLO) as response:
        body = await response.json()
        told = {name.lower(): value for name, value in response.headers.items() if name.lower().startswith("x-streamco-")}
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "one two", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (10, 3)
    assert told["x-streamco-winner"] == "server"
    assert float(told["x-streamco-ttft-ms"]) >= 0
    assert told["x-streamco-cost-usd"] == "0.000016000"
    assert told["x-streamco-policy"] == "server-only"
    assert told["x-streamco-reason"]


async def test_the_faster_side_answers_and_the_other_is_cancelled() -> None:
    fast, slow = device([(0.0, "near")]), server([(60.0, "far")])
    async with proxying(fast, slow, policy="both") as proxy, proxy.client.post(CHAT, json=HELLO) as response:
        assert (await response.json())["choices"][0]["message"]["content"] == "near"
        assert response.headers["x-streamco-winner"] == "device"
    assert slow.streams[0].is_cancelled


async def test_a_completion_has_its_own_shape_and_goes_out_as_a_message() -> None:
    side = server([(0.0, "one"), (0.0, " two")], usage=USAGE)
    async with proxying(server=side) as proxy:
        status, body = await proxy.post(TEXT, {"prompt": ["Once"], "max_tokens": 7})
    assert status == 200
    assert (body["object"], body["id"]) == ("text_completion", "cmpl-scripted")
    assert body["choices"] == [{"index": 0, "text": "one two", "logprobs": None, "finish_reason": "stop"}]
    request = side.streams[0].request
    assert request.messages == [{"role": "user", "content": "Once"}]
    assert request.sampling.max_tokens == 7


async def test_a_raw_prompt_reaches_the_endpoint_as_it_is() -> None:
    side = server()
    async with proxying(server=side, raw_prompts=True) as proxy:
        await proxy.post(TEXT, {"prompt": "Once"})
    request = side.streams[0].request
    assert (request.prompt, request.messages) == ("Once", None)


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(("asked", "passed"), [(None, None), ("streamco", None), ("gpt-4o-mini", None), ("gpt-9", "gpt-9")])
async def test_another_models_name_is_passed_on(asked: str | None, passed: str | None) -> None:
    side = server()
    async with proxying(server=side, models=("gpt-4o-mini",)) as proxy:
        await proxy.post(CHAT, {**HELLO, "model": asked})
    assert side.streams[0].request.model == passed


async def test_tools_and_fields_nobody_knows_are_passed_on_and_tool_calls_come_back() -> None:
    call = ToolCallDelta(index=0, id="call_1", type="function", function=FunctionDelta(name="weather", arguments='{"city":'))
    rest = ToolCallDelta(index=0, function=FunctionDelta(arguments='"Oslo"}'))
    script = [
        (0.0, ChatCompletionChunk(id="c", model="m", choices=[ChunkChoice(delta=ChoiceDelta(role="assistant", tool_calls=[call]))])),
        (0.0, ChatCompletionChunk(id="c", model="m", choices=[ChunkChoice(delta=ChoiceDelta(tool_calls=[rest]))])),
        (0.0, ChatCompletionChunk(id="c", model="m", choices=[ChunkChoice(finish_reason="tool_calls")])),
    ]
    side = server(script)
    async with proxying(server=side) as proxy:
        _, body = await proxy.post(CHAT, {**HELLO, "tools": [TOOL], "tool_choice": "auto", "brand_new": {"deep": [1]}, "user": None})
    assert dict(side.streams[0].request.extra) == {"tools": [TOOL], "tool_choice": "auto", "brand_new": {"deep": [1]}}
    choice = body["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == [
        {"id": "call_1", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}, "type": "function"}
    ]


async def test_headers_of_a_request_and_fields_named_alike_reach_no_endpoint_as_headers() -> None:
    side = server()
    async with proxying(server=side) as proxy:
        await proxy.post(CHAT, {**HELLO, "extra_headers": {"X-Evil": "1"}}, Authorization="Bearer theirs")
    assert list(side.streams[0].request.headers) == ["X-Client-Request-Id"]  # the proxy's own


async def test_totals_are_those_of_the_client_behind_the_same_key() -> None:
    side = server([(0.0, "one"), (0.0, " two")], usage=USAGE, prices=PRICES)
    async with proxying(server=side, api_key="sk-proxy") as proxy:
        headers = {"Authorization": "Bearer sk-proxy"}
        for stream in (False, True):
            async with proxy.client.post(CHAT, json={**HELLO, "stream": stream}, headers=headers) as response:
                await response.read()
        async with proxy.client.get("/streamco/totals") as response:
            assert response.status == 401
        async with proxy.client.get("/streamco/totals", headers=headers) as response:
            told = await response.json()
        assert told == msgspec.to_builtins(proxy.proxy.client.totals)
    assert (told["answers"], told["complete"]) == (2, 2)
    assert told["cost_usd"] == pytest.approx(2 * (10e-6 + 3 * 2e-6))
    assert told["endpoints"]["server"]["completion_tokens"] == 6


async def test_totals_have_the_answers_that_one_side_alone_may_give() -> None:
    async with proxying(device(), server(), policy="server-only", takes_tasks=True) as proxy:
        for task in ({}, {"x-streamco-task": "title"}, {"x-streamco-task": "tags"}):
            await proxy.post(CHAT, HELLO, **task)
        async with proxy.client.get("/streamco/totals") as response:
            told = await response.json()
    assert (told["answers"], told["complete"]) == (3, 3)
    assert {name: each["won"] for name, each in told["endpoints"].items()} == {"server": 1, "device": 2}


async def test_without_a_key_only_those_who_mean_this_machine_are_answered() -> None:
    async with proxying(server=server()) as proxy:
        status, body = await proxy.post(CHAT, HELLO, Host="attacker.example")
    assert (status, body["error"]["type"]) == (403, "permission_error")


async def test_with_a_key_it_is_asked_for_and_health_is_open() -> None:
    async with proxying(server=server(), api_key="sk-proxy") as proxy:
        assert (await proxy.post(CHAT, HELLO))[0] == 401
        assert (await proxy.post(CHAT, HELLO, Authorization="Bearer sk-proxy"))[0] == 200
        async with proxy.client.get("/health") as response:
            assert response.status == 200


async def test_a_body_that_is_too_large_or_no_json_is_refused() -> None:
    async with proxying(server=server(), max_body_bytes=100) as proxy:
        assert (await proxy.post(CHAT, {**HELLO, "user": "x" * 100}))[0] == 413
        assert (await proxy.post(CHAT, b"{"))[0] == 400
        for kind in ("text/plain", "application/vnd.msgpack"):  # only ``streamco serve`` takes MessagePack
            async with proxy.client.post(CHAT, data=b"{}", headers={"Content-Type": kind}) as response:
                assert response.status == 415


async def test_one_answer_too_many_is_told_to_come_back() -> None:
    side = server([(60.0, "late")])
    async with proxying(server=side, max_streams=1) as proxy:
        first = asyncio.ensure_future(proxy.post(CHAT, HELLO))
        await until(lambda: side.active == 1)
        async with proxy.client.post(CHAT, json=HELLO) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "1")
        first.cancel()
        await until(lambda: proxy.proxy.admission.present == 0)


async def test_a_client_that_leaves_before_its_whole_answer_cancels_both_sides() -> None:
    near, far = device([(60.0, "n")]), server([(60.0, "f")])
    async with proxying(near, far, policy="both") as proxy:
        asking = asyncio.ensure_future(proxy.post(CHAT, HELLO))
        await until(lambda: near.active == 1 and far.active == 1)
        asking.cancel()
        await until(lambda: near.active == 0 and far.active == 0)
        await until(lambda: proxy.proxy.active == 0)
    assert near.streams[0].is_cancelled
    assert far.streams[0].is_cancelled


async def test_closing_the_proxy_ends_waiting_answers_with_503() -> None:
    side = server([(60.0, "late")])
    async with proxying(server=side) as proxy:
        asking = asyncio.ensure_future(proxy.post(CHAT, HELLO))
        await until(lambda: side.active == 1)
        await proxy.proxy.stop()
        status, body = await asking
        assert (status, body["error"]["code"]) == (503, "shutdown")
        assert (await proxy.post(CHAT, HELLO))[0] == 503


async def test_fifty_answers_at_once_each_get_their_own() -> None:
    side = server(words(0.0, 0.01, 0.02))
    async with proxying(server=side) as proxy:
        answers = await asyncio.gather(*(proxy.post(CHAT, HELLO) for _ in range(50)))
    assert {body["choices"][0]["message"]["content"] for _, body in answers} == {"w0 w1 w2 "}


async def test_no_prompt_and_no_key_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    broken = server([(0.0, EndpointConnectError("expected a connection, got it refused"))])
    async with proxying(server=broken, api_key="sk-proxy") as proxy:
        body = {"messages": [{"role": "user", "content": "a private matter"}]}
        assert (await proxy.post(CHAT, body, Authorization="Bearer sk-proxy"))[0] == 502
        assert (await proxy.post(CHAT, b'{"messages": "a private matter"', Authorization="Bearer sk-proxy"))[0] == 400
        assert (await proxy.post(CHAT, body, Authorization="Bearer sk-wrong"))[0] == 401
    for secret in ("private", "sk-proxy", "sk-wrong"):
        assert secret not in caplog.text


async def test_serving_gives_a_base_url_and_refuses_to_be_open_by_accident() -> None:
    async with Client(server=server()) as client:
        async with serving(client) as base_url, aiohttp.ClientSession() as http, http.get(f"{base_url}/models") as response:
            assert base_url.endswith("/v1")
            assert response.status == 200
        with pytest.raises(ConfigError, match="host: expected a loopback address"):
            async with serving(client, ProxyOptions(host="0.0.0.0")):
                pass


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_unknown_model_that_the_device_answers_is_said_in_a_header(*, is_streamed: bool) -> None:
    async with proxying(device(), models=("gpt-4o-mini",)) as proxy:
        for model, note in (("gpt-4o", "device answered with its own model, not with gpt-4o"), ("gpt-4o-mini", None), ("streamco", None)):
            async with proxy.client.post(CHAT, json={**HELLO, "model": model, "stream": is_streamed}) as response:
                assert response.status == 200
                await response.read()
                assert response.headers.get("x-streamco-model-note") == note


async def test_an_unknown_model_that_a_server_answers_is_the_servers_matter() -> None:
    async with proxying(server=server()) as proxy, proxy.client.post(CHAT, json={**HELLO, "model": "gpt-4o"}) as response:
        assert response.status == 200
        assert "x-streamco-model-note" not in response.headers


async def test_unknown_models_are_refused_if_that_is_configured() -> None:
    async with proxying(device(), models=("gpt-4o-mini",), unknown_models="refuse") as proxy:
        async with proxy.client.post(CHAT, json={**HELLO, "model": "gpt-4o"}) as response:
            assert response.status == 404
            error = (await response.json())["error"]
            assert (error["code"], error["param"]) == ("model_not_found", "model")
            assert "expected one of streamco, gpt-4o-mini, got gpt-4o" in error["message"]
        async with proxy.client.post(CHAT, json={**HELLO, "model": "gpt-4o-mini"}) as response:
            assert response.status == 200


async def test_a_failed_server_shows_in_a_header_and_in_health() -> None:
    down = server([(0.0, EndpointConnectError("down", endpoint="server"))])
    async with proxying(device(), down, policy="server-first") as proxy:
        async with proxy.client.post(CHAT, json=HELLO) as response:
            assert response.status == 200
            assert response.headers["x-streamco-notes"] == "server failed (EndpointConnectError): device answered"
        async with proxy.client.get("/health") as response:
            assert response.status == 200
            health = await response.json()
        assert health["status"] == "degraded"
        (listed,) = health["degraded"]
        assert (listed["endpoint"], listed["kind"]) == ("server", "EndpointConnectError")
        assert listed["since"] > 0


LONG = "x" * 900_000


@pytest.mark.parametrize(
    "fields",
    [
        {"model": LONG},
        {LONG: 1},
        {"temperature": LONG},
        {"stop": [LONG, 5]},
        {"response_format": {"type": LONG}},
        {"messages": [{"role": LONG, "content": "Hi"}]},
        {"logit_bias": {LONG: 1}},
    ],
    ids=lambda fields: next(iter(fields))[:15],
)
async def test_neither_errors_nor_headers_nor_notes_echo_what_was_sent(fields: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    async with proxying(device(), unknown_models="refuse") as proxy:
        async with proxy.client.post(CHAT, json={**HELLO, **fields}) as response:
            assert len(await response.read()) < 5000
            assert all(len(value) < 3000 for _, value in response.raw_headers)
        async with proxy.client.get("/health") as response:
            assert len(await response.read()) < 5000
    assert all(len(record.getMessage()) < 5000 for record in caplog.records)


async def test_a_tool_loop_with_reasoning_goes_on_through_the_proxy() -> None:
    """What a provider sends beside OpenAI's fields goes to the caller, and back to the provider in the next request."""
    signed = {"type": "reasoning.text", "index": 0, "text": "It rains.", "signature": "c2ln"}
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"google": {"s": 1}}}
    delta = {"role": "assistant", "reasoning": "It rains.", "reasoning_details": [signed], "tool_calls": [call]}
    steps = [sse_event({"choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}], "citations": ["https://x"]}), DONE]
    async with ScriptedServer(ScriptedResponse(steps=steps), stream_answer()) as upstream:
        remote = OpenAIEndpoint("m", base_url=upstream.url, capabilities=Capabilities(tools=True))
        async with proxying(server=remote) as proxy:
            async with proxy.client.post(CHAT, json=HELLO) as response:
                answer = await response.json()
            message = answer["choices"][0]["message"]
            assert answer["citations"] == ["https://x"]
            assert (message["reasoning"], message["reasoning_details"]) == ("It rains.", [signed])
            messages = [*HELLO["messages"], message, {"role": "tool", "tool_call_id": "c", "content": "yes"}]
            async with proxy.client.post(CHAT, json={"messages": messages}) as response:
                assert response.status == 200
        sent = upstream.requests[1].json()["messages"][1]
    assert sent["reasoning_details"] == [signed]
    assert sent["tool_calls"][0]["extra_content"] == {"google": {"s": 1}}


async def test_an_answer_of_another_api_is_one_bad_gateway_that_names_it() -> None:
    ollama = ScriptedResponse(steps=[b'{"message":{"content":"Hi"},"done":false}\n{"message":{"content":"!"},"done":true}\n'])
    async with ScriptedServer(ollama, ollama, ollama) as upstream:
        async with proxying(server=OpenAIEndpoint("m", base_url=upstream.url)) as proxy, proxy.client.post(CHAT, json=HELLO) as response:
            assert response.status == 502
            message = (await response.json())["error"]["message"]
            assert "got the NDJSON stream of Ollama's /api/chat" in message
            assert "http://127.0.0.1:11434/v1" in message
        assert len(upstream.requests) == 1


async def test_a_limit_on_the_whole_answer_is_a_gateway_timeout() -> None:
    steps = [step for _ in range(500) for step in (chunk_event("x"), Pause(0.02))]
    async with ScriptedServer(ScriptedResponse(steps=steps)) as upstream:
        remote = OpenAIEndpoint("m", base_url=upstream.url, timeouts=Timeouts(total=0.3))
        async with proxying(server=remote) as proxy, proxy.client.post(CHAT, json=HELLO) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (504, "total_timeout")


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"n": 3}, {"stream": True, "n": 3}])
async def test_a_failed_request_is_freed_without_the_collector(fields: dict[str, Any]) -> None:
    refusal = json_answer({"error": {"message": "no"}}, status=400)
    async with ScriptedServer(refusal) as upstream:
        endpoint = OpenAIEndpoint("m", base_url=upstream.url, api_key="", capabilities={"choices": False})
        async with proxying(server=endpoint) as proxy:
            with without_collector():
                before = alive(PendingAnswer)
                for _ in range(3):
                    async with proxy.client.post(CHAT, json={**HELLO, **fields}) as response:
                        assert response.status >= 400
                        await response.read()
                await asyncio.sleep(0.05)
                assert len(alive(PendingAnswer)) <= len(before) + 1, "the connection may hold its last request"
