"""Events that repeat an earlier one except for their text: copies are what decoding gives, and anything else is decoded."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamco._native import scan_events
from streamco.config import Limits
from streamco.openai_types import ChatCompletionChunk
from streamco.wire.openai.fast_decode import decode_chat_chunk, decode_text_chunk
from streamco.wire.openai.repeated_events import FEW, RepeatedEvents
from streamco.wire.openai.stream import ChatStreamParser
from tests.support.examples import examples
from tests.wire.openai.events import chunk, event, read, text_of

HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "system_fingerprint": "f"}


def payload(text: Any, *, delta: dict[str, Any] | None = None, choice: dict[str, Any] | None = None, **top: Any) -> bytes:
    made = {"index": 0, "delta": {"content": text, **(delta or {})}, "finish_reason": None, **(choice or {})}
    return json.dumps({**HEAD, "choices": [made], "usage": None, **top}).encode()


def copied_after(first: bytes, *others: bytes) -> list[ChatCompletionChunk]:
    """The chunks of the events after ``first`` that are copied from it."""
    found = RepeatedEvents(decode_chat_chunk).copy_after(first, decode_chat_chunk(first), list(others), 0)
    return [] if found is None else found.chunks


TEXTS = [" a", "b\n", 'say "hi"', "\\", "é", "\u2028", "\x7f", "😀", " " * 300]


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_copy_is_what_decoding_gives(ascii_only: bool) -> None:
    events = [json.dumps(json.loads(payload(text)), ensure_ascii=ascii_only).encode() for text in TEXTS]
    assert copied_after(*events) == [decode_chat_chunk(each) for each in events[1:]]


@pytest.mark.parametrize("field", ["content", "reasoning_content", "reasoning"])
def test_content_and_reasoning_are_copied(field: str) -> None:
    events = [payload(None, delta={field: text}) for text in TEXTS]
    found = RepeatedEvents(decode_chat_chunk).copy_after(events[0], decode_chat_chunk(events[0]), events, 1)
    assert found is not None
    assert (found.pieces, found.is_content) == (TEXTS[1:], field == "content")
    assert found.longest == max(map(len, TEXTS[1:]))


def test_legacy_completions_are_copied() -> None:
    events = [json.dumps({"id": "c", "choices": [{"text": text, "index": 0}], "model": "m"}).encode() for text in "abc"]
    found = RepeatedEvents(decode_text_chunk).copy_after(events[0], decode_text_chunk(events[0]), events, 1)
    assert found is not None
    assert found.chunks == [decode_text_chunk(each) for each in events[1:]]


def test_copies_share_nothing_that_can_be_changed() -> None:
    one, other = copied_after(payload("a"), payload("b"), payload("c"))
    one.choices[0].delta.content = one.model = "changed"
    one.choices.append(one.choices[0])
    assert other == decode_chat_chunk(payload("c"))


@pytest.mark.parametrize(
    "other",
    [
        payload("b", created=2),
        payload("b", model="n"),
        payload(""),
        payload(None),
        payload(1),
        payload("b", choice={"finish_reason": "stop"}),
        payload("b", choice={"index": 1}),
        payload("b", choice={"token_ids": [1]}),
        payload("b", unknown=1),
        payload("b", usage={"prompt_tokens": 1}),
        payload("b") + b" ",
        payload("b")[:-1],
        payload("b").replace(b'"b"', b'"b" "'),
        payload("b").replace(b'"b"', b'"\xff"'),
        payload("b").replace(b'"b"', b'"\\x"'),
        payload("b").replace(b'"b"', b'"\n"'),
        payload("b").replace(b'"b"', b'"a"b"'),
        payload("b").replace(b'"b"', b'"a", "content": "b"'),
        b"[DONE]",
        b"",
    ],
)
def test_an_event_that_differs_in_anything_else_is_not_copied(other: bytes) -> None:
    assert copied_after(payload("a"), other, payload("c")) == []
    assert copied_after(payload("a"), payload("b"), other, payload("c")) == [decode_chat_chunk(payload("b"))]


@pytest.mark.parametrize(
    "first",
    [
        payload("a", choice={"logprobs": {"content": "a"}}),
        payload("a", choice={"token_ids": [1]}),
        payload("a", delta={"reasoning": "b"}),
        payload("a", delta={"tool_calls": []}),
        payload("a", provider=["a"]),
        payload("a", model="m" * 800),
        b'{"choices":[{"index":0,"delta":{"content":"a","content":"a"}}]}',
        b'{"choices":[{"index":0,"delta":{"cont\\u0065nt":"a"}}]}',
    ],
)
def test_an_event_with_more_than_one_text_or_values_that_can_change_is_not_learned(first: bytes) -> None:
    if b'"content":"a","content"' in first:
        assert [each.choices[0].delta.content for each in copied_after(first, first.replace(b'"a"}', b'"b"}'))] == ["b"]
    else:
        assert copied_after(first, first) == []


def test_the_text_is_found_beside_a_string_of_the_same_name() -> None:
    first = payload("a", system_fingerprint='"content": "x"', obfuscation="content")
    assert copied_after(first, first.replace(b'"a"', b'"b"')) == [decode_chat_chunk(first.replace(b'"a"', b'"b"'))]


def test_a_server_whose_events_all_differ_is_soon_left_alone() -> None:
    repeated, decoded = RepeatedEvents(decode_chat_chunk), []
    events = [payload("a", obfuscation=str(number)) for number in range(100)]
    for at, each in enumerate(events):
        found = decode_chat_chunk(each)
        if repeated.is_useful:
            decoded.append(at)
            assert repeated.copy_after(each, found, events, at + 1) is None
    assert len(decoded) <= 4


def test_pairs_of_events_are_not_worth_learning_for_long() -> None:
    repeated, learned = RepeatedEvents(decode_chat_chunk), 0
    events = [payload("a", created=number // 2) for number in range(200)]
    for at in range(0, 200, 2):
        learned += repeated.is_useful
        repeated.copy_after(events[at], decode_chat_chunk(events[at]), events, at + 1)
    assert learned < FEW


def test_a_server_that_changes_an_event_now_and_then_is_learned_again() -> None:
    events = [payload("a", created=number // 20) for number in range(400)]
    parser, chunks = read(b"".join(b"data: " + each + b"\n\n" for each in events))
    assert chunks == [decode_chat_chunk(each) for each in events]
    assert parser._repeated.is_useful
    assert (parser.tokens, parser.partial_text()) == (400, "a" * 400)


# Against decoding each event, in the parser

_TEXT = st.one_of(st.text(max_size=12), st.sampled_from(["", "\n", '"', "\\", "\\u0041", "\ud800", "long " * 20]))
_CONTENT = st.builds(lambda text, created: chunk(text, top={"created": created}), _TEXT, st.integers(1, 2))
_OTHER = st.one_of(
    _TEXT.map(lambda text: chunk(reasoning=text)),
    _TEXT.map(lambda text: chunk(reasoning_content=text, role="assistant")),
    _TEXT.map(lambda text: chunk(text, index=1)),
    _TEXT.map(lambda text: chunk(text, finish="stop")),
    _TEXT.map(lambda text: chunk(text, top={"obfuscation": "x", "unknown": text})),
    st.sampled_from([event({"choices": []}), b"data: {\n\n", b"data: \xff\n\n", event({"error": {"code": 500}})]),
)
_RUNS = st.lists(st.tuples(st.one_of(_CONTENT, _CONTENT, _OTHER), st.integers(1, 12)), max_size=10)


@given(_RUNS)
@settings(max_examples=examples(200, thorough=2000))
def test_a_parser_says_the_same_whether_it_may_copy_or_not(runs: list[tuple[bytes, int]]) -> None:
    events = [each for each, times in runs for _ in range(times)]
    at_once, one_by_one = ChatStreamParser(), ChatStreamParser()
    chunks = at_once.feed(b"".join(events))
    tokens, expected = 0, []
    for each in events:
        expected += one_by_one.feed(each)  # never more than one event, so nothing is copied
        tokens += one_by_one.tokens
    assert chunks == expected
    assert at_once.tokens == tokens
    assert text_of(chunks) == at_once.partial_text() == one_by_one.partial_text()
    assert (at_once.is_estimated, at_once.has_only_text) == (one_by_one.is_estimated, one_by_one.has_only_text)
    assert type(at_once.error) is type(one_by_one.error)


@given(st.lists(st.text(min_size=1, max_size=10), min_size=FEW + 1, max_size=40), st.sampled_from(["content", "reasoning"]))
def test_long_runs_of_one_kind_are_copied_whole(texts: list[str], field: str) -> None:
    body = b"".join(chunk(**{field: text}) for text in texts)  # type: ignore[arg-type]
    payloads, _ = scan_events(body, 1 << 20)
    first = decode_chat_chunk(payloads[0])
    found = RepeatedEvents(decode_chat_chunk).copy_after(payloads[0], first, payloads, 1)
    assert found is not None
    assert found.chunks == [decode_chat_chunk(each) for each in payloads[1:]]


# Reads of one event each


def read_one_by_one(reads: list[bytes], **options: Any) -> tuple[ChatStreamParser, list[list[ChatCompletionChunk]], list[int], int]:
    """Feed reads as a relay does: the parser, the chunks and tokens of each read, and how many reads repeated an earlier one."""
    parser, chunks, tokens, repeated = ChatStreamParser(**options), [], [], 0
    for data in reads:
        if (event := parser.feed_repeated(data)) is not None:
            repeated += 1
            chunks.append(event.chunks)
            assert event.tokens == parser.tokens
        else:
            chunks.append(parser.feed(data))
            if parser.goes_on and len(chunks[-1]) == 1:
                parser.learn_repeated(data, chunks[-1][0])
        tokens.append(parser.tokens)
    return parser, chunks, tokens, repeated


def state(parser: ChatStreamParser) -> tuple[object, ...]:
    """What a stream asks of a parser."""
    error = None if parser.error is None else (type(parser.error), str(parser.error), parser.error.partial)
    flags = (parser.goes_on, parser.has_progress, parser.is_estimated, parser.has_only_text, parser.is_complete, parser.is_done)
    return parser.partial_text(), parser.events, parser.usage, parser.finish_reason, error, flags


@given(_RUNS, st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n"]), st.integers(500, 5000), st.integers(150, 600))
@settings(max_examples=examples(200, thorough=2000))
def test_a_parser_says_the_same_whether_reads_may_repeat_or_not(
    runs: list[tuple[bytes, int]], end: bytes, answer_bytes: int, event_bytes: int
) -> None:
    reads = [each.replace(b"\n\n", end) for each, times in runs for _ in range(times)]
    limits = Limits(answer_bytes=answer_bytes, event_bytes=event_bytes)
    plain, expected = ChatStreamParser(limits=limits), []
    parser, chunks, tokens, _ = read_one_by_one(reads, limits=limits)
    for number, data in enumerate(reads):
        expected.append(plain.feed(data))
        assert (chunks[number], tokens[number]) == (expected[-1], plain.tokens)
    assert state(parser) == state(plain)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_all_reads_but_the_first_repeat(end: bytes) -> None:
    _, _, tokens, repeated = read_one_by_one([b"data: " + payload(text) + end for text in TEXTS])
    assert repeated == len(TEXTS) - 1
    assert tokens[1:] == [1] * (len(TEXTS) - 2) + [75]


@given(st.lists(st.integers(1, 400), max_size=12))
def test_reads_that_end_inside_of_an_event_do_not_repeat(cuts: list[int]) -> None:
    body = b"".join(b"data: " + payload(text) + b"\n\n" for text in TEXTS)
    places = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    reads = [body[start:stop] for start, stop in pairwise(places)]
    parser, chunks, _, _ = read_one_by_one(reads)
    assert [chunk.choices[0].delta.content for each in chunks for chunk in each] == TEXTS
    assert parser.partial_text() == "".join(TEXTS)


@pytest.mark.parametrize(
    "other",
    [
        b"data: " + payload("b", created=2) + b"\n\n",
        b"data: " + payload("") + b"\n\n",
        b"data: " + payload("b").replace(b'"b"', b'"\xff"') + b"\n\n",
        b"data: " + payload("b").replace(b'"b"', b'"a"b"') + b"\n\n",
        b"data: " + payload("b").replace(b'"b"', b'"') + b"\n\n",
        b"data: " + payload("b" * 800) + b"\n\n",
        b"data: " + payload("b") + b"\n",
        b"data: " + payload("b") + b"\r\n\r\n",
        (b"data: " + payload("b") + b"\n\n") * 2,
        b"data: " + payload("b").replace(b'"b"', b'\n"b"') + b"\n\n",
        b": ping\n\n",
        b"",
    ],
)
def test_another_read_does_not_repeat(other: bytes) -> None:
    reads = RepeatedEvents(decode_chat_chunk)
    first = payload("a")
    reads.learn_read(b"data: " + first + b"\n\n", decode_chat_chunk(first))
    found = reads.read_alike(b"data: " + payload("b") + b"\n\n")
    assert found is not None
    assert found[1] == "b"
    assert reads.read_alike(other) is None


def test_a_server_whose_reads_all_differ_is_soon_left_alone() -> None:
    reads, learned = RepeatedEvents(decode_chat_chunk), 0
    for number in range(100):
        each = payload("a", created=number)
        data = b"data: " + each + b"\n\n"
        reads.learn_read(data, decode_chat_chunk(each))
        learned += reads.read_alike(data) is not None
    assert learned <= 4


def reads_between(other: bytes, every: int) -> list[bytes]:
    """Reads of one event each, with another read after every so many."""
    reads: list[bytes] = []
    for number in range(400):
        reads.append(chunk(f"w{number} "))
        if number % every == 0:
            reads.append(other)
    return reads


@pytest.mark.parametrize("other", [b": ping\n\n", chunk(reasoning="hm"), chunk(""), chunk("a") + chunk("b")])
@pytest.mark.parametrize("every", [5, 9])
def test_reads_repeat_again_after_another_one(other: bytes, every: int) -> None:
    *_, repeated = read_one_by_one(reads_between(other, every))
    assert repeated > 400 * (every - 2) / every - 2


def test_thinking_does_not_use_up_what_the_text_needs() -> None:
    *_, repeated = read_one_by_one([chunk(reasoning="hm")] * 50 + [chunk(f"w{number}") for number in range(50)])
    assert repeated == 49


def test_the_chunk_that_others_are_like_is_nobody_elses() -> None:
    parser, chunks, *_ = read_one_by_one([chunk("a"), chunk("b")])
    chunks[0][0].choices.clear()
    chunks[0][0].model = "mine"
    event = parser.feed_repeated(chunk("c"))
    assert event is not None
    assert event.chunks == [decode_chat_chunk(chunk("c")[6:])]
