"""How often tokens of some confidence are accepted."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.policies.drafts.confidence_calibration import ConfidenceCalibration

shares = st.floats(0.0, 1.0)


@pytest.mark.parametrize(("acceptance", "mean"), [(1.1, None), (-0.1, None), (0.5, 1.2)])
def test_what_is_no_share_is_refused(acceptance: float, mean: float | None) -> None:
    with pytest.raises(ConfigError):
        ConfidenceCalibration(acceptance, mean)


def test_at_first_a_token_of_mean_confidence_has_the_acceptance_rate() -> None:
    assert ConfidenceCalibration(0.8, 0.65).acceptance(0.65) == pytest.approx(0.8, abs=0.01)
    assert ConfidenceCalibration(0.5).acceptance(0.55) == pytest.approx(0.55, abs=0.01), "without a mean, it is as sure as it is right"


@given(shares, shares, st.lists(st.tuples(shares, st.booleans()), max_size=60), shares)
def test_a_chance_is_never_certain_nor_negative(acceptance: float, mean: float, notes: list[tuple[float, bool]], asked: float) -> None:
    chances = ConfidenceCalibration(acceptance, mean)
    for confidence, is_accepted in notes:
        chances.record(confidence, is_accepted=is_accepted)
    assert 0.0 <= chances.acceptance(asked) <= 0.99


def test_each_range_of_confidences_learns_its_own_rate() -> None:
    dice, chances = Random(3), ConfidenceCalibration(0.7)
    for _ in range(2000):
        chances.record(0.15, is_accepted=dice.random() < 0.33)
        chances.record(0.75, is_accepted=dice.random() < 0.95)
    assert chances.acceptance(0.1) == pytest.approx(0.33, abs=0.15)
    assert chances.acceptance(0.72) == pytest.approx(0.95, abs=0.1)
    assert chances.acceptance(0.5) == ConfidenceCalibration(0.7).acceptance(0.5), "nothing was said of it"


def test_the_surer_a_token_at_first_the_better_its_chance() -> None:
    chances = ConfidenceCalibration(0.6, 0.7)
    known = [chances.acceptance(confidence / 20) for confidence in range(21)]
    assert known == sorted(known)


def test_what_was_long_ago_is_forgotten() -> None:
    chances = ConfidenceCalibration(0.7)
    for is_accepted in [True] * 500 + [False] * 500:
        chances.record(0.5, is_accepted=is_accepted)
    assert chances.acceptance(0.5) < 0.02
