"""The profile of a pair from verified drafts."""

from __future__ import annotations

from random import Random

import pytest

from streamco.calibration.fit import BUDGETS, VerifiedRound, fit_pair, importance_thresholds
from streamco.errors import ConfigError
from streamco.policies.acceptance import expected_tokens


def verified(accepted: int, window: int = 4, *, confidence: float = 0.5, token: int | None = 99, **changes: object) -> VerifiedRound:
    ids = tuple(range(window))
    given = {"ids": ids, "confidences": (confidence,) * window, "accepted": accepted, "token": token, "wait": 0.1, "server": 0.04}
    return VerifiedRound(**(given | changes))  # type: ignore[arg-type]


def test_the_acceptance_is_the_one_that_gives_as_many_tokens() -> None:
    rng, alpha = Random(3), 0.7
    rounds = []
    for number in range(4000):
        window = 2 + number % 4
        rounds.append(verified(next((position for position in range(window) if rng.random() >= alpha), window), window))
    pair = fit_pair(rounds, window=5, step_times=(0.01,))
    assert pair.acceptance == pytest.approx(alpha, abs=0.01)
    assert pair.rounds == 4000
    given = sum(each.accepted + 1 for each in rounds)
    assert sum(expected_tokens(pair.acceptance, len(each.ids)) for each in rounds) == pytest.approx(given)


def test_the_cut_off_confidence_is_the_mean_of_chunks_accepted_whole() -> None:
    rounds = [verified(4, confidence=0.9), verified(4, confidence=0.7), verified(3, confidence=0.2)]
    pair = fit_pair(rounds, window=4, step_times=(0.01,))
    assert pair.confidence_threshold == pytest.approx(0.8)
    assert pair.mean_confidence == pytest.approx(0.6)
    assert fit_pair(rounds[2:], window=4, step_times=(0.01,)).confidence_threshold is None


def test_importance_thresholds_leave_the_budgets_share_above_them() -> None:
    importances = [number / 100 for number in range(101)]
    thresholds = importance_thresholds(importances)
    assert [budget for budget, _ in thresholds] == list(BUDGETS)
    for budget, threshold in thresholds:
        assert sum(value > threshold for value in importances) / 101 == pytest.approx(budget, abs=0.015)
    assert importance_thresholds([]) == ()


def test_chunks_are_kept_as_they_were_with_their_importance_where_it_was_measured() -> None:
    rounds = [verified(1, importance=0.3), verified(2, confidence=0.8)]
    pair = fit_pair(rounds, window=4, step_times=(0.01,))
    assert pair.chunks == ((0.5, 0.3), (0.8, None))
    assert pair.importance_thresholds[0][1] == pytest.approx(0.3)
    assert len(fit_pair([verified(1)] * 400, window=4, step_times=(0.01,)).chunks) == 256


def test_the_round_trip_is_what_the_server_leaves_unless_the_link_says() -> None:
    rounds = [verified(1), verified(1, wait=0.3, server=0.06), verified(1, wait=0.2, server=0.05), verified(1, wait=None, server=None)]
    pair = fit_pair(rounds, window=4, step_times=(0.01,))
    assert pair.wait == pytest.approx(0.2)
    assert pair.rtt == pytest.approx(0.15)
    assert fit_pair(rounds, window=4, step_times=(0.01,), rtt=0.07).rtt == 0.07


def test_hits_are_counted_as_branches_would_have_been_drafted() -> None:
    row = ((0, 0.6), (50, 0.3), (51, 0.05))
    rows = (row, ((1, 0.9), (52, 0.1)))
    whole = verified(2, 2, alternatives=rows, next_id=7, token=7)
    replaced = verified(0, 2, alternatives=rows, next_id=7, token=50)
    missed = verified(2, 2, alternatives=rows, next_id=7, token=8)
    unknown = verified(2, 2)
    rounds = [whole, replaced, missed, unknown]
    assert fit_pair(rounds, window=2, step_times=(0.01, 0.011, 0.012)).hit_rate == pytest.approx(2 / 3)
    assert fit_pair(rounds, window=2, step_times=(0.2,)).hit_rate == 0.0  # the wait is too short for a single step
    assert fit_pair([unknown], window=2, step_times=(0.01,)).hit_rate is None


@pytest.mark.parametrize("rounds", [[], [verified(0, wait=None)], [verified(0, 0)], [verified(4, token=None)]])
def test_nothing_to_learn_from_is_an_error(rounds: list[VerifiedRound]) -> None:
    with pytest.raises(ConfigError, match="calibration: expected verified drafts with times"):
        fit_pair(rounds, window=4, step_times=(0.01,))
