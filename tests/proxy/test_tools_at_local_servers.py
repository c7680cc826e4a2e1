"""Tools and structured output of frameworks, through the proxy, at a server on this machine that nothing is known of but its URL."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.proxy.app import serving
from streamco.testing import FakeEngine, RecordedRequest, ScriptedResponse, ScriptedServer, chunk_event, stream_answer
from streamco.testing.responses import DONE

pytestmark = pytest.mark.peer

CITY = {"city": "Oslo"}


def call_tools(request: RecordedRequest) -> ScriptedResponse:
    """Answer as a model with tools: call the first one, answer with its result, or give JSON if that is asked for."""
    body = request.json()
    last = body["messages"][-1]
    if last["role"] == "tool":
        return stream_answer(["It is ", str(last["content"])])
    if body.get("response_format"):
        return stream_answer([json.dumps(CITY)])
    if not body.get("tools"):
        return stream_answer(["no tools"])
    function = {"name": body["tools"][0]["function"]["name"], "arguments": json.dumps(CITY)}
    delta: dict[str, Any] = {"role": "assistant", "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}
    steps = [chunk_event(**delta), chunk_event(finish_reason="tool_calls"), DONE]
    return ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=steps)


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[str, ScriptedServer, FakeEngine]]:
    """A proxy before a device without tools and a server by its URL alone."""
    engine = FakeEngine()
    async with (
        ScriptedServer(call_tools) as server,
        Client(DeviceEndpoint(engine), OpenAIEndpoint("m", base_url=server.url), mode=Race(policy="both"), seed=1) as client,
        serving(client) as base_url,
    ):
        yield base_url, server, engine
    engine.close()


async def test_structured_output_of_pydantic_ai() -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic import BaseModel
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Place(BaseModel):
        city: str

    async with proxied() as (base_url, server, engine):
        provider = OpenAIProvider(base_url=base_url, api_key="unused")
        async with provider.client:
            agent = pydantic_ai.Agent(OpenAIChatModel("streamco", provider=provider), output_type=Place)
            result = await agent.run("Where?")
    assert result.output == Place(city="Oslo")
    assert server.requests[0].json()["tools"]
    assert engine.requests == [], "the device has no tools"


async def test_a_tool_of_pydantic_ai() -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async with proxied() as (base_url, server, _):
        provider = OpenAIProvider(base_url=base_url, api_key="unused")
        async with provider.client:
            agent = pydantic_ai.Agent(OpenAIChatModel("streamco", provider=provider))

            def weather(city: str) -> str:
                return f"cold in {city}"

            agent.tool_plain(weather)
            result = await agent.run("How is the weather?")
    assert result.output == "It is cold in Oslo"
    assert len(server.requests) == 2


async def test_bound_tools_and_structured_output_of_langchain() -> None:
    langchain = pytest.importorskip("langchain_openai")

    def weather(city: str) -> str:
        """Return the weather of a city."""
        return f"cold in {city}"

    schema = {"title": "Place", "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    async with proxied() as (base_url, _, engine):
        model = langchain.ChatOpenAI(model="streamco", base_url=base_url, api_key="unused", max_retries=0)
        question: list[Any] = [("human", "How is the weather?")]
        said = await model.bind_tools([weather]).ainvoke(question)
        assert [(call["name"], call["args"]) for call in said.tool_calls] == [("weather", CITY)]
        result = {"role": "tool", "tool_call_id": said.tool_calls[0]["id"], "content": weather(**said.tool_calls[0]["args"])}
        assert (await model.bind_tools([weather]).ainvoke([*question, said, result])).content == "It is cold in Oslo"
        for method in ("json_schema", "function_calling"):
            assert await model.with_structured_output(schema, method=method).ainvoke("Where?") == CITY
    assert engine.requests == []


async def test_a_server_that_has_no_tools_says_so_through_the_proxy() -> None:
    import openai

    from tests.server.support import running

    engine = FakeEngine()
    async with running(FakeEngine()) as served:
        remote = OpenAIEndpoint("fake", base_url=f"http://127.0.0.1:{served.runner.addresses[0][1]}/v1")
        async with (
            Client(DeviceEndpoint(engine), remote, seed=1) as client,
            serving(client) as base_url,
            openai.AsyncOpenAI(base_url=base_url, api_key="unused", max_retries=0) as caller,
        ):
            tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
            with pytest.raises(openai.APIStatusError, match="tools"):
                await caller.chat.completions.create(model="streamco", messages=[{"role": "user", "content": "x"}], tools=[tool])
    assert engine.requests == []
    engine.close()
