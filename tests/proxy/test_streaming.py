"""Streamed answers over real sockets: shapes, reports, silence, failures in the middle, readers that leave."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from streamco.client.stream import ChatStream
from streamco.config import RetryPolicy
from streamco.endpoints.base import Capabilities, TokenPrices
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import EndpointConnectError, EndpointProtocolError, EndpointStatusError
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage
from streamco.proxy import streaming
from streamco.proxy.response_shapes import ChatShape
from streamco.server.http.event_stream import EventStream
from streamco.testing import Cut, ScriptedServer, stream_answer
from streamco.testing.endpoint import text_chunk
from streamco.testing.responses import RecordedRequest, ScriptedResponse
from tests.client.helpers import ShapedDevice, device, server, words
from tests.proxy.support import CHAT, HELLO, TEXT, RunningProxy, proxying
from tests.server.support import contents, next_event, until

pytestmark = pytest.mark.usefixtures("no_blocked_loop")

USAGE = CompletionUsage(10, 3, 13)
STREAMED: dict[str, Any] = {**HELLO, "stream": True}


def report_in(events: list[Any]) -> dict[str, Any]:
    """The report, which stands before [DONE]."""
    assert events[-1] == "[DONE]"
    assert events[-2].startswith(": streamco {")
    return dict(json.loads(events[-2].removeprefix(": streamco ")))


async def test_chunks_come_in_openais_shape_with_the_report_before_the_end() -> None:
    side = server([(0.0, "one"), (0.0, " two"), (0.0, text_chunk("", finish_reason="stop"))])
    async with proxying(server=side) as proxy:
        events = await proxy.events(CHAT, HELLO)
    chunks = [event for event in events if isinstance(event, dict)]
    head = {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": chunks[0]["created"], "model": "scripted"}
    assert chunks == [
        {**head, "choices": [{"index": 0, "delta": {"content": "one", "role": "assistant"}, "logprobs": None, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {"content": " two"}, "logprobs": None, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]},
    ]
    report = report_in(events)
    assert (report["winner"], report["finish_reason"], report["tokens"]) == ("server", "stop", 2)


async def test_usage_is_the_last_chunk_when_asked_for_and_null_before() -> None:
    side = server([(0.0, "one"), (0.0, text_chunk("", finish_reason="stop"))], usage=USAGE)
    async with proxying(server=side) as proxy:
        events = await proxy.events(CHAT, {**HELLO, "stream_options": {"include_usage": True}})
        plain = await proxy.events(CHAT, HELLO)
    chunks = [event for event in events if isinstance(event, dict)]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None, None]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 13
    assert all("usage" not in event for event in plain if isinstance(event, dict))


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("wants_usage", [False, True])
async def test_bytes_are_the_same_whether_text_is_relayed_or_comes_as_chunks(
    path: str, wants_usage: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = [f" word{number}" for number in range(30)]
    begun = stream_answer(story[:17], gap=0.002)
    cut = ScriptedResponse(headers=begun.headers, steps=[*begun.steps[:-2], Cut()])

    def respond(request: RecordedRequest) -> ScriptedResponse:
        rest = story[17:] if request.json()["messages"][-1]["role"] == "assistant" else story
        return stream_answer(rest, gap=0.002, usage={"prompt_tokens": 5, "completion_tokens": 13})

    body: dict[str, Any] = {"prompt": "Hello"} if path == TEXT else dict(HELLO)
    if wants_usage:
        body["stream_options"] = {"include_usage": True}
    pass_on, seen = ChatStream.pass_on, []

    def counted(stream: ChatStream, send: Any, relay: Any) -> Any:
        async def take(like: ChatCompletionChunk, text: str) -> None:
            seen.append(text)
            await relay(like, text)

        return pass_on(stream, send, take)

    async def read() -> list[str]:
        able = Capabilities(continuation="continue_final_message")
        sides = [
            OpenAIEndpoint("m", base_url=each.url, name=name, probe=False, capabilities=able, retry=RetryPolicy(attempts=0))
            for name, each in (("first", first), ("second", second))
        ]
        async with proxying(server=sides) as proxy:
            events = await proxy.events(path, body)
            assert not any(isinstance(event, dict) and "error" in event for event in events)
            return [json.dumps({**event, "id": "", "created": 0}) for event in events if isinstance(event, dict)]

    async with ScriptedServer(lambda _: cut) as first, ScriptedServer(respond) as second:
        monkeypatch.setattr(ChatStream, "pass_on", counted)
        quick = await read()
        assert len(seen) > 20
        monkeypatch.setattr(ChatStream, "pass_on", lambda stream, send, _relay: pass_on(stream, send))
        assert await read() == quick


async def test_usage_behind_a_hand_over_is_the_whole_answers_in_chunk_comment_and_whole_answer() -> None:
    dying = server([(0.0, "one"), (0.0, " two"), (0.01, EndpointConnectError("cut", endpoint="first"))], name="first")
    able = Capabilities(continuation="continue_final_message")
    script: list[tuple[float, Any]] = [(0.0, "one"), (0.0, " two"), (0.0, " three"), (0.0, text_chunk("", finish_reason="stop"))]
    second = server(script, name="second", usage=CompletionUsage(22, 1, 23), capabilities=able)
    async with proxying(server=[dying, second]) as proxy:
        events = await proxy.events(CHAT, {**HELLO, "stream_options": {"include_usage": True}})
    async with proxying(server=[dying, second]) as proxy:  # a new client: the old one would ask the second server first
        _, whole = await proxy.post(CHAT, HELLO)
    usage = [event for event in events if isinstance(event, dict)][-1]["usage"]
    report = report_in(events)
    assert "".join(contents(events)) == whole["choices"][0]["message"]["content"] == "one two three"
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (report["dispatch"]["prompt_tokens"], 3)
    assert usage["is_estimated"] is True
    assert usage == whole["usage"] == report["usage"]
    assert [(part["name"], part["prompt_tokens"]) for part in report["endpoints"]][1] == ("second", 22)


@pytest.mark.long
async def test_an_answer_that_moves_to_the_cheaper_side_is_one_stream_and_its_report_says_what_that_saved() -> None:
    story = [f"word{number} " for number in range(80)]
    dear = server([(0.02 * number, word) for number, word in enumerate(story)], prices=TokenPrices(prompt=1e-6, completion=9e-6))
    dear.model = "m"  # type: ignore[attr-defined]
    script: list[tuple[float, Any]] = [(30.0 + 0.02 * number, word) for number, word in enumerate(story)]
    cheap = ShapedDevice("device", script, kind="device", tokens=10, capabilities=Capabilities(continuation="token_ids", pre_copy="append"))
    async with proxying(cheap, dear, policy="both", budget=1.0, pace=25) as proxy:
        events = await proxy.events(CHAT, HELLO)
    assert "".join(contents(events)) == "".join(story)
    (change,) = report_in(events)["hand_overs"]
    assert (change["source"], change["target"], change["reason"], change["is_planned"]) == ("server", "device", "cheaper", True)
    assert change["saved_usd"] > 0
    assert len({(event["id"], event["created"]) for event in events if isinstance(event, dict)}) == 1


async def test_at_a_smooth_pace_an_answer_in_one_chunk_comes_in_several_events() -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 5
    whole = text_chunk(text, finish_reason="stop")
    whole.usage = USAGE
    async with proxying(server=server([(0.0, whole)]), pace="smooth") as proxy:
        events = await proxy.events(CHAT, {**HELLO, "stream_options": {"include_usage": True}})
        _, unstreamed = await proxy.post(CHAT, HELLO)
    chunks = [event for event in events if isinstance(event, dict) and event["choices"]]
    assert "".join(contents(events)) == text == unstreamed["choices"][0]["message"]["content"]
    assert len(chunks) == 20
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 19 + ["stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert [event["usage"]["total_tokens"] for event in events if isinstance(event, dict) and event["usage"] is not None] == [13]


async def test_a_finish_reason_that_no_chunk_had_is_told_all_the_same() -> None:
    async with proxying(server=server([(0.0, "one")])) as proxy:
        events = await proxy.events(CHAT, HELLO)
    assert events[1]["choices"][0]["finish_reason"] == "stop"
    report_in(events)


async def test_completions_are_streamed_in_their_own_shape() -> None:
    side = server([(0.0, text_chunk("")), (0.0, "one"), (0.0, text_chunk("", finish_reason="length"))])
    async with proxying(server=side) as proxy:
        events = await proxy.events(TEXT, {"prompt": "Once"})
    chunks = [event for event in events if isinstance(event, dict)]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "text": "one", "logprobs": None, "finish_reason": None}],
        [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}],
    ]


async def test_thinking_and_token_ids_pass_when_they_are_there_and_asked_for() -> None:
    thought = ChatCompletionChunk(id="c", model="m", choices=[ChunkChoice(delta=ChoiceDelta(reasoning_content="hm"))])
    side = server([(0.0, thought), (0.0, text_chunk("yes", ids=[7]))])
    async with proxying(server=side) as proxy:
        events = await proxy.events(CHAT, {**HELLO, "return_token_ids": True})
        plain = await proxy.events(CHAT, HELLO)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "reasoning_content": "hm"}
    assert events[1]["choices"][0]["token_ids"] == [7]
    assert "token_ids" not in plain[1]["choices"][0]


async def test_a_streams_headers_name_the_winner() -> None:
    sides = device([(0.0, "D")]), server([(60.0, "S")])
    async with proxying(*sides, policy="both") as proxy, proxy.client.post(CHAT, json=STREAMED) as response:
        assert response.headers["x-streamco-winner"] == "device"
        assert "x-streamco-cost-usd" not in response.headers  # not known before the end
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        await response.read()


async def test_text_is_not_kept_back_until_more_comes() -> None:
    side = server([(0.0, "one"), (60.0, "two")])
    async with proxying(server=side) as proxy, proxy.client.post(CHAT, json=STREAMED) as response:
        assert '"content":"one"' in await next_event(response)


async def test_silence_is_filled_with_comments_before_and_between_tokens() -> None:
    side = server([(0.2, "one"), (0.4, "two")])
    async with proxying(server=side, keepalive=0.05) as proxy:
        events = await proxy.events(CHAT, HELLO)
    assert contents(events) == ["one", "two"]
    first = next(index for index, event in enumerate(events) if isinstance(event, dict))
    assert ": keep-alive" in events[:first]
    assert ": keep-alive" in events[first:]


async def test_no_comment_comes_while_tokens_do() -> None:
    async with proxying(server=server(words(*(index * 0.01 for index in range(20)))), keepalive=5.0) as proxy:
        assert ": keep-alive" not in await proxy.events(CHAT, HELLO)


async def test_a_failure_before_the_first_token_has_a_status() -> None:
    limited = EndpointStatusError("expected status 200, got 429: slow down", status=429, retry_after=7.2)
    async with proxying(server=server([(0.0, limited)])) as proxy, proxy.client.post(CHAT, json=STREAMED) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "8")
        assert (await response.json())["error"]["message"] == "server: expected status 200, got 429: slow down"


async def test_a_failure_after_a_comment_is_an_event_though_no_token_came() -> None:
    side = server([(0.2, EndpointConnectError("expected a connection, got it refused"))])
    async with proxying(server=side, keepalive=0.05) as proxy:
        events = await proxy.events(CHAT, HELLO)
    assert events[0] == ": keep-alive"
    assert events[-1]["error"]["code"] == "endpoint_failed"


async def test_a_failure_in_the_middle_is_an_event_after_the_text_and_no_done_follows() -> None:
    cut = EndpointProtocolError("expected the rest of the answer, got the connection cut")
    async with proxying(server=server([(0.0, "Half an "), (0.0, "answer"), (0.01, cut)])) as proxy:
        events = await proxy.events(CHAT, HELLO)
    assert contents(events) == ["Half an ", "answer"]
    assert events[-1]["error"] == {
        "message": "server: expected the rest of the answer, got the connection cut",
        "type": "server_error",
        "param": None,
        "code": "endpoint_failed",
    }
    assert "[DONE]" not in events


async def test_a_bug_in_the_middle_is_an_event_too_and_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    original = ChatShape.event

    def fail(self: ChatShape, chunk: ChatCompletionChunk) -> bytes:
        if chunk.choices[0].delta.content == "two":
            raise ZeroDivisionError("a bug")
        return original(self, chunk)

    monkeypatch.setattr(ChatShape, "event", fail)
    with caplog.at_level(logging.ERROR):
        async with proxying(server=server([(0.0, "one"), (0.0, "two")])) as proxy:
            events = await proxy.events(CHAT, HELLO)
    assert contents(events) == ["one"]
    assert events[-1]["error"]["message"] == "proxy: expected to finish the answer, got an internal error"
    assert "a bug" in caplog.text


@pytest.mark.parametrize("first", [0.0, 60.0])
async def test_a_reader_that_leaves_cancels_both_sides(first: float) -> None:
    near, far = device([(first, "n"), (60.0, "n")]), server([(60.0, "f")])
    async with proxying(near, far, policy="both") as proxy:
        asking = asyncio.ensure_future(proxy.client.post(CHAT, json=STREAMED))
        await until(lambda: near.streams and far.streams)
        if first == 0.0:
            response = await asking
            await next_event(response)
            response.close()
        else:
            asking.cancel()
        await until(lambda: near.active == 0 and far.active == 0)
        await until(lambda: proxy.proxy.active == 0 and proxy.proxy.admission.present == 0)


async def test_a_reader_that_leaves_in_silence_is_noticed_and_its_comments_stop() -> None:
    side = server([(60.0, "late")])
    async with proxying(server=side, keepalive=0.02) as proxy:
        response = await proxy.client.post(CHAT, json=STREAMED)
        assert await next_event(response) == ": keep-alive"
        response.close()
        await until(lambda: side.active == 0)


async def test_a_reader_that_does_not_read_is_dropped_in_the_end() -> None:
    side = server([(0.0, "x" * 65536)] * 400)
    async with proxying(server=side, reader_timeout=0.2) as proxy:
        response = await proxy.client.post(CHAT, json=STREAMED)
        await until(lambda: side.active == 0)
        await until(lambda: proxy.proxy.active == 0)
        response.close()


async def test_comments_and_events_are_written_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowStream(EventStream):
        is_busy = False
        most = 0

        async def write(self, data: bytes) -> None:
            SlowStream.most += self.is_busy
            self.is_busy = True
            await asyncio.sleep(0.02)
            await super().write(data)
            self.is_busy = False

    monkeypatch.setattr(streaming, "EventStream", SlowStream)
    async with proxying(server=server(words(0.05, 0.06, 0.07, 0.2, 0.21)), keepalive=0.01) as proxy:
        events = await proxy.events(CHAT, HELLO)
    assert SlowStream.most == 0
    assert events[0] == ": keep-alive"
    assert contents(events) == ["w0 ", "w1 ", "w2 ", "w3 ", "w4 "]


async def test_a_shutdown_ends_streams_with_an_error_their_readers_can_tell() -> None:
    side = server([(0.0, "one"), (60.0, "two")])
    async with proxying(server=side) as proxy:
        response = await proxy.client.post(CHAT, json=STREAMED)
        await next_event(response)
        await proxy.runner.cleanup()
        rest = await response.read()
    assert b'"code":"shutdown"' in rest
    assert b"[DONE]" not in rest


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("seed", range(3))
async def test_readers_that_leave_at_any_point_leave_nothing_behind(seed: int) -> None:
    dice = Random(seed)
    near = device([(dice.random() * 0.05, "n ")] + [(0.05 + index * 0.005, "n ") for index in range(20)])
    far = server([(dice.random() * 0.05, "f ")] + [(0.05 + index * 0.005, "f ") for index in range(20)])

    async def read(proxy: RunningProxy, patience: float, is_streamed: bool) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(patience), proxy.client.post(CHAT, json={**HELLO, "stream": is_streamed}) as response:
                await response.read()

    async with proxying(near, far, policy="both", keepalive=0.01) as proxy:
        await asyncio.gather(*(read(proxy, dice.random() * 0.25, dice.random() < 0.7) for _ in range(40)))
        await until(lambda: near.active == 0 and far.active == 0)
        await until(lambda: proxy.proxy.active == 0 and proxy.proxy.admission.present == 0)
