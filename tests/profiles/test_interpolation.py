"""Curves between measured points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.profiles.interpolation import interpolate

POINTS = [(2, 10.0), (4, 14.0), (8, 16.0)]


@pytest.mark.parametrize(("count", "value"), [(2, 10.0), (3, 12.0), (4, 14.0), (6, 15.0), (8, 16.0)])
def test_values_lie_on_lines_between_the_points(count: float, value: float) -> None:
    assert interpolate(POINTS, count) == value


def test_before_the_points_the_first_value_holds() -> None:
    assert interpolate(POINTS, 0) == interpolate(POINTS, 1.9) == 10.0


def test_after_the_points_the_last_slope_holds() -> None:
    assert interpolate(POINTS, 12) == 18.0


def test_a_single_value_holds_everywhere() -> None:
    assert {interpolate([(4, 3.0)], count) for count in (0, 4, 100)} == {3.0}


@given(st.dictionaries(st.integers(1, 100), st.floats(0, 1e6), min_size=2), st.floats(0, 1))
def test_between_the_points_it_is_numpys(table: dict[int, float], share: float) -> None:
    counts = sorted(table)
    count = counts[0] + share * (counts[-1] - counts[0])
    expected = float(np.interp(count, counts, [table[each] for each in counts]))
    assert interpolate([(each, table[each]) for each in counts], count) == pytest.approx(expected, rel=1e-9, abs=1e-6)
