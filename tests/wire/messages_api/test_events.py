"""Chat chunks as events of the Messages API."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from streamco.core.report_parts import AnswerUsage
from streamco.openai_types import (
    ChatCompletionChunk,
    ChoiceDelta,
    ChunkChoice,
    CompletionUsage,
    FunctionDelta,
    PromptTokensDetails,
    ToolCallDelta,
)
from streamco.wire.answer_encoder import KEEPALIVE, AnswerFormError
from streamco.wire.messages_api.events import MessageEvents, message_usage
from streamco.wire.openai.assembler import assemble
from tests.support.calls import function_of
from tests.support.named_events import build_message, chunks_of, encode_recording, read_named
from tests.wire.recorded import random_cuts, recordings

BLOCK_START, BLOCK_STOP = "content_block_start", "content_block_stop"
USAGE = CompletionUsage(10, 4, 14, PromptTokensDetails(cached_tokens=6))
SHOWN_USAGE = {"input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 6, "output_tokens": 4}


class Refused(Exception):
    """A failure as the servers have it."""

    status, code, param = 502, "endpoint_failed", None


def encoder(**options: Any) -> MessageEvents:
    return MessageEvents(name="ab", model="asked", created=5, **options)


def chunk(finish_reason: str | None = None, **delta: Any) -> ChatCompletionChunk:
    return ChatCompletionChunk(id="c", model="m", choices=[ChunkChoice(delta=ChoiceDelta(**delta), finish_reason=finish_reason)])


def call(index: int, arguments: str, name: str | None = None, call_id: str | None = "toolu_1") -> ChatCompletionChunk:
    piece = ToolCallDelta(index=index, id=call_id if name else None, function=FunctionDelta(name=name, arguments=arguments))
    return chunk(tool_calls=[piece])


def stream(*chunks: ChatCompletionChunk, reason: str | None = None, **options: Any) -> list[tuple[str, dict[str, Any]]]:
    events = encoder(**options)
    return read_named(*[events.event(each) for each in chunks], events.ending(reason), events.done())


def test_text_is_one_block() -> None:
    events = stream(chunk(role="assistant"), chunk(content="Hel"), chunk(content="lo"), chunk("stop"), ChatCompletionChunk(usage=USAGE))
    message = {"id": "msg_ab", "type": "message", "role": "assistant", "model": "m", "content": []}
    opening = {**message, "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 0, "output_tokens": 0}}
    assert [data for _, data in events] == [
        {"type": "message_start", "message": opening},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": SHOWN_USAGE},
        {"type": "message_stop"},
    ]
    assert build_message(events).parts == [("text", "Hello")]


def test_reasoning_is_a_thinking_block_unless_it_is_left_out() -> None:
    chunks = [chunk(reasoning_content="h"), chunk(reasoning="m"), chunk(content="yes"), chunk("stop")]
    events = stream(*chunks)
    assert build_message(events).parts == [("thinking", "hm"), ("text", "yes")]
    assert events[1][1]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert events[2][1]["delta"] == {"type": "thinking_delta", "thinking": "h"}
    assert build_message(stream(*chunks, skips_reasoning=True)).parts == [("text", "yes")]
    whole = json.loads(encoder(skips_reasoning=True).whole(assemble(chunks), None))
    assert whole["content"] == [{"type": "text", "text": "yes"}]


def test_calls_are_blocks_with_their_input_as_json_text() -> None:
    events = stream(chunk(content="a"), call(0, '{"x":', "f"), call(0, "1}"), call(1, "{}", "g", None), chunk("tool_calls"))
    built = build_message(events)
    assert (built.parts, built.calls) == ([("text", "a")], [("f", '{"x":1}'), ("g", "{}")])
    starts = [data["content_block"] for name, data in events if name == "content_block_start"]
    assert starts[1:] == [
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
        {"type": "tool_use", "id": "toolu_ab_2", "name": "g", "input": {}},
    ]
    assert events[-2][1]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize("reason", ["tool_calls", "stop", None])
def test_an_answer_with_a_call_stops_for_it_whatever_reason_came(reason: str | None) -> None:
    chunks = [chunk(content="a"), call(0, "{}", "f")]
    assert stream(*chunks, reason=reason)[-2][1]["delta"]["stop_reason"] == "tool_use"
    assert json.loads(encoder().whole(assemble(chunks), reason))["stop_reason"] == "tool_use"


def test_a_block_has_the_name_of_a_call_that_comes_after_its_arguments() -> None:
    events = stream(call(0, "{}"), chunk(content="a"), call(0, "", "f"), reason="tool_calls")
    built = build_message(events)
    assert (built.parts, built.calls) == ([("text", "a")], [("f", "{}")])


def test_each_block_stops_before_the_next_one_starts() -> None:
    chunks = [call(0, "", "f", "1"), call(1, "", "g", "2"), chunk(content="a"), call(2, "{", "h", "3"), chunk(content="b"), call(2, "}")]
    events = stream(*chunks, chunk("tool_calls"))
    blocks = [(name.removeprefix("content_block_"), data["index"]) for name, data in events if name in {BLOCK_START, BLOCK_STOP}]
    assert blocks == [(what, index) for index in range(5) for what in ("start", "stop")]
    built = build_message(events)
    assert (built.parts, built.calls) == ([("text", "a"), ("text", "b")], [("f", ""), ("g", ""), ("h", "{}")])


@pytest.mark.parametrize(
    ("finish_reason", "stop_reason"),
    [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("tool_calls", "tool_use"),
        ("function_call", "tool_use"),
        ("content_filter", "refusal"),
        ("something", "end_turn"),
        (None, "end_turn"),
    ],
)
def test_reasons_have_this_apis_names(finish_reason: str | None, stop_reason: str) -> None:
    assert stream(chunk(content="a"), reason=finish_reason)[-2][1]["delta"] == {"stop_reason": stop_reason, "stop_sequence": None}
    assert json.loads(encoder().whole(assemble([chunk(content="a")]), finish_reason))["stop_reason"] == stop_reason


def test_calls_with_one_id_get_ids_of_their_own() -> None:
    events = stream(call(0, "{}", "f", "same"), call(1, "{}", "g", "same"), call(2, "{}", "h", "same"))
    ids = [data["content_block"]["id"] for name, data in events if name == "content_block_start"]
    assert ids[0] == "same"
    assert len(set(ids)) == 3


def test_calls_that_end_with_stop_are_tool_use() -> None:
    chunks = [call(0, "{}", "f"), chunk("stop")]
    assert stream(*chunks)[-2][1]["delta"]["stop_reason"] == "tool_use"
    assert json.loads(encoder().whole(assemble(chunks), None))["stop_reason"] == "tool_use"


def test_a_stop_string_that_the_server_names_is_the_stop_sequence() -> None:
    last = ChatCompletionChunk(choices=[ChunkChoice(finish_reason="stop", stop_reason="END")])
    expected = {"stop_reason": "stop_sequence", "stop_sequence": "END"}
    assert stream(chunk(content="a"), last)[-2][1]["delta"] == expected
    whole = json.loads(encoder().whole(assemble([chunk(content="a"), last]), None))
    assert {name: whole[name] for name in expected} == expected


def test_a_refusal_is_text_with_its_own_reason() -> None:
    events = stream(chunk(refusal="No."), chunk("stop"))
    assert build_message(events).parts == [("text", "No.")]
    assert events[-2][1]["delta"]["stop_reason"] == "refusal"
    assert json.loads(encoder().whole(assemble([chunk(refusal="No."), chunk("stop")]), None))["stop_reason"] == "refusal"


def test_an_empty_answer_has_no_blocks() -> None:
    events = stream(reason="stop")
    assert [name for name, _ in events] == ["message_start", "message_delta", "message_stop"]
    assert events[0][1]["message"]["model"] == "asked"
    assert json.loads(encoder().whole(assemble([]), "stop"))["content"] == []


def test_silence_is_a_comment_before_the_message_and_a_ping_in_it() -> None:
    events = encoder()
    assert events.keepalive == KEEPALIVE
    events.event(chunk(role="assistant"))
    assert events.keepalive == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_a_failure_is_an_error_event() -> None:
    events = encoder()
    events.event(chunk(content="Half"))
    expected = {"type": "error", "error": {"type": "api_error", "message": "server: cut"}}
    assert read_named(events.failing(Refused("server: cut"))) == [("error", expected)]


def test_a_whole_answer_has_decoded_input() -> None:
    chunks = [chunk(reasoning="hm"), chunk(content="yes"), call(0, '{"x":[1]}', "f"), call(1, "", "g", "toolu_2"), chunk("tool_calls")]
    whole = json.loads(encoder().whole(assemble([*chunks, ChatCompletionChunk(usage=USAGE)]), None))
    assert whole == {
        "id": "msg_ab",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "yes"},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": [1]}},
            {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": SHOWN_USAGE,
    }


@pytest.mark.parametrize("arguments", ['{"x":', "[1]", "x"])
def test_input_that_is_no_object_is_an_error_unless_a_limit_cut_it(arguments: str) -> None:
    answer = assemble([call(0, arguments, "f")])
    with pytest.raises(AnswerFormError, match=r"^tool call f: expected arguments that are a JSON object"):
        encoder().whole(answer, "tool_calls")
    assert json.loads(encoder().whole(answer, "length"))["content"][0]["input"] == {}


def test_usage_counts_cached_tokens_apart_and_says_whether_it_is_an_estimate() -> None:
    assert message_usage(USAGE) == SHOWN_USAGE
    assert message_usage(None) == {"input_tokens": 0, "output_tokens": 0}
    assert message_usage(AnswerUsage(1, 2, 3, is_estimated=True))["is_estimated"] is True
    assert message_usage(CompletionUsage(5, 1, 6, PromptTokensDetails(cached_tokens=9)))["input_tokens"] == 0


def test_recorded_chat_answers_come_out_whole_however_they_are_cut() -> None:
    rng = random.Random(6)
    for recording in recordings(apis=("chat",)):
        whole = encode_recording(encoder(), [recording.body])
        assert encode_recording(encoder(), list(random_cuts(recording.body, rng, 300))) == whole, str(recording)
        built = build_message(read_named(whole))
        choices = [choice for choice in assemble(chunks_of([recording.body])).choices if choice.index == 0]
        message = choices[0].message if choices else None
        assert built.text("text") == ("" if message is None else (message.content or "") + (message.refusal or "")), str(recording)
        assert built.text("thinking") == ((message and message.reasoning_content) or ""), str(recording)
        calls = [(function_of(each).name, function_of(each).arguments) for each in (message and message.tool_calls) or []]
        assert built.calls == calls, str(recording)


def test_what_is_held_for_a_call_is_not_lost_if_the_answer_fails() -> None:
    events = encoder()
    assert b"kept" not in events.event(call(0, "{", "f")) + events.event(chunk(content="kept"))
    failed = events.failing(Refused("server: cut"))
    assert failed.index(b"kept") < failed.index(b"event: error")


def test_calls_that_are_not_whole_do_not_go_out_if_the_answer_fails() -> None:
    events = encoder()
    for each in (call(0, "{", "f"), call(1, "{}", "g", "toolu_2"), call(2, "[", "h", "toolu_3"), chunk(content="kept")):
        events.event(each)
    sent = read_named(events.failing(Refused("server: cut")))
    begun = [data["content_block"].get("name", data["content_block"]["type"]) for name, data in sent if name == BLOCK_START]
    assert begun == ["g", "text"]
    assert [name for name, _ in sent if name == BLOCK_STOP] == [BLOCK_STOP] * 3, "that of the call that was open, too"
    assert sent[-1][0] == "error"
