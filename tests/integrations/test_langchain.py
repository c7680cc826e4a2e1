"""LangChain over a client in the same process: its standard tests, messages, tools, structured output, usage and the report."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import reduce
from typing import Any

import pytest
from pydantic import BaseModel

import streamco
from streamco.errors import ConfigError, EndpointError
from streamco.openai_types import (
    ChatCompletionChunk,
    ChoiceDelta,
    ChunkChoice,
    CompletionTokensDetails,
    CompletionUsage,
    FunctionDelta,
    PromptTokensDetails,
    ToolCallDelta,
)
from streamco.testing import DONE, FakeEngine, RecordedRequest, ScriptedEndpoint, ScriptedResponse, ScriptedServer, sse_event
from tests.client.helpers import device, opened, server, words

pytest.importorskip("langchain_core")

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from streamco.integrations.langchain import ChatStreamco

standard_tests = pytest.importorskip("langchain_tests.unit_tests")
integration_tests = pytest.importorskip("langchain_tests.integration_tests")

pytestmark = pytest.mark.peer

USAGE = CompletionUsage(10, 2, 12, PromptTokensDetails(cached_tokens=8), CompletionTokensDetails(reasoning_tokens=1))


class TestStandard(standard_tests.ChatModelUnitTests):  # type: ignore[misc,name-defined]
    """LangChain's own tests of a chat model."""

    @property
    def chat_model_class(self) -> type[ChatStreamco]:
        """The class under test."""
        return ChatStreamco

    @property
    def chat_model_params(self) -> dict[str, Any]:
        """A client that is never started."""
        return {"client": streamco.Client(server=ScriptedEndpoint("server"))}


class Standard(integration_tests.ChatModelIntegrationTests):  # type: ignore[misc,name-defined]
    """LangChain's tests with answers, of which those with an event loop are called below."""

    chat_model_class = ChatStreamco
    supports_model_override = True
    model_override_value = "another"


def answer(request: RecordedRequest) -> ScriptedResponse:
    """Answer as the request asks: with a tool call, JSON of the schema, or text."""
    body = request.json()
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "magic_function", "arguments": '{"input": 3}'}}
    joke = json.dumps({"setup": "Why did the cat sit on the laptop?", "punchline": "To keep an eye on the mouse."})
    delta = {"tool_calls": [call]} if body.get("tools") else {"content": joke if body.get("response_format") else "Hello there"}
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    steps = [
        sse_event({**head, "choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]}),
        sse_event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}),
        sse_event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        sse_event({**head, "choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}}),
        DONE,
    ]
    return ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=steps)


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("test_ainvoke", ()),
        ("test_astream", ()),
        ("test_abatch", ()),
        ("test_astream_events_v3", ()),
        ("test_ainvoke_with_model_override", ()),
        ("test_astream_with_model_override", ()),
        ("test_tool_calling_async", ()),
        ("test_structured_output_async", ("pydantic",)),
        ("test_structured_output_async", ("typeddict",)),
        ("test_structured_output_async", ("json_schema",)),
    ],
)
@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")
async def test_the_standard_tests_with_an_event_loop_pass(name: str, words: tuple[str, ...]) -> None:
    async with ScriptedServer(answer) as remote, model_of(server=streamco.OpenAIEndpoint("m", base_url=remote.url)) as model:
        await getattr(Standard(), name)(model, *words)


@asynccontextmanager
async def model_of(device: Any = None, server: Any = None, **options: Any) -> AsyncIterator[ChatStreamco]:
    """A chat model over a client with these sides."""
    async with opened(device, server, policy="both") as client:
        yield ChatStreamco(client=client, **options)


def joined(chunks: list[Any]) -> Any:
    """The message that the chunks of a stream make up."""
    return reduce(lambda whole, chunk: whole + chunk, chunks)


def last_request(side: ScriptedEndpoint) -> Any:
    return side.streams[-1].request


async def test_an_answer_its_usage_and_the_report() -> None:
    async with model_of(device([(60.0, "late")]), server([(0.0, "Hello "), (0.0, "there")], usage=USAGE)) as model:
        message = await model.ainvoke("Hi")
    assert message.content == "Hello there"
    assert message.usage_metadata == {
        "input_tokens": 10,
        "output_tokens": 2,
        "total_tokens": 12,
        "input_token_details": {"cache_read": 8},
        "output_token_details": {"reasoning": 1},
    }
    metadata = message.response_metadata
    assert (metadata["model_name"], metadata["model_provider"], metadata["finish_reason"]) == ("scripted", "streamco", "stop")
    assert (metadata["report"]["winner"], metadata["report"]["ending"]) == ("server", "complete")


async def test_a_stream_brings_usage_and_report_with_its_last_chunk() -> None:
    async with model_of(device(words(0.0, 0.01, 0.02)), server([(60.0, "late")])) as model:
        chunks = [chunk async for chunk in model.astream("Hi")]
    assert [chunk.content for chunk in chunks] == ["w0 ", "w1 ", "w2 ", ""]
    assert [chunk.usage_metadata is None for chunk in chunks] == [True, True, True, False]
    whole = joined(chunks)
    assert (whole.response_metadata["report"]["winner"], whole.response_metadata["finish_reason"]) == ("device", "stop")
    assert whole.response_metadata["report"]["usage"]["is_estimated"] is True


async def test_messages_take_openais_form_without_thinking() -> None:
    side = server([(0.0, "Yes")])
    thought = AIMessage(content=[{"type": "reasoning", "reasoning": "Let me see."}, {"type": "text", "text": "It is."}])
    picture = {"type": "image", "base64": "AAAA", "mime_type": "image/png"}
    async with model_of(server=side) as model:
        await model.ainvoke([SystemMessage("Be brief."), HumanMessage("Is it?"), thought, HumanMessage([picture])])
    assert last_request(side).messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Is it?"},
        {"role": "assistant", "content": "It is."},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
    ]


async def test_settings_of_the_model_and_of_a_call_reach_the_endpoint() -> None:
    side = server([(0.0, "Yes")])
    options = {"temperature": 0.5, "max_tokens": 7, "stop": ["."], "timeout": 3.0, "max_retries": 4, "seed": 1, "top_p": 0.9}
    async with model_of(server=side, model="large", model_kwargs={"user": "u"}, **options) as model:
        await model.ainvoke("Is it?")
        request = last_request(side)
        assert (request.model, request.max_retries, request.timeouts.first_token, request.extra["user"]) == ("large", 4, 3.0, "u")
        sampling = request.sampling
        assert (sampling.temperature, sampling.max_tokens, sampling.stop, sampling.seed, sampling.top_p) == (0.5, 7, (".",), 1, 0.9)
        await model.ainvoke("Is it?", stop=["!"], model="other", temperature=0)
        request = last_request(side)
        assert (request.model, request.sampling.stop, request.sampling.temperature) == ("other", ("!",), 0)


def piece(index: int | None, identity: str | None, name: str | None, arguments: str) -> ChatCompletionChunk:
    call = ToolCallDelta(index=index, id=identity, type="function", function=FunctionDelta(name=name, arguments=arguments))
    return ChatCompletionChunk(id="c", model="m", choices=[ChunkChoice(delta=ChoiceDelta(tool_calls=[call]))])


async def test_a_tool_call_comes_whole_and_in_pieces() -> None:
    script = [(0.0, piece(0, "call_1", "weather", '{"ci')), (0.0, piece(0, None, None, 'ty": "Oslo"}'))]

    def weather(city: str) -> str:
        """Say what the weather is like."""
        return f"sunny in {city}"

    async with model_of(server=(side := server(script))) as model:
        bound = model.bind_tools([weather], tool_choice="weather")
        whole = await bound.ainvoke("Oslo?")
        chunks = [chunk async for chunk in bound.astream("Oslo?")]
        expected = [{"name": "weather", "args": {"city": "Oslo"}, "id": "call_1", "type": "tool_call"}]
        assert whole.tool_calls == expected
        assert joined(chunks).tool_calls == expected
        request = last_request(side)
        assert request.extra["tools"][0]["function"]["description"] == "Say what the weather is like."
        assert request.extra["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
        await model.ainvoke([HumanMessage("Oslo?"), whole, ToolMessage("sunny", tool_call_id="call_1")])
        assert last_request(side).messages[-1] == {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}


async def test_tool_calls_without_an_index_stay_apart() -> None:
    script = [(0.0, piece(None, "a", "one", "{}")), (0.0, piece(None, "b", "two", "{}"))]
    async with model_of(server=server(script)) as model:
        chunks = [chunk async for chunk in model.astream("Call both.")]
    assert [call["name"] for call in joined(chunks).tool_calls] == ["one", "two"]


async def test_arguments_that_are_no_json_are_an_invalid_tool_call() -> None:
    async with model_of(server=server([(0.0, piece(0, "call_1", "weather", "{city"))])) as model:
        message = await model.ainvoke("Oslo?")
    assert message.tool_calls == []
    assert (message.invalid_tool_calls[0]["name"], message.invalid_tool_calls[0]["args"]) == ("weather", "{city")


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(
    ("given", "sent"), [("any", "required"), (True, "required"), ("auto", "auto"), ("required", "required"), ({"type": "x"}, {"type": "x"})]
)
async def test_a_tool_choice_takes_openais_form(given: Any, sent: Any) -> None:
    tool = {"type": "function", "function": {"name": "one", "description": "", "parameters": {"type": "object", "properties": {}}}}
    async with model_of(server=(side := server())) as model:
        await model.bind_tools([tool], tool_choice=given).ainvoke("Call it.")
        assert last_request(side).extra["tool_choice"] == sent
        await model.bind_tools([tool], tool_choice=False).ainvoke("Don't.")
        assert "tool_choice" not in last_request(side).extra
        with pytest.raises(ConfigError, match=r"tool_choice: expected auto, none, any or the name of a tool \(one\), got 'two'"):
            model.bind_tools([tool], tool_choice="two")


class City(BaseModel):
    """A city, as a chain answers."""

    name: str
    population: int


async def test_structured_output_is_asked_for_as_a_schema() -> None:
    side = server([(0.0, '{"name": "Oslo", '), (0.0, '"population": 709000}')])
    async with model_of(server=side) as model:
        assert await model.with_structured_output(City).ainvoke("Which city?") == City(name="Oslo", population=709000)
        shape = last_request(side).extra["response_format"]
        assert (shape["type"], shape["json_schema"]["name"], shape["json_schema"]["schema"]["required"]) == (
            "json_schema",
            "City",
            ["name", "population"],
        )
        assert await model.with_structured_output(City, method="json_mode").ainvoke("Which?") == City(name="Oslo", population=709000)
        assert last_request(side).extra["response_format"] == {"type": "json_object"}
        schema = {"title": "city", "description": "A city.", "type": "object", "properties": {"name": {"type": "string"}}}
        assert await model.with_structured_output(schema).ainvoke("Which city?") == {"name": "Oslo", "population": 709000}


async def test_structured_output_by_a_tool_call() -> None:
    side = server([(0.0, piece(0, "call_1", "City", '{"name": "Oslo", "population": 709000}'))])
    async with model_of(server=side) as model:
        chain = model.with_structured_output(City, method="function_calling")
        assert await chain.ainvoke("Which city?") == City(name="Oslo", population=709000)


async def test_output_that_breaks_its_schema_comes_with_the_message() -> None:
    async with model_of(server=server([(0.0, '{"name": "Oslo"}')])) as model:
        found = await model.with_structured_output(City, include_raw=True).ainvoke("Which city?")
    assert isinstance(found, dict)
    assert (found["raw"].content, found["parsed"]) == ('{"name": "Oslo"}', None)
    assert "population" in str(found["parsing_error"])


async def test_thinking_is_a_block_of_its_own() -> None:
    thinks = ChatCompletionChunk(id="c", model="m", choices=[ChunkChoice(delta=ChoiceDelta(reasoning_content="Let me see."))])
    async with model_of(server=server([(0.0, thinks), (0.0, "Yes")])) as model:
        whole = await model.ainvoke("Is it?")
        chunks = [chunk async for chunk in model.astream("Is it?")]
    assert [block["type"] for block in whole.content_blocks] == ["reasoning", "text"]
    assert joined(chunks).additional_kwargs == {"reasoning_content": "Let me see."}


class Recorder(AsyncCallbackHandler):
    """Keeps the tokens that callbacks get."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    async def on_llm_new_token(self, token: Any, **_: Any) -> None:
        """Keep a token."""
        self.tokens.append(token)


async def test_callbacks_get_the_tokens_of_an_answer_that_is_streamed_for_them() -> None:
    recorder = Recorder()
    async with model_of(server=server([(0.0, "a"), (0.0, "b")]), streaming=True) as model:
        assert (await model.ainvoke("Hi", config={"callbacks": [recorder]})).content == "ab"
    assert recorder.tokens == ["a", "b", ""]


async def test_an_engine_on_this_machine_answers_a_chain() -> None:
    async with model_of(streamco.DeviceEndpoint(FakeEngine("a b")), max_tokens=3) as model:
        message = await model.ainvoke("Hi")
    assert message.content
    assert message.response_metadata["report"]["winner"] == "device"


async def test_a_reader_that_leaves_stops_the_work() -> None:
    side = server([(0.0, "One "), (60.0, "late")])
    async with model_of(server=side) as model:
        stream: Any = model.astream("Count.")
        assert (await anext(stream)).content == "One "
        await stream.aclose()
    assert side.active == 0


async def test_a_failure_is_the_clients_own_error_and_another_model_may_go_on() -> None:
    failing = server([(0.0, "One "), (0.0, EndpointError("expected more, got the end"))])
    async with model_of(server=failing) as model, model_of(server=server([(0.0, "Two")])) as other:
        with pytest.raises(EndpointError, match="expected more, got the end") as caught:
            await model.ainvoke("Count.")
        assert caught.value.partial == "One "
        assert (await model.with_fallbacks([other]).ainvoke("Count.")).content == "Two"


async def test_a_call_that_blocks_says_which_methods_there_are() -> None:
    async with model_of(server=server()) as model:
        with pytest.raises(NotImplementedError, match="expected one of the async methods"):
            model.invoke("Hi")
        with pytest.raises(NotImplementedError, match="expected one of the async methods"):
            next(model.stream("Hi"))


async def test_a_cache_keeps_models_and_endpoints_apart() -> None:
    async with model_of(server=server(), temperature=0.5) as one, model_of(server=server(name="another")) as other:
        assert one._identifying_params == {"model": None, "endpoints": ["server"], "temperature": 0.5}
        assert other._identifying_params["endpoints"] == ["another"]
        assert "client" not in repr(one)
