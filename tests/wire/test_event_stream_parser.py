"""What the parsers of streams with typed events have in common: bounds, faults, ends, counts."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.config import Limits
from streamco.errors import EndpointProtocolError, EndpointStatusError
from streamco.openai_types import ChatCompletionChunk
from streamco.wire.event_stream_parser import EventStreamParser
from streamco.wire.messages_api.message_stream import MessageStreamParser
from streamco.wire.openai.assembler import assemble
from streamco.wire.responses_api.response_stream import ResponseStreamParser
from tests.wire.recorded import cuts, random_cuts, recordings

KINDS = [("responses", ResponseStreamParser), ("messages", MessageStreamParser)]


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


START = event("message_start", message={"id": "msg_1", "model": "m", "usage": {"input_tokens": 3, "output_tokens": 1}})


def delta(text: str) -> bytes:
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


STOP = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 5}) + event("message_stop")


def read(parser: EventStreamParser, *pieces: bytes) -> list[ChatCompletionChunk]:
    return [chunk for piece in pieces for chunk in parser.feed(piece)]


@pytest.mark.parametrize(("api", "kind"), KINDS)
def test_recorded_answers_come_out_the_same_however_they_are_cut(api: str, kind: type[EventStreamParser]) -> None:
    rng = random.Random(7)
    found = recordings(apis=(api,))
    assert len(found) > 10
    for recording in found:
        whole = kind()
        expected = assemble(read(whole, recording.body))
        assert (whole.error, whole.is_done, whole.is_complete) == (None, True, True), str(recording)
        assert expected.usage is not None
        pieces = cuts(recording.body, 1) if len(recording.body) < 20_000 else list(random_cuts(recording.body, rng, 40))
        for each in (pieces, list(random_cuts(recording.body, rng, 400))):
            parser = kind()
            assert assemble(read(parser, *each)) == expected, str(recording)
            assert (parser.is_done, parser.usage, parser.finish_reason) == (True, whole.usage, whole.finish_reason)
            assert parser.partial_text() == (expected.choices[0].message.content or "")


def test_tokens_are_counted_for_each_read_and_are_estimates() -> None:
    parser = MessageStreamParser()
    read(parser, START)
    assert (parser.tokens, parser.is_estimated, parser.is_complete) == (0, False, False)
    read(parser, delta("Hi") + delta(" there"))
    assert (parser.tokens, parser.is_estimated, parser.has_only_text) == (2, True, True)
    read(parser, event("content_block_delta", index=1, delta={"type": "thinking_delta", "thinking": "hm"}))
    assert (parser.tokens, parser.has_only_text, parser.partial_text()) == (1, False, "Hi there")
    read(parser, STOP, delta("late"))
    assert (parser.is_done, parser.tokens, parser.finish_reason) == (True, 0, "stop")
    assert parser.close() == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"data: {x}\n\n", "expected JSON in an event, got"),
        (b'data: {"choices": []}\n\n', "expected message_start as the first event, got"),
        (event("response.created"), "expected message_start as the first event, got"),
        (START + b"data: " + b"[" * 100_000 + b"\n\n", "expected JSON in an event, got"),
        (START + delta("x" * 5000), "expected an event of at most 4096 bytes, got"),
    ],
)
def test_bytes_that_are_no_such_stream_are_a_protocol_error(body: bytes, message: str) -> None:
    parser = MessageStreamParser(endpoint="far", limits=Limits(event_bytes=200_000 if b"[[" in body else 4096))
    read(parser, *cuts(body, 5000))
    assert isinstance(parser.error, EndpointProtocolError)
    assert str(parser.error).startswith(f"far: {message}")
    with pytest.raises(EndpointProtocolError):
        parser.close()
    assert parser.feed(delta("more")) == []


@pytest.mark.parametrize("body", [b"data: [1]\n\n", b'data: {"type": 5}\n\n', b"data: hello\n\n", b'event: x\ndata: {"a": 1}\n\n'])
def test_events_of_no_known_type_are_skipped_and_named_if_nothing_else_comes(body: bytes) -> None:
    parser = MessageStreamParser(endpoint="far")
    assert read(parser, body) == []
    assert parser.error is None
    with pytest.raises(EndpointProtocolError, match="expected message_start as the first event, got"):
        parser.close()
    parser = MessageStreamParser()
    assert assemble(read(parser, body, START, delta("Hi"), body, STOP)).choices[0].message.content == "Hi"
    assert parser.is_done


def test_another_apis_stream_is_a_lasting_error() -> None:
    parser = ResponseStreamParser()
    read(parser, START)
    assert isinstance(parser.error, EndpointProtocolError)
    assert parser.error.is_lasting


def test_a_large_answer_is_refused() -> None:
    parser = MessageStreamParser(limits=Limits(answer_bytes=1000))
    read(parser, START, *[delta("x" * 50)] * 20)
    assert isinstance(parser.error, EndpointProtocolError)
    assert "at most 1000 bytes" in str(parser.error)
    assert parser.error.partial.startswith("xxx")


def test_an_answer_that_breaks_off_is_truncated_and_keeps_its_text() -> None:
    parser = MessageStreamParser()
    read(parser, START, delta("Half"))
    with pytest.raises(EndpointProtocolError, match="got a truncated answer: 2 events, 4 characters") as caught:
        parser.close()
    assert caught.value.partial == "Half"


def test_an_answer_is_whole_with_its_stop_reason_and_its_last_event_needs_no_blank_line() -> None:
    parser = MessageStreamParser()
    read(parser, START, delta("All"), STOP.partition(b"event: message_stop")[0].rstrip())
    assert [chunk.choices[0].finish_reason for chunk in parser.close()] == ["stop"]
    assert parser.is_complete


@pytest.mark.parametrize("kind", [ResponseStreamParser, MessageStreamParser])
def test_an_error_before_anything_is_the_servers(kind: type[EventStreamParser]) -> None:
    parser = kind()
    read(parser, event("error", error={"type": "overloaded_error", "message": "busy"}))
    assert isinstance(parser.error, EndpointStatusError)
    assert (parser.error.status, "busy" in str(parser.error)) == (529, True)


NAMES = (
    "type index delta text thinking partial_json content_block id name input usage input_tokens output_tokens stop_reason stop_sequence "
    "message error code response output_index item arguments call_id incomplete_details reason created_at summary_index logprobs"
)
KINDS_OF_EVENTS = (
    "message_start content_block_start content_block_delta message_delta message_stop error ping tool_use text_delta input_json_delta "
    "response.created response.output_item.added response.output_item.done response.function_call_arguments.delta function_call "
    "response.function_call_arguments.done response.output_text.delta response.completed response.incomplete response.failed"
)
LEAVES = st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from([1e999, -1.5, 10**30]) | st.sampled_from(KINDS_OF_EVENTS.split())
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES.split()), inner, max_size=4),
    max_leaves=12,
)
EVENTS = st.builds(
    lambda kind, fields: {**fields, "type": kind},
    st.sampled_from(KINDS_OF_EVENTS.split()),
    st.dictionaries(st.sampled_from(NAMES.split()), VALUES, max_size=5),
)


@pytest.mark.parametrize(
    ("kind", "opening"), [(MessageStreamParser, START), (ResponseStreamParser, event("response.created", response={"id": "r"}))]
)
@given(events=st.lists(EVENTS, max_size=6))
def test_whatever_comes_raises_nothing(kind: type[EventStreamParser], opening: bytes, events: list[dict[str, Any]]) -> None:
    for data in (opening, b""):
        parser = kind()
        chunks = read(parser, data, *[f"data: {json.dumps(each)}\n\n".encode() for each in events])
        assert all(isinstance(each, ChatCompletionChunk) for each in chunks)
        assemble(chunks)
        if parser.error is not None:
            assert parser.error.partial == parser.partial_text()
