"""The Responses API and the Messages API in front of a client: what goes to the servers, and how their answers come out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from streamco.endpoints.base import Capabilities, Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.known_servers.anthropic import AnthropicEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import EndpointConnectError, EndpointError, EndpointProtocolError, EndpointStatusError, EngineError, PromptError
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage, FunctionDelta, ToolCallDelta
from streamco.testing.endpoint import text_chunk
from streamco.testing.engine import FakeEngine
from tests.client.helpers import device, server, words
from tests.proxy.support import proxying
from tests.server.support import next_event, until
from tests.support.named_events import build_message, build_response, read_named

pytestmark = pytest.mark.usefixtures("no_blocked_loop")

RESPONSES, MESSAGES, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "Hi"}]
ASKED: dict[str, Any] = {"max_tokens": 100, "messages": HI}
USAGE = CompletionUsage(10, 3, 13)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def piece(**delta: Any) -> ChatCompletionChunk:
    return ChatCompletionChunk(id="c", model="m", choices=[ChunkChoice(delta=ChoiceDelta(**delta))])


def calling() -> list[tuple[float, Any]]:
    """Thinks, and then calls two tools."""
    calls = [
        ToolCallDelta(index=0, id="call_1", type="function", function=FunctionDelta(name="weather", arguments="")),
        ToolCallDelta(index=0, function=FunctionDelta(arguments='{"city":')),
        ToolCallDelta(index=0, function=FunctionDelta(arguments='"Oslo"}')),
        ToolCallDelta(index=1, id="call_2", type="function", function=FunctionDelta(name="time", arguments="{}")),
    ]
    chunks = [piece(role="assistant"), piece(reasoning_content="hm"), *(piece(tool_calls=[each]) for each in calls)]
    return [(0.0, each) for each in (*chunks, text_chunk("", finish_reason="tool_calls"))]


async def test_a_response_streamed_with_the_report_before_its_last_event() -> None:
    async with proxying(server=server(words(0, 0), usage=USAGE)) as proxy:
        async with proxy.client.post(RESPONSES, json={"input": "Hi", "stream": True}) as response:
            assert response.headers["x-streamco-winner"] == "server"
            body = await response.read()
        _, whole = await proxy.post(RESPONSES, {"input": "Hi"})
    events = read_named(body)
    assert build_response(events).parts == [("message", "w0 w1 ")]
    final = events[-1][1]["response"]
    assert (final["status"], final["model"]) == ("completed", "scripted")
    assert (final["usage"]["input_tokens"], final["usage"]["output_tokens"]) == (10, 3)
    blocks = body.decode().split("\n\n")
    assert blocks[-3].startswith(': streamco {"')
    assert blocks[-2].startswith("event: response.completed")
    assert {name: whole[name] for name in ("usage", "status", "model")} == {name: final[name] for name in ("usage", "status", "model")}
    assert whole["id"].startswith("resp_")
    assert whole["id"] != final["id"]


async def test_a_message_streamed_with_the_report_in_it() -> None:
    async with proxying(server=server(words(0, 0), usage=USAGE)) as proxy:
        async with proxy.client.post(MESSAGES, json={**ASKED, "stream": True}) as response:
            body = await response.read()
        async with proxy.client.post(MESSAGES, json=ASKED) as response:
            assert response.headers["x-streamco-winner"] == "server"
            whole = await response.json()
    events = read_named(body)
    assert build_message(events).parts == [("text", "w0 w1 ")]
    assert events[-2][1] == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 3},
    }
    assert b"\n: streamco {" in body
    assert (whole["content"], whole["usage"]) == ([{"type": "text", "text": "w0 w1 "}], events[-2][1]["usage"])


async def test_thinking_and_tools_pass_both_ways() -> None:
    side = server(calling(), usage=USAGE)
    tool = {"name": "weather", "description": "at a place", "input_schema": SCHEMA}
    asked = {**ASKED, "tools": [tool], "tool_choice": {"type": "any"}, "thinking": {"type": "enabled", "budget_tokens": 2000}}
    async with proxying(server=side) as proxy:
        async with proxy.client.post(MESSAGES, json={**asked, "stream": True}) as response:
            built = build_message(read_named(await response.read()))
        _, whole = await proxy.post(MESSAGES, asked)
    assert built.parts == [("thinking", "hm")]
    assert built.calls == [("weather", '{"city":"Oslo"}'), ("time", "{}")]
    assert whole["content"][1:] == [
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}},
        {"type": "tool_use", "id": "call_2", "name": "time", "input": {}},
    ]
    assert whole["stop_reason"] == "tool_use"
    sent = side.streams[0].request
    assert sent.extra["tools"] == [{"type": "function", "function": {"name": "weather", "description": "at a place", "parameters": SCHEMA}}]
    assert (sent.extra["tool_choice"], sent.extra["reasoning_effort"], sent.sampling.max_tokens) == ("required", "low", 100)


async def test_calls_and_their_results_come_back_as_chat_messages() -> None:
    side = server(calling(), usage=USAGE)
    tools = [{"type": "function", "name": "weather", "parameters": SCHEMA}]
    async with proxying(server=side) as proxy:
        _, first = await proxy.post(RESPONSES, {"input": "Weather?", "tools": tools})
        outputs = [{"type": "function_call_output", "call_id": f"call_{number}", "output": "x"} for number in (1, 2)]
        history = [{"role": "user", "content": "Weather?"}, *first["output"], *outputs]
        status, _ = await proxy.post(RESPONSES, {"input": history, "tools": tools})
    assert status == 200
    sent = list(side.streams[1].request.messages or ())
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool"]
    assert sent[1]["reasoning_content"] == "hm"
    assert [call["function"]["name"] for call in sent[1]["tool_calls"]] == ["weather", "time"]
    assert sent[3] == {"role": "tool", "tool_call_id": "call_2", "content": "x"}


async def test_a_whole_message_with_arguments_that_are_no_json_is_a_bad_gateway() -> None:
    bad = ToolCallDelta(index=0, id="call_1", function=FunctionDelta(name="f", arguments="{x"))
    side = server([(0.0, piece(tool_calls=[bad])), (0.0, text_chunk("", finish_reason="tool_calls"))])
    async with proxying(server=side) as proxy:
        status, answer = await proxy.post(MESSAGES, ASKED)
    assert (status, answer["error"]["type"]) == (502, "api_error")
    assert answer["error"]["message"] == "tool call f: expected arguments that are a JSON object, got other text"


async def test_the_device_answers_what_it_can() -> None:
    near, far = device([(0.0, "D")]), server([(60.0, "S")])
    async with proxying(near, far, policy="both") as proxy:
        _, message = await proxy.post(MESSAGES, {**ASKED, "system": "Be brief.", "metadata": {"user_id": "u"}, "top_k": 5})
        _, response = await proxy.post(RESPONSES, {"input": HI, "store": True, "metadata": {"a": "b"}})
    assert message["content"] == [{"type": "text", "text": "D"}]
    assert response["output"][0]["content"][0]["text"] == "D"


async def test_a_failure_in_mid_stream_is_the_apis_own_event_and_nothing_comes_after_it() -> None:
    script = [(0.0, "Half"), (0.0, EndpointProtocolError("cut"))]
    async with proxying(server=server(script)) as proxy:
        async with proxy.client.post(RESPONSES, json={"input": "Hi", "stream": True}) as response:
            events = read_named(await response.read())
        async with proxy.client.post(MESSAGES, json={**ASKED, "stream": True}) as response:
            others = read_named(await response.read())
    assert [name for name, _ in events[-2:]] == ["error", "response.failed"]
    assert (events[-2][1]["message"], events[-2][1]["code"]) == ("server: cut", "endpoint_failed")
    assert events[-1][1]["response"]["status"] == "failed"
    assert others[-1] == ("error", {"type": "error", "error": {"type": "api_error", "message": "server: cut"}})


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(
    ("path", "error", "expected"),
    [
        (RESPONSES, EndpointStatusError("got 429", status=429, retry_after=2.0), (429, "rate_limit_error", None)),
        (RESPONSES, PromptError("too long"), (400, "invalid_request_error", "input")),
        (MESSAGES, EndpointStatusError("got 429", status=429, retry_after=2.0), (429, "rate_limit_error", None)),
        (MESSAGES, EndpointStatusError("got 401", status=401), (502, "api_error", None)),
        (MESSAGES, EndpointStatusError("got 529", status=529), (529, "overloaded_error", None)),
        (MESSAGES, EndpointConnectError("refused"), (502, "api_error", None)),
        (MESSAGES, EngineError("out of memory"), (500, "api_error", None)),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_failure_before_the_first_token_has_a_status(
    path: str, error: EndpointError, expected: tuple[int, str, str | None], is_streamed: bool
) -> None:
    body = {**(ASKED if path == MESSAGES else {"input": "Hi"}), "stream": is_streamed}
    async with proxying(server=server([(0.0, error)])) as proxy, proxy.client.post(path, json=body) as response:
        found = (await response.json())["error"]
        assert (response.status, found["type"], found.get("param")) == expected
        assert ("Retry-After" in response.headers) == (response.status == 429)
    assert "server: " in found["message"]


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        (RESPONSES, {"input": "Hi", "temperature": 9}, "temperature: expected 0 to 2, got 9"),
        (RESPONSES, {"input": "Hi", "previous_response_id": "resp_1"}, "previous_response_id: expected none, got some"),
        (RESPONSES, {"input": "Hi", "tools": [{"type": "web_search"}]}, "tools[0].type: expected function or namespace, got web_search"),
        (RESPONSES, {"input": "Hi", "model": 5}, "model: expected a name, got a number"),
        (MESSAGES, {**ASKED, "stop_sequences": [""]}, "stop_sequences: expected a string or a list of strings that are not empty"),
        (MESSAGES, {**ASKED, "messages": [*HI, {"role": "assistant", "content": "It"}]}, "messages: expected a user's message or a tool's"),
        (MESSAGES, {"messages": HI}, "max_tokens: expected an integer >= 1, got none"),
        (COUNT, {"messages": []}, "messages: expected at least one message, got none"),
    ],
)
async def test_a_wrong_field_is_refused_under_the_apis_own_name(path: str, body: dict[str, Any], text: str) -> None:
    side = server()
    async with proxying(server=side) as proxy:
        status, answer = await proxy.post(path, body)
    assert (status, answer["error"]["message"][: len(text)]) == (400, text)
    assert not side.streams


async def test_an_unknown_model_is_refused_if_it_should_be() -> None:
    async with proxying(server=server(), unknown_models="refuse") as proxy:
        assert (await proxy.post(RESPONSES, {"input": "Hi", "model": "other"}))[0] == 404
        status, answer = await proxy.post(MESSAGES, {**ASKED, "model": "other"})
    assert (status, answer["error"]["type"]) == (404, "not_found_error")


async def test_another_model_goes_to_the_servers_by_its_name() -> None:
    side = server()
    async with proxying(server=side) as proxy:
        await proxy.post(MESSAGES, {**ASKED, "model": "claude-sonnet"})
        await proxy.post(RESPONSES, {"input": "Hi", "model": "streamco"})
    assert [stream.request.model for stream in side.streams] == ["claude-sonnet", None]


async def test_silence_is_filled_before_and_between_tokens() -> None:
    side = server([(0.2, "one"), (0.4, "two")])
    async with proxying(server=side, keepalive=0.05) as proxy:
        async with proxy.client.post(MESSAGES, json={**ASKED, "stream": True}) as response:
            blocks = (await response.text()).split("\n\n")
        async with proxy.client.post(RESPONSES, json={"input": "Hi", "stream": True}) as response:
            others = (await response.text()).split("\n\n")
    start = next(index for index, block in enumerate(blocks) if block.startswith("event: message_start"))
    assert start > 0
    assert set(blocks[:start]) == {": keep-alive"}
    assert 'event: ping\ndata: {"type":"ping"}' in blocks[start:]
    assert ": keep-alive" not in blocks[start:]
    assert others[0] == ": keep-alive"
    assert ": keep-alive" in others[others.index(next(block for block in others if "response.created" in block)) :]


@pytest.mark.parametrize(("path", "body"), [(RESPONSES, {"input": "Hi"}), (MESSAGES, ASKED)])
async def test_a_client_that_leaves_cancels_the_work(path: str, body: dict[str, Any]) -> None:
    side = server([(0.0, "one"), (60.0, "two")])
    async with proxying(server=side) as proxy:
        async with proxy.client.post(path, json={**body, "stream": True}) as response:
            await next_event(response)
            response.close()
        await until(lambda: side.active == 0)


@pytest.mark.parametrize(("path", "body"), [(RESPONSES, {"input": "Hi"}), (MESSAGES, ASKED)])
async def test_a_shutdown_ends_streams_with_the_apis_own_error(path: str, body: dict[str, Any]) -> None:
    async with proxying(server=server([(0.0, "one"), (60.0, "two")])) as proxy:
        async with proxy.client.post(path, json={**body, "stream": True}) as response:
            await next_event(response)
            stopping = asyncio.ensure_future(proxy.proxy.stop())
            found = await response.text()
            await stopping
        assert "event: error" in found
        assert "because of a shutdown" in found
        assert (await proxy.post(path, body))[0] == 503


async def test_too_many_requests_are_refused_in_the_apis_form() -> None:
    async with proxying(server=server([(0.0, "one"), (60.0, "two")]), max_streams=1) as proxy:
        async with proxy.client.post(MESSAGES, json={**ASKED, "stream": True}) as response:
            await next_event(response)
            status, answer = await proxy.post(MESSAGES, ASKED)
            response.close()
        assert (status, answer["error"]["type"]) == (429, "rate_limit_error")


async def test_an_answer_that_changes_hands_is_one_message() -> None:
    able = Capabilities(continuation="token_ids")
    dying = device([(0.0, "w0 "), (0.0, "w1 "), (0.0, EngineError("gone"))], capabilities=able)
    other = server(words(0.2, 0.21, 0.22, 0.23), capabilities=able)
    async with (
        proxying(dying, other, policy="both") as proxy,
        proxy.client.post(MESSAGES, json={**ASKED, "stream": True}) as response,
    ):
        events = read_named(await response.read())
    assert build_message(events).parts == [("text", "w0 w1 w2 w3 ")]
    assert events[-2][1]["usage"]["is_estimated"] is True


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
async def test_an_answer_keeps_its_parts_through_two_proxies(path: str) -> None:
    side = server(calling(), usage=USAGE)
    tools = [{"type": "function", "name": "weather", "parameters": SCHEMA}]
    async with proxying(server=side) as first:
        url = str(first.client._base_url)
        kind = OpenAIEndpoint("streamco", base_url=url, api_key="", api="responses", name="far")
        endpoint = kind if path == RESPONSES else AnthropicEndpoint("streamco", base_url=url, api_key="", name="far")
        async with (
            proxying(server=endpoint) as second,
            second.client.post(RESPONSES, json={"input": "Hi", "tools": tools, "stream": True}) as response,
        ):
            events = read_named(await response.read())
    built = build_response(events)
    assert built.parts == [("reasoning", "hm")]
    assert built.calls == [("weather", '{"city":"Oslo"}'), ("time", "{}")]
    final = events[-1][1]["response"]
    assert [item.get("call_id") for item in final["output"]] == [None, "call_1", "call_2"]
    assert (final["usage"]["input_tokens"], final["usage"]["output_tokens"]) == (10, 3)
    sent = side.streams[0].request
    assert sent.extra["tools"] == [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]


# Counting


async def test_tokens_are_counted_by_the_devices_model() -> None:
    engine = FakeEngine()
    messages = [{"role": "user", "content": "one two three"}]
    async with proxying(DeviceEndpoint(engine, name="device")) as proxy:  # type: ignore[arg-type]
        status, counted = await proxy.post(COUNT, {"model": "any", "messages": messages, "system": "Be brief."})
    text = engine.apply_template([{"role": "system", "content": "Be brief."}, *messages])
    assert (status, counted) == (200, {"input_tokens": len(engine.tokenize(text))})


async def test_a_count_without_the_models_own_vocabulary_is_an_estimate() -> None:
    far = OpenAIEndpoint("m", base_url="http://127.0.0.1:9/v1", api_key="")
    async with proxying(server=far) as proxy:
        status, counted = await proxy.post(COUNT, {"messages": HI})
    assert (status, counted) == (200, {"input_tokens": far.estimate_tokens(Request(messages=HI)), "is_estimated": True})


async def test_if_nothing_can_count_the_error_says_so() -> None:
    async with proxying(server=server(tokens=None)) as proxy:
        status, answer = await proxy.post(COUNT, {"messages": HI})
    message = "messages: expected a prompt that an endpoint here can count, got none"
    assert (status, answer) == (400, {"type": "error", "error": {"type": "invalid_request_error", "message": message}})


async def test_the_key_comes_in_either_header() -> None:
    async with proxying(server=server(), api_key="right") as proxy:
        assert (await proxy.post(MESSAGES, ASKED))[0] == 401
        assert (await proxy.post(MESSAGES, ASKED, **{"x-api-key": "right"}))[0] == 200
        assert (await proxy.post(MESSAGES, ASKED, Authorization="Bearer right"))[0] == 200
        assert (await proxy.post(RESPONSES, {"input": "Hi"}, **{"x-api-key": "right"}))[0] == 401


async def test_bodies_have_the_bounds_of_all_paths() -> None:
    async with proxying(server=server(), max_body_bytes=1000) as proxy:
        for path in (RESPONSES, MESSAGES, COUNT):
            assert (await proxy.post(path, {"input": "x" * 1000}))[0] == 413
    many = json.dumps({"input": [{}] * 300_000}, separators=(",", ":")).encode()
    async with proxying(server=server()) as proxy:
        assert (await proxy.post(RESPONSES, many))[0] == 413
