"""Halves of characters in the deltas of choices."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, FunctionDelta, ToolCallDelta, with_further
from streamco.wire.openai.delta_halves import DeltaHalves, make_whole

HIGH, LOW = "\ud83d", "\ude00"


def join(halves: DeltaHalves, index: int = 0, **fields: Any) -> dict[str, Any]:
    declared = {name: value for name, value in fields.items() if name not in ("reasoning_text", "thinking")}
    further = {name: value for name, value in fields.items() if name not in declared}
    choice = ChunkChoice(delta=with_further(ChoiceDelta(**declared), further), index=index)
    halves.join(choice)
    return choice.delta.to_dict()


def call(arguments: str, index: int = 0) -> ToolCallDelta:
    return ToolCallDelta(index=index, function=FunctionDelta(arguments=arguments))


@pytest.mark.parametrize("name", ["content", "refusal", "reasoning_content", "reasoning", "reasoning_text", "thinking"])
def test_a_text_of_any_name_is_joined(name: str) -> None:
    halves = DeltaHalves()
    first, second = ({name: piece} for piece in ("a" + HIGH, LOW))
    assert (join(halves, 0, **first)[name], halves.is_open) == ("a", True)
    assert (join(halves, 0, **second)[name], halves.is_open) == ("\U0001f600", False)


def test_one_text_under_two_names_is_joined_in_both() -> None:
    halves = DeltaHalves()
    join(halves, reasoning=HIGH, reasoning_content=HIGH)
    assert join(halves, reasoning=LOW, reasoning_content=LOW) == {"reasoning": "\U0001f600", "reasoning_content": "\U0001f600"}


def test_each_choice_has_halves_of_its_own() -> None:
    halves = DeltaHalves()
    join(halves, 0, content=HIGH)
    join(halves, 1, content=HIGH)
    assert [join(halves, index, content=LOW)["content"] for index in (0, 1)] == ["\U0001f600"] * 2


def test_a_half_waits_while_nothing_comes_and_is_given_up_when_another_text_goes_on() -> None:
    halves = DeltaHalves()
    join(halves, content="a" + HIGH)
    assert (join(halves), halves.is_open) == ({}, True)
    assert join(halves, tool_calls=[call("{")])["content"] == "\ufffd"
    assert not halves.is_open


def test_the_half_of_a_calls_arguments_is_given_up_in_that_call() -> None:
    halves = DeltaHalves()
    join(halves, tool_calls=[call('"' + HIGH, 1)])
    calls = join(halves, tool_calls=[call("{", 2)])["tool_calls"]
    assert [(each["index"], each["function"]["arguments"]) for each in calls] == [(1, "\ufffd"), (2, "{")]


def test_what_is_held_at_the_end_is_a_delta_of_its_own() -> None:
    halves = DeltaHalves()
    join(halves, 3, tool_calls=[call(HIGH, 1)])
    join(halves, 4, thinking=HIGH)
    ((first, arguments), (second, thinking)) = halves.give_up_all()
    assert (first, arguments.to_dict()["tool_calls"][0]["function"]["arguments"]) == (3, "\ufffd")
    assert (second, thinking.to_dict()) == (4, {"thinking": "\ufffd"})
    assert halves.give_up_all() == []
    assert not halves.is_open


def test_halves_in_further_fields_are_replaced() -> None:
    chunk = make_whole(with_further(ChatCompletionChunk(), {"delta": HIGH, "notes": [{"text": "a" + HIGH}]}))
    assert chunk.model_extra == {"delta": "\ufffd", "notes": [{"text": "a\ufffd"}]}
