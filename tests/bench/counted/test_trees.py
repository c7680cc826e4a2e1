"""The rounds of chains and trees on a record, and the record itself."""

from __future__ import annotations

import pytest

from bench.counted.trees import CHOICES, PRICES, Recorded, a_round, interval, play, play_all, read_recorded
from streamco.policies.drafts.confidence_calibration import ConfidenceCalibration
from streamco.profiles.row_costs import RowCosts

FREE = (RowCosts({1: 0.1, 32: 0.1}), 0.01, 0.0)
SHARES = (0.6, 0.3, 0.05, 0.05, 0.0, 0.0, 0.0, 0.0)


def answer(ranks: str) -> Recorded:
    return Recorded("code", tuple(map(int, ranks)), (SHARES,) * len(ranks))


def test_a_chain_ends_with_the_first_token_that_is_not_the_draft_models_best() -> None:
    played = play(answer("00100000"), 4, FREE, 0, ConfidenceCalibration(0.7, None))
    assert (played.tokens, played.rounds, played.rows) == (8, 2, 10)  # 3 tokens, then 4 and one
    assert played.seconds == pytest.approx(2 * 0.1 + 8 * 0.01)


def test_a_sibling_that_the_target_chooses_gives_the_token_after_it_too() -> None:
    played = play(answer("00100000"), 4, FREE, 4, ConfidenceCalibration(0.7, None))
    assert (played.tokens, played.rounds) == (8, 2)
    assert play(answer("1010"), 1, FREE, 1, ConfidenceCalibration(0.7, None)).rounds == 2
    assert play(answer("1010"), 1, FREE, 0, ConfidenceCalibration(0.7, None)).rounds == 3


def test_rows_that_cost_too_much_are_not_taken() -> None:
    dear = (RowCosts({1: 0.1, 32: 100.0}), 0.01, 0.0)
    chain, tree = (play_all([answer("0100200000")], 3, dear, most)[0] for most in (0, 7))
    assert tree.rows == chain.rows


def test_a_ratio_has_an_interval_around_it() -> None:
    answers = [answer("0100200000"), answer("0000000000"), answer("1111111111")]
    chain, tree = (play_all(answers, 3, FREE, most) for most in (0, 7))
    ratio, low, high = interval(chain, tree, a_round)
    assert low <= ratio <= high
    assert ratio > 1.0


def test_the_packaged_record_is_whole() -> None:
    answers = read_recorded()
    assert {each.task for each in answers} == {"humaneval", "alpaca"}
    assert all(len(each.shares) == len(each.ranks) and set(map(len, each.shares)) == {CHOICES} for each in answers)
    assert all(0 <= rank <= CHOICES for each in answers for rank in each.ranks)
    assert len(PRICES) == 4
