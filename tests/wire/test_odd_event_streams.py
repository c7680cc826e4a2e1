"""Streams with typed events as gateways send them that don't keep to their API: what comes where, what is skipped, what is an end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamco.errors import EndpointProtocolError, EndpointStatusError
from streamco.openai_types import ChatCompletion
from streamco.wire.event_stream_parser import EventStreamParser
from streamco.wire.messages_api.message_stream import MessageStreamParser
from streamco.wire.openai.assembler import assemble
from streamco.wire.responses_api.response_stream import ResponseStreamParser
from tests.support.calls import function_of
from tests.wire.test_event_stream_parser import START, STOP, delta, event, read

CREATED = event("response.created", response={"id": "resp_1", "model": "m"})


def answer_of(parser: EventStreamParser, *pieces: bytes) -> ChatCompletion:
    chunks = read(parser, *pieces)
    assert parser.error is None
    return assemble([*chunks, *([] if parser.is_done else parser.close())])


def response(*pieces: bytes) -> ChatCompletion:
    return answer_of(ResponseStreamParser(), *pieces)


def message(*pieces: bytes) -> ChatCompletion:
    return answer_of(MessageStreamParser(), *pieces)


def calls_of(answer: ChatCompletion) -> list[tuple[str, str, str]]:
    calls = answer.choices[0].message.tool_calls or ()
    return [(call.id, function_of(call).name, function_of(call).arguments) for call in calls]


# Responses: whatever event a text comes in, it comes once

PART = {"type": "output_text", "text": "whole text"}
ITEM = {"type": "message", "id": "i1", "role": "assistant", "content": [PART]}
DELTAS = [event("response.output_text.delta", output_index=0, content_index=0, delta=piece) for piece in ("whole", " text")]
TEXT_DONE = event("response.output_text.done", output_index=0, content_index=0, text="whole text")
PART_DONE = event("response.content_part.done", output_index=0, content_index=0, part=PART)
ITEM_DONE = event("response.output_item.done", output_index=0, item=ITEM)
COMPLETED = event(
    "response.completed", response={"status": "completed", "output": [ITEM], "usage": {"input_tokens": 3, "output_tokens": 2}}
)
BARE = event("response.completed", response={"status": "completed"})


@pytest.mark.parametrize(
    "events",
    [
        [*DELTAS, BARE],
        [*DELTAS, TEXT_DONE, PART_DONE, ITEM_DONE, COMPLETED],
        [TEXT_DONE, BARE],
        [PART_DONE, BARE],
        [ITEM_DONE, BARE],
        [COMPLETED],
        [DELTAS[0], TEXT_DONE, COMPLETED],
        [DELTAS[0], COMPLETED],
        [TEXT_DONE, PART_DONE, ITEM_DONE, COMPLETED],
    ],
)
def test_a_responses_text_comes_once_in_whatever_events(events: list[bytes]) -> None:
    answer = response(CREATED, *events)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("whole text", "stop")


def test_a_text_under_another_number_is_the_same_text() -> None:
    elsewhere = event("response.completed", response={"output": [{"type": "reasoning", "summary": []}, ITEM]})
    assert response(CREATED, *DELTAS, elsewhere).choices[0].message.content == "whole text"
    twice = event("response.completed", response={"output": [ITEM, {**ITEM, "id": "i2"}]})
    assert response(CREATED, *DELTAS, twice).choices[0].message.content == "whole textwhole text"


def test_a_text_that_was_revised_stays_as_it_was_given() -> None:
    revised = event("response.output_text.done", output_index=0, content_index=0, text="other")
    assert response(CREATED, *DELTAS, revised, BARE).choices[0].message.content == "whole text"


def test_refusals_and_reasoning_that_come_only_at_the_end_are_read() -> None:
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}]}
    said = response(CREATED, event("response.completed", response={"output": [thought, refusal]})).choices[0].message
    assert (said.refusal, said.reasoning_content, said.content) == ("No.", "One.\n\nTwo.", None)
    for last in ("response.refusal.done",):
        assert response(CREATED, event(last, refusal="No."), BARE).choices[0].message.refusal == "No."


FUNCTION = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
ADDED = event("response.output_item.added", output_index=0, item={**FUNCTION, "arguments": ""})
ARGUMENTS = [event("response.function_call_arguments.delta", output_index=0, item_id="fc_1", delta=piece) for piece in ('{"a"', ":1}")]
ARGUMENTS_DONE = event("response.function_call_arguments.done", output_index=0, item_id="fc_1", arguments='{"a":1}')
FUNCTION_DONE = event("response.output_item.done", output_index=0, item=FUNCTION)
WITH_FUNCTION = event("response.completed", response={"output": [FUNCTION]})


@pytest.mark.parametrize(
    "events",
    [
        [ADDED, *ARGUMENTS, ARGUMENTS_DONE, FUNCTION_DONE, WITH_FUNCTION],
        [ADDED, ARGUMENTS_DONE, BARE],
        [ADDED, FUNCTION_DONE, BARE],
        [FUNCTION_DONE, BARE],
        [WITH_FUNCTION],
        [ADDED, ARGUMENTS[0], WITH_FUNCTION],
        [*ARGUMENTS, FUNCTION_DONE, WITH_FUNCTION],
    ],
)
def test_a_responses_call_comes_once_in_whatever_events(events: list[bytes]) -> None:
    answer = response(CREATED, *events)
    assert calls_of(answer) == [("c1", "f", '{"a":1}')]
    assert answer.choices[0].finish_reason == "tool_calls"


def test_two_calls_with_one_output_index_are_two() -> None:
    def added(number: int, **item: Any) -> bytes:
        return event("response.output_item.added", output_index=0, item={**FUNCTION, "id": f"fc_{number}", "call_id": f"c{number}", **item})

    def arguments(number: int, text: str) -> bytes:
        return event("response.function_call_arguments.delta", output_index=0, item_id=f"fc_{number}", delta=text)

    body = [added(1, arguments=""), arguments(1, '{"a":1}'), added(2, arguments="", name="g"), arguments(2, '{"b":2}'), BARE]
    assert calls_of(response(CREATED, *body)) == [("c1", "f", '{"a":1}'), ("c2", "g", '{"b":2}')]


CUSTOM = {"type": "custom_tool_call", "id": "ct_1", "call_id": "c1", "name": "shell", "input": "ls -l"}


@pytest.mark.parametrize(
    "events",
    [
        [
            event("response.output_item.added", output_index=0, item={**CUSTOM, "input": ""}),
            event("response.custom_tool_call_input.delta", output_index=0, item_id="ct_1", delta="ls"),
            event("response.custom_tool_call_input.delta", output_index=0, item_id="ct_1", delta=" -l"),
            event("response.custom_tool_call_input.done", output_index=0, item_id="ct_1", input="ls -l"),
        ],
        [event("response.output_item.done", output_index=0, item=CUSTOM)],
        [],
    ],
)
def test_a_custom_tools_call_has_its_input(events: list[bytes]) -> None:
    answer = response(CREATED, *events, event("response.completed", response={"output": [CUSTOM]}))
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.to_dict() == {"id": "c1", "type": "custom", "custom": {"name": "shell", "input": "ls -l"}}
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("events", [["delta"], ["done"], ["final"], ["delta", "done", "final"]])
def test_half_a_character_at_the_end_of_a_text_or_an_input_is_replaced(events: list[str]) -> None:
    text, arguments = "hi \ud83d", '{"a": "\ud83d'
    call = {"type": "function_call", "id": "i", "call_id": "c", "name": "f", "arguments": ""}
    output = [{"type": "message", "content": [{"type": "output_text", "text": text}]}, {**call, "arguments": arguments}]
    steps = {
        "delta": event("response.output_text.delta", output_index=0, delta=text)
        + event("response.output_item.added", output_index=1, item=call)
        + event("response.function_call_arguments.delta", output_index=1, delta=arguments),
        "done": event("response.output_text.done", output_index=0, text=text)
        + event("response.output_item.done", output_index=1, item=output[1]),
    }
    parser = ResponseStreamParser()
    finished = event("response.completed", response={"output": output if "final" in events else []})
    message = assemble(read(parser, CREATED, *[steps[each] for each in events if each in steps], finished)).choices[0].message
    assert message.content == "hi \ufffd"
    assert [(each.id, function_of(each).arguments) for each in message.tool_calls or ()] == [("c", '{"a": "\ufffd')]
    assert parser.finish_reason == "tool_calls"


def test_half_a_character_in_the_input_that_a_block_begins_with_is_replaced_there() -> None:
    parser = MessageStreamParser()
    block = {"type": "tool_use", "id": "t", "name": "f", "input": {"content": "x\ud83d"}}
    message = assemble(read(parser, START, event("content_block_start", index=0, content_block=block), STOP)).choices[0].message
    assert [function_of(each).arguments for each in message.tool_calls or ()] == ['{"content":"x\ufffd"}']


def test_items_of_hosted_tools_and_annotations_reach_the_caller_and_are_progress() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}}
    parser = ResponseStreamParser()
    read(parser, CREATED)
    for each in ("response.web_search_call.searching", "response.code_interpreter_call_code.delta", "response.unheard.of"):
        parser.feed(event(each, output_index=0))
        assert parser.has_progress, each
    note = event("response.output_text.annotation.added", annotation={"type": "url_citation", "url": "u"})
    chunks = read(parser, event("response.output_item.done", output_index=0, item=search), note, *DELTAS, COMPLETED)
    said = assemble(chunks).choices[0].message
    assert (said.content, said.annotations) == ("whole text", [{"type": "url_citation", "url": "u"}])
    assert said.model_extra["output_items"] == [search]


@pytest.mark.parametrize(
    "odd",
    [
        *[event(f"response.{name}", count=5) for name in ("ping", "heartbeat", "keepalive", "keep_alive", "keep-alive")],
        b'event: response.heartbeat\ndata: {"count": 5}\n\n',
        event("response.unheard.of", sequence_number=7),
        event("response.unheard.of", sequence_number=7, response={"id": "resp_1", "status": "in_progress"}, event_id="e"),
        event("response.in_progress", response={"id": "resp_1"}),
        event("response.content_part.added", output_index=0, content_index=0, part={"type": "output_text", "text": ""}),
    ],
)
def test_events_that_bring_nothing_are_no_progress_however_many_come(odd: bytes) -> None:
    parser = ResponseStreamParser()
    read(parser, CREATED, DELTAS[0])
    for _ in range(3):
        assert parser.feed(odd) == []
        assert not parser.has_progress
    read(parser, DELTAS[1], odd, COMPLETED)
    assert (parser.partial_text(), parser.is_done) == ("whole text", True)


def test_a_response_that_failed_or_was_cancelled_is_an_error_whatever_its_event() -> None:
    for body in (
        event("response.failed", response={"error": {"code": "server_error", "message": "boom"}}),
        event("response.completed", response={"status": "failed", "error": {"code": "server_error", "message": "boom"}}),
        event("response.cancelled", response={"status": "cancelled"}),
    ):
        parser = ResponseStreamParser()
        read(parser, CREATED, *DELTAS, body)
        assert isinstance(parser.error, EndpointStatusError)
        assert (parser.error.partial, parser.is_done) == ("whole text", False)


@pytest.mark.parametrize("first", ["keepalive", "response.in_progress", "response.queued", "response.unheard.of"])
def test_a_response_may_begin_with_any_event(first: str) -> None:
    answer = response(event(first, response={"id": "resp_1"}), CREATED, *DELTAS, COMPLETED)
    assert (answer.choices[0].message.content, answer.choices[0].message.role) == ("whole text", "assistant")


# Messages


def block(index: int, kind: str, **fields: Any) -> bytes:
    return event("content_block_start", index=index, content_block={"type": kind, **fields})


def piece(index: int, kind: str, **fields: Any) -> bytes:
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def end(index: int) -> bytes:
    return event("content_block_stop", index=index)


TOOL_STOP = event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 5}) + event("message_stop")


@pytest.mark.parametrize(
    ("given", "deltas", "arguments"),
    [
        ({}, [], "{}"),
        ({}, [""], "{}"),
        ({}, ['{"a"', ":1}"], '{"a":1}'),
        ({"a": 1}, [], '{"a":1}'),
        ({"a": 1}, ['{"a":1}'], '{"a":1}'),
    ],
)
@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_calls_input_counts_once_and_none_is_an_empty_object(
    given: dict[str, int], deltas: list[str], arguments: str, is_stopped: bool
) -> None:
    body = [block(0, "tool_use", id="t1", name="f", input=given), *[piece(0, "input_json_delta", partial_json=each) for each in deltas]]
    answer = message(START, *body, *([end(0)] if is_stopped else []), TOOL_STOP)
    assert calls_of(answer) == [("t1", "f", arguments)]
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "odd",
    [
        b"event: ping\ndata: ping\n\n",
        b"event: ping\ndata: {}\n\n",
        b'data: {"type": "ping"}\n\n',
        b"event: heartbeat\ndata: {}\n\n",
        b"data: hello\n\n",
        event("unheard_of", index=0),
    ],
)
def test_pings_and_unknown_events_are_skipped_wherever_they_come(odd: bytes) -> None:
    parser = MessageStreamParser()
    chunks = read(parser, odd, START, odd, delta("Hi"))
    parser.feed(odd)
    assert not parser.has_progress
    chunks += read(parser, STOP.partition(b"event: message_stop")[0], odd, event("message_stop"))
    assert (assemble(chunks).choices[0].message.content, parser.is_done, parser.error) == ("Hi", True, None)


def test_the_name_of_an_event_says_its_type_if_its_data_does_not() -> None:
    named = b"".join(
        f"event: {name}\ndata: {json.dumps(fields)}\n\n".encode()
        for name, fields in [
            ("message_start", {"message": {"id": "1"}}),
            ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "Hi"}}),
            ("message_delta", {"delta": {"stop_reason": "end_turn"}}),
            ("message_stop", {}),
        ]
    )
    assert message(named).choices[0].message.content == "Hi"


def test_done_is_the_end_once_a_reason_has_come_and_means_nothing_before() -> None:
    done = b"data: [DONE]\n\n"
    reason = STOP.partition(b"event: message_stop")[0]
    parser = MessageStreamParser()
    read(parser, START, delta("Hi"), done)
    assert not parser.is_done
    read(parser, reason, done)
    assert (parser.is_done, parser.finish_reason, parser.error) == (True, "stop", None)
    parser = MessageStreamParser()
    read(parser, START, reason, delta("Hi"), done)  # the text takes the reason back
    assert (parser.is_done, parser.finish_reason, parser.error) == (True, "stop", None)
    other = ResponseStreamParser()
    read(other, CREATED, *DELTAS, done)
    with pytest.raises(EndpointProtocolError, match="truncated"):
        other.close()


def test_blocks_of_the_servers_own_tools_signatures_and_citations_reach_the_caller_and_are_progress() -> None:
    parser = MessageStreamParser()
    chunks = read(parser, START)
    for each in (
        block(0, "thinking", thinking=""),
        piece(0, "thinking_delta", thinking="hm"),
        piece(0, "signature_delta", signature="c2ln"),
        block(1, "server_tool_use", id="s1", name="web_search", input={}),
        piece(1, "input_json_delta", partial_json='{"query":'),
        piece(1, "input_json_delta", partial_json='"x"}'),
        end(1),
        block(2, "web_search_tool_result", tool_use_id="s1", content=[{"url": "u"}]),
        end(2),
    ):
        new = parser.feed(each)
        assert parser.has_progress == (b'"thinking": ""' not in each and (b"stop" not in each or bool(new))), each
        chunks += new
    chunks += read(parser, block(3, "text", text=""), piece(3, "citations_delta", citation={"url": "u"}), delta("Hi"), STOP)
    said = assemble(chunks).choices[0].message
    assert (said.content, said.reasoning_content) == ("Hi", "hm")
    assert said.model_extra["content_blocks"] == [
        {"index": 0, "type": "thinking", "signature": "c2ln"},
        {"index": 1, "type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
        {"index": 2, "type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"url": "u"}]},
        {"index": 3, "type": "text", "citations": [{"url": "u"}]},
    ]


def test_text_after_the_stop_reason_takes_it_back() -> None:
    parser = MessageStreamParser()
    reason = STOP.partition(b"event: message_stop")[0]
    is_complete = []
    for body in (START + delta("a"), reason, delta("b"), reason, event("message_stop")):
        read(parser, body)
        is_complete.append(parser.is_complete)
    assert is_complete == [False, True, False, False, True]
    assert (parser.is_done, parser.partial_text()) == (True, "ab")


def test_the_input_of_a_hosted_tool_takes_a_stop_reason_back() -> None:
    parser = MessageStreamParser()
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    read(parser, START + delta("a") + event("content_block_start", index=1, content_block=search))
    read(parser, STOP.partition(b"event: message_stop")[0])
    assert parser.is_complete
    read(parser, event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": "{"}))
    assert not parser.is_complete


# Both


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (MessageStreamParser, {"type": "message", "id": "1", "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"}),
        (
            ResponseStreamParser,
            {"object": "response", "id": "1", "status": "completed", "output": [{**ITEM, "content": [{**PART, "text": "Hi"}]}]},
        ),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_a_body_of_json_is_the_whole_answer(kind: type[EventStreamParser], body: dict[str, Any], size: int) -> None:
    usage = {"usage": {"input_tokens": 3, "output_tokens": 2}}
    data = b"\n" + json.dumps({**body, **usage}, indent=2).encode()
    answer = answer_of(kind(), *[data[start : start + size] for start in range(0, len(data), size)])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hi", "stop")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 2)


@pytest.mark.parametrize("kind", [MessageStreamParser, ResponseStreamParser])
def test_a_body_of_json_that_is_no_answer_is_an_error(kind: type[EventStreamParser]) -> None:
    for body, error in [
        ({"error": {"message": "busy", "code": "overloaded"}}, EndpointStatusError),
        ({"code": 503, "message": "busy"}, EndpointStatusError),
        ({"choices": [{"message": {"content": "Hi"}}]}, EndpointProtocolError),
        ({"hello": 1}, EndpointProtocolError),
    ]:
        parser = kind()
        read(parser, json.dumps(body).encode())
        with pytest.raises(error):
            parser.close()


@pytest.mark.parametrize(("kind", "opening"), [(MessageStreamParser, START), (ResponseStreamParser, CREATED)])
@pytest.mark.parametrize(
    "error",
    [
        b'data: {"error": {"message": "busy", "code": 503}}\n\n',
        b'event: error\ndata: {"message": "busy", "code": 503}\n\n',
        b'data: {"code": 503, "message": "busy"}\n\n',
        b'error: {"message": "busy", "code": 503}\n\n',
        b'data: {"type": "error", "error": {"message": "busy", "code": 503}}\n\n',
        b'data: [{"error": {"message": "busy", "code": 503}}]\n\n',
        b'data: [1, {"type": "ping"}, {"code": 503, "message": "busy"}]\n\n',
        b'event: error\ndata: [{"message": "busy", "code": 503}]\n\n',
    ],
)
def test_an_error_in_any_form_fails_the_answer(kind: type[EventStreamParser], opening: bytes, error: bytes) -> None:
    parser = kind()
    read(parser, opening, error)
    assert isinstance(parser.error, EndpointStatusError)
    assert (parser.error.status, "busy" in str(parser.error)) == (503, True)


def test_an_error_beside_what_an_event_brings_fails_after_it() -> None:
    error = {"message": "busy", "code": 503}
    for body in (
        [START, event("content_block_delta", delta={"type": "text_delta", "text": "Hi"}, error=error)],
        [CREATED, event("response.output_text.delta", delta="Hi", error=error)],
        [CREATED, event("response.output_text.delta", delta="Hi"), event("response.unheard.of", error=error)],
        [CREATED, event("response.output_text.delta", delta="Hi"), event("response.error", **error)],
    ):
        parser = (MessageStreamParser if body[0] is START else ResponseStreamParser)()
        read(parser, *body)
        assert isinstance(parser.error, EndpointStatusError)
        assert (parser.error.status, parser.error.partial, parser.is_done) == (503, "Hi", False)
    assert message(START, event("content_block_delta", delta={"text": "Hi"}, error=None), STOP).choices[0].message.content == "Hi"


def test_the_objects_of_a_list_are_read_as_events() -> None:
    def listed(*events: bytes) -> bytes:
        return b"data: [" + b",".join(each.partition(b"data: ")[2].strip() for each in events) + b"]\n\n"

    assert (
        message(START, listed(delta("Hi"), delta("!")), listed(*STOP.strip().split(b"\n\n"), delta("late"))).choices[0].message.content
        == "Hi!"
    )
    assert response(listed(CREATED, *DELTAS), b"data: [1, null, []]\n\n", listed(COMPLETED)).choices[0].message.content == "whole text"


def test_halves_of_a_character_in_two_events_are_joined() -> None:
    body = delta("a") + delta("b\ud83d") + delta("\ude00c") + delta("d\ud83d")
    assert message(START, body, STOP).choices[0].message.content == "ab\U0001f600cd\ufffd"
    body = b"".join(event("response.output_text.delta", output_index=0, delta=each) for each in ("x\ud83d", "\ude00"))
    assert response(CREATED, body, BARE).choices[0].message.content == "x\U0001f600"
