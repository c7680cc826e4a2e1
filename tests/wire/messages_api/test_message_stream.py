"""Events of the Messages API as chat chunks; streams as a whole are in test_event_stream_parser.py."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.errors import EndpointStatusError
from streamco.openai_types import ChatCompletionChunk, CompletionUsage, PromptTokensDetails
from streamco.wire.messages_api.events import MessageEvents
from streamco.wire.messages_api.message_stream import MessageStreamParser
from streamco.wire.openai.assembler import assemble
from tests.support.calls import function_of
from tests.support.named_events import chunks_of
from tests.wire.messages_api.test_events import USAGE, call, chunk
from tests.wire.recorded import recordings
from tests.wire.test_event_stream_parser import START, STOP, delta, event


def read(*events: bytes) -> list[ChatCompletionChunk]:
    parser = MessageStreamParser()
    chunks = [each for data in (START, *events) for each in parser.feed(data)]
    assert parser.error is None
    return chunks


def start(index: int, **block: Any) -> bytes:
    return event("content_block_start", index=index, content_block=block)


def test_text_and_the_answers_head() -> None:
    chunks = read(event("ping"), start(0, type="text", text=""), delta("Hi"), event("content_block_stop", index=0), STOP)
    assert {(each.id, each.model) for each in chunks} == {("msg_1", "m")}
    assert [each.choices[0].delta.to_dict() for each in chunks] == [{"role": "assistant"}, {"content": "Hi"}, {}]
    assert (chunks[-1].choices[0].finish_reason, chunks[-1].usage) == (
        "stop",
        CompletionUsage(3, 5, 8, PromptTokensDetails(cached_tokens=0)),
    )


def test_thinking_and_text_that_a_block_begins_with() -> None:
    signature = event("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "s"})
    thinking = event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "m"})
    message = (
        assemble(read(start(0, type="thinking", thinking="h"), thinking, signature, start(1, type="text", text="a"), STOP))
        .choices[0]
        .message
    )
    assert (message.reasoning_content, message.content) == ("hm", "a")


def test_a_half_of_a_character_that_stays_alone_is_in_its_block() -> None:
    def piece(text: str) -> bytes:
        return event("content_block_delta", index=7, delta={"type": "input_json_delta", "partial_json": text})

    calls = [start(0, type="tool_use", id="a", name="f", input={}), piece('{"x": "\ud83c'), piece('"}')]
    calls += [start(1, type="tool_use", id="b", name="g", input={}), piece('{"y": "\ud83c'), event("content_block_stop", index=1)]
    answer = assemble(read(*calls, STOP))
    assert [function_of(each).arguments for each in answer.choices[0].message.tool_calls or ()] == ['{"x": "\ufffd"}', '{"y": "\ufffd']


def test_a_character_goes_on_after_an_early_reason() -> None:
    reason, _, stop = STOP.partition(b"event: message_stop")
    halves = [event("content_block_delta", index=0, delta={"type": "text_delta", "text": half}) for half in ("\ud83c", "\udf0c")]
    chunks = read(start(0, type="text", text=""), halves[0], reason, halves[1], b"event: message_stop" + stop)
    assert assemble(chunks).choices[0].message.content == "\U0001f30c"


def test_a_half_of_a_character_before_a_reason_that_means_failure_is_part_of_what_is_missing() -> None:
    parser = MessageStreamParser()
    chunks = parser.feed(
        b"".join([start(0, type="text", text=""), delta("so \ud83c"), event("message_delta", delta={"stop_reason": "timeout"})])
    )
    assert parser.error is not None
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == parser.error.partial == "so "


def test_calls_are_numbered_among_themselves() -> None:
    def piece(index: int, text: str) -> bytes:
        return event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": text})

    events = [
        start(0, type="text", text="") + delta("a"),
        start(1, type="tool_use", id="t1", name="f", input={}) + piece(1, '{"x":') + piece(1, "1}"),
        start(2, type="tool_use", id="t2", name="g", input={"y": 2}),
        start(3, type="server_tool_use", id="s", name="web_search", input={}) + piece(3, '{"query": "x"}'),
        event("message_delta", delta={"stop_reason": "tool_use"}) + event("message_stop"),
    ]
    choice = assemble(read(*events)).choices[0]
    calls = [(each.id, function_of(each).name, function_of(each).arguments) for each in choice.message.tool_calls or ()]
    assert calls == [("t1", "f", '{"x":1}'), ("t2", "g", '{"y":2}')]
    assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "stop"),
    ],
)
def test_reasons_have_chats_names(reason: str, expected: str) -> None:
    assert read(event("message_delta", delta={"stop_reason": reason}))[-1].choices[0].finish_reason == expected


def test_a_stop_sequence_is_kept() -> None:
    choice = read(event("message_delta", delta={"stop_reason": "stop_sequence", "stop_sequence": "END"}))[-1].choices[0]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "END")


def test_usage_is_the_sum_of_what_was_read_and_the_last_count_of_what_was_written() -> None:
    usage = {"input_tokens": 4, "cache_creation_input_tokens": 1, "cache_read_input_tokens": 6, "output_tokens": 1}
    opening = event("message_start", message={"id": "m", "usage": usage})
    parser = MessageStreamParser()
    chunks = parser.feed(
        opening + event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 9, "input_tokens": None})
    )
    assert chunks[-1].usage == CompletionUsage(11, 9, 20, PromptTokensDetails(cached_tokens=6))


def test_a_failure_keeps_the_text_so_far() -> None:
    parser = MessageStreamParser(endpoint="far")
    for data in (START, delta("Half"), event("error", error={"type": "rate_limit_error", "message": "slow"}), STOP):
        parser.feed(data)
    assert isinstance(parser.error, EndpointStatusError)
    assert (parser.error.status, parser.error.partial, parser.error.endpoint) == (429, "Half", "far")


def test_what_the_encoder_writes_is_read_as_it_was() -> None:
    chunks = [
        chunk(reasoning_content="hm"),
        chunk(content="a"),
        call(0, '{"x":', "f"),
        call(0, "1}"),
        call(1, "{}", "g", "t2"),
        chunk("tool_calls"),
    ]
    chunks.append(ChatCompletionChunk(usage=USAGE))
    encoder = MessageEvents(name="1", model="m", created=5)
    data = b"".join([encoder.event(each) for each in chunks]) + encoder.ending(None) + encoder.done()
    answer, expected = assemble(MessageStreamParser().feed(data)), assemble(chunks)
    assert (answer.choices, answer.usage) == (expected.choices, expected.usage)


def test_recorded_chat_answers_survive_the_way_there_and_back() -> None:
    for recording in recordings(apis=("chat",)):
        chunks = chunks_of([recording.body])
        encoder = MessageEvents(name="1", model="m", created=5)
        data = b"".join([encoder.event(each) for each in chunks]) + encoder.ending(None) + encoder.done()
        before = [choice.message for choice in assemble(chunks).choices if choice.index == 0]
        after = assemble(MessageStreamParser().feed(data)).choices[0].message
        if before:
            assert (after.content or "") == (before[0].content or "") + (before[0].refusal or ""), str(recording)
            assert after.reasoning_content == before[0].reasoning_content, str(recording)
            calls = [
                [(function_of(each).name, function_of(each).arguments) for each in message.tool_calls or ()]
                for message in (before[0], after)
            ]
            assert calls[0] == calls[1], str(recording)
