"""Answers in MessagePack over HTTP: who gets them, and that they hold what a stream of events holds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from streamco.endpoints.base import Request
from streamco.engines.base import GenerationEnd, GenerationTimings, TextPiece
from streamco.errors import EndpointStatusError
from streamco.openai_types import ChatCompletionChunk
from streamco.server.app import serving
from streamco.server.packed_response import PackedStream, wants_packed
from streamco.server.requests import ChatRequest
from streamco.testing.engine import FakeEngine
from streamco.wire.openai.msgpack_body import MSGPACK
from streamco.wire.openai.msgpack_stream import ACCEPTED, KEEPALIVE, MsgpackStreamParser
from streamco.wire.token_frames import TokenCodec
from tests.endpoints.helpers import ask, opened, read_all
from tests.server.support import CHAT, HELLO, TEXT, ManualClock, Running, running, until

ASKED = ChatRequest(messages=HELLO["messages"], stream=True, return_token_ids=True)
WANTED = {**HELLO, "stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
ACCEPTS = {"Accept": f"{ACCEPTED}, */*"}

TIMINGS = GenerationTimings(prompt_tokens=1, reused_tokens=0, completion_tokens=2, prefill_s=0.0, decode_s=0.0)


async def packed(server: Running, path: str, body: dict[str, Any], engine: FakeEngine) -> tuple[list[ChatCompletionChunk], int]:
    """Chunks of one answer, and the bytes of its body."""
    async with server.client.post(path, json=body, headers=ACCEPTS) as response:
        data = await response.read()
        assert (response.status, response.headers["Content-Type"]) == (200, MSGPACK)
        assert response.headers["X-Accel-Buffering"] == "no"
    codec = TokenCodec(engine.info.vocabulary, engine.info.vocabulary_size)
    parser = MsgpackStreamParser(codec, api="chat" if path == CHAT else "completions")
    chunks = parser.feed(data)
    assert parser.close() == []
    return chunks, len(data)


@pytest.mark.parametrize(
    ("accepted", "request_", "expected"),
    [
        (ACCEPTED, ASKED, True),
        (f"text/html, {ACCEPTED};q=0.5", ASKED, True),
        (f"{ACCEPTED};q=0", ASKED, False),
        (f"{ACCEPTED.title()} ; Q=0.000, */*", ASKED, False),
        (f"{ACCEPTED};q=0.001", ASKED, True),
        (f'{MSGPACK}; q=1 ; V="2"', ASKED, True),
        (f"{MSGPACK};q=0, {ACCEPTED}", ASKED, True),
        (f"{MSGPACK}, */*", ASKED, False),
        (f"{MSGPACK};v=1, {MSGPACK};v=3, {MSGPACK};v=22", ASKED, False),
        ("*/*", ASKED, False),
        ("", ASKED, False),
        (ACCEPTED, replace(ASKED, stream=None), False),
        (ACCEPTED, replace(ASKED, return_token_ids=None), True),
        (ACCEPTED, replace(ASKED, return_token_ids=False), False),
        (ACCEPTED, replace(ASKED, logprobs=True), False),
    ],
)
def test_it_goes_only_to_clients_that_accept_it_and_do_not_refuse_ids(accepted: str, request_: ChatRequest, expected: bool) -> None:
    assert wants_packed(accepted, request_) is expected


@pytest.mark.parametrize(("path", "fields"), [(CHAT, {}), (TEXT, {"prompt": "Hi"})])
async def test_it_holds_text_ids_end_and_usage_in_a_fraction_of_the_bytes(path: str, fields: dict[str, Any]) -> None:
    engine = FakeEngine("one two three " * 20)
    async with running(engine) as server:
        chunks, size = await packed(server, path, {**WANTED, **fields}, engine)
        async with server.client.post(path, json={**WANTED, **fields}) as response:
            events = len(await response.read())
    ids = [token for chunk in chunks for choice in chunk.choices for token in choice.token_ids or ()]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert engine.detokenize(ids).decode() == text == "one two three " * 20
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(ids)
    assert size * 10 < events


async def test_a_client_of_an_older_format_gets_events() -> None:
    """It would read checksums as ids."""
    accepts = {"Accept": f"{MSGPACK}, */*"}
    async with running(FakeEngine("one two")) as server, server.client.post(CHAT, json=WANTED, headers=accepts) as response:
        data = await response.read()
    assert (response.status, response.content_type) == (200, "text/event-stream")
    assert b'"token_ids"' in data


async def test_usage_comes_only_where_it_is_asked_for() -> None:
    engine = FakeEngine("one")
    async with running(engine) as server:
        chunks, _ = await packed(server, CHAT, {**HELLO, "stream": True, "return_token_ids": True}, engine)
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_piece_that_a_stop_string_cuts_has_the_end_and_no_ids() -> None:
    codec = TokenCodec("100:x", 100)
    stream = PackedStream(name="a", model="m", created=1, codec=codec, wants_usage=False)
    parser = MsgpackStreamParser(codec)
    chunks = parser.feed(stream.opening() + stream.events([TextPiece(" thr", (5, 6), is_cut=True)]))
    chunks += parser.feed(stream.closing(GenerationEnd("stop", TIMINGS)))
    (choice,) = [choice for chunk in chunks[1:] for choice in chunk.choices]
    assert (choice.delta.content, choice.finish_reason, choice.token_ids, parser.is_done) == (" thr", "stop", None, True)


def test_tokens_that_are_ready_together_are_packed_together() -> None:
    codec = TokenCodec("100000:x", 100_000)
    pieces = [TextPiece("one", (70_000,)), TextPiece(" two", (70_001,)), TextPiece("", (70_002,)), TextPiece("é", (70_003,))]
    pieces += [TextPiece("!", (70_004, 70_005)), TextPiece(" thr", (5, 6), is_cut=True)]
    stream = PackedStream(name="a", model="m", created=1, codec=codec, wants_usage=False)
    parser = MsgpackStreamParser(codec)
    parser.feed(stream.opening())
    together = stream.events(pieces)
    choices = [choice for chunk in parser.feed(together) for choice in chunk.choices]
    assert [(choice.delta.content, choice.token_ids) for choice in choices] == [
        ("one two", [70_000, 70_001]),
        ("", [70_002]),
        ("é!", [70_003, 70_004, 70_005]),
        (" thr", None),
    ]
    alone = PackedStream(name="a", model="m", created=1, codec=codec, wants_usage=False)
    alone.opening()
    assert len(together) < len(b"".join(alone.events([piece]) for piece in pieces))


async def test_a_reader_that_waits_gets_nil_and_a_failure_is_the_servers_error() -> None:
    engine, clock = FakeEngine("one two", mode="manual", fail_after=1), ManualClock()
    async with running(engine, clock=clock, keepalive=10.0) as server:
        posting = asyncio.ensure_future(server.client.post(CHAT, json=WANTED, headers=ACCEPTS))
        await clock.asleep()
        clock.advance(10.0)
        async with await posting as response:
            assert await response.content.readexactly(1) == KEEPALIVE
            await clock.asleep()
            engine.step(2)
            data = await response.content.read()
    parser = MsgpackStreamParser(TokenCodec(engine.info.vocabulary, engine.info.vocabulary_size))
    chunks = parser.feed(data)
    assert chunks[-1].choices[0].delta.content == "one"
    assert isinstance(parser.error, EndpointStatusError)
    assert "failed after 1 tokens" in str(parser.error)


async def test_a_bug_in_mid_stream_is_the_servers_error_without_details(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine("one two", mode="manual")
    engine.info = replace(engine.info, vocabulary_size=1 << 17)
    async with running(engine) as server:
        posting = asyncio.ensure_future(server.client.post(CHAT, json=WANTED, headers=ACCEPTS))
        await until(lambda: engine.generations)
        engine.step(1)
        async with await posting as response:
            first = await response.content.readany()
            engine.generations[0]._ready.append(TextPiece("x", (1 << 17,)))
            engine.generations[0]._wake()
            data = first + await response.content.read()
    parser = MsgpackStreamParser(TokenCodec(engine.info.vocabulary, 1 << 17))
    parser.feed(data)
    assert "can't finish the answer because of an internal error" in str(parser.error)
    assert "131072" not in str(parser.error)
    assert "131072" in caplog.text


async def test_a_probed_endpoint_gets_its_answers_so_and_others_do_not() -> None:
    engine = FakeEngine("one two three")
    asked = Request(messages=HELLO["messages"])
    async with serving(engine) as url, opened(url, model="fake") as endpoint:
        plain = await ask(endpoint, asked)
        await endpoint.probe()
        stream = endpoint.open(asked)
        answered = await read_all(stream)
        assert isinstance(stream._parser, MsgpackStreamParser)
    ids = [token for chunk in answered.chunks for choice in chunk.choices for token in choice.token_ids or ()]
    assert engine.detokenize(ids).decode() == answered.text == plain.text == "one two three"
    assert (answered.tokens, answered.usage, answered.end) == (3, plain.usage, plain.end)


@pytest.mark.parametrize("fields", [{"logprobs": True}, {"return_token_ids": False}])
async def test_what_it_cannot_hold_comes_as_events(fields: dict[str, Any]) -> None:
    engine = FakeEngine("one two three")
    async with serving(engine) as url, opened(url, model="fake") as endpoint:
        await endpoint.probe()
        answered = await ask(endpoint, Request(messages=HELLO["messages"], extra=fields))
    assert answered.text == "one two three"
    assert (answered.chunks[1].choices[0].logprobs is not None) == ("logprobs" in fields)
