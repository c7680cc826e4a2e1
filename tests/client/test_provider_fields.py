"""A provider's own fields at the caller: streamed and whole answers, messages sent back, failover, the proxy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamco.client.client import Client
from streamco.endpoints.base import Capabilities
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.proxy.response_shapes import ChatShape
from streamco.testing import DONE, Cut, ScriptedResponse, ScriptedServer, sse_event
from streamco.wire.openai.assembler import CompletionAssembler
from tests.client.helpers import HELLO, opened

ABLE = Capabilities(continuation="continue_final_message", tools=True)
SIGNED = {"type": "reasoning.text", "index": 0, "format": "anthropic-claude-v1"}


def event(delta: dict[str, Any] | None = None, *, finish: str | None = None, **top: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish, "native_finish_reason": finish}]
    head = {"id": "gen-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "provider": "Anthropic"}
    return sse_event({**head, "choices": choices, **top})


def answer(*steps: Any) -> ScriptedResponse:
    return ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=steps)


CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
REASONED = answer(
    event({"role": "assistant", "content": "", "reasoning": "It ", "reasoning_details": [{**SIGNED, "text": "It "}]}),
    event({"content": "", "reasoning": "rains.", "reasoning_details": [{**SIGNED, "text": "rains."}]}),
    event({"content": "", "reasoning_details": [{**SIGNED, "signature": "c2ln"}]}),
    event({"tool_calls": [{**CALL, "extra_content": {"google": {"thought_signature": "dGhv"}}}]}),
    event({}, finish="tool_calls", citations=["https://x"]),
    event(
        usage={"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9, "cost": 0.001, "is_byok": False}, timings={"predicted_n": 4}
    ),
    DONE,
)
PLAIN = answer(event({"content": "Sunny."}), event({}, finish="stop"), DONE)


def remote(server: ScriptedServer, **options: Any) -> OpenAIEndpoint:
    return OpenAIEndpoint("m", base_url=server.url, **{"name": "server", "capabilities": ABLE, **options})


async def test_chunks_have_them_as_attributes() -> None:
    async with ScriptedServer(REASONED) as server, opened(server=remote(server)) as client:
        stream = await client.chat.completions.create(messages=HELLO, stream=True)
        chunks: list[Any] = [chunk async for chunk in stream]
    assert {chunk.provider for chunk in chunks} == {"Anthropic"}
    assert chunks[0].choices[0].delta.reasoning_details == [{**SIGNED, "text": "It "}]
    assert chunks[3].choices[0].delta.tool_calls[0].extra_content == {"google": {"thought_signature": "dGhv"}}
    assert [getattr(chunk, "citations", None) for chunk in chunks[3:]] == [None, ["https://x"], None]
    assert not hasattr(chunks[0], "citations")


async def test_fields_of_a_chunk_without_choices_come_with_an_empty_delta() -> None:
    async with ScriptedServer(REASONED, REASONED) as server, opened(server=remote(server)) as client:
        stream = await client.chat.completions.create(messages=HELLO, stream=True)
        *_, last = [chunk async for chunk in stream]
        assert last.model_extra == {"provider": "Anthropic", "timings": {"predicted_n": 4}}
        assert (last.choices[0].delta.content, last.choices[0].finish_reason, last.usage) == (None, None, None)
        stream = await client.chat.completions.create(messages=HELLO, stream=True, stream_options={"include_usage": True})
        *_, counted = [chunk async for chunk in stream]
        assert counted.choices == []
        assert counted.usage is not None
        assert counted.usage.model_extra == {"cost": 0.001, "is_byok": False}
        assert counted.model_extra["timings"] == {"predicted_n": 4}


async def test_a_whole_answer_has_them() -> None:
    async with ScriptedServer(REASONED) as server, opened(server=remote(server)) as client:
        whole: Any = await client.chat.completions.create(messages=HELLO, stream=False)
    assert (whole.provider, whole.citations, whole.timings) == ("Anthropic", ["https://x"], {"predicted_n": 4})
    assert whole.choices[0].native_finish_reason == "tool_calls"
    message = whole.choices[0].message
    assert (message.reasoning, message.reasoning_content) == ("It rains.", "It rains.")
    assert message.reasoning_details == [{**SIGNED, "text": "It rains.", "signature": "c2ln"}]
    assert message.tool_calls[0].extra_content == {"google": {"thought_signature": "dGhv"}}
    assert whole.report.winner == "server"
    assert whole.to_dict()["citations"] == ["https://x"]


async def test_a_tool_loop_sends_back_what_the_model_thought() -> None:
    """OpenRouter, Anthropic and Gemini refuse a tool's result if the thinking before the call or its signature is missing."""
    async with ScriptedServer(REASONED, PLAIN) as server, opened(server=remote(server)) as client:
        messages: list[Any] = [*HELLO]
        asked = await client.chat.completions.create(messages=messages)
        messages += [asked.choices[0].message, {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}]
        await client.chat.completions.create(messages=messages)
        sent = server.requests[1].json()["messages"][1]
    assert sent == {
        "role": "assistant",
        "content": None,
        "reasoning": "It rains.",
        "reasoning_details": [{**SIGNED, "text": "It rains.", "signature": "c2ln"}],
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": "{}"},
                "extra_content": {"google": {"thought_signature": "dGhv"}},
            }
        ],
    }


async def test_reasoning_goes_back_under_its_servers_name() -> None:
    thinking = answer(event({"content": "Hi", "reasoning_content": "hm"}), event({}, finish="stop"), DONE)
    async with ScriptedServer(thinking, PLAIN) as server, opened(server=remote(server)) as client:
        first = await client.chat.completions.create(messages=HELLO)
        await client.chat.completions.create(messages=[*HELLO, first.choices[0].message])
        assert server.requests[1].json()["messages"][1] == {"role": "assistant", "content": "Hi", "reasoning_content": "hm"}


@pytest.mark.parametrize("pace", [None, 1000.0])
async def test_after_a_failover_each_server_has_its_own(pace: float | None) -> None:
    first = answer(event({"content": "One two "}, citations=["a"]), Cut())
    second = answer(event({"content": "three"}, provider="Azure", citations=["b"]), event({}, finish="stop", provider="Azure"), DONE)
    async with ScriptedServer(first) as one, ScriptedServer(second) as two:
        servers = [remote(one, name="one"), remote(two, name="two")]
        async with Client(None, servers, pace=pace, seed=1) as client:
            stream = await client.chat.completions.create(messages=HELLO, stream=True)
            chunks: list[Any] = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "One two three"
    assert [chunk.citations for chunk in chunks if hasattr(chunk, "citations")] == [["a"], ["b"]]
    assert {chunk.provider for chunk in chunks} == {"Anthropic", "Azure"}


async def test_the_proxy_passes_them_on_streamed_and_whole() -> None:
    async with ScriptedServer(REASONED, REASONED) as server, opened(server=remote(server)) as client:
        shape, assembler = ChatShape(model="m", wants_usage=True), CompletionAssembler()
        stream = await client.chat.completions.create(messages=HELLO, stream=True, stream_options={"include_usage": True})
        events = []
        async for chunk in stream:
            assembler.add(chunk)
            events.append(json.loads(shape.event(chunk)[6:]))
        whole = json.loads(shape.whole(assembler.completion(), "stop"))
    assert all(each["provider"] == "Anthropic" for each in [*events, whole])
    assert events[0]["choices"][0]["delta"]["reasoning_details"] == [{**SIGNED, "text": "It "}]
    assert events[3]["choices"][0]["delta"]["tool_calls"] == [{**CALL, "extra_content": {"google": {"thought_signature": "dGhv"}}}]
    assert events[4]["citations"] == whole["citations"] == ["https://x"]
    assert events[4]["choices"][0]["native_finish_reason"] == whole["choices"][0]["native_finish_reason"] == "tool_calls"
    assert events[-1]["timings"] == whole["timings"] == {"predicted_n": 4}
    assert events[-1]["usage"]["is_byok"] is whole["usage"]["is_byok"] is False
    message = whole["choices"][0]["message"]
    assert message["reasoning_details"] == [{**SIGNED, "text": "It rains.", "signature": "c2ln"}]
    assert message["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "dGhv"}}
    assert "further" not in json.dumps([events, whole])


async def test_openais_sdk_reads_the_same_from_the_same_server() -> None:
    openai = pytest.importorskip("openai")
    async with ScriptedServer(REASONED, REASONED) as server, opened(server=remote(server)) as client:
        stream = await client.chat.completions.create(messages=HELLO, stream=True)
        ours: list[Any] = [chunk async for chunk in stream][:-1]
        async with openai.AsyncOpenAI(base_url=server.url, api_key="k") as sdk:
            theirs = [chunk async for chunk in await sdk.chat.completions.create(model="m", messages=HELLO, stream=True)][:-1]
    for own, other in zip(ours, theirs, strict=True):
        assert own.to_dict(exclude_none=True) == other.to_dict(exclude_none=True)
        assert own.provider == other.provider
        assert getattr(own, "citations", 0) == getattr(other, "citations", 0)
