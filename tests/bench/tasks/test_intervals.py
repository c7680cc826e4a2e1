"""Intervals of the bootstrap."""

from __future__ import annotations

import numpy as np
import pytest

from bench.tasks.intervals import Interval, interval_of, mean_interval, resample


def test_the_interval_of_equal_scores_is_a_point() -> None:
    assert mean_interval([0.5] * 7) == (0.5, 0.5, 0.5)


def test_the_interval_of_a_share_is_that_of_its_standard_error() -> None:
    found = mean_interval([1.0] * 300 + [0.0] * 100)
    assert found.value == 0.75
    error = 1.96 * (0.75 * 0.25 / 400) ** 0.5
    assert found.low == pytest.approx(0.75 - error, abs=0.006)
    assert found.high == pytest.approx(0.75 + error, abs=0.006)


def test_contenders_that_differ_by_a_constant_differ_so_in_every_draw() -> None:
    scores = np.random.default_rng(3).random(50)
    drawn = resample([list(scores), list(scores + 0.25)])
    assert drawn.shape == (2, 2001)
    assert interval_of(drawn[1] - drawn[0]) == pytest.approx((0.25, 0.25, 0.25))


def test_the_true_mean_lies_in_about_95_of_100_intervals() -> None:
    rng = np.random.default_rng(5)
    hits = 0
    for seed in range(200):
        found = mean_interval(list(rng.random(100)), draws=400, seed=seed)
        hits += found.low <= 0.5 <= found.high
    assert 178 <= hits <= 200


def test_the_same_seed_gives_the_same_draws() -> None:
    scores = [[0.1, 0.9, 0.4]]
    assert np.array_equal(resample(scores, seed=4), resample(scores, seed=4))
    assert not np.array_equal(resample(scores, seed=4), resample(scores, seed=5))


@pytest.mark.parametrize("scores", [[], [[]]])
def test_no_question_has_no_interval(scores: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="expected rows of at least one question"):
        resample(scores)


def test_an_interval_shows_its_bounds_beside_its_value() -> None:
    assert Interval(0.25, -0.5, 1.0).show() == "0.250 (-0.500 to 1.000)"
    assert Interval(0.25, -0.5, 1.0).show(1, sign="+") == "+0.2 (-0.5 to +1.0)"
