"""A batch has the draft tokens that give the most tokens a second, and none where they don't pay."""

from __future__ import annotations

from itertools import accumulate, product

from hypothesis import given
from hypothesis import strategies as st

from streamco.policies.drafts.batch_drafts import MIN_GAIN, draft_length, draft_rows

CHANCES = st.lists(st.lists(st.floats(0.0, 1.0), max_size=4).map(lambda each: list(accumulate(each, min))), min_size=1, max_size=3)


def test_free_rows_are_filled_with_whatever_may_be_accepted() -> None:
    assert draft_rows([[0.9, 0.5], [0.4]], 2, lambda rows: 1.0, most=32) == [2, 1]


def test_rows_that_cost_as_much_as_steps_are_not_added() -> None:
    assert draft_rows([[0.9, 0.9]], 1, float, most=32) == [0]
    assert draft_rows([[1.0, 1.0]], 1, lambda rows: 0.99 * rows, most=32) == [0], "too little to gain"


def test_the_likeliest_come_first_whosever_they_are() -> None:
    assert draft_rows([[0.5, 0.45], [0.9, 0.8, 0.7]], 2, lambda rows: 1.0, most=5) == [0, 3]
    assert draft_rows([[0.5], [0.9, 0.1]], 2, lambda rows: 1.0, most=4) == [1, 1]


def test_a_staircase_is_climbed_to_its_edge() -> None:
    costs = {1: 38.0, 2: 75.0, 3: 108.0, 4: 81.0, 5: 113.0, 6: 145.0}
    assert draft_rows([[0.9, 0.8, 0.7, 0.6]], 1, lambda rows: costs[rows], most=6) == [3]


def test_a_model_drafts_as_many_tokens_as_give_most_tokens_a_second() -> None:
    stairs = {1: 1.0, 2: 2.0, 3: 2.1, 4: 2.13}
    assert draft_length(0.9, 0.1, 1, lambda rows: stairs.get(rows, float(rows)), most=16, longest=15) == 3
    assert draft_length(0.9, 0.1, 1, lambda rows: stairs.get(rows, float(rows)), most=3, longest=15) == 2
    assert draft_length(0.9, 0.1, 1, lambda rows: 1.0, most=32, longest=4) == 4
    assert draft_length(0.5, 0.3, 1, lambda rows: stairs.get(rows, float(rows)), most=16, longest=15) == 0
    assert draft_length(0.9, 0.0, 20, lambda rows: 1.0, most=32, longest=4) == 0, "no room for one each"


def test_without_proposals_there_are_no_drafts() -> None:
    assert draft_rows([[], []], 2, lambda rows: 1.0, most=8) == [0, 0]
    assert draft_rows([], 1, lambda rows: 1.0, most=8) == []


@given(CHANCES, st.integers(0, 2), st.integers(1, 9), st.lists(st.floats(0.01, 1.0), min_size=20, max_size=20))
def test_no_other_choice_gives_more_tokens_a_second(chances: list[list[float]], others: int, most: int, times: list[float]) -> None:
    rows = len(chances) + others

    def pace(counts: tuple[int, ...]) -> float:
        tokens = rows + sum(sum(each[:count]) for each, count in zip(chances, counts, strict=True))
        return tokens / times[rows + sum(counts)]

    allowed = [counts for counts in product(*(range(len(each) + 1) for each in chances)) if rows + sum(counts) <= max(most, rows)]
    best = max(map(pace, allowed))
    chosen = tuple(draft_rows(chances, rows, lambda count: times[count], most=most))
    assert chosen in allowed
    if any(chosen):
        assert pace(chosen) > best * (1 - 1e-9)
    else:
        assert best <= MIN_GAIN * rows / times[rows] * (1 + 1e-9)
