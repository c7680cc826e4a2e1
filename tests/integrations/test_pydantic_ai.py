"""pydantic-ai over a client in the same process: runs, streams, tools, structured output, usage, report and errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel

import streamco
from streamco.errors import ConfigError, EndpointConnectError, EndpointError, EndpointStatusError, EndpointTimeoutError
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage
from streamco.testing import DONE, FakeEngine, ScriptedResponse, ScriptedServer, chunk_event, stream_answer
from tests.client.helpers import device, opened, server, words
from tests.proxy.test_pydantic_ai import ToolCaller

pydantic_ai = pytest.importorskip("pydantic_ai")
pytest.importorskip("openai")

from pydantic_ai import exceptions  # noqa: E402

from streamco.integrations.pydantic_ai import StreamcoModel, translated_errors  # noqa: E402

pytestmark = pytest.mark.peer

USAGE = CompletionUsage(10, 2, 12)


class City(BaseModel):
    """A city, as an agent answers."""

    name: str
    population: int


@asynccontextmanager
async def agent_of(device: Any = None, server: Any = None, *, model_name: str | None = None, **options: Any) -> AsyncIterator[Any]:
    """An agent over a client with these sides."""
    async with opened(device, server, policy="both") as client:
        yield pydantic_ai.Agent(StreamcoModel(client, model_name), **options)


def usage_of(result: Any) -> Any:
    return result.usage if hasattr(result.usage, "input_tokens") else result.usage()  # a method in older versions


async def test_an_answer_its_usage_and_the_report() -> None:
    async with agent_of(device([(60.0, "late")]), server([(0.0, "Hello "), (0.0, "there")], usage=USAGE)) as agent:
        result = await agent.run("Hi")
    response = result.all_messages()[-1]
    assert (result.output, usage_of(result).input_tokens, usage_of(result).output_tokens) == ("Hello there", 10, 2)
    assert (response.model_name, response.provider_name, response.finish_reason) == ("scripted", "streamco", "stop")
    assert response.provider_details["streamco"]["winner"] == "server"
    assert json.loads(result.all_messages_json())[-1]["provider_details"]["streamco"]["ending"] == "complete"


async def test_a_streamed_answer_its_usage_and_the_report() -> None:
    async with agent_of(device(words(0.0, 0.01, 0.02)), server([(60.0, "late")])) as agent, agent.run_stream("Hi") as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        response = result.all_messages()[-1]
    assert "".join(pieces) == "w0 w1 w2 "
    assert (response.provider_details["streamco"]["winner"], response.provider_details["streamco"]["is_final"]) == ("device", True)
    assert usage_of(result).output_tokens == 3
    assert usage_of(result).details["is_estimated"] == 1


async def test_a_conversation_and_its_system_prompt_reach_the_endpoint() -> None:
    side = server([(0.0, "Yes")])
    async with agent_of(server=side, instructions="Be brief.") as agent:
        first = await agent.run("Is it?")
        await agent.run("Really?", message_history=first.all_messages())
    roles = [(message["role"], message["content"]) for message in side.streams[1].request.messages or ()]
    assert roles == [("system", "Be brief."), ("user", "Is it?"), ("assistant", "Yes"), ("user", "Really?")]


async def test_settings_reach_the_endpoint() -> None:
    side = server([(0.0, "Yes")])
    async with agent_of(server=side, model_name="large") as agent:
        settings = {"max_tokens": 7, "temperature": 0.5, "seed": 1, "stop_sequences": ["."], "timeout": 3.0, "max_retries": 5}
        await agent.run("Is it?", model_settings=settings)
    request = side.streams[0].request
    assert (request.model, request.max_retries, request.timeouts and request.timeouts.first_token) == ("large", 5, 3.0)
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed, sampling.stop) == (7, 0.5, 1, (".",))


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_tools_are_called_and_their_results_come_back(is_streamed: bool) -> None:
    side = ToolCaller("server", capabilities=server().capabilities)
    asked: list[str] = []

    async def weather(city: str) -> str:
        asked.append(city)
        return "sunny"

    async with agent_of(server=side, tools=[weather]) as agent:
        if is_streamed:
            async with agent.run_stream("What is it like in Oslo?") as result:
                output = await result.get_output()
        else:
            output = (await agent.run("What is it like in Oslo?")).output
    assert (asked, output) == (["Oslo"], "It is sunny")
    assert side.streams[0].request.extra["tools"][0]["function"]["name"] == "weather"


async def test_a_tool_call_of_a_real_server_arrives_in_pieces() -> None:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "double", "arguments": '{"nu'}}
    rest = {"index": 0, "function": {"arguments": 'mber": 21}'}}
    asks = [chunk_event(tool_calls=[call]), chunk_event(tool_calls=[rest]), chunk_event(finish_reason="tool_calls"), DONE]
    scripted = ScriptedServer(ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=asks), stream_answer(["It is 42."]))

    async def double(number: int) -> int:
        return 2 * number

    async with scripted as remote, agent_of(server=streamco.OpenAIEndpoint("m", base_url=remote.url), tools=[double]) as agent:
        assert (await agent.run("Twice 21?")).output == "It is 42."
        sent = [request.json() for request in remote.requests if request.path.endswith("/chat/completions")][1]
    assert sent["messages"][-1] == {"role": "tool", "tool_call_id": "call_1", "content": "42"}


async def test_structured_output_is_asked_for_as_a_schema() -> None:
    side = server([(0.0, '{"name": "Oslo", '), (0.0, '"population": 709000}')])
    async with agent_of(server=side, output_type=City) as agent:
        assert (await agent.run("Which city?")).output == City(name="Oslo", population=709000)
        async with agent.run_stream("Which city?") as result:
            assert await result.get_output() == City(name="Oslo", population=709000)
    shape = side.streams[0].request.extra["response_format"]
    assert (shape["type"], shape["json_schema"]["name"]) == ("json_schema", "City")
    assert "tools" not in side.streams[0].request.extra


async def test_thinking_is_apart_from_the_answer() -> None:
    thinks = ChatCompletionChunk(id="c", model="m", choices=[ChunkChoice(delta=ChoiceDelta(reasoning_content="Let me see."))])
    async with agent_of(server=server([(0.0, thinks), (0.0, "Yes")])) as agent:
        parts = (await agent.run("Is it?")).all_messages()[-1].parts
    assert [(part.part_kind, part.content) for part in parts] == [("thinking", "Let me see."), ("text", "Yes")]


async def test_an_engine_on_this_machine_answers_an_agent() -> None:
    async with agent_of(streamco.DeviceEndpoint(FakeEngine("a b"))) as agent:
        result = await agent.run("Hi", model_settings={"max_tokens": 3})
    assert result.output
    assert result.all_messages()[-1].provider_details["streamco"]["winner"] == "device"


async def test_a_reader_that_leaves_stops_the_work() -> None:
    side = server([(0.0, "One "), (0.0, "two "), (60.0, "late")])
    async with agent_of(server=side) as agent:
        async with agent.run_stream("Count.") as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                break
        assert side.active == 0


async def test_a_cancelled_run_stops_the_work() -> None:
    side = server([(60.0, "late")])
    async with agent_of(server=side) as agent:
        run = asyncio.create_task(agent.run("Count."))
        while not side.streams:
            await asyncio.sleep(0)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert side.active == 0


async def test_another_model_answers_if_no_endpoint_can() -> None:
    from pydantic_ai.models.fallback import FallbackModel
    from pydantic_ai.models.test import TestModel

    failing = server([(0.0, EndpointConnectError("expected a connection, got none"))])
    async with opened(server=failing) as client:
        agent = pydantic_ai.Agent(FallbackModel(StreamcoModel(client), TestModel(custom_output_text="from the other")))
        assert (await agent.run("Hi")).output == "from the other"


async def test_an_endpoint_that_fails_in_mid_stream_is_an_error_of_the_model() -> None:
    side = server([(0.0, "One "), (0.0, EndpointError("expected more, got the end"))])
    async with agent_of(server=side) as agent:
        with pytest.raises(exceptions.ModelAPIError, match="expected more, got the end") as caught:
            async with agent.run_stream("Count.") as result:
                await result.get_output()
    assert isinstance(caught.value.__cause__, EndpointError)
    assert caught.value.__cause__.partial == "One "


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EndpointStatusError("expected 200, got 429", status=429, body="slow down", retry_after=3.0), exceptions.ModelHTTPError),
        (EndpointTimeoutError("too late", phase="first_token", limit=1.0), exceptions.ModelTimeoutError),
        (EndpointConnectError("refused"), exceptions.ModelConnectionError),
        (streamco.AllEndpointsFailed({"a": EndpointConnectError("refused"), "b": EndpointError("broken")}), exceptions.ModelAPIError),
    ],
)
def test_each_failure_has_its_class(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught, translated_errors("streamco"):
        raise error
    assert caught.value.__cause__ is error
    if isinstance(caught.value, exceptions.ModelHTTPError):
        assert (caught.value.status_code, caught.value.retry_after, caught.value.body) == (429, 3.0, "slow down")


async def test_a_wrong_setting_stays_an_error_of_the_caller() -> None:
    async with agent_of(server=server()) as agent:
        with pytest.raises(ConfigError, match="temperature: expected 0 to 2, got 3"):
            await agent.run("Hi", model_settings={"temperature": 3})
