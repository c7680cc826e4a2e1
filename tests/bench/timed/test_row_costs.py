"""The bench of price lists: errors of batches, and the comparison with the best fixed window."""

from __future__ import annotations

import pytest

from bench.timed.pair import STREAM, Tally
from bench.timed.row_costs import compared, errors_of
from streamco.profiles.row_costs import RowCosts

COSTS = RowCosts({1: 0.04, 4: 0.08})


def test_a_slower_machine_is_an_error_of_the_list_and_none_of_the_scaled_one() -> None:
    plain, scaled, *by_rows = errors_of("case", COSTS, [(1, 0.05), (4, 0.1), (1, 0.05), (4, 0.1)])
    assert plain.median == pytest.approx(0.2)
    assert scaled.median == pytest.approx(0.0)
    assert scaled.max == pytest.approx(0.2), "the first batch has none before it"
    assert [(row.contender, row.metric) for row in by_rows] == [
        ("1 row", "measured"),
        ("1 row", "by the list"),
        ("4 rows", "measured"),
        ("4 rows", "by the list"),
    ]
    assert [row.median for row in by_rows] == pytest.approx([50.0, 40.0, 100.0, 80.0])


def test_chosen_windows_are_compared_with_the_fastest_fixed_one() -> None:
    tallies = {
        "window 1": Tally(seconds=2.0, tokens=40),
        "window 3": Tally(seconds=1.0, tokens=40, rounds=10, drafted=30),
        "confident": Tally(seconds=1.0, tokens=39, rounds=10, drafted=28),
        STREAM: Tally(seconds=1.0, tokens=30),
    }
    rows = {(row.contender, row.metric): row.median for row in compared("case", tallies)}
    assert rows["best fixed window", "which"] == 3.0
    assert rows["confident", "rate over the best fixed one's, window 3"] == pytest.approx(39 / 40)
    assert rows["confident", "drafted in a round"] == pytest.approx(2.8)
    assert ("window 1", "rate over the best fixed one's, window 3") not in rows
