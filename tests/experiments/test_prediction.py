"""Foretelling times: nothing is seen that was not there yet."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
pytest.importorskip("xgboost", reason="xgboost is not installed")

from experiments.prediction import FORECASTS, choose, foretell, score

TIMES = np.random.default_rng(1).lognormal(0.0, 0.4, 60)


@pytest.mark.parametrize("in_flight", [1, 5])
@pytest.mark.parametrize("method", FORECASTS)
def test_what_comes_later_or_is_under_way_changes_nothing(method: str, in_flight: int) -> None:
    place = 45
    changed = TIMES.copy()
    changed[place - in_flight + 1 :] *= 7.0
    one, other = (FORECASTS[method](times, 30, in_flight)[place - 30] for times in (TIMES, changed))
    assert one == other


@pytest.mark.parametrize("method", ["moving average", "exponential smoothing", "the last time", "random forest", "xgboost"])
def test_the_newest_answer_that_is_there_is_used(method: str) -> None:
    steps = np.repeat([1.0, 2.0, 1.0, 2.0, 1.0, 2.0], 10)
    told = FORECASTS[method](steps, 30, 1)
    assert told[9] == pytest.approx(2.0, abs=0.25)
    assert told[19] == pytest.approx(1.0, abs=0.25)


def test_every_method_foretells_the_second_half() -> None:
    judged, told = foretell([*TIMES])
    assert judged.tolist() == TIMES[30:].tolist()
    assert all(each.shape == judged.shape for each in told.values())
    assert told["the last time"].tolist() == TIMES[29:59].tolist()
    assert set(told["the first half's median"]) == {np.median(TIMES[:30])}


def test_errors_are_means_of_shares_and_of_seconds() -> None:
    assert score(np.array([1.0, 3.0]), np.array([2.0, 2.0])) == pytest.approx((50.0, 1.0))


def test_a_perfect_forecast_chooses_what_hindsight_does() -> None:
    prompts = np.array([5, 20, 80])
    chosen, best = choose(TIMES, TIMES, prompts, "pixel7-bloom-560m")
    assert chosen == pytest.approx(best)
    blind, best = choose(np.full(TIMES.size, 9.0), TIMES, prompts, "pixel7-bloom-560m")
    assert blind > best
