"""Which siblings are worth their rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.policies.drafts.tree_drafts import Sibling, choose_siblings
from streamco.policies.rejection import chain_rejection

DRAFT = [10, 20]
CANDIDATES = [[(10, 0.5), (11, 0.4), (12, 0.1)], [(20, 0.8), (21, 0.1), (22, 0.1)]]
FORECAST = chain_rejection([0.5, 0.8])  # rejected at 0: 0.5, at 1: 0.1


def free(rows: int) -> float:
    return 0.02


def by_row(rows: int) -> float:
    return 0.01 * rows


def in_fours(rows: int) -> float:
    return 0.04 * -(-rows // 4)


def chosen(seconds: Callable[[int], float] = free, *, token: float = 0.03, most: int = 8) -> list[tuple[int, int]]:
    found = choose_siblings(FORECAST, DRAFT, CANDIDATES, row_seconds=seconds, token_seconds=token, max_siblings=most)
    return [(each.position, each.token) for each in found]


def test_free_rows_are_all_filled_with_the_likeliest_siblings_first() -> None:
    assert chosen() == [(0, 11), (0, 12), (1, 21), (1, 22)]
    assert chosen(most=1) == [(0, 11)]
    assert chosen(most=0) == []
    (found,) = choose_siblings(FORECAST, DRAFT, CANDIDATES, row_seconds=free, token_seconds=0.03, max_siblings=1)
    assert found == Sibling(0, 11, found.probability)
    assert found.probability == pytest.approx(0.5 * 0.8)


def test_a_sibling_that_costs_more_than_it_gains_is_left_out() -> None:
    assert chosen(by_row) == [(0, 11)]  # 0.4 x 30 ms for 10 ms
    assert chosen(by_row, token=0.02) == []  # 8 ms for 10 ms


def test_the_rest_of_a_step_of_the_staircase_is_free() -> None:
    assert chosen(in_fours) == [(0, 11)], "three rows take as long as four"
    assert len(chosen(in_fours, token=1.0)) == 4


def test_a_step_is_climbed_if_all_of_it_together_pays() -> None:
    def step(rows: int) -> float:
        return 0.01 if rows <= 3 else 0.0225

    assert len(chosen(step)) == 4, "the first sibling alone gains 12 ms for 12.5"


@given(st.floats(0.001, 1.0), st.lists(st.floats(0.001, 0.1), min_size=12, max_size=12), st.integers(0, 6))
def test_no_other_number_of_siblings_has_a_higher_gain(token: float, steps: list[float], most: int) -> None:
    costs = [sum(steps[:rows]) for rows in range(len(steps) + 1)]
    found = choose_siblings(FORECAST, DRAFT, CANDIDATES, row_seconds=costs.__getitem__, token_seconds=token, max_siblings=most)
    everything = choose_siblings(FORECAST, DRAFT, CANDIDATES, row_seconds=free, token_seconds=token, max_siblings=most)

    def gain(count: int) -> float:
        return sum(each.probability for each in everything[:count]) * token - (costs[3 + count] - costs[3])

    assert found == everything[: len(found)]
    assert all(gain(len(found)) >= gain(count) - 1e-12 for count in range(len(everything) + 1))


@pytest.mark.parametrize(("token", "most"), [(0.0, 2), (0.1, -1)])
def test_impossible_numbers_are_refused(token: float, most: int) -> None:
    with pytest.raises(ConfigError, match="siblings: expected seconds above 0 and max_siblings >= 0"):
        chosen(token=token, most=most)
