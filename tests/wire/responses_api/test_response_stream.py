"""Events of the Responses API as chat chunks; streams as a whole are in test_event_stream_parser.py."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.errors import EndpointStatusError
from streamco.openai_types import ChatCompletionChunk, CompletionTokensDetails, CompletionUsage, PromptTokensDetails, without_further
from streamco.wire.openai.assembler import assemble
from streamco.wire.responses_api.events import ResponseEvents
from streamco.wire.responses_api.response_stream import ResponseStreamParser
from tests.support.calls import function_of
from tests.support.named_events import chunks_of
from tests.wire.recorded import recordings
from tests.wire.responses_api.test_events import USAGE, call, chunk
from tests.wire.test_event_stream_parser import event

CREATED = event("response.created", response={"id": "resp_1", "model": "m", "created_at": 5.0})


def read(*events: bytes) -> list[ChatCompletionChunk]:
    parser = ResponseStreamParser()
    chunks = [each for data in (CREATED, *events) for each in parser.feed(data)]
    assert parser.error is None
    return chunks


def completed(**response: Any) -> bytes:
    return event("response.completed", response=response)


def test_text_and_the_answers_head() -> None:
    chunks = read(event("response.output_text.delta", delta="Hi", logprobs=[]), completed())
    assert {(each.id, each.model, each.created) for each in chunks} == {("resp_1", "m", 5)}
    assert [each.choices[0].delta.to_dict() for each in chunks] == [{"role": "assistant"}, {"content": "Hi"}, {}]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_reasoning_comes_as_text_or_as_summaries_with_blank_lines_between() -> None:
    summary = [
        event("response.reasoning_summary_part.added", summary_index=0),
        event("response.reasoning_summary_text.delta", delta="one"),
        event("response.reasoning_summary_part.added", summary_index=1),
        event("response.reasoning_summary_text.delta", delta="two"),
    ]
    assert assemble(read(*summary, completed())).choices[0].message.reasoning_content == "one\n\ntwo"
    assert assemble(read(event("response.reasoning_text.delta", delta="hm"), completed())).choices[0].message.reasoning_content == "hm"


def test_calls_are_numbered_among_themselves() -> None:
    item = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": ""}
    events = [
        event("response.output_item.added", output_index=0, item={"type": "reasoning"}),
        event("response.output_item.added", output_index=1, item=item),
        event("response.function_call_arguments.delta", output_index=1, delta="{}"),
        event("response.function_call_arguments.done", output_index=1, arguments="{}"),
        event("response.output_item.done", output_index=1, item={**item, "arguments": "{}"}),
        event("response.output_item.added", output_index=2, item={**item, "call_id": "c2"}),
        event("response.function_call_arguments.done", output_index=2, arguments="[1]"),
        event("response.output_item.done", output_index=3, item={**item, "call_id": "c3", "arguments": "[2]"}),
        event("response.function_call_arguments.delta", output_index=9, delta="[3]"),
        event("response.output_item.done", output_index=9, item={**item, "call_id": "c4", "arguments": "[3]"}),
    ]
    answer = assemble(read(*events, completed()))
    calls = answer.choices[0].message.tool_calls or []
    assert [(each.id, function_of(each).arguments) for each in calls] == [("c1", "{}"), ("c2", "[1]"), ("c3", "[2]"), ("c4", "[3]")]
    assert answer.choices[0].finish_reason == "tool_calls"


def test_parts_that_are_numbered_otherwise_in_their_item_come_once() -> None:
    def part(text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text}

    def streamed(number: int, text: str) -> bytes:
        place = {"output_index": 0, "content_index": number}
        return event("response.output_text.delta", delta=text, **place) + event("response.content_part.done", part=part(text), **place)

    item = {"type": "message", "content": [part("A"), part("A"), part("AB")]}
    chunks = read(streamed(1, "A"), event("response.output_item.done", output_index=0, item=item), completed(output=[item]))
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == "AAAB"
    chunks = read(streamed(0, "A") + streamed(1, "AB"), event("response.output_item.done", output_index=0, item=item), completed())
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == "AABAB"


def test_log_probabilities_and_refusals() -> None:
    tokens = [{"token": "a", "logprob": -1.0}]
    answer = assemble(
        read(event("response.output_text.delta", delta="a", logprobs=tokens), event("response.refusal.delta", delta="No."), completed())
    )
    assert answer.choices[0].logprobs == {"content": tokens}
    assert answer.choices[0].message.refusal == "No."


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"reason": "max_output_tokens"}, "length"),
        ({"reason": "content_filter"}, "content_filter"),
        ({"reason": "x"}, "length"),
        (None, "length"),
    ],
)
def test_an_incomplete_response_has_its_reason(details: Any, reason: str) -> None:
    chunks = read(event("response.incomplete", response={"incomplete_details": details}))
    assert chunks[-1].choices[0].finish_reason == reason


def test_usage_has_chats_names() -> None:
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 6},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 14,
    }
    expected = CompletionUsage(10, 4, 14, PromptTokensDetails(cached_tokens=6), CompletionTokensDetails(reasoning_tokens=1))
    assert read(completed(usage=usage))[-1].usage == expected
    assert read(completed())[-1].usage is None
    assert read(completed(usage={**usage, "input_tokens": 10**12}))[-1].usage is None


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (event("response.failed", response={"error": {"code": "rate_limit_exceeded", "message": "slow"}}), 429),
        (event("response.failed", response={}), 500),
        (event("error", code="server_error", message="broke", param=None), 500),
        (event("error", error={"type": "invalid_request_error", "message": "bad"}), 400),
    ],
)
def test_a_failure_keeps_the_text_so_far(failure: bytes, status: int) -> None:
    parser = ResponseStreamParser(endpoint="far")
    for data in (CREATED, event("response.output_text.delta", delta="Half"), failure, completed()):
        parser.feed(data)
    assert isinstance(parser.error, EndpointStatusError)
    assert (parser.error.status, parser.error.partial, parser.error.endpoint) == (status, "Half", "far")
    assert not parser.is_done


def test_what_the_encoder_writes_is_read_as_it_was() -> None:
    chunks = [
        chunk(reasoning_content="hm"),
        chunk(content="a"),
        call(0, '{"x":', "f"),
        call(0, "1}"),
        call(1, "{}", "g"),
        chunk("tool_calls"),
    ]
    chunks.append(ChatCompletionChunk(usage=USAGE))
    encoder = ResponseEvents(name="1", model="m", created=5, echo={})
    data = b"".join([encoder.event(each) for each in chunks]) + encoder.ending(None) + encoder.done()
    parser = ResponseStreamParser()
    answer, expected = assemble(parser.feed(data)), assemble(chunks)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    answer.usage.prompt_tokens_details = without_further(answer.usage.prompt_tokens_details)  # the encoder adds a zero
    assert (answer.choices, answer.usage) == (expected.choices, expected.usage)


def test_recorded_chat_answers_survive_the_way_there_and_back() -> None:
    for recording in recordings(apis=("chat",)):
        chunks = chunks_of([recording.body])
        encoder = ResponseEvents(name="1", model="m", created=5, echo={})
        data = b"".join([encoder.event(each) for each in chunks]) + encoder.ending(None) + encoder.done()
        before = [choice.message for choice in assemble(chunks).choices if choice.index == 0]
        after = assemble(ResponseStreamParser().feed(data)).choices[0].message
        if before:
            assert (after.content or "") == (before[0].content or ""), str(recording)
            assert after.reasoning_content == before[0].reasoning_content, str(recording)
            calls = [
                [(function_of(each).name, function_of(each).arguments) for each in message.tool_calls or ()]
                for message in (before[0], after)
            ]
            assert calls[0] == calls[1], str(recording)


def test_any_number_of_items_texts_and_pieces_is_read() -> None:
    count = 20_000
    item = {"type": "function_call", "name": "f", "arguments": ""}
    events = [event("response.output_item.added", output_index=0, item={**item, "call_id": f"c{each}"}) for each in range(count)]
    events += [event("response.output_text.delta", item_id=f"i{each}", output_index=each, delta="x") for each in range(count)]
    events += [event("response.output_text.done", output_index=0, content_index=each + 1, text="y") for each in range(count)]
    events += [event("response.function_call_arguments.delta", output_index=0, delta="12345678") for _ in range(count)]
    finished = [{**item, "call_id": f"c{each}", "arguments": "" if each < count - 1 else "12345678" * count + "9"} for each in range(count)]
    message = assemble(read(*events, completed(output=finished))).choices[0].message
    assert message.content == "x" * count + "y" * count
    calls = message.tool_calls or []
    assert (len(calls), function_of(calls[-1]).arguments) == (count, "12345678" * count + "9")
