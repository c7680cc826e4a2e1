"""Row costs: lines between measured sizes, padding to a cheaper size, and the ends of the stairs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.profiles.row_costs import PADDING_GAIN, RowCosts, padded_costs, padded_size, split_costs, useful_sizes

STAIRS = {
    1: 0.038, 2: 0.075, 3: 0.108, 4: 0.081, 5: 0.113, 6: 0.145, 8: 0.149, 9: 0.187, 12: 0.195, 16: 0.190, 17: 0.228, 32: 0.367
}  # fmt: skip
"""Qwen2.5-Coder-1.5B, Q4_0 with repacked weights, one thread: tiles of four rows. 9 and 17 rows: a tile and one row."""

FLAT = {rows: 0.03 + 0.0001 * rows for rows in (1, 2, 4, 8, 16, 32)}

tables = st.dictionaries(st.integers(1, 600), st.floats(1e-5, 1.0), min_size=1, max_size=8)
small_tables = st.dictionaries(st.integers(1, 32), st.floats(1e-3, 1.0), min_size=1, max_size=12)


@given(tables, st.floats(0, 2000), st.floats(0, 2000))
def test_more_rows_never_cost_less(table: dict[int, float], one: float, other: float) -> None:
    costs = RowCosts(table)
    low, high = sorted((one, other))
    assert costs.seconds(low) <= costs.seconds(high) * (1 + 1e-12)


def test_costs_lie_on_lines_between_the_measured_ones() -> None:
    costs = RowCosts({1: 1.0, 3: 2.0, 5: 1.5, 7: 4.0})
    assert [costs.seconds(rows) for rows in (0, 0.5, 1, 2, 3, 5, 6, 7, 9)] == [0.0, 1.0, 1.0, 1.5, 2.0, 2.0, 3.0, 4.0, 6.0]
    assert RowCosts({4: 2.0}).seconds(8) == 4.0


@pytest.mark.parametrize("table", [{}, {0: 1.0}, {1: 0.0}, {1: -1.0}, {1: float("nan")}])
def test_a_table_without_times_is_refused(table: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="expected seconds above 0"):
        RowCosts(table)


def test_a_batch_is_padded_to_a_cheaper_size_only() -> None:
    assert [padded_size(STAIRS, rows) for rows in (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 32, 40)] == [1, 2, 4, 4, 5, 6, 7, 8, 11, 12, 32, 40]
    assert [padded_size(FLAT, rows) for rows in (1, 3, 8, 31)] == [1, 3, 8, 31]
    assert padded_size({}, 3) == 3


def test_a_gain_within_the_error_of_measurement_is_no_reason_to_pad() -> None:
    assert padded_size({3: 1.0, 4: 0.99}, 3) == 3
    assert padded_size({3: 1.0, 4: 0.9}, 3) == 4


@given(small_tables, st.integers(1, 40))
def test_padding_never_makes_a_batch_smaller_or_dearer(table: dict[int, float], rows: int) -> None:
    size = padded_size(table, rows)
    assert size >= rows
    assert size == rows or size in table
    costs = padded_costs(table)
    if size in costs and rows in costs:
        assert costs[rows] <= PADDING_GAIN * costs[size] / PADDING_GAIN + 1e-12 if size == rows else costs[rows] == table[size]


def test_padded_costs_have_every_size() -> None:
    costs = padded_costs(STAIRS)
    assert list(costs) == list(range(1, 33))
    assert [costs[rows] for rows in (2, 3, 4, 7)] == pytest.approx([0.075, 0.081, 0.081, 0.147])
    assert padded_costs({}) == {}


def test_the_ends_of_the_stairs_are_the_useful_sizes() -> None:
    assert useful_sizes(padded_costs(STAIRS)) == [4, 8, 16]
    assert useful_sizes(padded_costs(FLAT)) == []
    assert useful_sizes({}) == []


def test_exact_mode_splits_batches_and_leaves_no_row_alone() -> None:
    costs = split_costs({1: 1.0, 2: 3.0, 4: 4.0, 8: 20.0}, 4)
    assert [costs[rows] for rows in (1, 2, 3, 4, 5, 8)] == [3.0, 3.0, 3.5, 4.0, 7.0, 8.0]
    assert split_costs({1: 1.0, 2: 3.0}, 1) == {1: 3.0, 2: 6.0}
