"""Drafts are as long as the policy says, by the measured times."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamco.engines.split.draft_lengths import LONGEST, DraftLengths
from streamco.policies.drafts.prompt_lookup import Match
from streamco.policies.window import Confident, Dynamic, Static, Threshold, WindowPolicy

SURE = [0.97] * 4


def no_cost(_rows: int) -> float:
    return 0.0


def measured(policy: WindowPolicy, *, step: float, trip: float, row_seconds: Callable[[int], float] = no_cost) -> DraftLengths:
    """Lengths after twenty rounds, each of which had two tokens and took ``trip`` seconds."""
    lengths = DraftLengths(policy, row_seconds)
    for _ in range(20):
        lengths.record_step(step)
        lengths.record_verdict([0.9, 0.4], 1)
        lengths.record_round(2, trip)
    return lengths


def length(lengths: DraftLengths, confidence: float) -> int:
    """Tokens of a draft whose tokens all have this confidence."""
    made: list[float] = []
    for _ in range(lengths.window()):
        made.append(confidence)
        if lengths.should_end(made):
            break
    return len(made)


def test_a_fixed_window_is_drafted_whole() -> None:
    lengths = measured(Static(5), step=10.0, trip=0.01)
    assert length(lengths, 0.01) == 5


def test_a_threshold_ends_a_draft_with_its_first_doubtful_token() -> None:
    lengths = DraftLengths(Threshold(0.6, 4), no_cost)
    assert not lengths.should_end([0.9, 0.6])
    assert lengths.should_end([0.9, 0.59])
    assert (length(lengths, 0.7), length(lengths, 0.5)) == (4, 1)


def test_a_window_that_follows_acceptance_grows_and_shrinks() -> None:
    lengths = measured(Dynamic(first=4), step=0.001, trip=0.05)
    for _ in range(300):
        lengths.record_verdict(SURE, 4)
    assert [lengths.window() for _ in range(3)] == [5, 6, 7]
    for _ in range(300):
        lengths.record_verdict(SURE, 0)
    assert [lengths.window() for _ in range(3)] == [6, 5, 4]


def test_no_window_is_longer_than_a_frame_is_meant_for() -> None:
    assert DraftLengths(Static(40), no_cost).window() == LONGEST


@pytest.mark.parametrize(("trip", "expected"), [(0.02, 2), (0.2, 7)])
def test_a_longer_trip_makes_longer_drafts(trip: float, expected: int) -> None:
    assert length(measured(Confident(), step=0.003, trip=trip), 0.65) == expected


def test_a_row_that_costs_the_server_much_shortens_a_draft() -> None:
    cheap = measured(Confident(), step=0.001, trip=0.05)
    dear = measured(Confident(), step=0.001, trip=0.05, row_seconds=lambda rows: 0.006)
    assert length(cheap, 0.65) > length(dear, 0.65) >= 1


def test_if_no_token_is_worth_its_row_a_draft_is_tried_only_now_and_then() -> None:
    lengths = measured(Confident(), step=0.001, trip=0.02, row_seconds=lambda rows: 0.02)
    windows = [min(lengths.window(), 1) for _ in range(64)]
    assert windows.count(1) == 4
    assert windows[0] == 0


def test_a_jump_at_the_second_row_alone_does_not_end_drafting() -> None:
    def row_seconds(rows: int) -> float:
        return 0.012 if rows == 2 else 0.0005

    lengths = measured(Confident(), step=0.001, trip=0.04, row_seconds=row_seconds)
    for _ in range(300):
        lengths.record_verdict(SURE, 4)
    assert lengths.window() > 1, "four tokens for 19 ms are worth it, though the first alone isn't"


def test_before_anything_is_measured_the_policys_first_window_is_drafted() -> None:
    assert length(DraftLengths(Confident(first=3), no_cost), 0.01) == 3
    lengths = DraftLengths(Confident(), no_cost)
    lengths.record_step(0.002)
    assert lengths.step_seconds == 0.002


def test_confidences_count_as_what_they_were_worth() -> None:
    lengths, usual = (measured(Confident(), step=0.002, trip=0.1) for _ in range(2))
    for _ in range(200):
        lengths.record_verdict([0.65], 0)
        lengths.record_verdict([0.9], 1)
    assert length(lengths, 0.65) < length(usual, 0.65)


def test_a_step_that_was_interrupted_does_not_end_drafting() -> None:
    lengths = DraftLengths(Confident(), no_cost)
    for step in (0.5, 0.001, 0.001):
        lengths.record_step(step)
        lengths.record_verdict([0.9, 0.4], 1)
        lengths.record_round(2, 0.03)
        assert lengths.window() > 0, "too little is measured"
    for _ in range(20):
        lengths.record_round(2, 0.03)
    assert lengths.step_seconds == 0.001
    assert lengths.window() > 1


def test_a_looked_up_token_is_trusted_as_often_as_tokens_after_such_matches_were_accepted() -> None:
    lengths = DraftLengths(Confident(), no_cost)
    short, long = Match(1, 2), Match(1, 16)
    assert lengths.acceptance(short) < lengths.acceptance(long)
    for _ in range(200):
        lengths.record_verdict([long, short], 1)
    assert lengths.acceptance(short) < 0.05
    assert lengths.acceptance(long) > 0.95
    assert lengths.acceptance(Match(1, 3)) == DraftLengths(Confident(), no_cost).acceptance(Match(1, 3)), "other matches say nothing"
    assert lengths.acceptance(0.9) == DraftLengths(Confident(), no_cost).acceptance(0.9), "nor do they about the draft layer"


def test_the_draft_layer_guesses_where_it_is_right_far_more_often_than_a_lookup() -> None:
    lengths = DraftLengths(Confident(), no_cost)
    match = Match(1, 2)
    assert lengths.should_look_up(match)
    for _ in range(300):
        lengths.record_verdict([match], 0)
        lengths.record_verdict([0.9], 1)
    assert not lengths.should_look_up(match)
    assert lengths.should_look_up(Match(1, 8))


def test_a_lookup_that_was_given_up_is_tried_again_now_and_then() -> None:
    lengths = DraftLengths(Confident(), no_cost)
    match = Match(1, 2)
    for _ in range(300):
        lengths.record_verdict([match], 0)
        lengths.record_verdict([0.9], 1)
    tried = 0
    for _ in range(2000):
        if lengths.should_look_up(match):
            tried += 1
            lengths.record_verdict([match], 1)  # right by now
    assert tried > 300


def test_a_draft_goes_on_for_a_looked_up_token_that_would_not_be_worth_a_step() -> None:
    lengths = measured(Confident(), step=0.015, trip=0.1)
    assert lengths.should_end([0.97, 0.55, 0.55])
    lengths.record_lookup(0.001)
    assert not lengths.should_end([0.97, 0.55, 0.55], is_lookup=True)
    assert lengths.should_end([0.97, 0.55, 0.55])


def test_a_threshold_ends_a_draft_with_a_match_that_is_seldom_right() -> None:
    lengths = DraftLengths(Threshold(0.6), no_cost)
    assert lengths.should_end([Match(1, 2)])
    assert not lengths.should_end([Match(1, 2), Match(1, 16)])
