"""Streams as callers hold them: reading, leaving in every manner, dropping them; nothing stays open."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.client.stream import AnswerStream, ChatStream, Token, TokenStream
from streamco.core.report_parts import AnswerUsage
from streamco.endpoints.base import Capabilities
from streamco.errors import ConcurrentRead, EndpointProtocolError, StreamClosed, StreamConsumed
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage
from streamco.testing.endpoint import ScriptedEndpoint, text_chunk
from streamco.testing.virtual_clock import run_in_virtual_time
from tests.client.helpers import HELLO, device, opened, server, tokens_text
from tests.support.leaks import settled, without_collector

ENDLESS = [(0.0, "a"), (0.0, "b"), (0.0, "c"), (0.0, None)]  # three tokens, then silence until it is cancelled
BOTH: dict[str, Any] = {"mode": Race(policy="both"), "budget": 1.0}


def sides() -> tuple[ScriptedEndpoint, ScriptedEndpoint]:
    """A device that never comes to a word and a server that begins and falls silent."""
    return device([(0.0, None)]), server(ENDLESS)


# Reading


async def test_tokens_say_what_they_are_and_where_they_come_from() -> None:
    script: list[tuple[float, Any]] = [
        (0.0, text_chunk("one", ids=[5])),
        (0.0, text_chunk(" two three", ids=[6, 7])),
        (0.0, " four"),
        (0.0, ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(reasoning="hm"))])),
        (0.0, ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(reasoning_content="ha", content="!"))])),
        (0.0, text_chunk("", finish_reason="stop")),
        (0.0, ChatCompletionChunk()),
    ]
    async with opened(server=server(script)) as client:
        tokens = [token async for token in client.stream("hello")]
    assert [(token.text, token.id, token.kind) for token in tokens] == [
        ("one", 5, "content"),
        (" two three", None, "content"),
        (" four", None, "content"),
        ("hm", None, "reasoning"),
        ("ha", None, "reasoning"),
        ("!", None, "content"),
    ]
    assert {token.source for token in tokens} == {"server"}
    times = [token.time for token in tokens]
    assert times == sorted(times)


async def test_chunks_are_read_with_the_name_of_their_endpoint_beside_them() -> None:
    cut = EndpointProtocolError("expected more, got an end", endpoint="first")
    dying = server([(0.0, "one"), (0.01, cut)], name="first")
    second = server([(0.0, "one"), (0.0, " two")], name="second", capabilities=Capabilities(continuation="continue_final_message"))
    async with opened(server=[dying, second]) as client:
        stream = await client.chat.completions.create(messages=HELLO, stream=True)
        before = stream.source
        sources = [(stream.source, chunk.choices[0].delta.content) async for chunk in stream]
        assert (before, stream.source) == (None, "second")
    assert sources == [("first", "one"), ("second", " two")]


async def test_a_token_is_immutable() -> None:
    with pytest.raises(AttributeError):
        Token("a", None, "s", 0.0).text = "b"  # type: ignore[misc]


async def test_single_items_and_then_a_loop_over_the_rest() -> None:
    async with opened(server=server([(0.0, word) for word in "abcd"])) as client:
        stream = client.stream("hello")
        assert (await anext(stream)).text == "a"
        assert (await anext(stream)).text == "b"
        assert [token.text async for token in stream] == ["c", "d"]
        with pytest.raises(StreamConsumed):
            await anext(stream)


async def test_anext_after_the_last_item_goes_on_saying_so() -> None:
    async with opened(server=server([(0.0, "a")])) as client:
        stream = client.stream("hello")
        assert (await anext(stream)).text == "a"
        for _ in range(2):
            with pytest.raises(StopAsyncIteration):
                await anext(stream)


async def test_a_second_iteration_is_refused() -> None:
    async with opened(server=server()) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == "S"
        with pytest.raises(StreamConsumed, match="expected a fresh stream"):
            await tokens_text(stream)


@pytest.mark.long
async def test_a_loop_over_a_stream_that_nobody_else_holds_goes_on() -> None:
    async with opened(server=server([(0.0, "a"), (0.05, "b"), (0.1, "c")])) as client:
        texts = []
        async for token in client.stream("hello"):
            gc.collect()
            texts.append(token.text)
        assert texts == ["a", "b", "c"]
        texts = []
        async for chunk in await client.chat.completions.create(messages=HELLO, stream=True):
            gc.collect()
            texts.append(chunk.choices[0].delta.content or "")
        assert texts == ["a", "b", "c"]


async def test_two_tasks_can_not_read_one_stream() -> None:
    async with opened(server=server([(0.05, "a"), (0.1, "b")])) as client:
        stream = client.stream("hello")
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        with pytest.raises(ConcurrentRead):
            await anext(stream)
        with pytest.raises(ConcurrentRead):
            aiter(stream)
        assert (await first).text == "a"
        assert await tokens_text(stream) == "b"


async def test_a_read_that_was_cancelled_ends_the_stream() -> None:
    local, remote = sides()
    async with opened(local, remote, **BOTH) as client:
        stream = client.stream("hello")
        for _ in range(3):
            await anext(stream)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(stream)
        await settled(lambda: not remote.active and not local.active)
        for _ in range(2):
            with pytest.raises(StreamClosed, match="closed by a read that was cancelled"):
                await anext(stream)


# Leaving


async def read_on(stream: AnswerStream[Any]) -> None:
    async for _ in stream:
        pass


async def by_break(stream: AnswerStream[Any]) -> None:
    async for _ in stream:
        break


async def by_an_exception_in_the_loop(stream: AnswerStream[Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        await fail_in_loop(stream)


async def fail_in_loop(stream: AnswerStream[Any]) -> None:
    async for _ in stream:
        raise ZeroDivisionError


async def by_aclose(stream: AnswerStream[Any]) -> None:
    await anext(stream)
    await stream.aclose()
    await stream.aclose()


async def by_the_context_manager(stream: AnswerStream[Any]) -> None:
    async with stream:
        await anext(stream)


async def by_aclose_of_its_generator(stream: AnswerStream[Any]) -> None:
    generator = aiter(stream)
    await anext(generator)
    await generator.aclose()


async def by_task_cancel(stream: AnswerStream[Any]) -> None:
    task = asyncio.ensure_future(read_on(stream))
    await asyncio.sleep(0.01)
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def by_aclose_while_another_task_reads(stream: AnswerStream[Any]) -> None:
    task = asyncio.ensure_future(read_on(stream))
    await asyncio.sleep(0.01)
    await stream.aclose()
    with pytest.raises(StreamClosed):
        await task


async def by_a_timeout(stream: AnswerStream[Any]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read_on(stream), 0.02)


async def by_a_failing_task_group(stream: AnswerStream[Any]) -> None:
    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise ZeroDivisionError

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(read_on(stream))
            group.create_task(fail())

    with pytest.raises(ExceptionGroup):
        await both()


async def by_being_dropped_after_a_read(stream: AnswerStream[Any]) -> None:
    await anext(stream)


LEAVING = [
    by_break,
    by_an_exception_in_the_loop,
    by_aclose,
    by_the_context_manager,
    by_aclose_of_its_generator,
    by_task_cancel,
    by_aclose_while_another_task_reads,
    by_a_timeout,
    by_a_failing_task_group,
    by_being_dropped_after_a_read,
]


@pytest.mark.parametrize("pace", [None, pytest.param(1000.0, marks=pytest.mark.long), pytest.param(2.0, marks=pytest.mark.long)])
@pytest.mark.parametrize("is_chat", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("leave", LEAVING)
async def test_all_work_behind_a_stream_ends_when_it_is_left(
    leave: Callable[[AnswerStream[Any]], Awaitable[None]], is_chat: bool, pace: float | None
) -> None:
    local, remote = sides()
    async with opened(local, remote, pace=pace, **BOTH) as client:
        await leave(await begin(client, is_chat=is_chat))
        await settled(lambda: not remote.active and not local.active)
        assert remote.streams[0].is_cancelled
        await settled(lambda: not client._settings.endpoints.active)  # some turns of the loop later


async def begin(client: Client, *, is_chat: bool) -> ChatStream | TokenStream:
    if is_chat:
        return await client.chat.completions.create(messages=HELLO, stream=True)
    return client.stream("hello")


@pytest.mark.parametrize("is_read", [True, False])
async def test_dropping_a_stream_ends_its_work_without_the_cyclic_collector(is_read: bool) -> None:
    with without_collector():
        local, remote = sides()
        async with opened(local, remote, **BOTH) as client:
            stream = await client.chat.completions.create(messages=HELLO, stream=True)
            if is_read:
                await anext(stream)
            assert remote.active
            del stream
            await settled(lambda: not remote.active and not local.active)


async def test_a_stream_that_was_never_read_costs_nothing_when_it_is_dropped() -> None:
    remote = server()
    async with opened(server=remote) as client:
        stream = client.stream("hello")
        del stream
        aiter(client.stream("hello"))
        await asyncio.sleep(0)
    assert not remote.streams


async def test_when_the_loop_ends_the_loser_is_released_too() -> None:
    slow = device([(0.0, None)], cancel_takes=0.05)
    async with opened(slow, server([(0.0, "S")]), **BOTH) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == "S"
        assert slow.active == 0
        assert stream.report.is_final


def test_a_cancelled_reader_does_not_wait_for_a_slow_release() -> None:
    async def main() -> None:
        remote = server(ENDLESS, cancel_takes=5.0)
        async with opened(server=remote) as client:
            loop = asyncio.get_running_loop()
            reader = asyncio.ensure_future(tokens_text(client.stream("hello")))
            await asyncio.sleep(1.0)
            reader.cancel()
            await asyncio.wait([reader])
            assert loop.time() == pytest.approx(1.0)
            assert remote.active == 1, "its release goes on behind"
        assert loop.time() == pytest.approx(6.0), "closing the client waits for it"
        assert remote.active == 0

    run_in_virtual_time(main())


async def test_a_stream_closed_before_it_began_never_begins() -> None:
    remote = server()
    async with opened(server=remote) as client:
        stream = client.stream("hello")
        await stream.aclose()
        with pytest.raises(StreamClosed, match="the stream is closed"):
            await tokens_text(stream)
        with pytest.raises(StreamClosed):
            await anext(stream)
    assert not remote.streams


async def test_a_stream_closed_while_its_client_starts_never_begins() -> None:
    may_start = asyncio.Event()

    class Slow(ScriptedEndpoint):
        async def start(self) -> None:
            await may_start.wait()

    remote = Slow("server", [(0.0, "S")])
    client = Client(server=remote)
    stream = client.stream("hello")
    reader = asyncio.ensure_future(tokens_text(stream))
    await asyncio.sleep(0)
    await stream.aclose()
    may_start.set()
    with pytest.raises(StreamClosed, match="closed before it began"):
        await reader
    assert not remote.streams
    await client.aclose()


async def test_reading_on_after_aclose_is_refused_even_where_text_was_waiting() -> None:
    async with opened(server=server([(0.0, "a"), (0.0, "b")]), pace=1000) as client:
        stream = await client.chat.completions.create(messages=HELLO, stream=True)
        await asyncio.sleep(0.02)
        await stream.aclose()
        with pytest.raises(StreamClosed):
            await anext(stream)


# Afterwards


async def test_a_final_report_is_made_once() -> None:
    async with opened(server=server([(0.0, "a"), (0.01, "b")])) as client:
        stream = client.stream("hello")
        await anext(stream)
        assert stream.report.quality is not stream.report.quality
        await tokens_text(stream)
        assert stream.report.is_final
        assert stream.report.quality is stream.report.quality


async def test_the_report_grows_with_the_answer_and_is_final_at_its_end() -> None:
    async with opened(server=server([(0.0, "a"), (0.01, "b"), (0.02, "c")])) as client:
        stream = client.stream("hello")
        with pytest.raises(StreamConsumed, match="expected a stream that has begun"):
            _ = stream.report
        await anext(stream)
        assert stream.report.tokens == 1
        assert not stream.report.is_final
        await tokens_text(stream)
        assert stream.report.tokens == 3
        assert stream.report.is_final


async def test_the_report_of_a_stopped_answer_counts_what_nobody_read() -> None:
    local, remote = sides()
    async with opened(local, remote, pace=0.5, **BOTH) as client:
        stream = client.stream("hello")
        await anext(stream)
        await asyncio.sleep(0.01)
        await stream.aclose()
        report = stream.report
        assert report.is_final
        assert report.tokens == 1
        assert report.wasted_tokens == 2, "three were made, one was read"


async def test_an_error_comes_after_all_text_and_the_report_stays() -> None:
    broken = server([(0.0, "a"), (0.0, "b"), (0.0, EndpointProtocolError("cut", endpoint="server"))])
    async with opened(server=broken) as client:
        stream = client.stream("hello")
        seen = [(await anext(stream)).text, (await anext(stream)).text]
        with pytest.raises(EndpointProtocolError) as caught:
            await anext(stream)
        assert "".join(seen) == caught.value.partial == "ab"
        (part,) = stream.report.endpoints
        assert part.error == "server: cut"
        assert stream.report.is_final


async def test_usage_is_the_endpoints_own_where_it_told() -> None:
    told = CompletionUsage(prompt_tokens=9, completion_tokens=4, total_tokens=13)
    async with opened(server=server([(0.0, "a"), (0.0, "b")], usage=told)) as client:
        stream = client.stream("hello")
        with pytest.raises(StreamConsumed, match="usage asked for before the first read"):
            _ = stream.usage
        assert await tokens_text(stream) == "ab"
        assert stream.usage == AnswerUsage(9, 4, 13)
        assert not stream.usage.is_estimated
        assert stream.report.usage == stream.usage


def test_usage_of_a_stopped_answer_is_estimated_and_grows_while_it_comes() -> None:
    async def main() -> None:
        local, remote = device([(0.0, None)]), server([(0.1, "a"), (0.2, "b"), (0.3, "c"), (0.3, None)])
        async with Client(local, remote, **BOTH) as client:
            stream = client.stream("hello")
            await anext(stream)
            assert stream.usage == AnswerUsage(10, 1, 11, is_estimated=True)
            await anext(stream)
            await stream.aclose()
            assert stream.usage == AnswerUsage(10, 2, 12, is_estimated=True)
            assert stream.report.ending == "left"

    run_in_virtual_time(main())


async def test_a_report_says_how_its_answer_ended() -> None:
    broken = server([(0.0, "a"), (0.05, EndpointProtocolError("cut", endpoint="server"))])
    async with opened(server=server()) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == "S"
        assert stream.report.ending == "complete"
        await stream.aclose()
        assert stream.report.ending == "complete", "closing what has ended changes nothing"
    async with opened(server=broken) as client:
        stream = client.stream("hello")
        assert (await anext(stream)).text == "a"
        assert stream.report.ending is None
        with pytest.raises(EndpointProtocolError):
            await anext(stream)
        assert stream.report.ending == "failed"
