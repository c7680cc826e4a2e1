"""The real anthropic package as the proxy's client: nothing but the base URL is changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest

from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.errors import EndpointConnectError, EndpointError, EndpointProtocolError, EndpointStatusError, EndpointTimeoutError
from streamco.openai_types import CompletionUsage, FunctionDelta, ToolCallDelta
from streamco.proxy.app import serving
from streamco.proxy.config import ProxyOptions
from streamco.testing.endpoint import ScriptedEndpoint, text_chunk
from tests.client.helpers import device, server, words
from tests.proxy.test_translated_apis import calling, piece
from tests.server.support import until

pytestmark = [pytest.mark.peer, pytest.mark.usefixtures("no_blocked_loop")]

ASKED: Any = {"model": "streamco", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}
USAGE = CompletionUsage(10, 3, 13)
TOOL: Any = {"name": "weather", "description": "at a place", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}


@asynccontextmanager
async def client_of(
    device: ScriptedEndpoint | None = None, server: ScriptedEndpoint | None = None, key: str = "unused", **options: Any
) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with (
        Client(device, server, mode=Race(policy="both"), seed=1) as client,
        serving(client, ProxyOptions(**options)) as base_url,
        anthropic.AsyncAnthropic(base_url=base_url.removesuffix("/v1"), api_key=key, max_retries=0) as caller,
    ):
        yield caller


async def test_a_message_and_the_report_in_its_headers() -> None:
    async with client_of(device([(60.0, "far")]), server([(0.0, "one two")], usage=USAGE)) as client:
        raw = await client.messages.with_raw_response.create(**ASKED, system="Be brief.", stop_sequences=["END"])
    message = await raw.parse()
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "one two"}]
    assert (message.stop_reason, message.usage.input_tokens, message.usage.output_tokens) == ("end_turn", 10, 3)
    assert raw.headers["x-streamco-winner"] == "server"
    assert message._request_id == raw.headers["x-request-id"]


async def test_models_are_listed_with_its_key_and_in_its_form() -> None:
    async with client_of(server=server(words(0)), key="right", api_key="right", models=("big", "small")) as client:
        pages = await client.models.list(limit=2)
        assert [model.id for model in pages.data] == ["streamco", "big"]
        assert [model.display_name async for model in pages] == ["streamco", "big", "small"]
        assert (await client.models.retrieve("small")).type == "model"
        with pytest.raises(anthropic.NotFoundError, match="model: expected one of streamco, big, small"):
            await client.models.retrieve("other")


async def test_a_streamed_message() -> None:
    async with client_of(server=server(words(0, 0.01, 0.02), usage=USAGE)) as client:
        async with client.messages.stream(**ASKED) as stream:
            text = [piece async for piece in stream.text_stream]
            message = await stream.get_final_message()
        raw = [event.type async for event in await client.messages.create(**ASKED, stream=True)]
    assert text == ["w0 ", "w1 ", "w2 "]
    assert (message.model, message.stop_reason, message.usage.input_tokens) == ("scripted", "end_turn", 10)
    assert (raw[0], raw[-1]) == ("message_start", "message_stop")


async def test_its_stream_helper_accumulates_thinking_and_tools_which_can_be_sent_back() -> None:
    side = server(calling(), usage=USAGE)
    asked = {**ASKED, "tools": [TOOL], "tool_choice": {"type": "auto"}, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    async with client_of(server=side) as client:
        async with client.messages.stream(**asked) as stream:
            kinds = {event.type async for event in stream}
            message = await stream.get_final_message()
        whole = await client.messages.create(**asked)
        uses = [block for block in message.content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": "x"} for use in uses]
        asked["messages"] = [*ASKED["messages"], message.to_param(), {"role": "user", "content": results}]
        await client.messages.create(**asked)
    assert {"thinking", "input_json"} <= kinds
    assert [(use.id, use.name, use.input) for use in uses] == [("call_1", "weather", {"city": "Oslo"}), ("call_2", "time", {})]
    assert [block.to_dict() for block in whole.content] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}},
        {"type": "tool_use", "id": "call_2", "name": "time", "input": {}},
    ]
    assert message.stop_reason == "tool_use"
    sent = list(side.streams[2].request.messages or ())
    assert [each["role"] for each in sent] == ["user", "assistant", "tool", "tool"]
    assert sent[1]["reasoning_content"] == "hm"


async def test_its_stream_helper_gets_each_block_whole_before_the_next_one() -> None:
    calls = [ToolCallDelta(index=at, id=f"call_{at}", function=FunctionDelta(name=name, arguments="")) for at, name in enumerate("fg")]
    chunks = [*(piece(tool_calls=[each]) for each in calls), piece(content="Wait"), text_chunk(".", finish_reason="tool_calls")]
    side = server([(0.0, each) for each in chunks], usage=USAGE)
    async with client_of(server=side) as client, client.messages.stream(**ASKED, tools=[TOOL]) as stream:
        events = [event async for event in stream]
        message = await stream.get_final_message()
    blocks = [(event.type, event.index) for event in events if event.type in {"content_block_start", "content_block_stop"}]
    assert blocks == [(kind, index) for index in range(3) for kind in ("content_block_start", "content_block_stop")]
    assert [event.content_block.type for event in events if event.type == "content_block_stop"] == ["tool_use", "tool_use", "text"]
    assert [block.to_dict() for block in message.content] == [
        {"type": "tool_use", "id": "call_0", "name": "f", "input": {}},
        {"type": "tool_use", "id": "call_1", "name": "g", "input": {}},
        {"type": "text", "text": "Wait."},
    ]


async def test_tokens_are_counted() -> None:
    async with client_of(device(tokens=7)) as client:
        assert (await client.messages.count_tokens(model="streamco", messages=ASKED["messages"], system="Be brief.")).input_tokens == 7


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EndpointStatusError("got 400", status=400), anthropic.BadRequestError),
        (EndpointStatusError("got 404", status=404), anthropic.NotFoundError),
        (EndpointStatusError("got 429", status=429, retry_after=3.0), anthropic.RateLimitError),
        (EndpointStatusError("got 401", status=401), anthropic.InternalServerError),
        (EndpointConnectError("refused"), anthropic.InternalServerError),
        (EndpointTimeoutError("late", phase="first_token", limit=1.0), anthropic.InternalServerError),
    ],
    ids=lambda value: str(getattr(value, "status", "")) or getattr(value, "__name__", type(value).__name__),
)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_errors_are_its_own_classes(error: EndpointError, kind: type[anthropic.APIStatusError], is_streamed: bool) -> None:
    async with client_of(server=server([(0.0, error)])) as client:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.messages.create(**ASKED, stream=is_streamed)
    assert isinstance(caught.value, kind) or caught.value.status_code == 504  # a class of its own, if the package has one
    assert "server: " in str(caught.value)


async def test_a_wrong_key_and_a_wrong_field_are_its_own_classes_too() -> None:
    async with client_of(server=server(), key="wrong", api_key="right") as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(**ASKED)
    async with client_of(server=server(), key="right", api_key="right") as client:
        assert (await client.messages.create(**ASKED)).stop_reason == "end_turn"
        with pytest.raises(anthropic.BadRequestError) as refused:
            await client.messages.create(**ASKED, tools=[{"type": "web_search_20250305", "name": "web_search"}])
    assert "tools[0].type: expected custom, got web_search_20250305" in str(refused.value)


async def test_a_failure_in_the_middle_raises_after_the_text_so_far() -> None:
    got = ""

    async def read(client: anthropic.AsyncAnthropic) -> None:
        nonlocal got
        async with client.messages.stream(**ASKED) as stream:
            async for text in stream.text_stream:
                got += text

    async with client_of(server=server([(0.0, "Half an "), (0.0, "answer"), (0.0, EndpointProtocolError("cut"))])) as client:
        with pytest.raises(anthropic.APIStatusError, match="server: cut"):
            await read(client)
    assert got == "Half an answer"


async def test_pings_in_silence_are_passed_over() -> None:
    async with client_of(server=server(words(0.1, 0.3)), keepalive=0.03) as client, client.messages.stream(**ASKED) as stream:
        assert await stream.get_final_text() == "w0 w1 "


async def test_closing_its_stream_cancels_both_sides() -> None:
    near, far = device([(0.0, "n"), (60.0, "n")]), server([(60.0, "f")])
    async with client_of(near, far) as client:
        stream = await client.messages.create(**ASKED, stream=True)
        await anext(stream)
        await stream.close()
        await until(lambda: near.active == 0 and far.active == 0)
