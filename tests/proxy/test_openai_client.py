"""The real openai package as the proxy's client: nothing but the base URL is changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.endpoints.base import Capabilities
from streamco.errors import (
    EndpointConnectError,
    EndpointError,
    EndpointProtocolError,
    EndpointStatusError,
    EndpointTimeoutError,
    EngineError,
)
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage, FunctionDelta, ToolCallDelta
from streamco.proxy.app import serving
from streamco.proxy.config import ProxyOptions
from streamco.testing.endpoint import ScriptedEndpoint
from tests.client.helpers import device, server, words
from tests.server.support import until

pytestmark = [pytest.mark.peer, pytest.mark.usefixtures("no_blocked_loop")]

MESSAGES: Any = [{"role": "user", "content": "Hello"}]
USAGE = CompletionUsage(10, 3, 13)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
TOOL: Any = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": CITY}}


@asynccontextmanager
async def client_of(
    device: ScriptedEndpoint | None = None,
    server: ScriptedEndpoint | None = None,
    key: str = "unused",
    **options: Any,
) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        Client(device, server, mode=Race(policy="both"), seed=1) as client,
        serving(client, ProxyOptions(**options)) as base_url,
        openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as caller,
    ):
        yield caller


async def test_models_are_listed() -> None:
    async with client_of(server=server(), models=("gpt-4o-mini",)) as client:
        assert [model.id async for model in client.models.list()] == ["streamco", "gpt-4o-mini"]
        assert (await client.models.retrieve("gpt-4o-mini")).id == "gpt-4o-mini"


async def test_a_chat_answer_and_the_report_in_its_headers() -> None:
    async with client_of(device([(60.0, "far")]), server([(0.0, "one two")], usage=USAGE)) as client:
        raw = await client.chat.completions.with_raw_response.create(model="streamco", messages=MESSAGES)
    answer = raw.parse()
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("one two", "stop")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
    assert raw.headers["x-streamco-winner"] == "server"


async def test_a_streamed_chat_answer_with_usage() -> None:
    async with client_of(server=server(words(0, 0.01, 0.02), usage=USAGE)) as client:
        stream = await client.chat.completions.create(
            model="streamco", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "w0 w1 w2 "
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert {chunk.id for chunk in chunks} == {"chatcmpl-scripted"}
    assert sum(chunk.usage is not None for chunk in chunks) == 1


async def test_its_stream_helper_accumulates_tool_calls() -> None:
    call = ToolCallDelta(index=0, id="call_1", type="function", function=FunctionDelta(name="weather", arguments=""))
    pieces = [ToolCallDelta(index=0, function=FunctionDelta(arguments=text)) for text in ('{"city":', '"Oslo"}')]
    deltas = [ChoiceDelta(role="assistant", tool_calls=[each]) for each in (call, *pieces)]
    choices = [ChunkChoice(delta=delta) for delta in deltas] + [ChunkChoice(finish_reason="tool_calls")]
    side = server([(0.0, ChatCompletionChunk(id="c", model="m", choices=[choice])) for choice in choices])
    async with (
        client_of(server=side) as client,
        client.chat.completions.stream(model="streamco", messages=MESSAGES, tools=[TOOL]) as stream,
    ):
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    assert side.streams[0].request.extra["tools"] == [TOOL]
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert (calls[0].id, calls[0].function.name, calls[0].function.arguments) == ("call_1", "weather", '{"city":"Oslo"}')


async def test_completions_streamed_and_not() -> None:
    async with client_of(server=server([(0.0, "one"), (0.0, " two")], usage=USAGE)) as client:
        whole = await client.completions.create(model="streamco", prompt="Hi", max_tokens=5)
        stream = await client.completions.create(model="streamco", prompt="Hi", stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("one two", "stop")
    assert text == "one two"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EndpointStatusError("got 400", status=400), openai.BadRequestError),
        (EndpointStatusError("got 404", status=404), openai.NotFoundError),
        (EndpointStatusError("got 429", status=429, retry_after=3.0), openai.RateLimitError),
        (EndpointStatusError("got 500", status=500), openai.InternalServerError),
        (EndpointStatusError("got 401", status=401), openai.InternalServerError),
        (EndpointConnectError("refused"), openai.InternalServerError),
        (EndpointTimeoutError("late", phase="first_token", limit=1.0), openai.InternalServerError),
    ],
    ids=lambda value: str(getattr(value, "status", "")) or getattr(value, "__name__", type(value).__name__),
)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_errors_are_its_own_classes(error: EndpointError, kind: type[openai.APIStatusError], is_streamed: bool) -> None:
    async with client_of(server=server([(0.0, error)])) as client:
        with pytest.raises(kind) as caught:
            await client.chat.completions.create(model="streamco", messages=MESSAGES, stream=is_streamed)
    assert "server: " in str(caught.value)
    if isinstance(error, EndpointStatusError) and error.status == 401:
        assert caught.value.status_code == 502
    if isinstance(error, EndpointTimeoutError):
        assert caught.value.status_code == 504
    if isinstance(error, EndpointStatusError) and error.status == 429:
        assert caught.value.response.headers["Retry-After"] == "3"


async def test_when_both_sides_fail_each_ones_error_is_in_the_message() -> None:
    broken = device([(0.0, EngineError("out of memory"))]), server([(0.0, EndpointConnectError("refused"))])
    async with client_of(*broken) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="streamco", messages=MESSAGES)
    assert caught.value.status_code == 502
    assert "device: out of memory" in str(caught.value)
    assert "server: refused" in str(caught.value)


async def test_a_wrong_key_and_a_wrong_argument_are_its_own_classes_too() -> None:
    async with client_of(server=server(), key="wrong", api_key="right") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="streamco", messages=MESSAGES)
    async with client_of(server=server()) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="streamco", messages=MESSAGES, temperature=9)
    assert (refused.value.param, refused.value.type) == ("temperature", "invalid_request_error")


async def test_a_failure_in_the_middle_raises_after_the_text_so_far() -> None:
    got = ""

    async def read(client: openai.AsyncOpenAI) -> None:
        nonlocal got
        async for chunk in await client.chat.completions.create(model="streamco", messages=MESSAGES, stream=True):
            got += chunk.choices[0].delta.content or ""

    async with client_of(server=server([(0.0, "Half an "), (0.0, "answer"), (0.0, EndpointProtocolError("cut"))])) as client:
        with pytest.raises(openai.APIError, match="server: cut"):
            await read(client)
    assert got == "Half an answer"


async def test_another_endpoint_goes_on_and_the_reader_sees_one_answer() -> None:
    dying = device([(0.0, "w0 "), (0.0, "w1 "), (0.0, EngineError("gone"))], capabilities=Capabilities(continuation="token_ids"))
    able = server(words(0.2, 0.21, 0.22, 0.23), capabilities=Capabilities(continuation="token_ids"))
    async with client_of(dying, able) as client:
        stream = await client.chat.completions.create(model="streamco", messages=MESSAGES, stream=True)
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "w0 w1 w2 w3 "
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


async def test_closing_its_stream_cancels_both_sides() -> None:
    near, far = device([(0.0, "n"), (60.0, "n")]), server([(60.0, "f")])
    async with client_of(near, far) as client:
        stream = await client.chat.completions.create(model="streamco", messages=MESSAGES, stream=True)
        await anext(stream)
        await stream.close()
        await until(lambda: near.active == 0 and far.active == 0)
