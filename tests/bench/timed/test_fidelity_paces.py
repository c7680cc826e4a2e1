"""Times between those that were measured."""

from __future__ import annotations

import pytest

from bench.timed.fidelity_paces import between


@pytest.mark.parametrize(
    ("count", "seconds"),
    [(1, 0.04), (2, 0.04), (3, 0.06), (4, 0.08), (6, 0.12), (0, 0.04)],
    ids=["first", "step", "between", "last", "beyond", "before"],
)
def test_times_between_the_points_and_beyond_them(count: int, seconds: float) -> None:
    assert between(((1, 0.04), (2, 0.04), (4, 0.08)), count) == pytest.approx(seconds)


def test_no_time_is_below_zero() -> None:
    assert between(((8, 0.001), (32, 0.01)), 0) == 0.0
