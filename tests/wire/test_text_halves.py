"""Characters that are cut between two events."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.wire.text_halves import TextHalves, whole_values

HIGH, LOW = "\ud83d", "\ude00"


def test_halves_in_two_pieces_are_one_character() -> None:
    halves = TextHalves()
    assert [halves.join("a", piece) for piece in ("a" + HIGH, LOW + "b")] == ["a", "\U0001f600b"]
    assert not halves.is_open


def test_each_text_has_a_half_of_its_own() -> None:
    halves = TextHalves()
    pieces = [("a", HIGH), ("b", "x" + HIGH), ("a", LOW), ("b", LOW)]
    assert [halves.join(text, piece) for text, piece in pieces] == ["", "x", "\U0001f600", "\U0001f600"]


def test_a_half_without_its_other_half_is_replaced_where_it_stood() -> None:
    halves = TextHalves()
    pieces = ["a" + HIGH, "", "b", LOW + "c"]
    assert [halves.join("a", piece) for piece in pieces] == ["a", "", "\ufffdb", "\ufffdc"]
    assert halves.give_up_all() == []


def test_a_half_may_be_given_up() -> None:
    halves = TextHalves()
    halves.join("a", HIGH)
    halves.join("b", HIGH)
    assert (halves.holds("a"), halves.holds("c")) == (True, False)
    assert (halves.give_up("a"), halves.give_up("a")) == ("\ufffd", "")
    assert halves.give_up_all() == ["b"]
    assert not halves.is_open


@pytest.mark.parametrize(
    "event",
    [
        {"delta": HIGH},
        {"delta": {"text": HIGH}},
        {"choices": [{"text": HIGH}]},
        {"choices": [{"delta": {"content": HIGH, "reasoning_text": HIGH}}]},
        {"choices": [{"message": {"content": [{"thinking": [{"text": HIGH}]}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": HIGH}}, {"custom": {"input": HIGH}}]}}]},
    ],
)
def test_halves_stay_in_pieces(event: dict[str, Any]) -> None:
    assert whole_values(event, has_pieces=True) == event
    assert HIGH not in str(whole_values(event))


@pytest.mark.parametrize(
    "event",
    [
        {"id": HIGH, "text": HIGH, "part": {"text": HIGH}, "item": {"arguments": HIGH}, "delta": {"x": HIGH}},
        {"content_block": {"input": {"content": HIGH}}, "response": {"output": [{"content": [{"text": HIGH}]}]}},
        {"choices": [{"logprobs": {"content": [{"token": HIGH}]}, HIGH: 1, "delta": {"tool_calls": [{"function": {"name": HIGH}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": {"content": HIGH}}}]}}]},
    ],
)
def test_halves_elsewhere_are_replaced(event: dict[str, Any]) -> None:
    json.dumps(whole_values(event, has_pieces=True), ensure_ascii=False).encode()


@given(text=st.text(st.sampled_from("a\u00e9\U0001f600\U0001f3fd"), max_size=8), cuts=st.sets(st.integers(0, 16)))
def test_a_text_cut_anywhere_between_its_units_comes_out_whole(text: str, cuts: set[int]) -> None:
    units = text.encode("utf-16-le")
    bounds = [0, *sorted(2 * cut for cut in cuts if 0 < 2 * cut < len(units)), len(units)]
    pieces = [units[start:end].decode("utf-16-le", "surrogatepass") for start, end in pairwise(bounds)]
    halves = TextHalves()
    joined = [halves.join("a", piece) for piece in pieces]
    assert "".join(joined) == text
    assert all(each.encode() is not None for each in joined)
    assert not halves.is_open


def test_without_a_stream_each_half_is_replaced() -> None:
    value = json.loads('{"a\\ud83d": ["\\ude00x", 1, {"b": "\\ud83d\\ude00"}]}')
    assert whole_values(value) == {"a\ufffd": ["\ufffdx", 1, {"b": "\U0001f600"}]}
