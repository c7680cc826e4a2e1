"""Chat chunks as events of the Responses API."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from streamco.core.report_parts import AnswerUsage
from streamco.openai_types import (
    ChatCompletionChunk,
    ChoiceDelta,
    ChoiceLogprobs,
    ChunkChoice,
    CompletionTokensDetails,
    CompletionUsage,
    FunctionDelta,
    PromptTokensDetails,
    ToolCallDelta,
)
from streamco.wire.openai.assembler import assemble
from streamco.wire.responses_api.events import ResponseEvents, response_usage
from tests.support.calls import function_of
from tests.support.named_events import build_response, chunks_of, encode_recording, read_named
from tests.wire.recorded import random_cuts, recordings

USAGE = CompletionUsage(10, 4, 14, PromptTokensDetails(cached_tokens=6), CompletionTokensDetails(reasoning_tokens=1))
SHOWN_USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 0},
    "output_tokens": 4,
    "output_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 14,
}
ECHO = {"instructions": "be brief", "tools": [], "store": False}


class Refused(Exception):
    """A failure as the servers have it."""

    def __init__(self, status: int, message: str = "gone", *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


def encoder() -> ResponseEvents:
    return ResponseEvents(name="ab", model="asked", created=5, echo=ECHO)


def chunk(finish_reason: str | None = None, **delta: Any) -> ChatCompletionChunk:
    return ChatCompletionChunk(id="c", model="m", choices=[ChunkChoice(delta=ChoiceDelta(**delta), finish_reason=finish_reason)])


def call(index: int, arguments: str, name: str | None = None) -> ChatCompletionChunk:
    piece = ToolCallDelta(index=index, id=f"call_{name}" if name else None, function=FunctionDelta(name=name, arguments=arguments))
    return chunk(tool_calls=[piece])


def stream(*chunks: ChatCompletionChunk, reason: str | None = None) -> list[tuple[str, dict[str, Any]]]:
    events = encoder()
    return read_named(*[events.event(each) for each in chunks], events.ending(reason), events.done())


def test_text_is_a_message_with_one_part() -> None:
    events = stream(chunk(role="assistant"), chunk(content="Hel"), chunk(content="lo"), chunk("stop"), ChatCompletionChunk(usage=USAGE))
    assert [name.removeprefix("response.") for name, _ in events] == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert build_response(events).parts == [("message", "Hello")]
    place = {"item_id": "msg_ab_0", "output_index": 0, "content_index": 0}
    assert events[4][1] == {"type": "response.output_text.delta", "sequence_number": 4, **place, "delta": "Hel", "logprobs": []}
    part = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    item = {"id": "msg_ab_0", "status": "completed", "type": "message", "role": "assistant", "content": [part]}
    assert events[-1][1]["response"] == {
        "id": "resp_ab",
        "object": "response",
        "created_at": 5,
        **ECHO,
        "model": "m",
        "status": "completed",
        "output": [item],
        "usage": SHOWN_USAGE,
        "error": None,
        "incomplete_details": None,
    }


def test_the_first_events_have_the_response_without_output() -> None:
    events = encoder()
    opening = read_named(events.opening())
    assert [data["response"]["status"] for _, data in opening] == ["in_progress", "in_progress"]
    assert opening[0][1]["response"]["model"] == "asked"
    assert events.opening() == b""
    assert b"response.created" not in events.event(chunk(content="a"))


def test_reasoning_is_an_item_of_its_own() -> None:
    events = stream(chunk(reasoning_content="h"), chunk(reasoning_content="m"), chunk(content="yes"), reason="stop")
    assert build_response(events).parts == [("reasoning", "hm"), ("message", "yes")]
    names = [name for name, _ in events]
    assert "response.reasoning_text.delta" in names
    assert "response.reasoning_text.done" in names
    item = events[-1][1]["response"]["output"][0]
    content = [{"type": "reasoning_text", "text": "hm"}]
    assert item == {"id": "rs_ab_0", "status": "completed", "type": "reasoning", "summary": [], "content": content}


def test_a_refusal_is_a_part_of_a_message() -> None:
    events = stream(chunk(refusal="No."), chunk("stop"))
    assert build_response(events).parts == [("message", "No.")]
    assert events[-1][1]["response"]["output"][0]["content"] == [{"type": "refusal", "refusal": "No."}]
    assert "response.refusal.done" in [name for name, _ in events]


def test_calls_are_items_with_their_arguments() -> None:
    events = stream(call(0, '{"x":', "f"), call(0, "1}"), call(1, "{}", "g"), chunk("tool_calls"))
    assert build_response(events).calls == [("f", '{"x":1}'), ("g", "{}")]
    first = events[-1][1]["response"]["output"][0]
    assert first == {
        "id": "fc_ab_0",
        "status": "completed",
        "type": "function_call",
        "call_id": "call_f",
        "name": "f",
        "arguments": '{"x":1}',
    }
    done = next(data for name, data in events if name == "response.function_call_arguments.done")
    assert (done["item_id"], done["arguments"]) == ("fc_ab_0", '{"x":1}')
    assert events[-1][0] == "response.completed"


def test_a_call_without_an_id_gets_one_and_keeps_it() -> None:
    piece = ToolCallDelta(index=0, function=FunctionDelta(name="f", arguments="{"))
    late = ToolCallDelta(index=0, id="late", function=FunctionDelta(arguments="}"))
    events = stream(chunk(tool_calls=[piece]), chunk(tool_calls=[late]))
    build_response(events)
    assert {data["item"]["call_id"] for _, data in events if "item" in data} == {"call_ab_0"}


def test_of_two_calls_with_one_id_the_second_gets_another() -> None:
    pieces = [ToolCallDelta(index=index, id="same", function=FunctionDelta(name="f", arguments="{}")) for index in (0, 1)]
    chunks = [chunk(tool_calls=[piece]) for piece in pieces]
    events = stream(*chunks)
    assert build_response(events).calls == [("f", "{}"), ("f", "{}")]
    output = events[-1][1]["response"]["output"]
    assert [item["call_id"] for item in output] == ["same", "call_ab_1"]
    whole = json.loads(encoder().whole(assemble(chunks), None))
    assert [item["call_id"] for item in whole["output"]] == ["same", "call_ab_1"]


@pytest.mark.parametrize(
    ("finish_reason", "why"), [("length", "max_output_tokens"), ("content_filter", "content_filter"), ("stop", None), (None, None)]
)
def test_what_a_limit_or_a_filter_ends_is_incomplete(finish_reason: str | None, why: str | None) -> None:
    events = stream(chunk(reasoning_content="hm"), chunk(content="ha"), reason=finish_reason)
    name, data = events[-1]
    response = data["response"]
    status = "incomplete" if why else "completed"
    assert (name, response["status"]) == (f"response.{status}", status)
    assert response["incomplete_details"] == ({"reason": why} if why else None)
    assert [item["status"] for item in response["output"]] == ["completed", status]
    build_response(events)


def test_a_chunks_finish_reason_counts_before_the_reports() -> None:
    assert stream(chunk("length", content="a"), reason="stop")[-1][0] == "response.incomplete"


def test_an_answer_without_anything_is_a_response_without_output() -> None:
    events = stream(reason="stop")
    assert [name for name, _ in events] == ["response.created", "response.in_progress", "response.completed"]
    assert events[-1][1]["response"]["output"] == []
    assert events[-1][1]["response"]["usage"] is None


def test_a_failure_is_an_error_and_a_failed_response_with_what_there_was() -> None:
    events = encoder()
    data = events.event(chunk(reasoning_content="hm")) + events.event(chunk(content="Half"))
    found = read_named(data + events.failing(Refused(502, "server: cut", code="endpoint_failed")))
    (error, error_data), (failed, failed_data) = found[-2:]
    assert (error, failed) == ("error", "response.failed")
    fields = {"code": "endpoint_failed", "message": "server: cut", "param": None}
    assert error_data == {"type": "error", "sequence_number": len(found) - 2, **fields, "error": {"type": "server_error", **fields}}
    response = failed_data["response"]
    assert response["error"] == {"code": "server_error", "message": "server: cut"}
    assert [(item["type"], item["status"]) for item in response["output"]] == [("reasoning", "completed"), ("message", "incomplete")]


@pytest.mark.parametrize(
    ("status", "code", "kind", "named"),
    [
        (429, "invalid_request", "rate_limit_error", "rate_limit_exceeded"),
        (400, "invalid_request", "invalid_request_error", "invalid_prompt"),
        (503, "server_error", "server_error", "server_error"),
    ],
)
def test_a_failure_before_anything_has_the_response_first(status: int, code: str, kind: str, named: str) -> None:
    found = read_named(encoder().failing(Refused(status)))
    assert [name for name, _ in found] == ["response.created", "response.in_progress", "error", "response.failed"]
    assert (found[2][1]["code"], found[2][1]["error"]["type"]) == (code, kind)
    assert found[3][1]["response"]["error"]["code"] == named


def test_an_item_has_the_name_of_a_call_that_comes_after_its_arguments() -> None:
    events = stream(call(0, "{}"), chunk(content="a"), call(0, "", "f"), reason="tool_calls")
    built = build_response(events)
    assert (built.parts, built.calls) == ([("message", "a")], [("f", "{}")])


def test_a_failure_keeps_the_text_behind_a_call_without_a_name() -> None:
    shown = encoder()
    body = shown.event(call(0, "{}")) + shown.event(chunk(content="a")) + shown.failing(Refused(502))
    events = read_named(body)
    assert [data["delta"] for name, data in events if name == "response.output_text.delta"] == ["a"]
    assert [item["content"][0]["text"] for item in events[-1][1]["response"]["output"]] == ["a"]


def test_log_probabilities_are_in_deltas_and_in_the_part() -> None:
    tokens = [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]
    first = ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(content="a"), logprobs=ChoiceLogprobs(content=tokens))])
    events = stream(first, chunk(content="b"))
    assert [data["logprobs"] for name, data in events if "output_text.d" in name] == [tokens, [], tokens]
    assert events[-1][1]["response"]["output"][0]["content"][0]["logprobs"] == tokens


def test_a_whole_answer_is_the_response_of_the_stream() -> None:
    chunks = [chunk(reasoning="hm"), chunk(content="yes"), call(0, "{}", "f"), chunk("tool_calls"), ChatCompletionChunk(usage=USAGE)]
    streamed = stream(*chunks)[-1][1]["response"]
    assert json.loads(encoder().whole(assemble(chunks), None)) == streamed
    cut = json.loads(encoder().whole(assemble([chunk(content="a")]), "length"))
    assert (cut["status"], cut["output"][0]["status"]) == ("incomplete", "incomplete")
    assert json.loads(encoder().whole(assemble([]), "stop"))["output"] == []


def test_usage_says_whether_it_is_an_estimate() -> None:
    assert response_usage(None) is None
    assert response_usage(USAGE) == SHOWN_USAGE
    estimated = response_usage(AnswerUsage(1, 2, 3, is_estimated=True))
    assert estimated is not None
    assert estimated["is_estimated"] is True


def test_recorded_chat_answers_come_out_whole_however_they_are_cut() -> None:
    rng = random.Random(5)
    for recording in recordings(apis=("chat",)):
        whole = encode_recording(encoder(), [recording.body])
        assert encode_recording(encoder(), list(random_cuts(recording.body, rng, 300))) == whole, str(recording)
        built = build_response(read_named(whole))
        choices = [choice for choice in assemble(chunks_of([recording.body])).choices if choice.index == 0]
        message = choices[0].message if choices else None
        assert built.text("message") == ("" if message is None else (message.content or "") + (message.refusal or "")), str(recording)
        assert built.text("reasoning") == ((message and message.reasoning_content) or ""), str(recording)
        calls = [(function_of(each).name, function_of(each).arguments) for each in (message and message.tool_calls) or []]
        assert built.calls == calls, str(recording)
