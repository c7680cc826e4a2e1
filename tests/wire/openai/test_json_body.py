"""Answers that are one JSON object: collected, checked, split into chunks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamco.errors import EndpointProtocolError
from streamco.wire.openai.json_body import JSONBody, decode_body, excerpt, is_json, split_answer
from tests.wire.recorded import cuts, recordings


def collect(data: bytes, size: int, limit: int = 1000) -> bytes:
    body = JSONBody(limit_bytes=limit)
    for piece in cuts(data, size):
        body.feed(piece)
    return body.take()


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("data", [b'{"a": 1}', b'{"a": 1}\n\n \r\n', b'{\n "a": 1\n}\n', b"[\n{}\n]", b"", b"{\n\n\n}"])
def test_one_json_value_of_any_layout_is_collected(data: bytes, size: int) -> None:
    assert collect(data, size) == data


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("data", [b'{"a": 1}\n{"b": 2}\n', b'{"a": 1}\r\n{"b', b'{"a": 1}\n\n\nx'])
def test_a_second_line_after_a_whole_object_is_ndjson(data: bytes, size: int) -> None:
    with pytest.raises(EndpointProtocolError, match=r"got NDJSON: '\{\"a\": 1\}"):
        collect(data + b"\n", size)


def test_a_body_beyond_its_limit_is_refused() -> None:
    assert collect(b"x" * 10, 3, limit=10) == b"x" * 10
    with pytest.raises(EndpointProtocolError, match="at most 10 bytes, got 11"):
        collect(b"x" * 11, 11, limit=10)


def test_every_recorded_ndjson_body_is_refused_at_its_second_line() -> None:
    for recording in recordings(apis=("ollama-ndjson",)):
        second_line = recording.body.index(b"\n") + 2
        assert collect(recording.body[: second_line - 1], 100, limit=1 << 20)
        with pytest.raises(EndpointProtocolError, match="NDJSON"):
            collect(recording.body[: second_line + 1] + b"\n", 100, limit=1 << 20)


def test_blank_lines_before_the_json_are_skipped() -> None:
    assert decode_body(b"\n\n\r\n {}\n") == {}


@pytest.mark.parametrize("body", [b"", b"\n", b"nope", b"{", b"<html>"])
def test_a_body_that_is_no_json_is_shown(body: bytes) -> None:
    with pytest.raises(EndpointProtocolError, match="expected a JSON answer, got"):
        decode_body(body)


def test_an_answer_is_split_into_what_it_says_and_how_it_ends() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "Hi", "reasoning_content": "hm", "tool_calls": [call]}
    choices = [{"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": {"content": []}}, {"index": 1, "text": "x"}]
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    whole, end = split_answer({"id": "c", "object": "chat.completion", "created": 5, "model": "m", "choices": choices, "usage": usage})
    assert (whole.id, end.id, whole.object, whole.usage) == ("c", "c", "chat.completion.chunk", None)
    first = whole.choices[0]
    assert (first.delta.content, first.delta.reasoning_content, first.finish_reason, first.logprobs) == ("Hi", "hm", None, {"content": []})
    assert first.delta.tool_calls is not None
    assert whole.choices[1].delta.content == "x"
    assert [(choice.index, choice.delta.content, choice.finish_reason) for choice in end.choices] == [
        (0, None, "tool_calls"),
        (1, None, None),
    ]
    assert end.usage is not None
    assert end.usage.total_tokens == 3


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, {"choices": None}, {"choices": {}}, {"choices": []}])
def test_json_without_choices_is_no_answer(value: Any) -> None:
    with pytest.raises(EndpointProtocolError, match="expected a JSON answer with choices, got"):
        split_answer(value)


def test_excerpts_are_short_and_say_how_much_there_is() -> None:
    assert excerpt(b"abc") == "'abc'"
    assert excerpt(b"x" * 100, 5) == "'xxxxx' ... (100 bytes)"
    assert excerpt(b"\xff") == "'\ufffd'"


def test_is_json_wants_exactly_one_value() -> None:
    assert [is_json(data) for data in (b"{}", b" 1 ", b'"\xff"', json.dumps([1]).encode())] == [True] * 4
    assert [is_json(data) for data in (b"", b"{", b"{}{}", b"nope")] == [False] * 4
