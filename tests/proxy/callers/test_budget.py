"""The arithmetic of a day's budget, with the time as an argument."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.proxy.callers.budget import DayBudget, day_before, day_of, seconds_left

amounts = st.integers(0, 10**15)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@given(limit=amounts, spent=amounts, reserved=amounts, cost=st.integers(1, 10**15))
def test_what_is_covered_keeps_the_sum_below_the_limit(limit: int, spent: int, reserved: int, cost: int) -> None:
    budget = DayBudget(limit=limit, spent=spent, reserved=reserved)
    assert budget.covers(cost) == (spent + reserved + cost <= limit)
    assert budget.left is not None
    assert budget.left >= 0
    assert budget.covers(cost) == (cost <= budget.left)


@given(spent=amounts, cost=amounts)
def test_without_a_limit_everything_is_covered(spent: int, cost: int) -> None:
    budget = DayBudget(limit=None, spent=spent)
    assert budget.left is None
    assert budget.covers(cost)


def test_what_costs_nothing_is_covered_also_if_the_budget_is_used_up() -> None:
    assert DayBudget(limit=0).covers(0)
    assert DayBudget(limit=5, spent=9).covers(0)
    assert not DayBudget(limit=0).covers(1)


@pytest.mark.parametrize(
    ("time", "day", "left"),
    [
        ("2026-11-27T00:00:00", "2026-11-27", 86_400),
        ("2026-11-27T12:00:00.5", "2026-11-27", 43_200),
        ("2026-11-27T23:59:59.9", "2026-11-27", 1),
        ("2024-02-29T23:00:00", "2024-02-29", 3600),
    ],
)
def test_a_day_begins_and_ends_at_midnight_in_utc(time: str, day: str, left: int) -> None:
    assert day_of(at(time)) == day
    assert seconds_left(at(time)) == left


@given(st.floats(0, 4e9))
def test_the_end_of_a_day_lies_ahead_and_is_another_day(now: float) -> None:
    assert 1 <= seconds_left(now) <= 86_400
    assert day_of(now + seconds_left(now)) > day_of(now)


def test_days_before_are_counted_back() -> None:
    assert day_before(at("2026-03-01T01:00"), 1) == "2026-02-28"
    assert day_before(at("2026-03-01T01:00"), 0) == "2026-03-01"
