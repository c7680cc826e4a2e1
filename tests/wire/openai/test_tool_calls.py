"""Which call a piece belongs to; whole answers are in test_assembler.py."""

from __future__ import annotations

from streamco.openai_types import FunctionDelta, ToolCallDelta
from streamco.wire.openai.tool_calls import ToolCalls


def delta(name: str | None = None, arguments: str | None = None, **fields: object) -> ToolCallDelta:
    return ToolCallDelta(function=FunctionDelta(name=name, arguments=arguments), **fields)  # type: ignore[arg-type]


def test_a_piece_is_added_to_the_call_that_is_returned() -> None:
    calls = ToolCalls()
    first = calls.add(delta("f", "", index=0, id="a"))
    second = calls.add(delta("g", "{", index=1, id="b"))
    assert calls.add(delta(arguments="{}", index=0)) is first
    assert calls.add(delta(arguments="}", index=1)) is second
    assert [(call.id, call.name, "".join(call.arguments)) for call in calls.calls] == [("a", "f", "{}"), ("b", "g", "{}")]


def test_a_new_id_on_a_known_index_is_a_new_call() -> None:
    calls = ToolCalls()
    assert calls.add(delta("f", "{}", index=0, id="a")) is not calls.add(delta("f", "{}", index=0, id="b"))
    assert len(calls.calls) == 2


def test_without_an_index_the_id_and_then_the_last_call_count() -> None:
    calls = ToolCalls()
    first = calls.add(delta("f", "{", id="a"))
    second = calls.add(delta("g", "{", id="b"))
    assert calls.add(delta(arguments="}", id="a")) is first
    assert calls.add(delta(arguments="}")) is second
    assert calls.add(delta("h")) not in (first, second)


def test_a_name_that_is_repeated_counts_once_and_one_that_is_split_is_joined() -> None:
    calls = ToolCalls()
    calls.add(delta("get_", index=0))
    calls.add(delta("weather", index=0))
    assert calls.add(ToolCallDelta(index=0)).name == "get_weather"
    assert calls.add(delta("get_weather", "{}", index=0)).name == "get_weather"


def test_two_calls_of_one_tool_without_ids_are_two() -> None:
    calls = ToolCalls()
    first = calls.add(delta("f", "", index=0))
    calls.add(delta(arguments="{}", index=0))
    assert calls.add(delta("f", "", index=0)) is not first


def test_a_name_that_every_piece_has_begins_no_call() -> None:
    calls = ToolCalls()
    for arguments in ("", "{", "}", ""):
        calls.add(delta("f", arguments, index=0))
    assert len(calls.calls) == 1
