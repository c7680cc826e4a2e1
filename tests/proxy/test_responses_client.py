"""The real openai package's ``responses`` in front of the proxy: nothing but the base URL is changed."""

from __future__ import annotations

from typing import Any

import openai
import pydantic
import pytest

from streamco.errors import EndpointProtocolError, EndpointStatusError
from streamco.openai_types import CompletionUsage
from tests.client.helpers import device, server, words
from tests.proxy.test_openai_client import client_of
from tests.proxy.test_translated_apis import calling
from tests.server.support import until

pytestmark = [pytest.mark.peer, pytest.mark.usefixtures("no_blocked_loop")]

USAGE = CompletionUsage(10, 3, 13)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
TOOL: Any = {"type": "function", "name": "weather", "strict": True, "parameters": PARAMETERS}


class Place(pydantic.BaseModel):
    """What is asked for in JSON."""

    city: str


async def test_a_response_and_the_report_in_its_headers() -> None:
    async with client_of(device([(60.0, "far")]), server([(0.0, "one two")], usage=USAGE)) as client:
        raw = await client.responses.with_raw_response.create(model="streamco", input="Hi", instructions="Be brief.", metadata={"a": "b"})
    answer = raw.parse()
    assert (answer.output_text, answer.status, answer.instructions, answer.metadata) == ("one two", "completed", "Be brief.", {"a": "b"})
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (10, 3, 13)
    assert raw.headers["x-streamco-winner"] == "server"


async def test_a_streamed_response() -> None:
    async with client_of(server=server(words(0, 0.01, 0.02), usage=USAGE)) as client:
        stream = await client.responses.create(model="streamco", input="Hi", stream=True)
        events = [event async for event in stream]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "w0 w1 w2 "
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "w0 w1 w2 "


async def test_its_stream_helper_accumulates_reasoning_and_calls_which_can_be_sent_back() -> None:
    side = server(calling(), usage=USAGE)
    async with client_of(server=side) as client:
        async with client.responses.stream(model="streamco", input="Weather in Oslo?", tools=[TOOL]) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        given: list[Any] = list(final.output)
        reasoning, first, second = given
        assert (reasoning.type, first.type, second.type) == ("reasoning", "function_call", "function_call")
        assert (first.call_id, first.name, first.arguments) == ("call_1", "weather", '{"city":"Oslo"}')
        assert {"response.reasoning_text.delta", "response.function_call_arguments.delta"} <= set(kinds)
        outputs: list[Any] = [{"type": "function_call_output", "call_id": each.call_id, "output": "x"} for each in (first, second)]
        history: list[Any] = [{"role": "user", "content": "Weather in Oslo?"}, *(item.to_dict() for item in given), *outputs]
        await client.responses.create(model="streamco", input=history, tools=[TOOL])
    sent = list(side.streams[1].request.messages or ())
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool"]
    assert sent[1]["reasoning_content"] == "hm"
    function = {"name": "weather", "strict": True, "parameters": PARAMETERS}
    assert side.streams[0].request.extra["tools"] == [{"type": "function", "function": function}]


async def test_its_parse_helper_asks_for_json_and_reads_it() -> None:
    side = server([(0.0, '{"city":'), (0.0, '"Oslo"}')], usage=USAGE)
    async with client_of(server=side) as client:
        answer = await client.responses.parse(model="streamco", input="Where?", text_format=Place)
    assert answer.output_parsed == Place(city="Oslo")
    shape = side.streams[0].request.extra["response_format"]
    assert (shape["type"], shape["json_schema"]["name"], shape["json_schema"]["strict"]) == ("json_schema", "Place", True)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_errors_are_its_own_classes(is_streamed: bool) -> None:
    async with client_of(server=server([(0.0, EndpointStatusError("got 429", status=429, retry_after=3.0))])) as client:
        with pytest.raises(openai.RateLimitError) as limited:
            await client.responses.create(model="streamco", input="Hi", stream=is_streamed)
        assert limited.value.response.headers["Retry-After"] == "3"
    async with client_of(server=server()) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="streamco", input="Hi", previous_response_id="resp_1", stream=is_streamed)
        assert (refused.value.param, refused.value.code) == ("previous_response_id", "unsupported_parameter")
        with pytest.raises(openai.BadRequestError) as hosted:
            await client.responses.create(model="streamco", input="Hi", tools=[{"type": "web_search"}], stream=is_streamed)
        assert hosted.value.param == "tools[0].type"
    async with client_of(server=server(), key="wrong", api_key="right") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.responses.create(model="streamco", input="Hi", stream=is_streamed)


async def test_a_failure_in_the_middle_raises_after_the_text_so_far() -> None:
    got = ""

    async def read(client: openai.AsyncOpenAI) -> None:
        nonlocal got
        async for event in await client.responses.create(model="streamco", input="Hi", stream=True):
            got += event.delta if event.type == "response.output_text.delta" else ""

    async with client_of(server=server([(0.0, "Half an "), (0.0, "answer"), (0.0, EndpointProtocolError("cut"))])) as client:
        with pytest.raises(openai.APIError, match="server: cut"):
            await read(client)
    assert got == "Half an answer"


async def test_closing_its_stream_cancels_both_sides() -> None:
    near, far = device([(0.0, "n"), (60.0, "n")]), server([(60.0, "f")])
    async with client_of(near, far) as client:
        stream = await client.responses.create(model="streamco", input="Hi", stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        await until(lambda: near.active == 0 and far.active == 0)
