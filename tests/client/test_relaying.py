"""Answers that a program sends on: plain text comes as text and the chunk that it is like, everything else as chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from streamco.client.client import Client
from streamco.client.stream import ChatStream
from streamco.config import RetryPolicy
from streamco.endpoints.base import Capabilities
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import EndpointProtocolError, StreamClosed, StreamConsumed
from streamco.openai_types import ChatCompletionChunk
from streamco.testing import Cut, ScriptedServer, chunk_event, stream_answer
from streamco.testing.responses import RecordedRequest, ScriptedResponse, Stall
from tests.support.leaks import holding_nothing_new

WORDS = [f" w{number}" for number in range(30)]
QUESTION = [{"role": "user", "content": "?"}]
ABLE = Capabilities(continuation="continue_final_message")


@asynccontextmanager
async def asking(*urls: str) -> AsyncIterator[Client]:
    servers = [
        OpenAIEndpoint("m", base_url=url, name=f"server{number}", retry=RetryPolicy(attempts=0), probe=False, capabilities=ABLE)
        for number, url in enumerate(urls)
    ]
    async with holding_nothing_new(), Client(server=servers) as client:
        yield client


class Relayed:
    """What a stream gave, in order."""

    def __init__(self, *, fail_after: int | None = None, hold_after: int | None = None) -> None:
        self.texts: list[str] = []
        self.repeats = 0
        self._fail_after = fail_after
        self._hold_after = hold_after
        self.is_held = asyncio.Event()

    async def take(self, like: ChatCompletionChunk, text: str) -> None:
        assert like.choices[0].delta.content, "it is like a chunk with text"
        self.repeats += 1
        if self.repeats == self._fail_after:
            raise ConnectionResetError("the reader has gone")
        if self.repeats == self._hold_after:
            self.is_held.set()
            await asyncio.Event().wait()
        self.texts.append(text)

    async def send(self, chunk: ChatCompletionChunk) -> None:
        self.texts += [choice.delta.content or "" for choice in chunk.choices]

    async def read(self, stream: ChatStream) -> None:
        await stream.pass_on(self.send, self.take)

    @property
    def text(self) -> str:
        return "".join(self.texts)


async def open_stream(client: Client) -> ChatStream:
    return await client.chat.completions.create(messages=QUESTION, stream=True)


def slow(words: list[str] = WORDS, **options: object) -> ScriptedResponse:
    """An answer whose events come one by one."""
    return stream_answer(words, gap=0.002, **options)  # type: ignore[arg-type]


async def test_most_chunks_come_as_text_and_the_report_is_that_of_chunks() -> None:
    async with ScriptedServer(lambda _: slow(usage={"prompt_tokens": 5, "completion_tokens": 30})) as server, asking(server.url) as client:
        plain, relayed = await open_stream(client), Relayed()
        chunks = [choice.delta.content or "" async for chunk in plain for choice in chunk.choices]
        stream = await open_stream(client)
        await relayed.read(stream)
        assert relayed.texts == chunks
        assert relayed.repeats > len(WORDS) // 2
        assert stream.report.tokens == plain.report.tokens == len(WORDS)
        assert stream.report.finish_reason == "stop"
        assert stream.usage == plain.usage
        assert stream.report.quality.gap_p50 is not None


async def test_what_the_relay_raises_ends_the_stream_and_is_no_fault_of_the_server() -> None:
    async with ScriptedServer(lambda _: slow()) as server, asking(server.url, server.url) as client:
        stream, relayed = await open_stream(client), Relayed(fail_after=5)
        with pytest.raises(ConnectionResetError, match="the reader has gone"):
            await relayed.read(stream)
        await stream.aclose()
        assert WORDS[: len(relayed.texts) - 1] == relayed.texts[1:]  # the first is the role's
        assert not stream.report.hand_overs
        assert [part.error for part in stream.report.endpoints] == [None, None]
        assert not client.degraded


def continuing(request: RecordedRequest) -> ScriptedResponse:
    """A model that always writes the words, from where a begun answer ends."""
    last = request.json()["messages"][-1]
    begun = last["content"] if last["role"] == "assistant" else ""
    assert "".join(WORDS).startswith(begun)
    return slow([word for place, word in enumerate(WORDS) if len("".join(WORDS[: place + 1])) > len(begun)])


async def test_another_server_continues_after_text_that_was_relayed() -> None:
    cut = slow(WORDS[:17])
    cut = ScriptedResponse(headers=cut.headers, steps=[*cut.steps[:-2], Cut()])
    async with ScriptedServer(lambda _: cut) as first, ScriptedServer(continuing) as second, asking(first.url, second.url) as client:
        stream, relayed = await open_stream(client), Relayed()
        await relayed.read(stream)
        assert relayed.text == "".join(WORDS)
        assert [hand_over.position for hand_over in stream.report.hand_overs] == [17]
        assert stream.source == "server1"
        assert relayed.repeats > 20


async def test_a_stream_that_was_read_before_is_not_relayed() -> None:
    async with ScriptedServer(lambda _: slow()) as server, asking(server.url) as client:
        stream = await open_stream(client)
        await anext(stream)
        with pytest.raises(StreamConsumed):
            await Relayed().read(stream)
        await stream.aclose()


async def test_the_text_so_far_is_on_the_error_if_nobody_continues() -> None:
    cut = slow(WORDS[:17])
    cut = ScriptedResponse(headers=cut.headers, steps=[*cut.steps[:-2], Cut()])
    async with ScriptedServer(lambda _: cut) as server, asking(server.url) as client:
        relayed = Relayed()
        with pytest.raises(EndpointProtocolError) as caught:
            await relayed.read(await open_stream(client))
        assert caught.value.partial == relayed.text == "".join(WORDS[:17])


@pytest.mark.parametrize("leaving", ["close", "cancel"])
async def test_a_reader_that_leaves_while_the_relay_waits_ends_the_work(leaving: str) -> None:
    endless = slow()
    endless = ScriptedResponse(headers=endless.headers, steps=[*endless.steps[:-2], Stall()])
    async with ScriptedServer(lambda _: endless) as server, asking(server.url) as client:
        stream, relayed = await open_stream(client), Relayed(hold_after=4)
        reading = asyncio.ensure_future(relayed.read(stream))
        await relayed.is_held.wait()
        if leaving == "close":
            await stream.aclose()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await stream.aclose()
        with pytest.raises(StreamClosed):
            aiter(stream)


@pytest.mark.parametrize("options", [{"pace": 1000.0}, {"pace": "smooth"}])
async def test_paced_text_comes_as_chunks(options: dict[str, object]) -> None:
    async with ScriptedServer(lambda _: slow()) as server, asking(server.url) as client:
        relayed = Relayed()
        await relayed.read(await client.chat.completions.create(messages=QUESTION, stream=True, **options))  # type: ignore[call-overload]
        assert (relayed.text, relayed.repeats) == ("".join(WORDS), 0)


def alternating() -> Iterator[bytes]:
    """Events with thinking, calls of nothing, empty text and other fields between the words."""
    others: list[Callable[[], bytes]] = [
        lambda: chunk_event(reasoning_content="hm"),
        lambda: chunk_event(""),
        lambda: b": ping\n\n",
        lambda: chunk_event("x", logprobs={"content": []}),
    ]
    for number, word in enumerate(WORDS):
        yield chunk_event(word)
        if number % 3 == 2:
            yield others[number // 3 % len(others)]()


async def test_other_events_between_keep_their_place() -> None:
    def answer(_: RecordedRequest) -> ScriptedResponse:
        steps = [step for each in alternating() for step in (each, *slow(["a", "b"]).steps[2:3])]
        return ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=[*steps, chunk_event(finish_reason="stop")])

    seen: list[object] = []

    async def take(like: ChatCompletionChunk, text: str) -> None:
        seen.append(text)

    async def send(chunk: ChatCompletionChunk) -> None:
        seen.append(described(chunk))

    def described(chunk: ChatCompletionChunk) -> object:
        delta = chunk.choices[0].delta
        return delta.content or (delta.reasoning_content, chunk.choices[0].finish_reason)

    async with ScriptedServer(answer) as server, asking(server.url) as client:
        expected = [described(chunk) async for chunk in await open_stream(client)]
        await (await open_stream(client)).pass_on(send, take)
    assert seen == expected
