"""Values of decoded JSON, read as the types that are wanted."""

from __future__ import annotations

from typing import Any

from streamco.wire.json_values import count_of, json_text_of, number_of, object_of, text_of


def test_values_of_other_types_count_for_nothing() -> None:
    others: list[Any] = ["a", None, 5, []]
    assert [text_of(value) for value in others] == ["a", "", "", ""]
    assert [count_of(value) for value in (5, -1, True, None, 1.5, "7")] == [5, 0, 0, 0, 0, 0]
    assert [object_of(value) for value in ({"a": 1}, [1], "a", None)] == [{"a": 1}, {}, {}, {}]


def test_an_index_may_be_written_as_a_text() -> None:
    indexes: list[Any] = [0, "0", "12", -1]
    others: list[Any] = [True, None, "", "x", "-1", "\u0663", "1" * 10, 1.0, []]
    assert [number_of(value) for value in indexes] == [0, 0, 12, -1]
    assert [number_of(value) for value in others] == [None] * len(others)


def test_an_object_in_the_place_of_a_text_is_its_json() -> None:
    values: list[Any] = ["x", {"a": [1]}, [], None, 5]
    assert [json_text_of(value) for value in values] == ["x", '{"a":[1]}', "[]", "", ""]
