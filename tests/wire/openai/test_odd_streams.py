"""Streams of the chat API as servers send them that don't keep to it: where they end, whose piece is whose, what is progress."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamco.errors import EndpointProtocolError, EndpointStatusError
from streamco.openai_types import ChatCompletionMessage
from streamco.wire.openai.assembler import assemble
from tests.support.calls import function_of
from tests.wire.openai.events import DONE, chunk, event, read, text_of, usage_chunk


def message_of(*pieces: bytes, **options: Any) -> ChatCompletionMessage:
    """The first message of a whole answer."""
    parser, chunks = read(*pieces, **options)
    assert parser.error is None
    return assemble([*chunks, *([] if parser.is_done else parser.close())]).choices[0].message


def calls_of(*pieces: bytes) -> list[tuple[str, str, str]]:
    calls = message_of(*pieces).tool_calls or ()
    return [(call.id, function_of(call).name, function_of(call).arguments) for call in calls]


# Ends


@pytest.mark.parametrize("blank", ["", " ", "null", False, 0])
def test_a_blank_finish_reason_in_each_chunk_ends_nothing_and_reaches_nobody(blank: Any) -> None:
    parser, chunks = read(chunk("The", finish=blank), chunk(" sky", finish=blank))
    assert not parser.is_complete
    assert [each.choices[0].finish_reason for each in chunks] == [None, None]
    with pytest.raises(EndpointProtocolError, match="truncated") as caught:
        parser.close()
    assert caught.value.partial == "The sky"
    parser, _ = read(chunk("The", finish=blank), chunk(" sky", finish=blank), DONE)
    assert (parser.is_done, parser.partial_text()) == (True, "The sky")


def test_a_stop_in_each_chunk_is_whole_only_with_a_formal_end() -> None:
    body = [chunk("The", finish="stop"), chunk(" sky", finish="stop")]
    parser, _ = read(*body)
    assert not parser.is_complete
    with pytest.raises(EndpointProtocolError, match="truncated"):
        parser.close(is_proper=False)
    parser, _ = read(*body)
    assert parser.close() == []
    assert (parser.is_complete, parser.finish_reason) == (True, "stop")
    assert read(*body, DONE)[0].is_complete


def test_a_second_choice_that_has_not_begun_is_missed() -> None:
    body = [chunk("A"), chunk(finish="stop")]
    parser, _ = read(*body, choices=2)
    assert not parser.is_complete
    with pytest.raises(EndpointProtocolError, match="truncated"):
        parser.close(is_proper=False)
    both, _ = read(*body, chunk("B", index=1), chunk(finish="stop", index=1), choices=2)
    assert both.is_complete
    for alone in (read(*body, DONE, choices=2)[0], read(*body)[0], read(*body, choices=1)[0]):
        assert (alone.is_complete, alone.finish_reason) == (True, "stop")
    properly_closed, _ = read(*body, choices=2)
    assert properly_closed.close() == []


def test_a_stop_before_the_text_ends_nothing() -> None:
    parser, _ = read(chunk(role="assistant", finish="stop"))
    assert not parser.is_complete
    parser.feed(chunk("Hi"))
    assert (parser.is_complete, parser.finish_reason) == (False, None)
    parser.feed(DONE)
    assert (parser.is_complete, parser.finish_reason) == (True, "stop")


def test_text_reasoning_and_calls_after_a_reason_take_it_back_also_within_one_read() -> None:
    for more in ({"content": "x"}, {"reasoning": "x"}, {"refusal": "x"}, {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}):
        together, _ = read(chunk("a") + chunk(finish="stop") + chunk(**more))
        apart, _ = read(chunk("a"), chunk(finish="stop"), chunk(**more))
        assert not together.is_complete
        assert not apart.is_complete
    nothings: list[dict[str, Any]] = [{}, {"content": ""}, {"role": "assistant"}, {"tool_calls": []}]
    for nothing in nothings:
        assert read(chunk("a"), chunk(finish="stop"), chunk(**nothing), usage_chunk())[0].is_complete


@pytest.mark.parametrize("reason", ["abort", "network_error", "insufficient_system_resource", "error", "timeout"])
def test_a_reason_that_means_a_failure_is_one(reason: str) -> None:
    for body in ([chunk("Half"), chunk(finish=reason), DONE], [chunk("Half", finish=reason), DONE]):
        parser, chunks = read(*body)
        assert isinstance(parser.error, EndpointStatusError)
        assert (reason in str(parser.error), parser.error.partial, parser.is_done) == (True, "Half", False)
        assert all(choice.finish_reason is None for each in chunks for choice in each.choices)


def test_an_answer_of_which_nothing_was_understood_is_an_error() -> None:
    for unread in ("Hi", {"text": "Hi"}, {"parts": ["Hi"]}, [{"content": "Hi"}], {"inner": [{"message": {"content": "Hi"}}]}):
        odd = event({"choices": [{"index": 0, "output": unread, "finish_reason": None}]})
        parser, _ = read(odd, chunk(finish="stop"), DONE)
        assert isinstance(parser.error, EndpointProtocolError)
        assert not parser.is_done
    assert read(chunk(role="assistant"), chunk(finish="stop"), DONE)[0].is_done


FILTERED = {"content_filter_offsets": {"check_offset": 1}, "content_filter_result": {"error": {"message": "timed out", "text": "x"}}}
NO_TEXTS: list[dict[str, Any]] = [
    *({name: value} for name, value in FILTERED.items()),
    {"usage": {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5, "text": "5"}},
    {"flags": ""},
    {"output": {"text": "", "content": [], "parts": None}},
    {"output": []},
    {"finish_details": {"type": "stop", "stop": "<|end|>"}},
    {"score": 1, "is_last": True},
]


@pytest.mark.parametrize("fields", NO_TEXTS)
def test_an_answer_with_a_reason_may_be_empty_if_no_other_field_can_hold_its_text(fields: dict[str, Any]) -> None:
    odd = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None, **fields}]})
    parser, _ = read(odd, chunk(finish="stop"), DONE)
    assert (parser.error, parser.is_done, parser.finish_reason) == (None, True, "stop")


@pytest.mark.parametrize("reason", ["content_filter", "length"])
def test_a_reason_that_explains_an_empty_answer_makes_it_whole_whatever_fields_it_has(reason: str) -> None:
    odd = event({"choices": [{"index": 0, "delta": {}, "finish_reason": None, "explanation": "It was too long."}]})
    parser, _ = read(odd, chunk(finish=reason), DONE)
    assert (parser.error, parser.is_done, parser.finish_reason) == (None, True, reason)
    assert read(odd, DONE)[0].error is not None


def test_events_that_are_no_json_are_skipped_and_named_if_the_answer_breaks_off() -> None:
    assert message_of(b"data: ping\n\n", chunk("Hi"), b"event: ping\ndata: {}\n\n", b"data: keep-alive\n\n", DONE).content == "Hi"
    parser, _ = read(chunk("Hi"), b"data: upstream went away\n\n")
    with pytest.raises(EndpointProtocolError, match="upstream went away"):
        parser.close()


# Where the text is


@pytest.mark.parametrize("field", ["message", "text"])
def test_increments_under_another_name_than_delta_are_text(field: str) -> None:
    def odd(text: str, finish: str | None = None) -> bytes:
        value = {"role": "assistant", "content": text} if field == "message" else text
        return event({"choices": [{"index": 0, field: value, "finish_reason": finish}]})

    assert message_of(odd("The"), odd(" sky"), odd(" is"), odd("", finish="stop")).content == "The sky is"
    assert message_of(odd("The") + odd(" sky") + odd(" is") + odd("", finish="stop")).content == "The sky is"


def test_the_index_of_the_only_choice_means_nothing() -> None:
    body = [chunk(word, index=number) for number, word in enumerate(["The", " sky"])] + [chunk(finish="stop", index=2)]
    parser, chunks = read(*body, choices=1)
    assert (text_of(chunks), parser.partial_text(), parser.is_complete) == ("The sky", "The sky", True)
    assert len(assemble(chunks).choices) == 1
    assert len(assemble(read(*body, choices=3)[1]).choices) == 3


def test_a_list_of_events_is_read_event_by_event() -> None:
    failing = event([{"error": {"code": 503, "message": "busy"}}])
    parser, _ = read(chunk("half"), failing, DONE)
    assert isinstance(parser.error, EndpointStatusError)
    assert (parser.error.status, parser.error.partial) == (503, "half")
    pieces = [json.loads(each.removeprefix(b"data: ")) for each in (chunk("a"), chunk("b"))]
    assert message_of(event(pieces), DONE).content == "ab"


@pytest.mark.parametrize("odd", [{"type": "response.heartbeat"}, {"type": "ping"}, {"event": "x"}, {"message": {"content": "x"}}])
@pytest.mark.parametrize("size", [1, 10_000])
def test_an_odd_event_after_text_is_skipped_however_the_bytes_are_cut(odd: dict[str, Any], size: int) -> None:
    body = chunk("The") + chunk(" sky") + event(odd) + chunk(" is") + chunk(finish="stop")
    parser, _ = read(*[body[start : start + size] for start in range(0, len(body), size)])
    assert (parser.error, parser.partial_text(), parser.is_complete) == (None, "The sky is", True)


@pytest.mark.parametrize("field", ["content", "reasoning_content", "reasoning", "refusal"])
def test_a_character_that_is_cut_in_two_is_one(field: str) -> None:
    halves: list[dict[str, Any]] = [{field: "a\ud83d"}, {field: "\ude00b"}]
    parser, chunks = read(*[chunk(**each) for each in halves], chunk("!"), chunk(finish="stop"))
    said = assemble(chunks).choices[0].message
    assert getattr(said, field) == ("a\U0001f600b!" if field == "content" else "a\U0001f600b")
    assert parser.is_complete


@pytest.mark.parametrize("texts", [["It ", "is \ud83d", "\ude00 now"], ["It ", "It is \ud83d", "It is \U0001f600 now"]])
def test_halves_in_messages_are_joined_or_come_once_more(texts: list[str]) -> None:
    pieces = [event({"choices": [{"index": 0, "message": {"content": text}, "finish_reason": None}]}) for text in texts]
    assert message_of(*pieces, DONE).content == "It is \U0001f600 now"


def test_half_a_character_that_stays_alone_is_replaced_before_the_end() -> None:
    assert message_of(chunk("a\ud83d"), chunk("b"), DONE).content == "a\ufffdb"
    for end in ([DONE], [chunk(finish="stop")], [chunk(finish="stop"), DONE]):
        parser, chunks = read(chunk("a\ud83d"), *end)
        chunks += [] if parser.is_done else parser.close()
        assert (text_of(chunks), parser.partial_text(), parser.is_complete) == ("a\ufffd", "a\ufffd", True)


def test_half_a_character_of_a_calls_arguments_is_joined_too() -> None:
    def piece(arguments: str, **more: Any) -> bytes:
        return chunk(tool_calls=[{"index": 0, "function": {"arguments": arguments, **more}}])

    (call,) = calls_of(piece('{"a":"\ud83d', name="f"), piece('\ude00"}'), DONE)
    assert call[1:] == ("f", '{"a":"\U0001f600"}')


@pytest.mark.parametrize("index", [0, 3])
@pytest.mark.parametrize("kind", ["function", "custom"])
def test_half_a_character_at_the_end_of_a_call_begins_no_other_call(kind: str, index: int) -> None:
    field = {"function": "arguments", "custom": "input"}[kind]

    def piece(text: str, **more: Any) -> bytes:
        return chunk(tool_calls=[{"index": index, kind: {field: text, **more}}])

    calls = message_of(piece("ls ", name="f"), piece("\ud83d"), chunk(finish="tool_calls"), DONE).tool_calls or ()
    assert [getattr(getattr(call, kind), field) for call in calls] == ["ls \ufffd"]


def test_halves_in_arguments_that_are_an_object_are_replaced_at_once() -> None:
    body = [chunk(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": {"content": "x\ud83d"}}}]), DONE]
    assert calls_of(*body) == [("c", "f", '{"content":"x\ufffd"}')]


def test_half_a_character_of_another_choice_takes_no_reason_back() -> None:
    parser, _ = read(chunk("a"), chunk(finish="stop"), chunk("b\ud83d", index=1), choices=2)
    assert parser.has_progress
    parser.feed(chunk("\ude00", index=1) + chunk(finish="stop", index=1))
    assert parser.is_complete


# Whose piece is whose


def call(name: str | None = None, arguments: str | None = None, **fields: Any) -> bytes:
    function = {key: value for key, value in {"name": name, "arguments": arguments}.items() if value is not None}
    return chunk(tool_calls=[{**fields, "function": function}])


def test_half_a_character_that_stays_alone_leaves_a_call_whole_so_that_the_next_name_begins_another() -> None:
    pieces = [call("weather", ""), call(arguments='{"city": "'), call(arguments="\ud83c"), call(arguments='"}')]
    calls = calls_of(*pieces, call("clock", ""), call(arguments='{"zone": 1}'), chunk(finish="tool_calls"), DONE)
    assert [each[1:] for each in calls] == [("weather", '{"city": "\ufffd"}'), ("clock", '{"zone": 1}')]


def test_a_new_id_in_each_delta_is_one_call() -> None:
    assert calls_of(call("f", "", index=0, id="a"), call(None, '{"x"', index=0, id="b"), call(None, ":1}", index=0, id="c"), DONE) == [
        ("a", "f", '{"x":1}')
    ]


@pytest.mark.parametrize("index", [{"index": 0}, {}])
def test_parallel_calls_without_ids_are_told_apart_by_their_names(index: dict[str, int]) -> None:
    body = [call("f", "", **index), call(None, '{"x":1}', **index), call("f", '{"x":2}', **index), call("g", "{}", **index), DONE]
    assert calls_of(*body) == [("", "f", '{"x":1}'), ("", "f", '{"x":2}'), ("", "g", "{}")]


def test_parallel_calls_with_one_index_are_numbered_also_after_halves_of_characters() -> None:
    _, chunks = read(call("f", '{"x":"\ud83d', index=0), call(None, '\ude00"}', index=0), call("g", "{}", index=0), DONE)
    assert [each.index for one in chunks for each in one.choices[0].delta.tool_calls or ()] == [0, 0, 1]


def test_an_index_may_be_text_and_a_name_may_come_late_or_again() -> None:
    body = [
        call("f", "{", index="0", id="a"),
        call("g", "{", index="1", id="b"),
        call(None, "}", index="0"),
        call(None, "}", index="1"),
        DONE,
    ]
    assert calls_of(*body) == [("a", "f", "{}"), ("b", "g", "{}")]
    assert calls_of(call(None, "{}", index=0, id="a"), call("f", index=0), DONE) == [("a", "f", "{}")]
    assert calls_of(call("f", "{", index=0, id="a"), call("f", "}", index=0, id="a"), call("f", "", index=0), DONE) == [("a", "f", "{}")]


def test_a_reader_can_join_the_pieces_by_their_index_alone() -> None:
    body = [call("f", "{", index=0, id="a"), call("f", "}", index=0, id="x"), call("g", "{}", index=0, id="b"), DONE]
    _, chunks = read(*body[:1], call(None, "}", index=0, id="x"), *body[2:])
    pieces = [piece for each in chunks for piece in each.choices[0].delta.tool_calls or ()]
    assert [(piece.index, piece.id) for piece in pieces] == [(0, "a"), (0, None), (1, "b")]
    joined: dict[int | None, str] = {}
    for piece in pieces:
        assert piece.function is not None
        joined[piece.index] = joined.get(piece.index, "") + (piece.function.name or "") + (piece.function.arguments or "")
    assert joined == {0: "f{}", 1: "g{}"}


def test_the_input_of_a_custom_tools_call_is_joined() -> None:
    def piece(**custom: str) -> bytes:
        return chunk(tool_calls=[{"index": 0, "id": "c1", "type": "custom", "custom": custom}])

    parser, chunks = read(piece(name="shell", input="ls"), piece(input=" -l"), piece(input=" /tmp"), chunk(finish="tool_calls"), DONE)
    (made,) = assemble(chunks).choices[0].message.tool_calls or []
    assert made.to_dict() == {"id": "c1", "type": "custom", "custom": {"name": "shell", "input": "ls -l /tmp"}}
    assert (made.function, parser.finish_reason, parser.has_only_text) == (None, "tool_calls", False)


def test_an_empty_custom_beside_a_function_is_nothing() -> None:
    odd = [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, "custom": {}}]
    (made,) = message_of(chunk(tool_calls=odd), DONE).tool_calls or []
    assert made.to_dict() == {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


# Progress

PROGRESS: list[dict[str, Any]] = [
    {"audio": {"data": "AAAA"}},
    {"images": [{"type": "image_url"}]},
    {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]},
    {"reasoning_text": "hm"},
    {"thinking_blocks": [{"thinking": "hm"}]},
    {"executed_tools": [{"index": 0}]},
    {"refusal": "no"},
]


@pytest.mark.parametrize("delta", PROGRESS, ids=lambda delta: next(iter(delta)))
def test_any_field_of_a_delta_that_is_not_empty_is_progress(delta: dict[str, Any]) -> None:
    parser, _ = read(chunk(role="assistant"))
    assert not parser.has_progress
    chunks = parser.feed(chunk(**delta))
    assert (parser.has_progress, len(chunks)) == (True, 1)
    parser.feed(b": alive\n\n")
    assert not parser.has_progress
    parser.feed(chunk(finish="stop"))
    assert (parser.has_progress, parser.is_complete) == (False, True)


@pytest.mark.parametrize("delta", [{}, {"role": "assistant"}, {"content": ""}, {"tool_calls": []}, {"audio": None}, {"images": []}])
def test_an_empty_delta_is_none(delta: dict[str, Any]) -> None:
    assert not read(chunk(**delta))[0].has_progress


def test_an_image_of_several_megabytes_is_read() -> None:
    image = "A" * (8 << 20)
    said = message_of(chunk("Look"), chunk(images=[{"url": image}]), chunk(finish="stop"), DONE)
    assert said.model_extra["images"][0]["url"] == image
