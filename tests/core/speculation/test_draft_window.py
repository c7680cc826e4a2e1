"""The window of the next draft, and where a draft ends before it."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.core.speculation.draft_window import DraftWindow
from streamco.policies.learned_window import Adaptive
from streamco.policies.window import Confident, Dynamic, Stabiliser, Static, Threshold, WindowState, is_fused
from streamco.profiles.row_costs import RowCosts

STATE = WindowState(previous=4, acceptance=0.95)


def test_a_fixed_window_is_as_long_as_it_says_and_ends_no_draft() -> None:
    window = DraftWindow(Static(6), None)
    assert window.propose(STATE) == window.tokens == window.usual_tokens == 6
    assert not window.may_end_early
    assert not window.should_end(0.0)
    assert not window.decides_mode


def test_a_threshold_ends_a_draft_with_its_first_doubtful_token() -> None:
    window = DraftWindow(Threshold(0.5, 6), None)
    assert window.propose(STATE) == 6
    assert window.may_end_early
    assert window.should_end(0.9, 0.49)
    assert not window.should_end(0.01, 0.5), "the tokens before the last one don't count"
    window.record_length(2, has_ended=True)
    assert window.usual_tokens < 6


def test_without_a_policy_four_tokens_are_drafted() -> None:
    assert DraftWindow(None, None).tokens == 4


def test_proposals_are_kept_as_they_were_and_smoothed_for_the_draft() -> None:
    window = DraftWindow(Dynamic(first=4), Stabiliser(0.2))
    window.propose(STATE)
    assert window.proposal == 5.0
    assert [window.propose(STATE), window.settled] == [5, 5]


def fused_after(proposals: list[float], mode_stabiliser: Stabiliser | None) -> list[bool]:
    """Whether fused mode is proposed after each of the network's outputs."""

    class Scripted:
        name, first = "scripted", 8

        def propose(self, state: WindowState) -> float:
            return proposals[state.previous]

    window = DraftWindow(Scripted(), Stabiliser(0.4, min_window=2), mode_stabiliser)
    found = []
    for place in range(len(proposals)):
        window.propose(WindowState(previous=place))
        found.append(is_fused(window.proposal))
    return found


def test_the_mode_follows_the_last_proposal_or_the_smoothed_ones() -> None:
    proposals = [8.0, 8.0, 8.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 9.0, 9.0]
    assert fused_after(proposals, None) == [False] * 3 + [True] * 7 + [False] * 2
    assert fused_after(proposals, Stabiliser(0.4)) == [False] * 8 + [True] * 2 + [False] * 2, "smoothed, it takes five rounds longer"


def test_a_policy_that_may_fuse_decides_the_mode() -> None:
    assert DraftWindow(Adaptive(), None).decides_mode
    assert not DraftWindow(Adaptive(may_fuse=False), None).decides_mode


def test_a_confident_policy_ends_unlikely_drafts() -> None:
    window = DraftWindow(Confident(), None)
    may_end = [window.may_end_early]
    window.propose(WindowState(previous=4, acceptance=0.7, draft_step=0.01, wait=0.08, tpot=0.05, rate=20.0))
    may_end.append(window.may_end_early)
    assert may_end == [False, True], "not before something was proposed"
    assert [window.should_end(chance) for chance in (0.0, 1.0)] == [True, False]


@pytest.mark.parametrize(("has_ended", "moves"), [(True, True), (False, False)])
def test_a_short_draft_counts_only_if_the_policy_ended_it(has_ended: bool, moves: bool) -> None:
    window = DraftWindow(Confident(), None)
    window.propose(WindowState(previous=4, acceptance=0.7, draft_step=0.01, wait=0.08, tpot=0.05, rate=20.0))
    before = window.usual_tokens
    for _ in range(40):
        window.record_length(1, has_ended=has_ended)
    assert (window.usual_tokens < before) == moves


def on_stairs(rate: float = 30.0) -> DraftWindow:
    """A confident policy at a verifier whose rows cost 80 ms up to four and 110 ms more up to eight."""
    window = DraftWindow(Confident(), None)
    costs = RowCosts({1: 0.075, 4: 0.08, 5: 0.188, 8: 0.19, 9: 0.3, 16: 0.31})
    window.propose(
        WindowState(
            previous=3, acceptance=0.85, draft_step=0.01, wait=0.08, tpot=0.04, rate=rate, calibrated_acceptance=0.85, row_costs=costs
        )
    )
    return window


def test_tokens_of_a_draft_beyond_a_stair_are_left_out() -> None:
    window = on_stairs()
    likely = [0.85**length for length in range(1, 9)]
    assert [window.useful_length(likely[:length], is_sampled=False) for length in range(9)] == [0, 1, 2, 3, 3, 3, 3, 3, 3]
    sure = [0.999**length for length in range(1, 9)]
    assert window.useful_length(sure[:7], is_sampled=False) == 7, "a whole further stair of sure tokens is worth it"
    assert window.useful_length(sure[:4], is_sampled=False) == 3
    assert window.useful_length([0.4, 0.1], is_sampled=False) == 2, "on the same stair even a doubtful token costs nothing"


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12), st.integers(0, 11), st.floats(0.0, 1.0))
def test_a_drawn_token_does_not_decide_whether_those_before_it_are_sent_without_it(
    confidences: list[float], place: int, other: float
) -> None:
    window = on_stairs()
    place %= len(confidences)
    drawn = [*confidences[:place], other, *confidences[place + 1 :]]
    lengths = [window.useful_length(list(accumulate(each, mul)), is_sampled=True) for each in (confidences, drawn)]
    assert min(lengths) > place or lengths[0] == lengths[1]


def test_a_drawn_draft_is_cut_where_it_should_have_ended() -> None:
    window = on_stairs()
    chances = [0.85**length for length in range(1, 9)]
    ends = [length for length in range(1, 9) if window.should_end(chances[length - 1], length=length)]
    assert window.useful_length(chances, is_sampled=True) == ends[0] == 3


def test_without_a_price_list_a_draft_is_sent_whole() -> None:
    window = DraftWindow(Confident(), None)
    window.propose(WindowState(previous=4, acceptance=0.7, draft_step=0.01, wait=0.08, tpot=0.05, rate=20.0))
    assert window.useful_length([0.5, 0.1, 0.01], is_sampled=False) == 3
    assert DraftWindow(Static(5), None).useful_length([0.1] * 5, is_sampled=False) == 5


def test_a_draft_that_came_in_one_piece_ends_at_the_stair_that_it_passed() -> None:
    window = on_stairs()
    chances = [0.8, 0.7, 0.65, 0.6, 0.6]
    assert window.should_end(chances[2], length=3)
    assert not window.should_end(chances[4], length=5), "on the next stair there is room"
    assert window.should_have_ended(chances)
    assert not window.should_have_ended(chances[:3])


def test_the_accepted_share_is_that_of_all_drafted_tokens() -> None:
    window = DraftWindow(Static(), None)
    assert window.drafted_acceptance is None
    window.record_accepted(4, 1)
    assert window.drafted_acceptance == pytest.approx(1 / 4, abs=0.02)
    for _ in range(200):
        window.record_accepted(4, 4)
    assert window.drafted_acceptance == pytest.approx(1.0, abs=0.01)
