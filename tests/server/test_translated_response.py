"""The engine's answers in the form of the Responses API and of the Messages API, over real sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from streamco.engines.base import GenerationEnd, GenerationTimings, TextPiece
from streamco.server.translated_response import TranslatedResponse
from streamco.testing.engine import FakeEngine
from streamco.wire.messages_api.events import MessageEvents
from tests.server.support import ManualClock, next_event, running, until
from tests.support.named_events import build_message, build_response, read_named

RESPONSES, MESSAGES, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "Hi"}]
ASKED: dict[str, Any] = {"max_tokens": 100, "messages": HI}
TIMINGS = GenerationTimings(prompt_tokens=7, reused_tokens=2, completion_tokens=3, prefill_s=0.1, decode_s=0.1)


async def test_a_response_streamed_and_whole() -> None:
    async with running(FakeEngine("one two three")) as server:
        _, whole = await server.post(RESPONSES, {"input": "Hi", "instructions": "Be brief.", "metadata": {"a": "b"}})
        async with server.client.post(RESPONSES, json={"input": "Hi", "stream": True}) as response:
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            events = read_named(await response.read())
    assert build_response(events).parts == [("message", "one two three")]
    assert [data["delta"] for name, data in events if name == "response.output_text.delta"] == ["one", " two", " three"]
    final = events[-1][1]["response"]
    assert (final["status"], final["model"], final["usage"]["output_tokens"]) == ("completed", "fake", 3)
    assert whole["output"][0]["content"][0]["text"] == "one two three"
    assert (whole["metadata"], whole["store"], whole["instructions"]) == ({"a": "b"}, False, "Be brief.")


async def test_a_message_streamed_and_whole() -> None:
    async with running(FakeEngine("one two three")) as server:
        _, whole = await server.post(MESSAGES, {**ASKED, "max_tokens": 2})
        async with server.client.post(MESSAGES, json={**ASKED, "stream": True}) as response:
            events = read_named(await response.read())
    assert build_message(events).parts == [("text", "one two three")]
    assert events[-2][1]["delta"]["stop_reason"] == "end_turn"
    assert events[-2][1]["usage"]["output_tokens"] == 3
    assert (whole["content"], whole["stop_reason"]) == ([{"type": "text", "text": "one two"}], "max_tokens")
    assert whole["usage"]["input_tokens"] > 0


async def test_the_prompt_is_that_of_the_chat_path() -> None:
    engine = FakeEngine("yes")
    chat = {"messages": [{"role": "system", "content": "Be brief."}, *HI], "max_tokens": 5, "temperature": 0.5, "top_p": 0.9}
    async with running(engine) as server:
        await server.post("/v1/chat/completions", {**chat, "stop": ["END"]})
        shared = {"temperature": 0.5, "top_p": 0.9}
        await server.post(RESPONSES, {"input": HI, "instructions": "Be brief.", "max_output_tokens": 5, **shared, "stop": ["END"]})
        await server.post(MESSAGES, {"messages": HI, "system": "Be brief.", "max_tokens": 5, **shared, "stop_sequences": ["END"]})
    first, *others = engine.requests
    for other in others:
        assert (list(other.prompt_ids), other.sampling) == (list(first.prompt_ids), first.sampling)


async def test_the_beginning_of_an_answer_is_continued() -> None:
    engine = FakeEngine(" three")
    begun = [*HI, {"role": "assistant", "content": "one two"}]
    async with running(engine) as server:
        status, whole = await server.post(MESSAGES, {**ASKED, "messages": begun})
    assert (status, whole["content"][0]["text"]) == (200, " three")
    assert engine.detokenize(engine.requests[0].prompt_ids).decode().endswith("assistant: one two")


async def test_tokens_are_counted_by_the_engine() -> None:
    engine = FakeEngine()
    async with running(engine) as server:
        status, counted = await server.post(COUNT, {"model": "fake", "messages": HI, "system": "Be brief."})
        await server.post(MESSAGES, {**ASKED, "system": "Be brief."})
        long = await server.post(COUNT, {"messages": [{"role": "user", "content": "word " * 3000}]})
    assert (status, counted) == (200, {"input_tokens": len(engine.requests[0].prompt_ids)})
    assert long[0] == 200
    assert long[1]["input_tokens"] > 2999


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        (RESPONSES, {"input": "Hi", "temperature": 9}, 400, "temperature: expected float <= 2.0"),
        (RESPONSES, {"input": "Hi", "max_output_tokens": 99}, 400, "max_output_tokens: expected at most 50, got 99"),
        (RESPONSES, {"input": "word " * 3000}, 400, "input: expected at most 2047 tokens"),
        (RESPONSES, {"input": "Hi", "model": "other"}, 404, "model: expected fake, got other"),
        (RESPONSES, {"input": "Hi", "reasoning": {"effort": "low"}}, 400, "reasoning.effort: expected none, got some"),
        (RESPONSES, {"input": "Hi", "text": {"format": {"type": "json_object"}}}, 400, "text.format: expected type text"),
        (RESPONSES, {"input": "Hi", "tools": [{"type": "function", "name": "f"}]}, 400, "tools: expected none, got some"),
        (MESSAGES, {**ASKED, "max_tokens": 99}, 400, "max_tokens: expected at most 50, got 99"),
        (MESSAGES, {**ASKED, "max_tokens": 5, "stop_sequences": [""]}, 400, "stop_sequences: expected text, got an empty string"),
        (MESSAGES, {**ASKED, "max_tokens": 5, "model": "other"}, 404, "model: expected fake, got other"),
        (MESSAGES, {"messages": HI}, 400, "max_tokens: expected an integer >= 1, got none"),
        (COUNT, {"messages": HI, "tools": [{"name": "f", "input_schema": {}}]}, 400, "tools: expected none, got some"),
        (COUNT, {"messages": HI, "model": "other"}, 404, "model: expected fake, got other"),
    ],
)
async def test_what_the_engine_cannot_do_is_refused_under_the_apis_own_name(path: str, body: Any, status: int, text: str) -> None:
    async with running(max_tokens=50) as server:
        found, answer = await server.post(path, body)
    assert (found, answer["error"]["message"].startswith(text)) == (status, True), answer
    assert ("type" in answer) == (path != RESPONSES)


async def test_a_failure_in_mid_stream_is_the_apis_own_event() -> None:
    async with running(FakeEngine("one two three", fail_after=2)) as server:
        async with server.client.post(RESPONSES, json={"input": "Hi", "stream": True}) as response:
            events = read_named(await response.read())
        async with server.client.post(MESSAGES, json={**ASKED, "stream": True}) as response:
            others = read_named(await response.read())
        status, whole = await server.post(MESSAGES, ASKED)
    assert [name for name, _ in events[-2:]] == ["error", "response.failed"]
    assert "failed after 2 tokens" in events[-2][1]["message"]
    assert events[-1][1]["response"]["output"][0]["content"][0]["text"] == "one two"
    assert (others[-1][0], others[-1][1]["error"]["type"]) == ("error", "api_error")
    assert (status, whole["error"]["type"]) == (500, "api_error")


async def test_silence_is_a_comment_and_after_the_messages_start_a_ping() -> None:
    engine, clock = FakeEngine("one two", mode="manual"), ManualClock()
    async with running(engine, clock=clock, keepalive=1.0) as server:
        asking = asyncio.ensure_future(server.client.post(MESSAGES, json={**ASKED, "stream": True}))
        await until(lambda: bool(engine.generations))
        await clock.asleep()
        clock.advance(1.0)
        async with await asking as response:
            assert await next_event(response) == ": keep-alive"
            engine.step()
            assert (await next_event(response)).startswith("event: message_start")
            assert (await next_event(response)).startswith("event: content_block_start")
            assert (await next_event(response)).startswith("event: content_block_delta")
            await clock.asleep()
            clock.advance(5.0)
            assert await next_event(response) == 'event: ping\ndata: {"type":"ping"}'
            engine.step(5)
            assert b"message_stop" in await response.read()


async def test_a_reader_that_leaves_cancels_the_sequence() -> None:
    engine = FakeEngine("one two", mode="manual")
    async with running(engine) as server:
        asking = asyncio.ensure_future(server.client.post(RESPONSES, json={"input": "Hi", "stream": True}))
        await until(lambda: bool(engine.generations))
        engine.step()
        async with await asking as response:
            assert response.status == 200
            response.close()
        await until(lambda: engine.generations[0].is_cancelled)


async def test_log_probabilities_come_on_request() -> None:
    asked = {"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    async with running(FakeEngine("one two")) as server:
        _, whole = await server.post(RESPONSES, asked)
        async with server.client.post(RESPONSES, json={**asked, "stream": True}) as response:
            events = read_named(await response.read())
    part = whole["output"][0]["content"][0]
    assert [token["token"] for token in part["logprobs"]] == ["one", " two"]
    assert [data["logprobs"] for name, data in events if name == "response.output_text.done"] == [part["logprobs"]]


async def test_a_key_is_asked_for_and_taken_from_either_header() -> None:
    async with running(api_key="right") as server:
        assert (await server.post(MESSAGES, ASKED))[0] == 401
        assert (await server.post(MESSAGES, ASKED, **{"x-api-key": "right"}))[0] == 200
        assert (await server.post(COUNT, {"messages": HI}, Authorization="Bearer right"))[0] == 200
        assert (await server.post(RESPONSES, {"input": "Hi"}, **{"x-api-key": "right"}))[0] == 401


# The format itself


def response_of(engine: FakeEngine) -> TranslatedResponse:
    return TranslatedResponse(MessageEvents(name="1", model="m", created=0), detokenize=engine.detokenize, top=None)


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("expected", ["END", None])
def test_the_stop_string_that_ended_the_text_is_named(expected: str | None, *, is_cut: bool) -> None:
    engine = FakeEngine()
    piece = TextPiece("one", tuple(engine.tokenize("oneEND" if is_cut else "one")), is_cut=is_cut)
    response, end = response_of(engine), GenerationEnd("stop", TIMINGS, stop=expected)
    events = read_named(response.opening() + response.events([piece]) + response.closing(end))
    reason = "end_turn" if expected is None else "stop_sequence"
    assert events[-2][1]["delta"] == {"stop_reason": reason, "stop_sequence": expected}
    whole = response_of(engine)
    whole.add([piece])
    assert json.loads(whole.whole(end))["stop_sequence"] == expected


def test_usage_tells_tokens_in_memory_apart() -> None:
    engine = FakeEngine()
    response = response_of(engine)
    response.add([TextPiece("one", (1,))])
    usage = json.loads(response.whole(GenerationEnd("stop", TIMINGS)))["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (5, 2, 3)
