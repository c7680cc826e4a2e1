"""Which call a piece belongs to; whole answers are in test_assembler.py."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamco.openai_types import CustomDelta, FunctionDelta, ToolCallDelta
from streamco.wire.openai import tool_calls
from streamco.wire.openai.tool_calls import JSONPieces, ToolCalls


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


def custom(name: str | None = None, text: str | None = None, **fields: object) -> ToolCallDelta:
    return ToolCallDelta(custom=CustomDelta(name=name, input=text), **fields)  # type: ignore[arg-type]


def added(*deltas: ToolCallDelta) -> list[tuple[str, str, str]]:
    calls = ToolCalls()
    for each in deltas:
        calls.add(each)
    return [(call.id, call.name, "".join(call.arguments)) for call in calls.calls]


def test_a_custom_tools_input_goes_on_until_an_id_an_index_or_another_name() -> None:
    repeating = [custom("sh", "ls ", index=0), custom("sh", "-l", index=0), custom("sh", " /", index=0)]
    assert added(*repeating) == [("", "sh", "ls -l /")]
    assert added(*[custom("sh", text) for text in ("ls ", "{}", " /")]) == [("", "sh", "ls {} /")], "also without an index"
    assert added(*repeating, custom("py", "1", index=0)) == [("", "sh", "ls -l /"), ("", "py", "1")]
    assert added(*repeating, custom("sh", "pwd", index=1)) == [("", "sh", "ls -l /"), ("", "sh", "pwd")]
    assert added(*repeating, custom("sh", "pwd", index=0, id="b")) == [("b", "sh", "ls -l /pwd")], "it may be the id of the first one"
    assert added(custom("sh", "ls", index=0, id="a"), custom("sh", "pwd", index=0, id="b")) == [("a", "sh", "ls"), ("b", "sh", "pwd")]
    assert added(custom("sh", index=0), custom("ell", "ls", index=0)) == [("", "shell", "ls")], "a name is split before the input"


def test_a_call_that_began_without_an_index_goes_on_with_one() -> None:
    first = delta("f", "{", id="a")
    assert added(first, delta(arguments="}", index=0), delta(arguments=" ", index=0)) == [("a", "f", "{} ")]
    assert added(first, delta(arguments="}", index=3), delta("g", "{}", index=4)) == [("a", "f", "{}"), ("", "g", "{}")]
    assert added(first, delta("g", "[", id="b"), delta(arguments="}", index=0, id="a"), delta(arguments="]", index=1)) == [
        ("a", "f", "{}"),
        ("b", "g", "[]"),
    ]
    assert added(first, delta("f", "{}", index=0)) == [("a", "f", "{"), ("", "f", "{}")], "a name begins a call"
    assert added(first, delta(arguments="{}", index=0, id="b")) == [("a", "f", "{"), ("b", "", "{}")], "so does another id"


def test_a_call_that_began_with_an_index_goes_on_without_one() -> None:
    first = delta("f", "{", index=0, id="a")
    assert added(first, delta(arguments="}")) == [("a", "f", "{}")]
    assert added(first, delta("g", "[", index=1, id="b"), delta(arguments="}", id="a"), delta(arguments="]")) == [
        ("a", "f", "{}"),
        ("b", "g", "[]"),
    ]


def test_a_second_index_begins_a_call_if_the_first_call_has_one() -> None:
    assert added(delta("f", "{}", index=0), delta(arguments="[]", index=1)) == [("", "f", "{}"), ("", "", "[]")]


def test_a_settled_piece_has_its_calls_number_and_only_what_is_new() -> None:
    calls = ToolCalls()
    pieces = [delta("f", "{", id="a"), delta("f", "}", index=7), delta("g", "", index=9, id="b"), delta("g", "{}", index=9, id="b")]
    for each in pieces:
        calls.settle(each)
    shown = [(each.index, each.id, each.function.name, each.function.arguments) for each in pieces if each.function]
    assert shown == [(0, "a", "f", "{"), (1, None, "f", "}"), (2, "b", "g", ""), (2, None, None, "{}")]


@given(st.lists(st.sampled_from(['"', "\\", "{", "}", "[", "]", ":", ",", "1", "true", " ", '"a"', "{}", '{"a":', "x", "\n"]), max_size=8))
@example(['"', "a\\", '"', '"', " "])
@example(['{"a":', '"}', '"', "}", "\n"])
@example(["{}", "{}"])
@example(["", " ", "[", "]]"])
@example(["1", "2", " "])
@example(["1" * 30] * 33)
def test_pieces_are_whole_when_they_are_one_json_value(pieces: list[str]) -> None:
    """As long as they are short: a number of more than 32 pieces isn't looked for."""
    growing: list[str] = []
    seen = JSONPieces(growing)
    for piece in pieces:
        growing.append(piece)
        assert seen.is_whole == (is_json("".join(growing)) and len(growing) <= 32), growing
    assert JSONPieces(pieces).is_whole == seen.is_whole, "it makes no difference who asked before"


def is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError):
        return False
    return True


@pytest.mark.parametrize("first", ['"', "{", "[", "{}", "x", "1"])
@pytest.mark.parametrize("later", ["x", "}", '"', 'x"', "{}", "]", "1"])
def test_arguments_that_never_end_are_not_decoded_again_with_each_piece(first: str, later: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = 0

    def count(text: str) -> bool:
        nonlocal decoded
        decoded += len(text)
        return is_json(text)

    monkeypatch.setattr(tool_calls, "_is_json", count)
    calls = ToolCalls()
    for number in range(2000):
        calls.settle(delta("f", later if number else first, index=0))
    assert decoded < 20_000


def test_ever_new_names_are_one_name() -> None:
    calls = ToolCalls()
    for number in range(1000):
        calls.settle(delta(f"f{number}", index=0))
    assert calls.calls[0].name == "".join(f"f{number}" for number in range(1000))
