"""Chunks out of streamed answers: the hot path, what it counts, how it ends, how it fails."""

from __future__ import annotations

import json
import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.config import Limits
from streamco.errors import EndpointProtocolError, EndpointStatusError
from streamco.openai_types import ChoiceDelta, FunctionDelta, ToolCallDelta
from streamco.wire.openai.assembler import assemble
from streamco.wire.openai.stream import ChatStreamParser
from streamco.wire.openai.token_estimate import ONE_TOKEN, estimate_delta, estimate_tokens
from tests.support.calls import function_of
from tests.wire.openai.events import DONE, USAGE, chunk, event, read, text_of, usage_chunk
from tests.wire.recorded import OPENAI_APIS, Recording, answer_slowly, cuts, random_cuts, recordings

HELLO = chunk("", role="assistant") + chunk("Hel") + chunk("lo") + chunk(finish="stop")


# The ordinary stream


def test_an_ordinary_stream_gives_its_chunks_finish_and_usage() -> None:
    parser, chunks = read(HELLO + usage_chunk() + DONE)
    assert text_of(chunks) == "Hello" == parser.partial_text()
    assert [c.choices[0].delta.role for c in chunks if c.choices] == ["assistant", None, None, None]
    assert (parser.finish_reason, parser.is_done, parser.is_complete, parser.error) == ("stop", True, True, None)
    assert parser.usage is not None
    assert parser.usage.completion_tokens == 7
    assert parser.close() == []


def test_chunks_keep_every_field_of_the_server() -> None:
    top = {"system_fingerprint": "fp_1", "service_tier": "default"}
    _, [first] = read(chunk("Hi", top=top, refusal="no"))
    assert (first.id, first.model, first.created, first.object) == ("chatcmpl-1", "m", 1, "chat.completion.chunk")
    assert (first.system_fingerprint, first.service_tier, first.choices[0].delta.refusal) == ("fp_1", "default", "no")


def test_usage_after_the_finish_reason_is_awaited() -> None:
    parser, _ = read(HELLO)
    assert parser.is_complete
    assert not parser.is_done
    assert len(parser.feed(usage_chunk())) == 1
    assert parser.usage is not None


def test_nothing_after_done_is_read() -> None:
    parser, chunks = read(HELLO + DONE + chunk("more"), chunk("and more"))
    assert text_of(chunks) == "Hello"
    assert parser.feed(chunk("still more")) == []


def test_several_choices_pass_through_and_the_first_is_the_text() -> None:
    body = chunk("a") + chunk("x", index=1) + chunk("b") + chunk("y", index=1) + chunk(finish="length") + chunk(finish="stop", index=1)
    parser, chunks = read(body)
    assert (text_of(chunks), text_of(chunks, 1), parser.partial_text()) == ("ab", "xy", "ab")
    assert parser.finish_reason == "length"
    assert parser.is_complete


def test_an_answer_is_complete_only_when_every_choice_has_finished() -> None:
    parser, _ = read(chunk("x", index=1) + chunk(finish="stop", index=1) + chunk(reasoning="hm"))
    assert parser.finish_reason == "stop"
    assert not parser.is_complete
    with pytest.raises(EndpointProtocolError, match="truncated"):
        parser.close()


def test_legacy_completions_come_out_as_chat_chunks() -> None:
    head = {"id": "cmpl-1", "object": "text_completion", "created": 3, "model": "m"}
    logprobs = {"tokens": [" a"]}
    choices = [{"text": " a", "index": 0, "logprobs": logprobs, "finish_reason": None, "token_ids": [5]}]
    end = [{"text": "", "index": 0, "logprobs": None, "finish_reason": "length"}]
    parser, chunks = read(event({**head, "choices": choices}) + event({**head, "choices": end, "usage": USAGE}) + DONE, api="completions")
    first = chunks[0].choices[0]
    assert (first.delta.content, first.logprobs, first.token_ids) == (" a", logprobs, [5])
    assert (parser.partial_text(), parser.finish_reason, chunks[0].object) == (" a", "length", "chat.completion.chunk")
    assert parser.usage is not None


def test_legacy_completions_take_the_tolerant_way_too() -> None:
    parser, chunks = read(event({"id": 7, "created": 1.5, "choices": [{"text": "a"}, {"text": None, "index": 1}]}), api="completions")
    assert (text_of(chunks), chunks[0].id, chunks[0].created, parser.tokens) == ("a", "7", 1, 1)


# Counting


def test_tokens_of_the_last_bytes_are_counted() -> None:
    parser = ChatStreamParser()
    parser.feed(chunk("", role="assistant"))
    assert parser.tokens == 0
    parser.feed(chunk("a") + chunk("b", reasoning="x") + chunk(reasoning_content="c") + chunk(reasoning="d") + chunk(""))
    assert parser.tokens == 4
    parser.feed(b": keep-alive\n\n")
    assert parser.tokens == 0
    parser.feed(chunk(tool_calls=[{"index": 0, "id": "1", "function": {"name": "f", "arguments": '{"'}}]))
    assert parser.tokens == 2
    parser.feed(chunk(finish="stop") + usage_chunk())
    assert parser.tokens == 0


def test_token_ids_count_exactly_also_where_the_text_is_held_back() -> None:
    def with_ids(content: str, ids: list[int]) -> bytes:
        return event({"choices": [{"index": 0, "delta": {"content": content}, "token_ids": ids}]})

    parser, _ = read(with_ids("a long piece of text made of many tokens", [1, 2, 3]))
    assert parser.tokens == 3
    parser.feed(with_ids("", [4, 5]))
    assert parser.tokens == 2


def test_a_long_piece_counts_as_several_tokens() -> None:
    parser, _ = read(chunk("x" * 40))
    assert parser.tokens == 10


def test_content_in_the_chunk_with_the_finish_reason_or_usage_counts() -> None:
    parser, _ = read(chunk("a", finish="stop", top={"usage": USAGE}))
    assert (parser.tokens, parser.partial_text(), parser.finish_reason) == (1, "a", "stop")


# Ends


def test_a_finish_reason_without_done_is_a_complete_answer() -> None:
    parser, _ = read(HELLO)
    assert parser.close() == []


def test_done_without_a_finish_reason_is_a_complete_answer() -> None:
    parser, _ = read(chunk("a") + DONE)
    assert parser.close() == []
    assert (parser.is_complete, parser.finish_reason) == (True, None)


@pytest.mark.parametrize("body", [b"", b"\n\n", b": keep-alive\n\n", chunk("", role="assistant"), chunk("Hel") + chunk("lo")])
def test_an_end_without_either_is_a_truncation_that_keeps_the_text(body: bytes) -> None:
    parser = ChatStreamParser(endpoint="openai")
    text = text_of(parser.feed(body))
    with pytest.raises(
        EndpointProtocolError, match=r"openai: expected a finish_reason or \[DONE\] .*truncated answer: \d events"
    ) as caught:
        parser.close()
    assert caught.value.partial == text
    assert parser.error is caught.value


def test_the_last_event_may_lack_its_blank_line() -> None:
    for tail in (chunk("lo", finish="stop"), chunk("lo") + DONE):
        parser, chunks = read(chunk("Hel") + tail.rstrip())
        rest = parser.close()
        assert text_of(chunks + rest) == "Hello"
        assert parser.close() == []


def test_an_event_cut_in_its_middle_is_a_truncation_not_malformed_json() -> None:
    parser, _ = read(chunk("Hel") + chunk("lo")[:-20])
    with pytest.raises(EndpointProtocolError, match="truncated"):
        parser.close()


def test_an_unfinished_last_event_of_a_truncated_answer_is_neither_given_nor_in_the_partial_text() -> None:
    parser, chunks = read(chunk("Hel") + chunk("lo").rstrip())
    with pytest.raises(EndpointProtocolError) as caught:
        parser.close()
    assert caught.value.partial == "Hel" == text_of(chunks)


def test_an_unfinished_last_event_with_an_error_is_not_in_the_partial_text_either() -> None:
    parser, chunks = read(chunk("Hel") + chunk("lo", finish="error", top={"error": {"code": 503}}).rstrip())
    with pytest.raises(EndpointStatusError) as caught:
        parser.close()
    assert caught.value.partial == parser.partial_text() == text_of(chunks) == "Hel"


def test_an_event_cut_after_the_answer_was_complete_is_forgotten() -> None:
    parser, _ = read(HELLO + usage_chunk()[:-30])
    assert parser.close() == []


# Failures


def test_an_error_event_leaves_the_chunks_before_it() -> None:
    failing = event({"error": {"message": "overloaded", "type": "server_error", "code": 503}})
    parser, chunks = read(chunk("Hel") + failing + chunk("never"), endpoint="openai")
    assert text_of(chunks) == "Hel"
    error = parser.error
    assert isinstance(error, EndpointStatusError)
    assert (error.status, error.partial, error.endpoint, json.loads(error.body)["error"]["message"]) == (503, "Hel", "openai", "overloaded")
    assert "(as status 503): overloaded" in str(error)
    assert parser.feed(chunk("later")) == []
    with pytest.raises(EndpointStatusError):
        parser.close()


def test_an_error_beside_content_keeps_that_content() -> None:
    body = {"choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": "error"}], "error": {"code": 502, "message": "gone"}}
    parser, chunks = read(chunk("Hel") + event(body))
    assert text_of(chunks) == "Hello"
    assert isinstance(parser.error, EndpointStatusError)
    assert (parser.error.status, parser.error.partial) == (502, "Hello")


def test_a_chunk_whose_text_speaks_of_errors_is_no_error() -> None:
    text = 'the field "error" is {"error":{"code":500}}'
    parser, chunks = read(chunk(text) + chunk("", role="assistant") + chunk(finish="stop", top={"error": None}))
    assert (text_of(chunks), parser.error) == (text, None)


def test_done_before_any_choice_is_no_answer() -> None:
    for body in (DONE, event({"choices": []}) + DONE):
        parser, _ = read(body, endpoint="openai")
        assert isinstance(parser.error, EndpointProtocolError)
        assert "expected chunks with choices before [DONE]" in str(parser.error)
        assert not parser.is_done
    parser, _ = read(event({"type": "response.created"}) + DONE, endpoint="openai")
    assert "got the stream of OpenAI's Responses API" in str(parser.error)
    assert not parser.is_done


def test_malformed_json_is_a_protocol_error_after_the_chunks_before_it() -> None:
    parser, chunks = read(chunk("Hel") + b"data: {oops}\n\n" + chunk("lo"), endpoint="openai")
    assert text_of(chunks) == "Hel"
    assert isinstance(parser.error, EndpointProtocolError)
    assert str(parser.error) == "openai: expected a JSON chunk, got '{oops}'"
    assert parser.error.partial == "Hel"


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * 100_000,
        nested(300),
        b'{"choices":[],"x":' + nested(100_000) + b"}",
        b'{"choices":[],"error":' + nested(300) + b"}",
        b'{"choices":[{"message":{"content":"x"}}],"x":' + nested(300) + b"}",
        b'{"choices":[{"delta":{},"finish_reason":"error"}],"x":' + b"9" * 5_000 + b',"y":"\xff"}',
        b'{"choices":[{"delta":{},"finish_reason":"length"}],"x_groq":' + nested(300) + b"}",
    ],
)
def test_json_too_deep_is_an_error_like_any_other(payload: bytes) -> None:
    parser, chunks = read(chunk("Hel") + b"data: " + payload + b"\n\n", endpoint="openai")
    assert text_of(chunks) == "Hel"
    assert parser.error is not None
    assert parser.error.partial == "Hel"


def test_json_too_deep_instead_of_a_stream_is_an_error_too() -> None:
    for body in (nested(100_000), nested(300) + b"\n{}", b'{"choices":' + nested(300) + b"}"):
        parser, _ = read(body)
        with pytest.raises(EndpointProtocolError):
            parser.close()


@pytest.mark.parametrize("odd", ["abc", [1], {"usage": []}, {"usage": "x"}, 1])
def test_an_x_groq_of_another_shape_is_no_usage(odd: Any) -> None:
    parser, _ = read(chunk("a") + chunk(finish="stop", top={"x_groq": odd}))
    assert (parser.error, parser.usage, parser.is_complete) == (None, None, True)


def test_events_that_are_no_chunks_are_dropped() -> None:
    odd = b'data: \n\ndata: 1\n\ndata: null\n\ndata: []\n\ndata: "ping"\n\nevent: ping\n\ndata: {}\n\n' + event({"value": "Sure"})
    parser, chunks = read(odd + chunk("a"))
    assert text_of(chunks) == "a"
    assert (len(chunks), parser.error) == (1, None)


def test_an_event_larger_than_its_limit_is_refused() -> None:
    parser, chunks = read(chunk("a") + chunk("x" * 500), limits=Limits(event_bytes=400))
    assert text_of(chunks) == "a"
    parser.feed(b"")
    assert isinstance(parser.error, EndpointProtocolError)
    assert parser.error.partial == "a"


def test_an_answer_larger_than_its_limit_is_refused() -> None:
    limits = Limits(answer_bytes=1000)
    parser, chunks = read(*[chunk("a")] * 20, limits=limits)
    assert 0 < len(chunks) <= 1000 // len(chunk("a"))
    assert isinstance(parser.error, EndpointProtocolError)
    assert "at most 1000 bytes" in str(parser.error)


def test_a_failure_of_the_event_layer_carries_name_and_text() -> None:
    parser, _ = read(chunk("a"), b"<html>", endpoint="openai")
    assert isinstance(parser.error, EndpointProtocolError)
    assert (parser.error.endpoint, parser.error.partial) == ("openai", "a")


# Signs of life


def test_comments_are_life_but_no_content() -> None:
    parser, chunks = read(b": keep-alive\n\n", b": OPENROUTER PROCESSING\n\n")
    assert (chunks, parser.comments, parser.events, parser.tokens) == ([], 2, 0, 0)


# Bodies that are no stream

ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello there, reader"}, "finish_reason": "stop"}],
    "usage": USAGE,
}


@pytest.mark.parametrize("pretty", [None, 2])
@pytest.mark.parametrize("size", [1, 50, 10_000])
def test_a_whole_answer_instead_of_a_stream_gives_the_same_chunks(size: int, pretty: int | None) -> None:
    parser, chunks = read(*cuts(json.dumps(ANSWER, indent=pretty).encode(), size))
    assert chunks == []
    chunks = parser.close()
    assert text_of(chunks) == "Hello there, reader" == parser.partial_text()
    assert (parser.finish_reason, parser.is_done, parser.tokens) == ("stop", True, 7)
    assert chunks[-1].usage == parser.usage
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[0].choices[0].finish_reason is None


def test_parse_body_reads_a_body_at_once_and_leaves_its_failures_in_error() -> None:
    parser = ChatStreamParser(endpoint="openai")
    assert text_of(parser.parse_body(json.dumps(ANSWER).encode())) == "Hello there, reader"
    for body, expected in (
        (b"nope", "expected a JSON answer, got 'nope'"),
        (b'{"a":1}', "expected a JSON answer with choices"),
        (b"", "got ''"),
    ):
        parser = ChatStreamParser(endpoint="openai")
        assert parser.parse_body(body) == []
        assert isinstance(parser.error, EndpointProtocolError)
        assert expected in str(parser.error)


def test_an_error_body_under_status_200_is_an_error_with_its_own_status() -> None:
    for body in (b'{"error":{"message":"no credit","code":402}}', b'[{"error":{"message":"no credit","code":402}}]'):
        parser, _ = read(body)
        with pytest.raises(EndpointStatusError, match="no credit") as caught:
            parser.close()
        assert caught.value.status == 402


def test_a_json_body_larger_than_its_limit_is_refused_while_it_grows() -> None:
    parser, _ = read(b"{" + b" " * 500, b" " * 500, limits=Limits(body_bytes=800))
    assert isinstance(parser.error, EndpointProtocolError)
    assert "at most 800 bytes" in str(parser.error)


# Cumulative servers


def message(text: str, *, finish: str | None = None, created: float = 1) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    return event({"id": "1", "choices": [choice], "created": created})


def test_growing_messages_become_increments() -> None:
    parser, chunks = read(message("The") + message("The cat") + message("The cat sat", finish="stop"))
    assert [c.choices[0].delta.content for c in chunks] == ["The", " cat", " sat"]
    assert (parser.partial_text(), parser.tokens) == ("The cat sat", 3)


def test_growing_messages_of_other_types_become_increments_too() -> None:
    parser, _ = read(message("a"), message("ab", created=1.5), message("abc", created=2))
    assert parser.partial_text() == "abc"


def test_growing_messages_go_on_after_a_delta() -> None:
    parser, chunks = read(chunk("The") + message("The cat") + message("The cat sat") + message("The cat sat down", created=1.5))
    assert text_of(chunks) == "The cat sat down" == parser.partial_text()
    assert parser.tokens == 4


# Anything, cut anywhere

_EVENTS = st.one_of(
    st.text(max_size=20).map(chunk),
    st.text(max_size=20).map(lambda text: chunk(reasoning=text)),
    st.text(max_size=20).map(lambda text: chunk([{"type": "text", "text": text}])),
    st.just(chunk(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{}"}}])),
    st.sampled_from([b": hi\n\n", b"\n", usage_chunk(), chunk(finish="stop"), chunk("a", index=1), b"data: \n\n", event({"choices": []})]),
    st.sampled_from([DONE, event({"error": {"code": 500}}), b"data: {\n\n", b"error: {}\n\n", b"{}\n\n", b"data: \xff\n\n"]),
)


@given(st.lists(_EVENTS, max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.randoms(use_true_random=False))
def test_a_stream_says_the_same_however_it_is_cut(events: list[bytes], end: bytes, rng: random.Random) -> None:
    body = b"".join(events).replace(b"\n", end)

    def outcome(pieces: list[bytes]) -> tuple[object, ...]:
        parser = ChatStreamParser()
        tokens = 0
        chunks = []
        for piece in pieces:
            chunks += parser.feed(piece)
            tokens += parser.tokens
        try:
            chunks += parser.close()
            tokens += parser.tokens
        except (EndpointProtocolError, EndpointStatusError):
            pass
        error = parser.error
        assert parser.partial_text() == text_of(chunks) == (error.partial if error is not None else text_of(chunks))
        return chunks, tokens, parser.usage, parser.finish_reason, type(error)

    whole = outcome([body])
    assert outcome(cuts(body, 1)) == whole
    assert outcome(list(random_cuts(body, rng, 50))) == whole


# Recordings


def parse_recording(recording: Recording, pieces: list[bytes]) -> tuple[object, ...]:
    parser = ChatStreamParser(api="completions" if recording.api == "completions" else "chat")
    chunks, tokens = [], 0
    for piece in pieces:
        chunks += parser.feed(piece)
        tokens += parser.tokens
    if parser.error is None:
        chunks += parser.close() if parser.is_complete else []
    return chunks, tokens, parser.partial_text(), parser.finish_reason, parser.usage, parser.is_done, type(parser.error)


@pytest.mark.parametrize("api", OPENAI_APIS)
def test_every_recorded_answer_reads_as_a_straightforward_reader_reads_it(api: str) -> None:
    for recording in recordings(apis=(api,)):
        expected = answer_slowly(recording.body)
        parser = ChatStreamParser(api="completions" if api == "completions" else "chat")
        chunks = parser.feed(recording.body)
        usage = parser.usage
        assert text_of(chunks) == expected.text == parser.partial_text(), recording
        assert parser.finish_reason == expected.finish_reason, recording
        assert (usage and (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)) == expected.usage, recording
        assert len(chunks) == expected.chunks, recording
        assert {choice.index for c in chunks for choice in c.choices} == expected.choices, recording
        assert (parser.is_done, parser.error is not None) == (expected.is_done, expected.has_error), recording
        whole = assemble(chunks)
        if whole.choices:
            message = whole.choices[0].message
            calls = [[function_of(call).name, function_of(call).arguments] for call in message.tool_calls or []]
            assert calls == list(expected.calls.values()), recording
            assert (message.reasoning_content or "") == expected.reasoning, recording


@pytest.mark.parametrize("api", OPENAI_APIS)
def test_every_recorded_answer_agrees_with_its_index(api: str) -> None:
    for recording in recordings(apis=(api,)):
        about = recording.about
        parser = ChatStreamParser(api="completions" if api == "completions" else "chat")
        chunks = parser.feed(recording.body)
        deltas = [choice.delta for c in chunks for choice in c.choices]
        assert parser.is_done == about["done_marker"], recording
        assert (parser.usage is not None) == about["has_usage"], recording
        assert any(delta.tool_calls for delta in deltas) == about["has_tool_calls"], recording
        assert (parser.error is not None) == (about["error_in_stream"] or b"\nerror:" in recording.body), recording
        assert parser.comments == about["comment_lines"], recording
        if any(delta.reasoning_content or delta.reasoning for delta in deltas):
            assert about["has_reasoning"] or recording.provider == "api.mistral.ai", recording


@pytest.mark.parametrize("api", OPENAI_APIS)
def test_every_recorded_answer_is_the_same_at_random_cuts_and_small_ones_byte_by_byte(api: str) -> None:
    rng = random.Random(20_240_602)
    for recording in recordings(apis=(api,)):
        whole = parse_recording(recording, [recording.body])
        for longest in (200, 4000):
            assert parse_recording(recording, list(random_cuts(recording.body, rng, longest))) == whole, recording
        if len(recording.body) <= 6000:
            assert parse_recording(recording, cuts(recording.body, 1)) == whole, recording


def test_other_apis_recordings_end_in_an_error_never_in_an_exception() -> None:
    for recording in recordings(excluding=OPENAI_APIS):
        parser, _ = read(*cuts(recording.body, 1000))
        assert not parser.partial_text(), recording
        if parser.error is None:
            with pytest.raises((EndpointProtocolError, EndpointStatusError)):
                parser.close()


# Token estimates: bounds, shapes, and the sum over recorded answers against what was billed


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("a", 1), (" wonderful", 1), ("x" * 11, 3), ("x" * 40, 10), ("世" * 10, 1), ("世" * 12, 9), ("\ud83d" * 12, 3)],
)
def test_short_pieces_are_one_token_and_longer_ones_a_token_for_four_bytes(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


@given(st.text(max_size=200))
def test_an_estimate_is_at_least_one_for_any_text_and_never_more_than_its_bytes(text: str) -> None:
    assert bool(text) <= estimate_tokens(text) <= len(text.encode())
    assert (estimate_tokens(text) <= 1) == (len(text) <= ONE_TOKEN)


def test_everything_in_a_delta_counts_and_reasoning_only_once() -> None:
    call = ToolCallDelta(function=FunctionDelta(name="f", arguments="{"))
    delta = ChoiceDelta(
        "a", reasoning="r", reasoning_content="r", refusal="no", tool_calls=[call, ToolCallDelta()], function_call=call.function
    )
    assert estimate_delta(delta) == 1 + 1 + 1 + 2 + 2
    assert estimate_delta(ChoiceDelta(role="assistant", content="")) == 0


def test_the_median_recorded_answer_is_estimated_within_a_quarter_of_its_bill() -> None:
    errors = []
    for recording in recordings(apis=OPENAI_APIS):
        parser, chunks = read(recording.body, api=recording.api)
        usage = parser.usage
        if usage is None or usage.completion_tokens < 8:
            continue
        details = usage.completion_tokens_details
        shows_reasoning = any(c.delta.reasoning_content or c.delta.reasoning for chunk in chunks for c in chunk.choices)
        if details is None or not details.reasoning_tokens or shows_reasoning:
            errors.append(abs(math.log(max(1, parser.tokens) / usage.completion_tokens)))
    assert statistics.median(errors) < math.log(1.25)


# What can be counted afterwards


def with_ids(text: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "token_ids": [5, 6]}]})


@pytest.mark.parametrize(
    ("stream", "is_estimated", "has_only_text"),
    [
        (HELLO, True, True),
        (with_ids("Hi"), False, True),
        (with_ids("Hi") + chunk("Hi"), True, True),
        (chunk(reasoning="hm") + with_ids("Hi"), True, False),
        (chunk("Hi") + chunk(refusal="no"), True, False),
        (chunk("Hi", index=1), True, False),
        (chunk("", role="assistant") + chunk(finish="stop"), False, True),
    ],
)
def test_a_parser_knows_what_its_tokens_are(stream: bytes, is_estimated: bool, has_only_text: bool) -> None:
    parser, _ = read(stream)
    assert (parser.is_estimated, parser.has_only_text) == (is_estimated, has_only_text)
