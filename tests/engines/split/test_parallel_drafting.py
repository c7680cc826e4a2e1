"""Branches are drafted while the link is idle, as long as verdicts match them."""

from __future__ import annotations

import pytest

from streamco.engines.split.parallel_drafting import ParallelDrafting

STEP = 0.002  # seconds


def tokens_of_rounds(parallel: ParallelDrafting, rounds: int, *, is_hit: bool) -> list[int]:
    """Run rounds whose branches all match their verdicts, or none of them."""
    found = []
    for _ in range(rounds):
        found.append(parallel.tokens(STEP))
        if found[-1]:
            parallel.record_verdict(is_hit=is_hit)
    return found


@pytest.mark.parametrize("tokens", [0, 1, 8])
def test_a_number_is_kept_to_whatever_is_measured(tokens: int) -> None:
    parallel = ParallelDrafting(tokens, lambda: 0.0)
    assert parallel.tokens(0.0) == tokens
    for _ in range(100):
        parallel.record_verdict(is_hit=False)
    assert parallel.tokens(STEP) == tokens


@pytest.mark.parametrize(
    ("step", "round_trip", "expected"),
    [(0.002, 0.030, 3), (0.002, 0.002, 3), (0.002, 0.0019, 0), (0.040, 0.030, 0), (0.0, 0.030, 0), (0.002, 0.0, 0), (0.0, 0.0, 0)],
)
def test_branches_need_a_link_that_takes_a_draft_step_as_measured(step: float, round_trip: float, expected: int) -> None:
    assert ParallelDrafting("auto", lambda: round_trip).tokens(step) == expected


def test_a_link_that_changes_is_followed_at_once() -> None:
    round_trip = 0.0
    parallel = ParallelDrafting("auto", lambda: round_trip)
    assert parallel.tokens(STEP) == 0
    round_trip = 0.1
    assert parallel.tokens(STEP) == 3


def test_branches_that_match_no_verdict_are_given_up_except_in_one_round_of_sixteen() -> None:
    parallel = ParallelDrafting("auto", lambda: 0.1)
    assert tokens_of_rounds(parallel, 16, is_hit=False) == [3] * 16
    assert tokens_of_rounds(parallel, 64, is_hit=False) == ([0] * 15 + [3]) * 4


def test_branches_of_which_one_in_eight_matches_are_drafted_in_every_round() -> None:
    parallel = ParallelDrafting("auto", lambda: 0.1)
    for turn in range(400):
        assert parallel.tokens(STEP) == 3
        parallel.record_verdict(is_hit=turn % 8 == 0)


def test_branches_that_match_again_are_drafted_in_every_round_again() -> None:
    parallel = ParallelDrafting("auto", lambda: 0.1)
    tokens_of_rounds(parallel, 400, is_hit=False)
    tokens_of_rounds(parallel, 400, is_hit=True)
    assert tokens_of_rounds(parallel, 32, is_hit=True) == [3] * 32


def test_rounds_over_a_fast_link_are_none_of_the_sixteen() -> None:
    round_trip = 0.1
    parallel = ParallelDrafting("auto", lambda: round_trip)
    tokens_of_rounds(parallel, 16, is_hit=False)
    round_trip = 0.0
    assert tokens_of_rounds(parallel, 100, is_hit=False) == [0] * 100
    round_trip = 0.1
    assert tokens_of_rounds(parallel, 16, is_hit=False) == [0] * 15 + [3]
