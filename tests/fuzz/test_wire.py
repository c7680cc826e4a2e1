"""Hostile servers: whatever they send, the parsers give chunks or an ``EndpointError``, in linear time and bounded memory.

Streams are grown from JSON that is nearly right, damaged, and cut at random. Nothing here measures time: what a quadratic reader would
do takes minutes, and the tests' time limit ends it.
"""

from __future__ import annotations

import json
import math
import random
import tracemalloc
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from streamco.config import Limits
from streamco.errors import EndpointError, EndpointProtocolError
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, FunctionDelta, ToolCallDelta
from streamco.wire.openai.assembler import CompletionAssembler, assemble
from streamco.wire.openai.errors import status_error
from streamco.wire.openai.stream import Api, ChatStreamParser
from streamco.wire.token_frames import TokenCodec, TokenFrameError
from tests.wire.openai.events import chunk, event, text_of

SEEDS = range(20)
STREAMS = 150  # a seed
LIMITS = Limits(event_bytes=4096, answer_bytes=1 << 16, body_bytes=1 << 14)

_KEYS = ["choices", "delta", "message", "content", "text", "tool_calls", "function", "arguments", "name", "id", "index", "finish_reason"]
_KEYS += ["usage", "completion_tokens", "prompt_tokens_details", "error", "code", "type", "status", "x_groq", "reasoning", "thinking"]
_KEYS += ["reasoning_content", "logprobs", "token_ids", "created", "model", "details", "retryDelay", "function_call", "role"]
_VALUES: list[Any] = [None, True, 0, -1, 3, 429, 2**63, 10**30, 1.5, -0.0, 1e300, math.nan, math.inf, "", "a", "stop", "error", "429"]
_VALUES += ["²", "9" * 5_000, "3s", "\ud83d", "\u2028", "日本語 text", "x" * 50, [], {}, [[]], [None], {"usage": []}]
_DAMAGE = [b"\xff", b"\0", b"\n", b"\r", b"\n\n", b"\r\n", b'"', b"{", b"]" * 300, b"[" * 300, b"9" * 5_000, b"\\u", b"\\ud800", b"e", b":"]
_FRAMES = [
    b"data: %b\n\n",
    b"data:%b\r\n\r\n",
    b"data: %b\n",
    b"event: x\ndata: %b\n\n",
    b"error: %b\n\n",
    b"%b\n",
    b": %b\n\n",
    b"\xef\xbb\xbfdata: %b\r\r",
]
_FRAMES += [b"retry: %b\n\n", b"id: %b\n\n"]


def grow(rng: random.Random, depth: int = 0) -> Any:
    """A value of the names and shapes that answers are made of."""
    kind = rng.random()
    if depth > 5 or kind < 0.35:
        return rng.choice(_VALUES)
    if kind < 0.55:
        return [grow(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {rng.choice(_KEYS): grow(rng, depth + 1) for _ in range(rng.randrange(5))}


def grow_chunk(rng: random.Random) -> Any:
    """A chunk with one thing wrong, or right."""
    delta = {key: rng.choice(["a", "a", "a", rng.choice(_VALUES)]) for key in rng.sample(["content", "reasoning", "role"], 2)}
    if rng.random() < 0.2:
        delta["tool_calls"] = grow(rng, 2)
    choice = {"index": rng.choice([0, 0, 0, 1, grow(rng, 4)]), rng.choice(["delta", "delta", "message"]): delta}
    choice["finish_reason"] = rng.choice([None, None, None, "stop", "error", grow(rng, 4)])
    value = {"choices": rng.choice([[choice], [choice], [], grow(rng, 3)])}
    return value if rng.random() < 0.6 else {**value, rng.choice(_KEYS): grow(rng, 3)}


def grow_stream(rng: random.Random) -> bytes:
    """A body of events, most of them in order."""
    body = b""
    for _ in range(rng.randrange(8)):
        value = grow_chunk(rng) if rng.random() < 0.7 else grow(rng)
        payload = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        if rng.random() < 0.2:
            at = rng.randrange(len(payload) + 1)
            payload = payload[:at] + rng.choice(_DAMAGE) + payload[at + rng.randrange(3) :]
        body += (_FRAMES[0] if rng.random() < 0.7 else rng.choice(_FRAMES)) % payload
    return body + rng.choice([b"", b"", b"data: [DONE]\n\n", b"data: [DONE]", b"\n{}", b"}"])


def cut(body: bytes, rng: random.Random) -> list[bytes]:
    borders = sorted(rng.randrange(len(body) + 1) for _ in range(rng.randrange(6)))
    return [body[a:b] for a, b in zip([0, *borders], [*borders, len(body)], strict=True)]


def read(pieces: list[bytes], api: Api) -> tuple[list[ChatCompletionChunk], type[EndpointError] | None]:
    """What a stream says, and what its failure is; the parser's promises are checked on the way."""
    parser = ChatStreamParser(limits=LIMITS, api=api)
    chunks = [found for piece in pieces for found in parser.feed(piece)]
    with suppress(EndpointError):
        chunks += parser.close()
    assert parser.partial_text() == text_of(chunks)
    assert parser.error is None or parser.error.partial == parser.partial_text()
    return chunks, None if parser.error is None else type(parser.error)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_stream_raises_anything_but_its_error_and_all_cuts_say_the_same(seed: int) -> None:
    rng = random.Random(f"streams {seed}")
    for number in range(STREAMS):
        body = grow_stream(rng)
        apis: list[Api] = ["chat", "completions"]
        api = rng.choice(apis)
        chunks, failure = read([body], api)
        msgspec.json.encode(chunks)
        msgspec.json.encode(assemble(chunks))
        again = read(cut(body, rng), api)
        assert msgspec.json.encode(again[0]) == msgspec.json.encode(chunks), (seed, number, body)
        assert again[1] == failure, (seed, number, body)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_answer_that_is_an_error_can_be_reported(seed: int) -> None:
    rng = random.Random(f"errors {seed}")
    for _ in range(STREAMS):
        body = json.dumps(grow(rng)).encode()
        headers = {name: str(rng.choice(_VALUES)) for name in ("Retry-After", "retry-after-ms", "Date")}
        error = status_error(500, headers, body if rng.random() < 0.7 else b"{" + body, now=0.0)
        assert str(error).startswith("expected status 200, got 500: ")
        assert error.retry_after is None or 0 <= error.retry_after < math.inf


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_token_frame_is_refused_and_never_read_as_other_ids(seed: int) -> None:
    rng = random.Random(f"frames {seed}")
    codec = TokenCodec("1000:00", 1000, max_tokens=100)
    for _ in range(STREAMS):
        ids = [rng.randrange(1000) for _ in range(rng.randrange(20))]
        frame = bytearray(codec.encode(ids))
        for _ in range(rng.randrange(1, 4)):
            frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        del frame[rng.choice([len(frame), len(frame), rng.randrange(len(frame))]) :]
        try:
            assert codec.decode(frame) == ids
        except TokenFrameError:
            continue


# Memory


@pytest.mark.parametrize("start", [b"data: ", b": ", b"", b"{", b"data: x\n", b"event: "])
@pytest.mark.parametrize("piece", [b"x" * 1000, b"x\n" * 500, b"x\r" * 500])
def test_a_stream_without_end_is_given_up_at_its_limit(start: bytes, piece: bytes) -> None:
    limits = Limits(event_bytes=50_000, body_bytes=50_000, answer_bytes=200_000)
    parser = ChatStreamParser(limits=limits)
    parser.feed(start)
    tracemalloc.start()
    try:
        for _ in range(1000):
            parser.feed(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(parser.error, EndpointProtocolError)
    assert peak < 1_000_000


# Time


@pytest.mark.long
def test_repeated_messages_after_a_long_text_are_not_compared_with_it_piece_by_piece() -> None:
    parser = ChatStreamParser(limits=Limits(answer_bytes=1 << 30))
    parser.feed(chunk("x" * 1000) * 20_000)
    parser.feed(event({"choices": [{"message": {"content": "y"}}]}) * 40_000)
    assert (len(parser.partial_text()), parser.error) == (20_000_000, None)


def test_blank_lines_after_a_large_json_body_do_not_read_it_again() -> None:
    parser = ChatStreamParser()
    parser.feed(b'{"a": "' + b"x" * (15 << 20) + b'"}')
    for _ in range(100_000):
        parser.feed(b"\n")
    with pytest.raises(EndpointProtocolError, match="with choices"):
        parser.close()


@pytest.mark.long
def test_thousands_of_tool_calls_are_found_without_looking_through_all() -> None:
    assembler = CompletionAssembler()
    for number in range(150_000):
        call = ToolCallDelta(id=f"call_{number}", function=FunctionDelta(name="f"))
        assembler.add(ChatCompletionChunk(choices=[ChunkChoice(ChoiceDelta(tool_calls=[call]))]))
    assert len(assembler.completion().choices[0].message.tool_calls or ()) == 150_000
