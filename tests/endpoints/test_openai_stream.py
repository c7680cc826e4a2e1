"""One streamed answer against a real socket: reading, phases, retries, cancelling, ends."""

from __future__ import annotations

import asyncio
import gzip
import json
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from streamco.config import Limits, RetryPolicy, Timeouts
from streamco.endpoints.base import Request
from streamco.errors import (
    ConcurrentRead,
    EndpointConnectError,
    EndpointError,
    EndpointProtocolError,
    EndpointStatusError,
    EndpointTimeoutError,
    StreamClosed,
    StreamConsumed,
)
from streamco.events import StreamEnded, TokensReceived
from streamco.openai_types import CompletionUsage
from streamco.testing import (
    DONE,
    Cut,
    FaultProxy,
    Faults,
    Pause,
    RecordedRequest,
    Reset,
    ScriptedResponse,
    ScriptedServer,
    Stall,
    chunk_event,
    json_answer,
    sse_event,
    stream_answer,
)
from tests.endpoints.helpers import HELLO, NO_RETRIES, USAGE, ask, opened, read_all
from tests.support.certificates import client_context, server_context
from tests.support.leaks import without_collector

SSE = {"Content-Type": "text/event-stream"}
ERROR = {"error": {"message": "busy", "type": "server_error", "code": 503}}


def events(*steps: Any, **options: Any) -> ScriptedResponse:
    return ScriptedResponse(headers=SSE, steps=steps, **options)


def failing(status: int, **headers: str) -> ScriptedResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return json_answer({"error": {"message": f"status {status}"}}, status=status, headers=named)


# A proper answer


async def test_an_answer_is_read_to_its_end_with_usage() -> None:
    async with ScriptedServer(stream_answer(["Hel", "lo"], gap=0.01, usage=USAGE)) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        assert answered.text == "Hello"
        assert answered.tokens == 2
        assert answered.end == StreamEnded("remote", "stop", CompletionUsage(5, 2, 7))


async def test_the_role_comes_together_with_the_first_content() -> None:
    async with ScriptedServer(stream_answer(["Hi"], first=0.02)) as server, opened(server.url) as endpoint:
        first = await endpoint.open(HELLO).receive()
        assert isinstance(first, TokensReceived)
        assert first.tokens == 1
        assert [chunk.choices[0].delta.role for chunk in first.chunks[:2]] == ["assistant", None]


async def test_one_network_read_gives_one_event() -> None:
    async with ScriptedServer(stream_answer([str(n) for n in range(50)], joined=True)) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        assert len(answered.batches) == 1
        assert answered.tokens == 50


async def test_sequential_answers_share_one_connection() -> None:
    async with ScriptedServer(stream_answer(usage=USAGE)) as server, opened(server.url) as endpoint:
        for _ in range(5):
            assert (await ask(endpoint)).text == "Hello world"
        assert server.connections_total == 1


async def test_a_stream_that_has_ended_leaves_no_cycles() -> None:
    async with ScriptedServer(stream_answer(["Hel", "lo"])) as server, opened(server.url) as endpoint:
        stream = endpoint.open(HELLO)
        while not isinstance(await stream.receive(), StreamEnded):
            pass
        is_freed = weakref.ref(stream)
        with without_collector():
            del stream
            assert is_freed() is None


async def test_an_answer_without_content_is_an_answer() -> None:
    async with ScriptedServer(stream_answer([], finish_reason="content_filter")) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        assert answered.end == StreamEnded("remote", "content_filter", None)
        assert answered.tokens == 0
        assert [chunk.choices[0].finish_reason for chunk in answered.chunks] == [None, "content_filter"]


async def test_a_gzipped_stream_is_read() -> None:
    body = chunk_event("Hello") + chunk_event(finish_reason="stop") + DONE
    answer = ScriptedResponse(headers={**SSE, "Content-Encoding": "gzip"}, steps=[gzip.compress(body)])
    async with ScriptedServer(answer) as server, opened(server.url) as endpoint:
        assert (await ask(endpoint)).text == "Hello"
        assert server.requests[0].headers["accept-encoding"] == "identity"


async def test_a_usage_of_nothing_but_zeros_is_none_as_is_one_that_never_arrives() -> None:
    zero = stream_answer(["a"], usage={"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0})
    async with ScriptedServer(zero, stream_answer(["a"])) as server, opened(server.url) as endpoint:
        assert (await ask(endpoint)).usage is None
        assert (await ask(endpoint)).usage is None


async def test_empty_choices_first_and_last_break_nothing() -> None:
    """Pitfall 6: Azure's prompt filter results come first, usage comes last, both with ``choices: []``."""
    filters = sse_event({"choices": [], "created": 0, "id": "", "model": "", "prompt_filter_results": [{"prompt_index": 0}]})
    answer = events(
        filters, chunk_event("", role="assistant"), chunk_event("Hi"), chunk_event(finish_reason="stop"), chunk_event(usage=USAGE), DONE
    )
    async with ScriptedServer(answer) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        assert answered.text == "Hi"
        assert answered.usage == CompletionUsage(5, 2, 7)


async def test_after_the_end_a_receive_is_an_error() -> None:
    async with ScriptedServer() as server, opened(server.url) as endpoint:
        stream = endpoint.open(HELLO)
        await read_all(stream)
        with pytest.raises(StreamConsumed, match="after the end"):
            await stream.receive()


async def test_two_readers_of_one_stream_are_refused() -> None:
    async with ScriptedServer(events(Stall())) as server, opened(server.url) as endpoint:
        stream = endpoint.open(HELLO)
        first = asyncio.create_task(stream.receive())
        await server.wait_for(lambda server: len(server.requests) == 1)
        with pytest.raises(ConcurrentRead):
            await stream.receive()
        await stream.cancel()
        with pytest.raises(StreamClosed):
            await first


# Comments, blank lines, bodies that are no streams


async def test_keep_alive_comments_are_not_tokens() -> None:
    """Pitfall 1: DeepSeek's and OpenRouter's comments give no event."""
    answer = events(b": keep-alive\n\n", Pause(0.01), b": OPENROUTER PROCESSING\n\n", *stream_answer(["Hi"]).steps)
    async with ScriptedServer(answer) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        assert [batch.tokens for batch in answered.batches if batch.tokens] == [1]
        assert answered.text == "Hi"


async def test_comments_do_not_feed_the_first_token_limit() -> None:
    """Pitfall 1: they prove that the server lives, not that it answers."""
    answer = events(*[b": keep-alive\n\n", Pause(0.03)] * 100)
    timeouts = Timeouts(first_token=0.1, socket=5)
    async with ScriptedServer(answer) as server, opened(server.url, timeouts=timeouts) as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointTimeoutError)
        assert (error.phase, error.limit) == ("first_token", 0.1)


async def test_empty_chunks_do_not_feed_the_token_limit() -> None:
    answer = events(chunk_event("Hi"), *[chunk_event(""), Pause(0.03)] * 100)
    timeouts = Timeouts(next_token=0.1, socket=5)
    async with ScriptedServer(answer) as server, opened(server.url, timeouts=timeouts) as endpoint:
        answered = await ask(endpoint)
        error = answered.failure()
        assert isinstance(error, EndpointTimeoutError)
        assert (error.phase, error.partial) == ("next_token", "Hi")
        assert {batch.tokens for batch in answered.batches} == {0, 1}


async def test_blank_lines_before_a_json_answer_are_skipped() -> None:
    """Pitfall 2: DeepSeek sends blank lines while a request waits, and then a body that is no stream."""
    message = {"role": "assistant", "content": "Hi there"}
    body = {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE}
    async with ScriptedServer(json_answer(body, steps=[b"\n", Pause(0.01), b"\n\n"])) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        assert answered.text == "Hi there"
        assert answered.end == StreamEnded("remote", "stop", CompletionUsage(5, 2, 7))


async def test_blank_lines_for_ever_end_with_the_first_token_limit() -> None:
    answer = events(*[b"\n", Pause(0.02)] * 100)
    async with ScriptedServer(answer) as server, opened(server.url, timeouts=Timeouts(first_token=0.1)) as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointTimeoutError)
        assert error.phase == "first_token"


async def test_a_json_error_with_status_200_is_that_error() -> None:
    body = {"error": {"message": "no such model", "code": 404}}
    async with ScriptedServer(json_answer(body)) as server, opened(server.url) as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointStatusError)
        assert error.status == 404
        assert "no such model" in str(error)
        assert len(server.requests) == 1


async def test_an_html_page_is_named_as_such() -> None:
    page = ScriptedResponse(headers={"Content-Type": "text/html"}, steps=[b"<!DOCTYPE html><title>Sign in</title>"])
    async with ScriptedServer(page) as server, opened(server.url, retry=NO_RETRIES) as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointProtocolError)
        assert "got HTML" in str(error)
        assert "Sign in" in str(error)


async def test_a_json_body_beyond_its_limit_is_refused() -> None:
    answer = json_answer({"choices": [{"message": {"content": "x" * 100_000}}]})
    async with ScriptedServer(answer) as server, opened(server.url, limits=Limits(body_bytes=10_000), retry=NO_RETRIES) as endpoint:
        assert "10000 bytes" in str((await ask(endpoint)).failure())


# Cuts and ends


async def test_an_end_without_finish_reason_or_done_is_a_truncation() -> None:
    """Pitfall 3: a clean EOF in the middle is not the end of the answer."""
    async with ScriptedServer(stream_answer(["Hel"], finish_reason=None, done=False)) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        error = answered.failure()
        assert isinstance(error, EndpointProtocolError)
        assert "truncated" in str(error)
        assert error.partial == answered.text == "Hel"
        assert error.endpoint == "remote"


@pytest.mark.parametrize("framing", ["chunked", "close", "length"])
async def test_an_end_after_words_that_came_one_by_one_is_a_truncation(framing: Any) -> None:
    """A read of nothing is the end, also after reads that needed no care."""
    answer = events(*(step for word in ("One", " two", " three") for step in (chunk_event(word), Pause(0.01))), framing=framing)
    async with ScriptedServer(answer) as server, opened(server.url) as endpoint:
        answered = await asyncio.wait_for(ask(endpoint), 10)
        assert "truncated" in str(answered.failure())
        assert answered.text == "One two three"


async def test_a_truncated_tool_call_is_a_truncation() -> None:
    """Pitfall 3: often it is a tool call that is cut."""
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": '}}
    async with ScriptedServer(events(chunk_event(tool_calls=[call]))) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        assert answered.tokens > 0
        assert isinstance(answered.failure(), EndpointProtocolError)


@pytest.mark.parametrize("framing", ["chunked", "close"])
async def test_a_finish_reason_without_done_is_a_complete_answer(framing: Any) -> None:
    """Pitfall 3: Perplexity never sends [DONE]."""
    answer = events(chunk_event("Hi"), chunk_event(finish_reason="stop"), framing=framing)
    async with ScriptedServer(answer) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        assert answered.text == "Hi"
        assert answered.end == StreamEnded("remote", "stop", None)


async def test_a_reset_after_the_finish_reason_takes_nothing_away() -> None:
    answer = events(chunk_event("Hi"), chunk_event(finish_reason="stop"), Pause(0.02), Reset())
    async with ScriptedServer(answer) as server, opened(server.url) as endpoint:
        assert (await ask(endpoint)).end == StreamEnded("remote", "stop", None)


async def test_a_server_silent_after_the_finish_reason_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamco.endpoints.openai_stream._END_GRACE", 0.05)
    answer = events(chunk_event("Hi"), chunk_event(finish_reason="stop"), Stall())
    async with ScriptedServer(answer) as server, opened(server.url) as endpoint:
        assert (await ask(endpoint)).end == StreamEnded("remote", "stop", None)
        await server.wait_for(lambda server: server.connections_open == 0)


async def test_usage_after_a_pause_that_follows_the_finish_reason_still_counts() -> None:
    answer = events(chunk_event("Hi"), chunk_event(finish_reason="stop"), Pause(0.05), chunk_event(usage=USAGE), DONE)
    async with ScriptedServer(answer) as server, opened(server.url) as endpoint:
        assert (await ask(endpoint)).usage == CompletionUsage(5, 2, 7)


@pytest.mark.parametrize("end", [Cut(), Reset()])
async def test_a_lost_connection_keeps_the_partial_text(end: Any) -> None:
    """Pitfall 19: middleboxes cut long streams."""
    async with ScriptedServer(events(chunk_event("Hel"), chunk_event("lo"), Pause(0.02), end)) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        error = answered.failure()
        assert isinstance(error, EndpointProtocolError)
        assert error.partial == answered.text == "Hello"
        assert len(server.requests) == 1


async def test_text_that_came_before_a_reset_is_given_to_a_reader_that_was_late() -> None:
    steps = [chunk_event(f"{n} ") for n in range(100)]
    answer = events(chunk_event("first "), Pause(0.02), *steps, Pause(0.02), Reset())
    async with ScriptedServer(answer) as server, opened(server.url) as endpoint:
        stream = endpoint.open(HELLO)
        first = await stream.receive()
        assert isinstance(first, TokensReceived)
        await server.wait_for(lambda server: server.connections_open == 0)
        await asyncio.sleep(0.02)
        answered = await read_all(stream)
        assert answered.text == "".join(f"{n} " for n in range(100))
        assert answered.failure().partial == "first " + answered.text


async def test_a_cut_inside_an_event_gives_what_was_whole() -> None:
    """Pitfall 11: events are split arbitrarily; a half one is not text."""
    steps = [chunk_event("one "), chunk_event("two "), chunk_event("three")]
    answer = events(*steps)
    async with (
        ScriptedServer(answer) as server,
        FaultProxy(server.port, Faults(cut_after=420, piece_bytes=7)) as proxy,
        opened(proxy.url) as endpoint,
    ):
        answered = await ask(endpoint)
        assert answered.text == "one "
        assert answered.failure().partial == "one "


@pytest.mark.parametrize("wait", [0.0, 0.05])
@pytest.mark.parametrize("garbage", [b"zz\r\n", b"\xff\xfe\x00", b"<html>"])
async def test_broken_framing_is_told_at_once_with_the_partial_text(garbage: bytes, wait: float) -> None:
    """What a proxy in between puts into a chunked body; aiohttp doesn't wake a reader that waits."""
    event = chunk_event("one ")
    chunk = b"%x\r\n%b\r\n" % (len(event), event)
    answer = ScriptedResponse(headers={"Transfer-Encoding": "chunked"}, steps=(chunk, Pause(wait), garbage, Stall()), framing="close")
    silent = Timeouts(first_token=60, next_token=60, socket=60)
    async with ScriptedServer(answer) as server, opened(server.url, timeouts=silent, retry=NO_RETRIES) as endpoint, asyncio.timeout(20):
        answered = await ask(endpoint)
        assert isinstance(answered.failure(), EndpointProtocolError)
        assert answered.failure().partial == "one "


@pytest.mark.parametrize("size", [1, 7, 64])
async def test_the_same_answer_comes_out_of_any_cuts(size: int) -> None:
    """Pitfalls 7 and 11: characters and events are cut anywhere."""
    texts = ["héllo ", "wörld ", "日本語 ", "🙂"]
    answer = stream_answer(texts, usage=USAGE)
    async with ScriptedServer(answer) as server, FaultProxy(server.port, Faults(piece_bytes=size)) as proxy, opened(proxy.url) as endpoint:
        answered = await ask(endpoint)
        assert answered.text == "".join(texts)
        assert answered.usage == CompletionUsage(5, 2, 7)


async def test_a_huge_event_is_refused_before_it_is_whole() -> None:
    """Pitfall 11: event size is capped."""
    answer = events(chunk_event("Hi"), Pause(0.02), b"data: " + b"x" * 200_000, Stall())
    async with ScriptedServer(answer) as server, opened(server.url, limits=Limits(event_bytes=50_000)) as endpoint:
        answered = await ask(endpoint)
        assert answered.failure().partial == "Hi"
        assert "50000" in str(answered.error)
        await server.wait_for(lambda server: server.connections_open == 0)


async def test_an_answer_beyond_its_limit_is_refused() -> None:
    answer = events(*[chunk_event("x" * 1000)] * 100)
    async with ScriptedServer(answer) as server, opened(server.url, limits=Limits(answer_bytes=30_000)) as endpoint:
        answered = await ask(endpoint)
        assert "30000 bytes" in str(answered.failure())
        assert answered.text


async def test_a_burst_counts_every_token_once() -> None:
    """Pitfall 18: a buffering proxy delivers everything at once; nothing is lost, and it is one event, not many instants."""
    texts = [f"w{n} " for n in range(500)]
    async with ScriptedServer(stream_answer(texts, joined=True, usage=USAGE)) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        assert answered.tokens == 500
        assert answered.text == "".join(texts)


# Errors inside the stream


async def test_an_error_in_the_stream_keeps_the_partial_text_and_its_status() -> None:
    """Pitfall 5: HTTP 200, text, then an error object."""
    async with ScriptedServer(events(chunk_event("Hel"), sse_event(ERROR), DONE)) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        error = answered.failure()
        assert isinstance(error, EndpointStatusError)
        assert (error.status, error.partial, answered.text) == (503, "Hel", "Hel")
        assert len(server.requests) == 1


async def test_an_error_first_in_the_stream_is_retried_like_a_status() -> None:
    answer = events(chunk_event("", role="assistant"), sse_event(ERROR))
    async with ScriptedServer(answer, stream_answer()) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        assert answered.text == "Hello world"
        assert len(server.requests) == 2
        assert [chunk.choices[0].delta.role for chunk in answered.chunks].count("assistant") == 1


async def test_a_lasting_error_first_in_the_stream_is_not_retried() -> None:
    body = {"error": {"message": "bad request", "code": 400}}
    async with ScriptedServer(events(sse_event(body))) as server, opened(server.url) as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointStatusError)
        assert error.status == 400
        assert len(server.requests) == 1


async def test_chunks_without_content_are_held_up_to_a_number() -> None:
    empty = sse_event({"choices": [{"index": 0, "delta": {}}]}) * 1000
    async with ScriptedServer(events(*[empty] * 20)) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        assert str(answered.failure()).endswith("expected content in the first 16384 chunks, got none")
        assert answered.chunks == []


async def test_fields_that_are_dropped_are_a_change_of_the_answer() -> None:
    wide = sse_event({"choices": [{"index": 0, "delta": {"content": "a"}}], "x": [{}] * 200_000})
    async with (
        ScriptedServer(events(wide, sse_event({"choices": [{"finish_reason": "stop"}]}), DONE)) as server,
        opened(server.url) as endpoint,
    ):
        stream = endpoint.open(HELLO)
        assert stream.changes == {}
        assert (await read_all(stream)).text == "a"
    assert "provider's own fields were dropped" in stream.changes["further fields"]


# Retries


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_a_transient_status_is_retried(status: int) -> None:
    async with ScriptedServer(failing(status), failing(status), stream_answer()) as server, opened(server.url) as endpoint:
        assert (await ask(endpoint)).text == "Hello world"
        assert len(server.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_a_lasting_status_is_not_retried(status: int) -> None:
    async with ScriptedServer(failing(status)) as server, opened(server.url) as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointStatusError)
        assert error.status == status
        assert f"status {status}" in str(error)
        assert len(server.requests) == 1


async def test_retries_end() -> None:
    async with ScriptedServer(failing(503)) as server, opened(server.url) as endpoint:
        assert isinstance((await ask(endpoint)).failure(), EndpointStatusError)
        assert len(server.requests) == 3


async def test_a_used_up_quota_is_not_retried() -> None:
    body = {"error": {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": "insufficient_quota"}}
    async with ScriptedServer(json_answer(body, status=429)) as server, opened(server.url) as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointStatusError)
        assert error.status == 429
        assert len(server.requests) == 1


async def test_a_server_that_advises_against_a_retry_is_believed() -> None:
    async with ScriptedServer(failing(500, x_should_retry="false")) as server, opened(server.url) as endpoint:
        assert isinstance((await ask(endpoint)).failure(), EndpointStatusError)
        assert len(server.requests) == 1


async def test_retry_after_is_waited_for() -> None:
    async with ScriptedServer(failing(429, retry_after_ms="60"), stream_answer()) as server, opened(server.url) as endpoint:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert (await ask(endpoint)).text == "Hello world"
        assert loop.time() - began >= 0.05


async def test_a_retry_after_beyond_the_longest_wait_is_an_error_at_once() -> None:
    async with ScriptedServer(failing(429, retry_after="120")) as server, opened(server.url) as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointStatusError)
        assert error.retry_after == 120
        assert len(server.requests) == 1


@pytest.mark.parametrize("early", [ScriptedResponse(steps=[Reset()]), events(), events(chunk_event("", role="assistant"), Cut())])
async def test_an_answer_lost_before_its_first_content_is_asked_for_again(early: ScriptedResponse) -> None:
    async with ScriptedServer(early, stream_answer()) as server, opened(server.url) as endpoint:
        assert (await ask(endpoint)).text == "Hello world"
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    "answer",
    [
        events(sse_event({"type": "message_start", "message": {"type": "message", "content": []}}), Cut()),
        events(sse_event({"type": "response.created", "response": {"object": "response"}})),
        events(sse_event({"candidates": [{"content": {"parts": [{"text": "Hi"}]}}]})),
        ScriptedResponse(steps=[b'{"message":{"content":"Hi"},"done":false}\n{"message":{"content":"!"},"done":true}\n']),
        json_answer({"type": "message", "content": [{"type": "text", "text": "Hi"}]}),
    ],
)
async def test_an_answer_of_another_api_is_refused_once(answer: ScriptedResponse) -> None:
    async with ScriptedServer(answer, answer, answer) as server, opened(server.url) as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointProtocolError)
        assert "use an OpenAI-compatible base_url" in str(error) or "use a base_url" in str(error)
        assert len(server.requests) == 1


async def test_an_answer_that_never_ends_is_ended_with_the_text_so_far() -> None:
    dripping = events(*[step for _ in range(500) for step in (chunk_event("x"), Pause(0.02))])
    limits = Timeouts(next_token=5.0, total=0.3)
    async with ScriptedServer(dripping) as server, opened(server.url, timeouts=limits) as endpoint, asyncio.timeout(20):
        answered = await ask(endpoint)
        error = answered.failure()
        assert isinstance(error, EndpointTimeoutError)
        assert (error.phase, error.limit) == ("total", 0.3)
        assert error.partial == answered.text
        assert set(error.partial) == {"x"}
        assert len(server.requests) == 1


async def test_the_limit_on_the_whole_answer_includes_the_waits_before_retries() -> None:
    limits = Timeouts(total=0.2)
    async with (
        ScriptedServer(failing(503, retry_after="15")) as server,
        opened(server.url, timeouts=limits, retry=RetryPolicy(longest_wait=20.0)) as endpoint,
        asyncio.timeout(10),
    ):
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointTimeoutError)
        assert error.phase == "total"


async def test_nothing_is_asked_again_once_content_was_given() -> None:
    """Pitfall 15: a retry after the first token would repeat text and break tool calls."""
    async with ScriptedServer(events(chunk_event("Hi"), Pause(0.01), Reset()), stream_answer()) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        assert answered.error is not None
        assert answered.text == "Hi"
        assert len(server.requests) == 1


async def test_content_and_the_cut_in_one_read_is_content_given() -> None:
    body = chunk_event("Hi") + sse_event(ERROR)
    async with ScriptedServer(events(body), stream_answer()) as server, opened(server.url) as endpoint:
        answered = await ask(endpoint)
        assert answered.text == "Hi"
        assert answered.failure().partial == "Hi"
        assert len(server.requests) == 1


async def test_a_stale_connection_is_replaced_by_a_retry() -> None:
    async with ScriptedServer(stream_answer(), ScriptedResponse(steps=[Cut()]), stream_answer()) as server, opened(server.url) as endpoint:
        await ask(endpoint)
        assert (await ask(endpoint)).text == "Hello world"


async def test_a_cancel_during_the_wait_before_a_retry_ends_it() -> None:
    async with ScriptedServer(failing(503, retry_after="1")) as server, opened(server.url) as endpoint:
        stream = endpoint.open(HELLO)
        waiting = asyncio.create_task(stream.receive())
        await server.wait_for(lambda server: len(server.requests) == 1)
        await asyncio.sleep(0.01)
        await stream.cancel()
        with pytest.raises(StreamClosed):
            await waiting
        assert len(server.requests) == 1


# Time


async def test_a_refused_connection_is_a_connect_error_after_the_retries() -> None:
    async with ScriptedServer() as server:
        url = server.url
    async with opened(url) as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointConnectError)
        assert str(error).startswith("remote: expected a connection to 127.0.0.1:")


async def test_an_unknown_host_is_a_connect_error() -> None:
    async with opened("http://host.invalid/v1", api_key="k", retry=NO_RETRIES) as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointConnectError)
        assert "host.invalid" in str(error)


async def test_a_head_that_does_not_come_ends_with_the_first_token_limit() -> None:
    async with (
        ScriptedServer(ScriptedResponse(head_delay=30)) as server,
        opened(server.url, timeouts=Timeouts(first_token=0.05)) as endpoint,
    ):
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointTimeoutError)
        assert (error.phase, error.limit) == ("first_token", 0.05)
        assert len(server.requests) == 1
        await server.wait_for(lambda server: server.connections_open == 0)


async def test_a_silent_stall_ends_with_the_next_token_limit_and_the_partial_text() -> None:
    """Pitfall 4: the socket stays open, nothing comes."""
    async with (
        ScriptedServer(events(chunk_event("Hel"), Stall())) as server,
        opened(server.url, timeouts=Timeouts(next_token=0.05)) as endpoint,
    ):
        answered = await ask(endpoint)
        error = answered.failure()
        assert isinstance(error, EndpointTimeoutError)
        assert (error.phase, error.partial) == ("next_token", "Hel")
        await server.wait_for(lambda server: server.connections_open == 0)


async def test_the_socket_limit_ends_a_dead_connection() -> None:
    timeouts = Timeouts(first_token=None, next_token=None, socket=0.05)
    async with ScriptedServer(events(chunk_event("Hi"), Stall())) as server, opened(server.url, timeouts=timeouts) as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointTimeoutError)
        assert "bytes of any kind" in str(error)


async def test_comments_feed_the_socket_limit() -> None:
    """Pitfall 1, the other half: they keep the socket limit from ending a connection that lives."""
    answer = events(*[b": keep-alive\n\n", Pause(0.07)] * 8, *stream_answer(["Hi"]).steps)
    async with ScriptedServer(answer) as server, opened(server.url, timeouts=Timeouts(socket=0.5)) as endpoint:
        assert (await ask(endpoint)).text == "Hi"


async def test_reasoning_feeds_the_token_limit() -> None:
    steps = [step for n in range(8) for step in (chunk_event(reasoning_content=f"r{n}"), Pause(0.07))]
    answer = events(*steps, *stream_answer(["Hi"]).steps)
    async with ScriptedServer(answer) as server, opened(server.url, timeouts=Timeouts(next_token=0.5)) as endpoint:
        assert (await ask(endpoint)).text == "Hi"


async def test_a_slow_reader_is_not_a_stalled_server() -> None:
    timeouts = Timeouts(first_token=0.5, next_token=0.5, socket=0.5)
    answer = events(chunk_event("a"), Pause(0.6), chunk_event("b"), Pause(0.02), chunk_event("c"), chunk_event(finish_reason="stop"), DONE)
    async with ScriptedServer(answer) as server, opened(server.url, timeouts=timeouts) as endpoint:
        stream = endpoint.open(HELLO)
        await stream.receive()
        await asyncio.sleep(0.7)
        assert (await read_all(stream)).text == "bc"


async def test_no_limit_is_no_limit() -> None:
    timeouts = Timeouts(connect=None, first_token=None, next_token=None, socket=None, cancel=None)
    async with ScriptedServer(stream_answer(["Hi"], first=0.05)) as server, opened(server.url, timeouts=timeouts) as endpoint:
        assert (await ask(endpoint)).text == "Hi"


# Cancelling


async def test_cancelling_before_anything_began_sends_nothing() -> None:
    async with ScriptedServer() as server, opened(server.url) as endpoint:
        stream = endpoint.open(HELLO)
        await stream.cancel()
        with pytest.raises(StreamClosed):
            await stream.receive()
        assert server.connections_total == 0


async def test_cancelling_while_a_receive_waits_closes_the_connection() -> None:
    """Pitfall 16: no socket stays open until the garbage collector comes."""
    async with ScriptedServer(events(chunk_event("Hi"), Stall())) as server, opened(server.url) as endpoint:
        stream = endpoint.open(HELLO)
        await stream.receive()
        waiting = asyncio.create_task(stream.receive())
        await asyncio.sleep(0.01)
        await stream.cancel()
        with pytest.raises(StreamClosed):
            await waiting
        await server.wait_for(lambda server: server.connections_open == 0)
        assert server.answers_abandoned == 1


async def test_cancelling_while_the_head_is_awaited_closes_the_connection() -> None:
    async with ScriptedServer(ScriptedResponse(head_delay=30)) as server, opened(server.url) as endpoint:
        stream = endpoint.open(HELLO)
        waiting = asyncio.create_task(stream.receive())
        await server.wait_for(lambda server: len(server.requests) == 1)
        await stream.cancel()
        with pytest.raises(StreamClosed):
            await waiting
        await server.wait_for(lambda server: server.connections_open == 0)


async def test_cancelling_twice_at_once_and_again_is_safe_and_leaks_no_slot() -> None:
    """Pitfall 16: double cancels."""
    async with ScriptedServer(events(chunk_event("Hi"), Stall()), stream_answer()) as server, opened(server.url) as endpoint:
        stream = endpoint.open(HELLO)
        await stream.receive()
        await asyncio.gather(stream.cancel(), stream.cancel())
        await stream.cancel()
        assert (await ask(endpoint)).text == "Hello world"
        await server.wait_for(lambda server: server.connections_open == 1)


async def test_cancelling_after_the_end_and_after_a_failure_does_nothing() -> None:
    async with ScriptedServer(stream_answer(), failing(400), stream_answer()) as server, opened(server.url) as endpoint:
        for _ in range(2):
            stream = endpoint.open(HELLO)
            await read_all(stream)
            await stream.cancel()
        assert (await ask(endpoint)).text == "Hello world"
        assert server.connections_total == 1


async def test_a_cancelled_receive_loses_nothing() -> None:
    answer = stream_answer([str(n) for n in range(20)], first=0.02, gap=0.004, usage=USAGE)
    async with ScriptedServer(answer) as server, opened(server.url) as endpoint:
        stream = endpoint.open(HELLO)
        received: list[str] = []
        end = None
        while end is None:
            try:
                event = await asyncio.wait_for(stream.receive(), 0.003)
            except TimeoutError:
                continue
            if isinstance(event, StreamEnded):
                end = event
            else:
                received += [choice.delta.content or "" for chunk in event.chunks for choice in chunk.choices]
        assert "".join(received) == "".join(str(n) for n in range(20))
        assert len(server.requests) == 1
        assert end.usage == CompletionUsage(5, 2, 7)


async def test_a_polling_reader_still_meets_the_limit() -> None:
    async with (
        ScriptedServer(events(chunk_event("Hi"), Stall())) as server,
        opened(server.url, timeouts=Timeouts(next_token=0.08)) as endpoint,
    ):
        stream = endpoint.open(HELLO)
        await stream.receive()
        error: EndpointTimeoutError | None = None
        for _ in range(200):
            try:
                await asyncio.wait_for(stream.receive(), 0.01)
            except EndpointTimeoutError as exc:
                error = exc
                break
            except TimeoutError:
                pass
        assert error is not None
        assert error.phase == "next_token"


async def test_a_peer_that_takes_no_bytes_does_not_hold_a_cancel_up_nor_keep_the_socket() -> None:
    """The request is larger than the socket's buffers and is not read: only an abort ends that connection."""
    if not DESCRIPTORS.exists():
        pytest.skip("open sockets can't be counted here")
    deaf = Deaf()
    server = await asyncio.get_running_loop().create_server(lambda: deaf, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    request = Request(messages=[{"role": "user", "content": "x" * (24 << 20)}])
    async with opened(url) as endpoint:
        stream = endpoint.open(request)
        before = open_sockets()
        waiting = asyncio.create_task(stream.receive())
        await deaf.connected.wait()
        await asyncio.sleep(0.02)
        assert len(open_sockets() - before) == 2, "the client's and the peer's"
        async with asyncio.timeout(5):
            await stream.cancel()
        with pytest.raises(StreamClosed):
            await waiting
        await asyncio.sleep(0.01)
        assert len(open_sockets() - before) == 1, "the peer's"
    deaf.transport.abort()
    server.close()
    await server.wait_closed()


DESCRIPTORS = Path("/proc/self/fd")


def open_sockets() -> set[str]:
    """Return names of this process's open sockets; those that other tests left may close at any time."""
    found = set()
    for descriptor in DESCRIPTORS.iterdir():
        with suppress(FileNotFoundError):
            found.add(str(descriptor.readlink()))
    return {name for name in found if name.startswith("socket:")}


class Deaf(asyncio.Protocol):
    """A peer that reads nothing."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()
        self.connected.set()


async def test_closing_the_endpoint_cancels_its_answers_and_leaves_no_connection() -> None:
    async with ScriptedServer(events(chunk_event("Hi"), Stall())) as server, opened(server.url) as endpoint:
        streams = [endpoint.open(HELLO) for _ in range(3)]
        await asyncio.gather(*(stream.receive() for stream in streams))
        await endpoint.aclose()
        await endpoint.aclose()
        await server.wait_for(lambda server: server.connections_open == 0)
        with pytest.raises(StreamClosed):
            await streams[0].receive()
        with pytest.raises(StreamClosed):
            await endpoint.open(HELLO).receive()


async def test_a_server_that_sends_on_after_done_loses_the_connection() -> None:
    answer = events(chunk_event("Hi"), chunk_event(finish_reason="stop"), DONE, *[b": more\n\n", Pause(0.02)] * 50)
    async with ScriptedServer(answer) as server, opened(server.url, timeouts=Timeouts(cancel=0.1)) as endpoint:
        assert (await ask(endpoint)).text == "Hi"
        await server.wait_for(lambda server: server.connections_open == 0)


# Redirects and TLS


async def test_a_redirect_on_the_same_server_is_followed() -> None:
    async with ScriptedServer(stream_answer()) as server, opened(server.url) as endpoint:
        server.route("/v1/chat/completions", ScriptedResponse(status=307, headers={"Location": "/v1/elsewhere"}, framing="length"))
        assert (await ask(endpoint)).text == "Hello world"
        assert server.requests[1].path == "/v1/elsewhere"
        assert server.requests[1].method == "POST"
        assert server.requests[1].body == server.requests[0].body


async def test_a_redirect_elsewhere_is_not_followed() -> None:
    async with ScriptedServer() as other, ScriptedServer() as server, opened(server.url, api_key="sk-secret") as endpoint:
        server.script(ScriptedResponse(status=307, headers={"Location": f"{other.url}/chat/completions"}, framing="length"))
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointProtocolError)
        assert "redirect" in str(error)
        assert other.connections_total == 0


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "", "http://", "javascript:alert(1)", "http://[bad", "http://host:99999/", "//", "ftp://" + "x" * 5000],
)
async def test_a_redirect_to_no_address_of_a_server_is_an_endpoints_error(location: str) -> None:
    async with ScriptedServer() as server, opened(server.url, retry=NO_RETRIES) as endpoint:
        server.route("/v1/chat/completions", ScriptedResponse(status=307, headers={"Location": location}, framing="length"))
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointError)
        assert "expected an event, got" not in str(error)
        assert len(str(error)) < 500


async def test_a_redirect_loop_ends() -> None:
    async with ScriptedServer() as server, opened(server.url, retry=NO_RETRIES) as endpoint:
        server.script(ScriptedResponse(status=308, headers={"Location": "/v1/chat/completions"}, framing="length"))
        assert "redirects" in str((await ask(endpoint)).failure())
        assert len(server.requests) == 4


async def test_a_moved_page_is_an_error_not_an_answer() -> None:
    async with (
        ScriptedServer(ScriptedResponse(status=301, headers={"Location": "/"}, framing="length")) as server,
        opened(server.url) as endpoint,
    ):
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointStatusError)
        assert error.status == 301


async def test_something_that_is_no_http_server_is_a_protocol_error() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with opened(url, retry=NO_RETRIES) as endpoint:
        assert isinstance((await ask(endpoint)).failure(), EndpointProtocolError)
    server.close()
    await server.wait_closed()


async def test_plain_http_asked_for_tls_is_a_connect_error_and_not_retried() -> None:
    connections = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with opened(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1") as endpoint:
        assert isinstance((await ask(endpoint)).failure(), EndpointConnectError)
        assert connections == 1
    server.close()
    await server.wait_closed()


async def test_a_certificate_nobody_vouches_for_is_a_connect_error_and_not_retried() -> None:
    async with ScriptedServer(tls=server_context()) as server, opened(server.url, api_key="sk-secret") as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointConnectError)
        assert "expected a trusted certificate from 127.0.0.1" in str(error)
        assert server.requests == []


async def test_an_answer_over_tls_is_read_and_a_cancelled_one_is_closed() -> None:
    connector = aiohttp.TCPConnector(ssl=client_context())
    async with ScriptedServer(stream_answer(), events(chunk_event("Hi"), Stall()), tls=server_context()) as server:
        async with aiohttp.ClientSession(connector=connector) as session, opened(server.url, session=session) as endpoint:
            assert (await ask(endpoint)).text == "Hello world"
            stream = endpoint.open(HELLO)
            await stream.receive()
            await stream.cancel()
            await server.wait_for(lambda server: server.answers_abandoned == 1)
        assert session.closed


# Many


async def test_a_hundred_answers_at_once_come_out_whole_and_leave_nothing() -> None:
    def echo(request: RecordedRequest) -> ScriptedResponse:
        return stream_answer([f"{n} " for n in range(5)] + [json.loads(request.body)["messages"][0]["content"]], gap=0.001)

    async with ScriptedServer(echo) as server, opened(server.url) as endpoint:
        requests = [Request(messages=[{"role": "user", "content": str(n)}]) for n in range(100)]
        answers = await asyncio.gather(*(ask(endpoint, request) for request in requests))
        assert [answer.text for answer in answers] == [f"0 1 2 3 4 {n}" for n in range(100)]
        before = len(asyncio.all_tasks())
        await endpoint.aclose()
        await server.wait_for(lambda server: server.connections_open == 0)
        assert len(asyncio.all_tasks()) <= before


async def test_cancels_at_random_moments_leave_no_connection_and_no_task() -> None:
    import random

    rng = random.Random(20261121)
    async with ScriptedServer(stream_answer([str(n) for n in range(30)], first=0.005, gap=0.001)) as server, opened(server.url) as endpoint:

        async def one() -> None:
            stream = endpoint.open(HELLO)
            reading = asyncio.create_task(read_all(stream))
            await asyncio.sleep(rng.uniform(0, 0.05))
            if rng.random() < 0.5:
                reading.cancel()
                await asyncio.wait([reading])
            await stream.cancel()
            await asyncio.gather(reading, return_exceptions=True)

        await asyncio.gather(*(one() for _ in range(60)))
        await endpoint.aclose()
        await server.wait_for(lambda server: server.connections_open == 0)
        assert {task for task in asyncio.all_tasks() if "streamco" in task.get_name()} == set()


async def test_one_attempt_without_retries_asks_once() -> None:
    async with ScriptedServer(failing(503)) as server, opened(server.url, retry=RetryPolicy(attempts=0)) as endpoint:
        await ask(endpoint)
        assert len(server.requests) == 1


async def test_rubbish_after_the_finish_reason_and_a_cut_leave_the_answer_whole() -> None:
    end = chunk_event(finish_reason="stop") + b"<html>oops</html>\n"
    async with ScriptedServer(events(chunk_event("one"), chunk_event(" two"), end, Cut())) as server, opened(server.url) as remote:
        answered = await ask(remote)
        assert (answered.text, answered.error) == ("one two", None)
