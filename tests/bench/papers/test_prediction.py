"""Predicting times: nothing is seen that was not there yet."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from bench.counted.dispatch import PHONES
from bench.papers.prediction import METHODS, choice_lines, choose, predict, prediction_lines, score

needs_forests = pytest.mark.skipif(not (find_spec("sklearn") and find_spec("xgboost")), reason="scikit-learn and XGBoost are not installed")
FOREST_METHODS = ("random forest", "XGBoost")
PARAMETERS = [pytest.param(method, marks=needs_forests if method in FOREST_METHODS else ()) for method in METHODS]
TIMES = np.random.default_rng(1).lognormal(0.0, 0.4, 60)


@pytest.mark.parametrize("in_flight", [1, 5])
@pytest.mark.parametrize("method", PARAMETERS)
def test_what_comes_later_or_is_under_way_changes_nothing(method: str, in_flight: int) -> None:
    place = 45
    changed = TIMES.copy()
    changed[place - in_flight + 1 :] *= 7.0
    one, other = (METHODS[method](times, 30, in_flight)[place - 30] for times in (TIMES, changed))
    assert one == other


@pytest.mark.parametrize("method", PARAMETERS[:-1])
def test_the_newest_answer_that_is_there_is_used(method: str) -> None:
    steps = np.repeat([1.0, 2.0, 1.0, 2.0, 1.0, 2.0], 10)
    predicted = METHODS[method](steps, 30, 1)
    assert predicted[9] == pytest.approx(2.0, abs=0.25)
    assert predicted[19] == pytest.approx(1.0, abs=0.25)


@needs_forests
def test_every_method_predicts_the_second_half() -> None:
    tested, predicted = predict([*TIMES])
    assert tested.tolist() == TIMES[30:].tolist()
    assert all(each.shape == tested.shape for each in predicted.values())
    assert predicted["the last time"].tolist() == TIMES[29:59].tolist()
    assert set(predicted["the first half's median"]) == {np.median(TIMES[:30])}


def test_errors_are_means_of_shares_and_of_seconds() -> None:
    assert score(np.array([1.0, 3.0]), np.array([2.0, 2.0])) == pytest.approx((50.0, 1.0))


def test_a_perfect_forecast_chooses_what_hindsight_does() -> None:
    prompts = np.array([5, 20, 80])
    chosen, best = choose(TIMES, TIMES, prompts, "pixel7-bloom-560m")
    assert chosen == pytest.approx(best)
    blind, best = choose(np.full(TIMES.size, 9.0), TIMES, prompts, "pixel7-bloom-560m")
    assert blind > best


SHARES = (("LLMPerf", 10.0), ("LLMPerf", 20.0), ("LatencyLab", 3.0), ("thefastest.ai", 4.0))
ERRORS = (("LLMPerf", 20.0, 0.1), ("LLMPerf", 30.0, 0.3), ("LLMPerf", 40.0, 0.4), ("LatencyLab", 5.0, 0.2), ("thefastest.ai", 6.0, 0.2))


def service_row(source: str, share: float, seconds: float) -> dict[str, Any]:
    errors = {method: [share, seconds] for method in METHODS} | {"the first half's median": [10.0, 0.2]}
    return {"source": source, "errors": errors, "one_side": {phone: dict.fromkeys(METHODS, 1.0 + share / 100) for phone in PHONES}}


def test_errors_stand_beside_the_papers_and_over_the_medians() -> None:
    rows = {"rows": [service_row(*each) for each in ERRORS]}
    lines = [*prediction_lines(rows)]
    assert lines[0].startswith("| method | MAPE: LLMPerf (3) | MAPE: LatencyLab (1) | MAPE: thefastest.ai (1) | paper (4) |")
    expected = "| moving average | 30.0 % | 5.0 % | 6.0 % | 24.6 to 42.2 % | 0.30 / 0.20 / 0.20 | 1.50 (1) / 1.00 (0) / 1.00 (0) |"
    assert lines[2] == expected
    assert lines[-1] == "| the first half's median | 10.0 % | 10.0 % | 10.0 % |  | 0.20 / 0.20 / 0.20 | 1 |"


def test_what_asking_one_side_takes_is_a_mean_over_services() -> None:
    rows = {"rows": [service_row(source, share, 0.1) for source, share in SHARES]}
    lines = [*choice_lines(rows)]
    assert lines[2] == "| LLMPerf | moving average |" + " 15.0 % |" * 3
    assert lines[2 + len(METHODS)] == "| LatencyLab | moving average |" + " 3.0 % |" * 3
