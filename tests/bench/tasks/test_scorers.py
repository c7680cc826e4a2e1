"""Scores of answers beside their references."""

from __future__ import annotations

from decimal import Decimal

import pytest

from bench.tasks.scorers import named_choice, named_label, number_of, rouge_1, same_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 3 + 4 = 7\n#### 7", "7"),
        ("#### 1,234", "1234"),
        ("#### $18.00\n\nThat is 3 a day.", "18"),
        ("**#### 5**", "5"),
        ("The answer is 42. It took 3 steps.", "42"),
        ("Answer: -3", "-3"),
        ("The answer is: $\\boxed{1,050}$.", "1050"),
        ("\\boxed{12}", "12"),
        ("She has 5 apples, then 9.", "9"),
        ("It costs .5 dollars", "0.5"),
        ("#### 7\n\nWait, that was wrong.\n#### 8", "8"),
        ("between 2 and 3, 4,", "4"),
    ],
)
def test_the_final_number_is_the_marked_one_or_the_last(text: str, number: str) -> None:
    assert number_of(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "no number", "-", "###", "...", ","])
def test_a_text_without_a_number_has_no_final_one(text: str) -> None:
    assert number_of(text) is None
    assert same_number(text, "0") == 0.0


def test_equal_numbers_are_equal_however_they_are_written() -> None:
    assert same_number("#### 18.0", "18") == 1.0
    assert same_number("#### 1,800", "1800") == 1.0
    assert same_number("#### 19", "18") == 0.0
    assert same_number("#### 18", "-18") == 0.0


@pytest.mark.parametrize(
    "answer", ["B", "B.", " b".upper(), "(B) library", "**B**", "The answer is B.", "Answer: (B)", "A or C? The answer is B"]
)
def test_a_choice_is_the_letter_at_the_beginning_or_after_answer(answer: str) -> None:
    assert named_choice(answer, "B") == 1.0
    assert named_choice(answer, "C") == 0.0


@pytest.mark.parametrize("answer", ["", "Because", "A library", "I don't know", "bank"])
def test_a_word_is_no_choice(answer: str) -> None:
    assert [letter for letter in "BCDE" if named_choice(answer, letter)] == []


def test_a_label_is_right_if_it_alone_is_named() -> None:
    assert named_label("Positive.", "positive") == 1.0
    assert named_label("This is a negative review", "negative") == 1.0
    assert named_label("positive, not negative", "positive") == 0.0
    assert named_label("unpositively", "positive") == 0.0
    assert named_label("", "positive") == 0.0


def test_rouge_1_counts_stemmed_words_once_for_each_use() -> None:
    pytest.importorskip("rouge_score")
    assert rouge_1("the cats sat", "the cat sat") == 1.0
    assert rouge_1("a b c d", "a b x y") == pytest.approx(0.5)
    assert rouge_1("cat cat cat cat", "the cat") == pytest.approx(2 * 0.25 * 0.5 / 0.75)
    assert rouge_1("", "the cat") == 0.0
