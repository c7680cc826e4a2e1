"""Requests that no endpoint can serve: status, code and field of the error, by each API."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from streamco.client.modes.race.mode import Race
from streamco.endpoints.base import Capabilities
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.testing import ScriptedServer, json_answer
from tests.client.helpers import device, server
from tests.proxy.support import CHAT, HELLO, TEXT, proxying

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
ASKED: dict[str, dict[str, Any]] = {
    CHAT: HELLO,
    TEXT: {"prompt": "Hello"},
    RESPONSES: {"input": "Hello"},
    MESSAGES: {**HELLO, "max_tokens": 5},
}
FIELDS = {CHAT: "messages", TEXT: "prompt", RESPONSES: "input"}
SMALL = Capabilities(context_tokens=100)
IMAGE = {"type": "input_image", "image_url": "data:"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("side", ["device", "server", "both"])
async def test_a_prompt_that_no_side_has_room_for_has_its_own_code(path: str, side: str, is_streamed: bool) -> None:
    near = None if side == "server" else device(tokens=300, capabilities=SMALL)
    far = None if side == "device" else server(tokens=300, capabilities=SMALL)
    async with proxying(near, far) as proxy:
        status, body = await proxy.post(path, {**ASKED[path], "stream": is_streamed})
    assert status == 400
    error = body["error"]
    if path == MESSAGES:
        assert (body["type"], error["type"]) == ("error", "invalid_request_error")
        assert error["message"].startswith("prompt is too long: messages: expected at most 99 tokens")
    else:
        assert (error["code"], error["param"], error["type"]) == ("context_length_exceeded", FIELDS[path], "invalid_request_error")
        assert error["message"].startswith(f"{FIELDS[path]}: expected at most 99 tokens (the largest context is 100), got 300;")


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"message": "too long", "code": "context_length_exceeded", "param": "messages"}),
        (400, {"message": "the request exceeds the available context size", "type": "exceed_context_size_error", "code": 400}),
        (400, {"message": "This model's maximum context length is 99 tokens.", "type": "BadRequestError", "code": 400}),
        (413, {"message": "prompt is too long: 300 tokens > 99 maximum", "type": "invalid_request_error"}),
    ],
)
async def test_the_servers_own_words_for_it_have_the_same_code(path: str, servers: int, status: int, error: dict[str, Any]) -> None:
    answers = [json_answer({"error": error}, status=status)] * servers
    async with ScriptedServer(*answers) as scripted:
        far = [OpenAIEndpoint("m", base_url=scripted.url, name=f"server {each}", api_key="") for each in range(servers)]
        async with proxying(None, far) as proxy:
            found, body = await proxy.post(path, ASKED[path])
    assert found == 400
    if path == MESSAGES:
        assert body["error"]["message"].count("prompt is too long") == 1 or status == 413
    else:
        assert (body["error"]["code"], body["error"]["param"]) == ("context_length_exceeded", FIELDS[path])


async def test_openais_and_anthropics_packages_see_it() -> None:
    async with proxying(device(tokens=300, capabilities=SMALL)) as proxy:
        address = f"http://127.0.0.1:{proxy.runner.addresses[0][1]}"
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0) as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.responses.create(model="streamco", input="Hello")
            assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
        async with anthropic.AsyncAnthropic(base_url=address, api_key="x", max_retries=0) as other:
            with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
                await other.messages.create(model="streamco", max_tokens=5, messages=[{"role": "user", "content": "Hello"}])


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(
    ("path", "more", "param", "code"),
    [
        (CHAT, {"tools": [TOOL]}, "tools", "unsupported_parameter"),
        (CHAT, {"n": 2}, "n", "unsupported_value"),
        (CHAT, {"response_format": {"type": "json_object"}}, "response_format", "unsupported_value"),
        (CHAT, {"verbosity": "low"}, "verbosity", "unsupported_parameter"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]", "unsupported_value"),
        (RESPONSES, {"input": [{"role": "user", "content": [IMAGE]}]}, "input", "unsupported_value"),
        (TEXT, {"n": 2}, "n", "unsupported_value"),
    ],
)
async def test_what_no_endpoint_can_do_names_field_and_code(path: str, more: dict[str, Any], param: str, code: str) -> None:
    near = device()
    async with proxying(near) as proxy:
        status, body = await proxy.post(path, {**ASKED[path], **more})
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, param, code)
    assert not near.streams


async def test_a_gate_that_keeps_the_only_side_out_blames_no_field() -> None:
    async with proxying(device(), dispatch=Race(gate=lambda _: False)) as proxy:
        status, body = await proxy.post(CHAT, HELLO)
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, None, None)
    assert "request gate" in body["error"]["message"]
