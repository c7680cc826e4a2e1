"""Joining further fields from their pieces."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.wire.openai.further_parts import FurtherParts, join_items, merge


class Results(list[int]):
    """A list that can be watched."""


def joined(*pieces: dict[str, Any], are_deltas: bool = True) -> dict[str, Any]:
    parts = FurtherParts(are_deltas=are_deltas)
    for piece in pieces:
        parts.add(piece)
    return parts.joined()


def text(piece: str, index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"type": "reasoning.text", "text": piece, "index": index, **fields}


def test_strings_of_deltas_are_joined_and_labels_are_not() -> None:
    assert joined({"thought": "a"}, {"thought": "b"}) == {"thought": "ab"}
    assert joined({"channel": "analysis"}, {"channel": "analysis"}, {"channel": "final"}) == {"channel": "final"}
    assert joined({"item": "x"}, {"item": "x"}) == {"item": "x"}


def test_elsewhere_the_last_value_counts_and_objects_are_merged() -> None:
    first = {"citations": ["a"], "x_groq": {"id": "r"}, "seed": 1, "name": "a"}
    second = {"citations": ["a", "b"], "x_groq": {"usage": {"n": 1}}, "seed": 2, "name": "b"}
    assert joined(first, second, are_deltas=False) == {
        "citations": ["a", "b"],
        "x_groq": {"id": "r", "usage": {"n": 1}},
        "seed": 2,
        "name": "b",
    }


def test_a_null_is_kept_only_if_nothing_else_came() -> None:
    assert joined({"a": None, "b": 1}, {"a": None, "b": None}) == {"a": None, "b": 1}


def test_texts_of_one_index_are_joined_with_their_signature() -> None:
    pieces = [[text("Let "), text("me", 1)], [text("us")], [{"type": "reasoning.text", "index": 0, "signature": "sig"}]]
    assert join_items(pieces) == [text("Let us", signature="sig"), text("me", 1)]


def test_encrypted_items_are_whole() -> None:
    first, second = ({"type": "reasoning.encrypted", "data": data, "index": 0, "id": data} for data in ("a", "b"))
    assert join_items([[text("x")], [first], [second]]) == [text("x"), first, second]


def test_items_with_other_ids_or_types_are_apart() -> None:
    assert join_items([[text("a", id="1")], [text("b", id="2")]]) == [text("a", id="1"), text("b", id="2")]
    summary = {"type": "reasoning.summary", "summary": "s", "index": 0}
    assert join_items([[text("a")], [summary], [text("b")]]) == [text("ab"), summary]


def test_an_item_that_comes_again_with_more_is_one_item() -> None:
    begun = {"index": 0, "type": "search", "search_results": {"results": []}}
    assert join_items([[begun], [{**begun, "output": "found"}]]) == [{**begun, "output": "found"}]


@pytest.mark.parametrize("items", [["a", "b"], [{"url": "a"}, {"url": "b"}]])
def test_a_list_that_is_repeated_and_grows_is_taken_once(items: list[Any]) -> None:
    assert join_items([items[:1], items, items]) == items
    assert join_items([items[:1], items[1:]]) == items


def test_objects_in_deltas_are_merged_with_their_texts() -> None:
    audio = [{"audio": {"id": "a", "data": "AA"}}, {"audio": {"data": "BB", "transcript": "Hi"}}]
    assert joined(*audio) == {"audio": {"id": "a", "data": "AABB", "transcript": "Hi"}}
    assert merge([{"a": 1}, 5]) == 5


def test_the_pieces_are_not_changed() -> None:
    first, second = [text("a")], [text("b")]
    join_items([first, second])
    assert (first, second) == ([text("a")], [text("b")])


_JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["index", "type", "id", "text", "data"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from(["a", "channel"]), _JSON, max_size=2), max_size=5), st.booleans())
def test_any_pieces_have_a_result_and_one_piece_is_itself(pieces: list[dict[str, Any]], are_deltas: bool) -> None:
    whole = joined(*pieces, are_deltas=are_deltas)
    assert whole.keys() == {name for piece in pieces for name in piece}
    for piece in pieces:
        assert joined(piece, are_deltas=are_deltas) == piece


@given(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=20))
def test_no_text_of_reasoning_is_lost(pieces: list[str]) -> None:
    [item] = join_items([[text(piece)] for piece in pieces])
    assert item["text"] == "".join(pieces)


def test_of_a_list_that_every_event_repeats_only_the_last_is_kept() -> None:
    parts = FurtherParts(are_deltas=False)
    kept = []
    for size in range(50):
        results = Results(range(size))
        kept.append(weakref.ref(results))
        parts.add({"search_results": results})
    assert parts.joined() == {"search_results": list(range(49))}
    assert [each() is not None for each in kept] == [False] * 49 + [True]


@given(
    st.lists(st.none() | st.integers(0, 3) | st.lists(st.integers(), max_size=1) | st.dictionaries(st.sampled_from("ab"), st.integers()))
)
def test_dropping_earlier_values_changes_no_result(values: list[Any]) -> None:
    parts = FurtherParts(are_deltas=False)
    for value in values:
        parts.add({"a": value})
    assert parts.joined() == ({"a": merge(values)} if values else {})


def test_citations_of_one_item_are_joined_and_may_be_alike() -> None:
    def item(index: int, *citations: str, **fields: Any) -> list[Any]:
        return [{"index": index, "type": "text", "citations": list(citations), **fields}]

    assert join_items([item(0, "a", n=1), item(0, "a"), item(0, "b", n=2), item(1, "c")]) == [*item(0, "a", "a", "b", n=2), *item(1, "c")]
    assert join_items([[{"index": 0, "citations": None}], [{"index": 0, "citations": ["a"]}]]) == [{"index": 0, "citations": ["a"]}]
    assert join_items([[{"index": 0, "citations": 1}], [{"index": 0, "citations": ["a"]}]]) == [{"index": 0, "citations": ["a"]}]
