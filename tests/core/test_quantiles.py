"""A few numbers stand for many."""

from __future__ import annotations

import pytest

from streamco.core.quantiles import equally_likely


@pytest.mark.parametrize(
    ("count", "found"),
    [(0, []), (1, [4.0]), (2, [2.0, 6.0]), (3, [1.0, 4.0, 6.0]), (8, [*map(float, range(8))]), (9, [*map(float, range(8))])],
)
def test_each_number_is_from_the_middle_of_its_part(count: int, found: list[float]) -> None:
    assert equally_likely([float(number) for number in range(8)], count) == found


def test_of_none_there_are_none() -> None:
    assert equally_likely([], 3) == []
