"""Streams in MessagePack: the same chunks as from events, however the bytes are cut, and an error for everything else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.config import Limits
from streamco.errors import EndpointError, EndpointProtocolError, EndpointStatusError
from streamco.openai_types import ChatCompletionChunk
from streamco.wire.openai.msgpack_stream import (
    KEEPALIVE,
    MsgpackStreamParser,
    PieceEncoder,
    encode_ending,
    encode_error,
    encode_opening,
)
from streamco.wire.token_frames import TokenCodec

msgpack: Any = import_module("msgpack")  # it has no types

VOCABULARY = "49152:0123456789abcdef"
CODEC = TokenCodec(VOCABULARY, 49152)
OPENING = encode_opening("chatcmpl-1", 5, "m", VOCABULARY)
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
PIECES = [(" one", [500]), (" é", [40_000, 7]), ("🦎", [1, 2, 3])]


def pieces(*parts: tuple[str, Sequence[int]]) -> bytes:
    encoder = PieceEncoder()
    return b"".join(encoder.encode(text, CODEC.pack_bare(ids)) for text, ids in parts)


def packed(text: str, ids: bytes) -> bytes:
    """One piece whose ids needn't be right."""
    return PieceEncoder().encode(text, ids)


WHOLE = OPENING + KEEPALIVE + pieces(*PIECES) + KEEPALIVE + encode_ending("stop", USAGE)


def read(data: bytes, cuts: Sequence[int] = (), **options: Any) -> tuple[MsgpackStreamParser, list[ChatCompletionChunk], int]:
    """A parser that was fed the bytes in parts; its chunks and their tokens."""
    parser = MsgpackStreamParser(options.pop("codec", CODEC), endpoint="remote", **options)
    chunks: list[ChatCompletionChunk] = []
    tokens = 0
    for start, end in pairwise([0, *sorted(cuts), len(data)]):
        chunks += parser.feed(data[start:end])
        tokens += parser.tokens
    return parser, chunks, tokens


def refused(data: bytes, **options: Any) -> EndpointError:
    parser, _, _ = read(data, **options)
    assert parser.error is not None
    with pytest.raises(type(parser.error)):
        parser.close()
    return parser.error


def test_an_answer_comes_as_the_chunks_that_events_would_give() -> None:
    parser, chunks, tokens = read(WHOLE)
    assert [chunk.choices[0].delta.role for chunk in chunks[:2]] == ["assistant", None]
    assert [(chunk.choices[0].delta.content, chunk.choices[0].token_ids) for chunk in chunks[1:4]] == PIECES
    assert (chunks[4].choices[0].finish_reason, chunks[4].choices[0].delta.content) == ("stop", None)
    assert (chunks[5].choices, chunks[5].usage) == ([], parser.usage)
    assert {(chunk.id, chunk.created, chunk.model) for chunk in chunks} == {("chatcmpl-1", 5, "m")}
    assert (parser.finish_reason, parser.is_done, parser.is_complete, parser.error, tokens) == ("stop", True, True, None, 6)
    assert parser.usage is not None
    assert parser.usage.completion_tokens == 2
    assert parser.partial_text() == " one é🦎"
    assert parser.close() == []


@given(st.lists(st.integers(0, len(WHOLE)), max_size=6))
def test_cuts_change_nothing(cuts: list[int]) -> None:
    assert read(WHOLE, cuts)[1:] == read(WHOLE)[1:]


def test_byte_by_byte_is_the_same_too() -> None:
    assert read(WHOLE, range(len(WHOLE)))[1:] == read(WHOLE)[1:]


def test_a_completion_has_no_role() -> None:
    _, chunks, _ = read(WHOLE, api="completions")
    assert chunks[0].choices[0].delta.content == " one"


def test_a_piece_that_a_stop_string_cuts_ends_the_answer_and_has_no_ids() -> None:
    cut = OPENING + PieceEncoder().encode(" on", b"", "stop")
    _, chunks, tokens = read(cut + encode_ending("stop", None))
    assert [(chunk.choices[0].finish_reason, chunk.choices[0].token_ids) for chunk in chunks[1:]] == [("stop", None)]
    assert tokens == 1


def reasons(*parts: tuple[str, str | None]) -> bytes:
    """An answer that has no end yet: its pieces, each with its finish reason."""
    encoder = PieceEncoder()
    return OPENING + b"".join(encoder.encode(text, b"", reason) for text, reason in parts)


STAYS_OPEN = {
    "no reason": reasons(("half", None)),
    "a blank reason": reasons(("half", "")),
    "a reason that says nothing": reasons(("half", "null")),
    "a blank reason with each piece": reasons(("half", ""), (" more", "")),
    "text after a reason": reasons(("half", "stop"), (" more", None)),
    "a reason with each piece": reasons(("half", "stop"), (" more", "stop")),
    "a reason and no text": reasons(("", "stop")),
}


@pytest.mark.parametrize("case", STAYS_OPEN)
def test_a_lost_connection_is_no_end_of_an_answer_that_shows_none(case: str) -> None:
    data = STAYS_OPEN[case]
    parser, _, _ = read(data)
    assert (parser.error, parser.is_complete, parser.is_done) == (None, False, False)
    with pytest.raises(EndpointProtocolError, match="a truncated answer"):
        parser.close(is_proper=False)
    ended, _, _ = read(data + encode_ending("stop", None))
    assert (ended.error, ended.is_complete, ended.finish_reason) == (None, True, "stop")


def test_a_lost_connection_after_text_and_a_reason_is_the_end() -> None:
    parser, _, _ = read(reasons(("whole", None), ("", "stop")))
    assert (parser.is_complete, parser.is_done, parser.finish_reason) == (True, False, "stop")
    parser.close(is_proper=False)


@pytest.mark.parametrize("reason", ["abort", "ABORT", "network-error", "insufficient_system_resource"])
def test_a_reason_that_means_a_failure_fails_and_keeps_the_text(reason: str) -> None:
    for data in (
        reasons(("half", reason)),
        reasons(("half", None), ("", reason)),
        reasons(("half", "stop"), ("", reason)),
        reasons(("half", None)) + encode_ending(reason, USAGE),
    ):
        parser, chunks, _ = read(data + encode_ending("stop", USAGE))
        assert (parser.is_done, parser.is_complete) == (False, False)
        assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason not in {None, "stop"}] == []
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "half"
        error = refused(data)
        assert (error.partial, f'the answer ended with "{reason}"' in str(error)) == ("half", True)


def test_an_ending_without_a_reason_is_an_end_of_an_answer_with_text_alone() -> None:
    parser, chunks, _ = read(reasons(("whole", None)) + encode_ending("", None))
    assert (parser.error, parser.is_complete, parser.finish_reason, chunks[-1].choices[0].delta.content) == (None, True, None, "whole")
    assert "got other fields alone" in str(refused(OPENING + encode_ending("", None)))


def test_ids_of_a_vocabulary_that_changed_meanwhile_are_left_out() -> None:
    _, chunks, tokens = read(WHOLE, codec=TokenCodec("49152:other", 49152))
    assert [chunk.choices[0].token_ids for chunk in chunks[1:4]] == [None] * 3
    assert tokens == 3


def older(fields: dict[str, Any]) -> bytes:
    """The beginning of an answer by a server of another format."""
    return bytes(msgpack.packb({"id": "chatcmpl-1", "created": 5, "model": "m", "vocabulary": VOCABULARY, **fields}))


@given(st.lists(st.integers(0, 80), max_size=4))
def test_an_older_servers_answer_is_its_text_without_ids(cuts: list[int]) -> None:
    """Its pieces have no checksum, and an answer must not be continued from ids that nothing checks."""
    bare = b"".join(msgpack.packb([text, CODEC.pack_bare(ids)]) for text, ids in PIECES) + msgpack.packb(["", b"", "stop"])
    parser, chunks, tokens = read(older({}) + KEEPALIVE + bare + encode_ending("stop", USAGE), cuts)
    assert [(chunk.choices[0].delta.content, chunk.choices[0].token_ids) for chunk in chunks[1:4]] == [(text, None) for text, _ in PIECES]
    assert (parser.error, parser.finish_reason, parser.is_complete, tokens) == (None, "stop", True, 3)
    assert parser.partial_text() == " one é🦎"


@pytest.mark.parametrize("other", [1, 3, "2", []])
def test_an_answer_of_another_format_is_refused(other: Any) -> None:
    assert older({"format": 2}) == OPENING
    assert "expected an answer in format 2, got" in str(refused(older({"format": other}) + pieces(*PIECES)))


def test_bytes_after_the_end_mean_nothing() -> None:
    parser, chunks, _ = read(WHOLE + b"\xc1" + WHOLE, [len(WHOLE) + 1])
    assert (parser.error, len(chunks)) == (None, 6)


def test_an_answer_without_its_end_is_truncated() -> None:
    parser, _, _ = read(OPENING + pieces(*PIECES))
    with pytest.raises(
        EndpointProtocolError, match="expected a finish reason before the end of the stream, got a truncated answer"
    ) as caught:
        parser.close()
    assert (caught.value.partial, caught.value.endpoint) == (" one é🦎", "remote")


def test_an_error_object_is_the_servers_error_and_keeps_the_text() -> None:
    error = refused(OPENING + pieces((" one", [5])) + encode_error({"message": "it broke", "type": "server_error", "code": "engine_error"}))
    assert isinstance(error, EndpointStatusError)
    assert "it broke" in str(error)
    assert error.partial == " one"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xc1", "expected MessagePack, got"),
        (b"data: {}\n\n", "expected an array, a map or nil in the stream, got int"),
        (OPENING + b"\xc7\3\5abc", "max_ext_len"),
        (OPENING + b"\x91" * 5000, "expected MessagePack"),
        (OPENING + b"\xdd\xff\xff\xff\xff", "max_array_len"),
        (OPENING + b"\x92\xa1\xff\xc4\0", "utf-8"),
        (OPENING + msgpack.packb(["text"]), "expected a piece of text and ids"),
        (OPENING + msgpack.packb([b"text", b""]), "expected a piece of text and ids"),
        (OPENING + msgpack.packb(["text", [5]]), "expected a piece of text and ids"),
        (OPENING + msgpack.packb(["text", b""]), "expected a piece with the checksum of its text and ids"),
        (OPENING + msgpack.packb(["text", b"\1\2\3"]), "expected a piece with the checksum of its text and ids"),
        (OPENING + packed("text", b"\1\2\3"), "token frame: expected 2 bytes"),
        (OPENING + packed("text", b"\xff\xff"), "expected one of the vocabulary's 49152 ids, got 65535"),
        (OPENING + msgpack.packb({"usage": USAGE}), "expected a finish_reason at the end"),
        (pieces((" one", [5])), "expected id, created, model and vocabulary first, got a piece"),
        (msgpack.packb({"id": "x"}), "expected id, created, model and vocabulary first"),
        (encode_ending("stop", None), "expected id, created, model and vocabulary first"),
    ],
)
def test_what_is_no_answer_is_refused_and_named(data: bytes, message: str) -> None:
    error = refused(data)
    assert isinstance(error, EndpointProtocolError)
    assert message in str(error)
    assert str(error).count("expected") == 1, "an error of ids is not one of MessagePack, too"


def test_an_object_and_an_answer_beyond_the_limit_are_refused() -> None:
    huge = OPENING + msgpack.packb(["x" * 300_000, b""])
    assert "expected an object of at most 1000 bytes" in str(refused(huge, limits=Limits(event_bytes=1000)))
    assert "expected an answer of at most 1000 bytes" in str(refused(huge, limits=Limits(answer_bytes=1000)))
    many = OPENING + pieces(*[(" one", [5])] * 50_000) + encode_ending("stop", None)
    assert read(many, limits=Limits(event_bytes=1000))[2] == 50_000


def test_a_usage_that_cannot_be_is_left_out() -> None:
    parser, _, _ = read(OPENING + encode_ending("stop", {**USAGE, "prompt_tokens": -5}))
    assert (parser.usage, parser.is_done) == (None, True)


@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_are_chunks_or_an_error(data: bytes, has_begun: bool) -> None:
    parser, _, tokens = read(OPENING + data if has_begun else data)
    assert tokens >= 0
    assert parser.error is None or isinstance(parser.error, EndpointError)


@given(st.randoms(use_true_random=False))
def test_a_damaged_answer_is_chunks_or_an_error(rng: random.Random) -> None:
    damaged = bytearray(WHOLE)
    for _ in range(rng.randint(1, 3)):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    parser, chunks, _ = read(bytes(damaged), [rng.randrange(len(damaged))])
    assert parser.error is None or isinstance(parser.error, EndpointError)
    assert all(0 <= token < 49152 for chunk in chunks for choice in chunk.choices for token in choice.token_ids or ())


def test_no_byte_of_a_piece_can_be_changed_unnoticed() -> None:
    """A connection that breaks may have other bytes after the break, and an answer must not be continued from these."""
    body = pieces(*PIECES)
    for place in range(len(body)):
        for value in range(256):
            damaged = bytearray(body)
            damaged[place] = value
            found = [(choice.delta.content, choice.token_ids) for chunk in read(OPENING + damaged)[1][1:] for choice in chunk.choices]
            assert found == PIECES[: len(found)], f"byte {place} is {value}"


def test_pieces_count_in_their_order() -> None:
    first, second = PieceEncoder().encode("a", b"\1\0"), PieceEncoder().encode("b", b"\2\0")
    assert "expected a piece with the checksum" in str(refused(OPENING + first + second))


def test_an_empty_piece_is_no_chunk() -> None:
    """Six bytes would become half a kilobyte."""
    encoder = PieceEncoder()
    empty = b"".join(encoder.encode("", b"") for _ in range(1000))
    parser, chunks, tokens = read(OPENING + empty + encoder.encode("Hi", CODEC.pack_bare([5])) + encoder.encode("", b"", "stop"))
    assert (len(chunks), tokens, parser.error) == (3, 1, None)  # the role, the text, the reason
    assert chunks[-1].choices[0].finish_reason == "stop"
