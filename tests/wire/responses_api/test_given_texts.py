"""Texts that come in pieces, whole, and whole again, under whatever number: each is given once."""

from __future__ import annotations

import pytest

from streamco.wire.responses_api.given_texts import GatheredText, GivenTexts


@pytest.mark.parametrize(
    ("pieces", "whole", "rest"),
    [
        ([], "abc", "abc"),
        (["a", "b"], "abc", "c"),
        (["ab", "c"], "abc", ""),
        (["ab", "cd"], "abc", ""),
        (["x"], "abc", ""),
        (["a"], "", ""),
    ],
)
def test_the_rest_of_a_text_is_what_its_pieces_have_not_given(pieces: list[str], whole: str, rest: str) -> None:
    text = GatheredText()
    for piece in pieces:
        text.add(piece)
    assert text.take_rest(whole) == rest
    assert text.take_rest(whole) == ""
    assert text.size == len("".join(pieces) + rest)


def test_a_text_is_found_under_another_number_once() -> None:
    texts = GivenTexts()
    texts.add(("text", 0, 1), "one")
    texts.add(("text", 0, 2), "one more")
    texts.add(("refusal", 0, 3), "one")
    assert texts.take_rest(("text", 0, 1), "one") == ""
    assert texts.take_rest(("text", 1, 0), "one more, and more") == ", and more"  # in another item
    assert texts.take_rest(("text", 2, 0), "one") == "one"  # both texts were whole


def test_a_list_of_parts_may_leave_hidden_ones_out() -> None:
    texts = GivenTexts()
    for part in (1, 3):
        texts.add(("text", 0, part), f"part {part}")
        assert texts.take_rest(("text", 0, part), f"part {part}") == ""
    assert [texts.take_rest(("text", 0, place), f"part {part}", is_listed=True) for place, part in ((0, 1), (1, 3))] == ["", ""]
    assert texts.take_rest(("text", 0, 0), "part 1", is_listed=True) == ""
    assert texts.take_rest(("text", 0, 2), "part 1", is_listed=True) == "part 1"


def test_any_number_of_texts_and_any_length_is_read() -> None:
    texts = GivenTexts()
    for number in range(20_000):
        texts.add(("text", 0, number + 1), f"text {number}")
        texts.add(("reasoning", number, 0), "r")
    for number in range(20_000):
        assert texts.take_rest(("text", 0, number), f"text {number}", is_listed=True) == ""
        assert texts.take_rest(("text", 1, number), f"other {number}") == f"other {number}"
    long = "y" * 1_000_000
    for _ in range(2000):
        texts.add(("text", 2, 0), "y" * 1000)
        assert texts.take_rest(("text", 2, 0), "y" * 999, is_listed=True) == ""
    assert texts.take_rest(("text", 2, 0), long + long + "!", is_listed=True) == "!"


def test_of_texts_under_other_numbers_only_the_first_ones_are_tried() -> None:
    texts = GivenTexts()
    for number in range(150):
        texts.add(("text", 0, number), f"text {number:03}")
    assert texts.take_rest(("text", 1, 0), "text 149") == "text 149"
    assert texts.take_rest(("text", 1, 1), "text 030") == ""
