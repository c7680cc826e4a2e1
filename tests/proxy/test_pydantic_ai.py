"""A framework on top of the openai package, pydantic-ai: streams, tools and structured output through the proxy, by base URL alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.endpoints.base import Request
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage, FunctionDelta, ToolCallDelta
from streamco.proxy.app import serving
from streamco.testing.endpoint import ScriptedEndpoint, ScriptedStream, ScriptItem
from tests.client.helpers import EVERYTHING, device, server, words

pydantic_ai = pytest.importorskip("pydantic_ai")

pytestmark = pytest.mark.peer


@asynccontextmanager
async def agent_of(device: ScriptedEndpoint | None = None, server: ScriptedEndpoint | None = None, **options: Any) -> AsyncIterator[Any]:
    """An agent that knows of the proxy by its address only."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async with Client(device, server, mode=Race(policy="both"), seed=1) as client, serving(client) as base_url:
        provider = OpenAIProvider(base_url=base_url, api_key="unused")
        async with provider.client:
            yield pydantic_ai.Agent(OpenAIChatModel("streamco", provider=provider), **options)


class ToolCaller(ScriptedEndpoint):
    """Asks for a tool first, and answers once it has the result."""

    def open(self, request: Request) -> ScriptedStream:
        """Choose the script by the last message."""
        last = (request.messages or [])[-1]
        self.script = list(self._answer(last) if last["role"] == "tool" else self._call())
        self.ends_after = 0.0
        return super().open(request)

    def _call(self) -> list[tuple[float, ScriptItem]]:
        call = ToolCallDelta(index=0, id="call_1", type="function", function=FunctionDelta(name="weather", arguments='{"city":"Oslo"}'))
        asks = ChatCompletionChunk(id="c", model="m", choices=[ChunkChoice(delta=ChoiceDelta(tool_calls=[call]))])
        return [(0.0, asks), (0.0, ChatCompletionChunk(id="c", model="m", choices=[ChunkChoice(finish_reason="tool_calls")]))]

    def _answer(self, last: Any) -> list[tuple[float, ScriptItem]]:
        return [(0.0, "It is "), (0.0, str(last["content"]))]


async def test_an_answer_and_its_usage() -> None:
    async with agent_of(device([(60.0, "late")]), server([(0.0, "Hello "), (0.0, "there")], usage=CompletionUsage(10, 2, 12))) as agent:
        result = await agent.run("Hi")
    assert result.output == "Hello there"
    usage = result.usage if hasattr(result.usage, "input_tokens") else result.usage()  # a method in older versions
    assert (usage.input_tokens, usage.output_tokens) == (10, 2)


async def test_a_streamed_answer() -> None:
    async with agent_of(device(words(0.0, 0.01, 0.02)), server([(60.0, "late")])) as agent, agent.run_stream("Hi") as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert "".join(pieces) == "w0 w1 w2 "


async def test_tools_are_called_and_their_results_come_back() -> None:
    side = ToolCaller("server", capabilities=EVERYTHING)
    asked: list[str] = []

    def weather(city: str) -> str:
        asked.append(city)
        return "sunny"

    async with agent_of(server=side, tools=[weather]) as agent:
        result = await agent.run("What is it like in Oslo?")
    assert asked == ["Oslo"]
    assert result.output == "It is sunny"
    assert side.streams[0].request.extra["tools"][0]["function"]["name"] == "weather"
