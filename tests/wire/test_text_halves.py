"""Characters that are cut between two events."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.wire.text_halves import TextHalves, replace_halves

HIGH, LOW = "\ud83d", "\ude00"


def delta(text: str, *, index: int = 0, field: str = "content") -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {field: text}}]}


def texts_of(halves: TextHalves, *events: dict[str, Any], field: str = "content") -> list[str]:
    return [halves.join(each)["choices"][0]["delta"][field] for each in events]


def test_halves_in_two_events_are_one_character() -> None:
    halves = TextHalves()
    assert texts_of(halves, delta("a" + HIGH), delta(LOW + "b")) == ["a", "\U0001f600b"]
    assert not halves.is_open


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "reasoning_text", "thinking", "refusal"])
def test_reasoning_under_any_name_and_refusals_are_joined(field: str) -> None:
    assert texts_of(TextHalves(), delta(HIGH, field=field), delta(LOW, field=field), field=field) == ["", "\U0001f600"]


def test_each_place_has_a_half_of_its_own() -> None:
    halves = TextHalves()
    events = [delta(HIGH), delta("x" + HIGH, index=1), delta(LOW), delta(LOW, index=1)]
    assert texts_of(halves, *events) == ["", "x", "\U0001f600", "\U0001f600"]
    halves.join(delta(HIGH))
    assert texts_of(halves, delta("y", field="reasoning"), field="reasoning") == ["y"]
    assert halves.is_open


def test_halves_meet_where_numbers_say_nothing() -> None:
    halves = TextHalves(is_one_choice=True)
    assert texts_of(halves, delta(HIGH, index=4), delta(LOW, index=5)) == ["", "\U0001f600"]
    blocks = TextHalves(places=("type",))
    events = [{"index": number, "delta": {"type": "text_delta", "text": text}} for number, text in enumerate((HIGH, LOW))]
    assert [blocks.join(each)["delta"]["text"] for each in events] == ["", "\U0001f600"]


def test_a_half_without_its_other_half_is_replaced_where_it_stood() -> None:
    halves = TextHalves()
    assert texts_of(halves, delta("a" + HIGH), delta(""), delta("b"), delta(LOW + "c")) == ["a", "", "\ufffdb", "\ufffdc"]
    assert halves.take_rest() == []


def test_what_waits_at_the_end_is_an_event_of_its_own() -> None:
    halves = TextHalves()
    call = {"index": 1, "function": {"name": "f", "arguments": '"' + HIGH}}
    halves.join({"id": "1", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
    (rest,) = halves.take_rest()
    assert rest == {"id": "1", "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 1, "function": {"arguments": "\ufffd"}}]}}]}
    assert halves.take_rest() == []
    assert not halves.is_open


def test_only_texts_of_the_answer_wait_for_a_half() -> None:
    halves = TextHalves()
    event = {"id": "x" + HIGH, "choices": [{"logprobs": {"content": [{"token": HIGH}]}, HIGH: 1}]}
    assert halves.join(event) == {"id": "x\ufffd", "choices": [{"logprobs": {"content": [{"token": "\ufffd"}]}, "\ufffd": 1}]}
    assert not halves.is_open


def test_typed_events_are_joined_by_their_type_and_numbers() -> None:
    halves = TextHalves()
    first = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "a" + HIGH}
    other = {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": LOW}
    assert halves.join(first)["delta"] == "a"
    assert halves.join(other)["delta"] == "\ufffd"
    assert halves.join({**first, "delta": LOW})["delta"] == "\U0001f600"


@given(text=st.text(st.sampled_from("a\u00e9\U0001f600\U0001f3fd"), max_size=8), cuts=st.sets(st.integers(0, 16)))
def test_a_text_cut_anywhere_between_its_units_comes_out_whole(text: str, cuts: set[int]) -> None:
    units = text.encode("utf-16-le")
    bounds = [0, *sorted(2 * cut for cut in cuts if 0 < 2 * cut < len(units)), len(units)]
    pieces = [units[start:end].decode("utf-16-le", "surrogatepass") for start, end in pairwise(bounds)]
    halves = TextHalves()
    joined = texts_of(halves, *[delta(piece) for piece in pieces])
    assert "".join(joined) == text
    assert all(each.encode() is not None for each in joined)
    assert not halves.is_open


def test_without_a_stream_each_half_is_replaced() -> None:
    value = json.loads('{"a\\ud83d": ["\\ude00x", 1, {"b": "\\ud83d\\ude00"}]}')
    assert replace_halves(value) == {"a\ufffd": ["\ufffdx", 1, {"b": "\U0001f600"}]}
