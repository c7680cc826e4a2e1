"""How many tokens to draft: DSD's two baselines, and its smoothing by hand."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.policies.window import (
    MAX_WINDOW,
    Confident,
    Dynamic,
    EndsAtDoubtfulToken,
    EndsDraftsEarly,
    Stabiliser,
    Static,
    Threshold,
    WindowPolicy,
    WindowState,
    is_fused,
)

proposals = st.lists(st.floats(-5.0, 30.0), min_size=1, max_size=40)


def follow(policy: WindowPolicy, acceptances: list[float | None]) -> list[int]:
    """The windows of one round after another."""
    windows, settled = [policy.first], Stabiliser(1.0)
    for acceptance in acceptances:
        windows.append(settled.settle(policy.propose(WindowState(previous=windows[-1], acceptance=acceptance))))
    return windows


def test_a_static_window_stays() -> None:
    assert follow(Static(), [0.0, 1.0, None]) == [4, 4, 4, 4]
    assert follow(Static(7), [0.1]) == [7, 7]


def test_a_dynamic_window_grows_above_three_quarters_and_shrinks_below_one() -> None:
    assert follow(Dynamic(), [0.76, 0.9, 0.75, 0.5, 0.25, 0.24, 0.0]) == [4, 5, 6, 6, 6, 6, 5, 4]
    assert follow(Dynamic(), [None, 0.8]) == [4, 4, 5]


def test_a_dynamic_window_stays_within_1_and_12() -> None:
    assert follow(Dynamic(), [1.0] * 20)[-1] == MAX_WINDOW == 12
    assert follow(Dynamic(), [0.0] * 20)[-1] == 1
    assert follow(Dynamic(min_window=2), [0.0] * 20)[-1] == 2


@given(st.lists(st.one_of(st.none(), st.floats(0.0, 1.0)), max_size=40), st.integers(1, 12))
def test_a_dynamic_window_moves_by_one_at_a_time(acceptances: list[float | None], first: int) -> None:
    windows = follow(Dynamic(first), acceptances)
    assert all(1 <= window <= 12 for window in windows)
    assert all(abs(after - before) <= 1 for before, after in pairwise(windows))


def test_a_window_of_1_or_less_is_fused_mode() -> None:
    assert [is_fused(window) for window in (-1.0, 1, 1.0, 1.01, 4)] == [True, True, True, False, False]


def test_proposals_are_smoothed_by_four_tenths() -> None:
    steady = Stabiliser()
    assert [steady.settle(proposal) for proposal in (4.0, 9.0, 9.0, 9.0)] == [4, 6, 7, 8]
    assert steady.smoothed == pytest.approx(9 - 5 * 0.6**3)


def test_proposals_are_clamped_before_they_are_smoothed() -> None:
    steady = Stabiliser()
    assert steady.settle(1000.0) == 12
    assert steady.settle(-1000.0) == 8  # 0.4 * 1 + 0.6 * 12 = 7.6
    assert steady.smoothed == pytest.approx(7.6)


@given(proposals, st.floats(0.05, 1.0))
def test_settled_windows_lie_in_range_and_never_overshoot(values: list[float], smoothing: float) -> None:
    steady = Stabiliser(smoothing)
    for value in values:
        before = steady.smoothed
        window = steady.settle(value)
        assert 1 <= window <= 12
        assert steady.smoothed is not None
        if before is not None:
            clamped = min(12.0, max(1.0, value))
            assert min(before, clamped) - 1e-9 <= steady.smoothed <= max(before, clamped) + 1e-9


def test_policies_go_through_json() -> None:
    for policy in (Static(5), Dynamic(3, min_window=2)):
        assert msgspec.json.decode(msgspec.json.encode(policy), type=Static | Dynamic) == policy
    assert [policy.name for policy in (Static(), Dynamic())] == ["static", "dynamic"]


def test_windows_and_smoothings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="static window: expected 1 <="):
        Static(0)
    with pytest.raises(ConfigError, match="dynamic window: expected 1 <="):
        Dynamic(4, min_window=5)
    with pytest.raises(ConfigError, match="lower_below <= raise_above"):
        Dynamic(raise_above=0.2)
    with pytest.raises(ConfigError, match="expected a smoothing above 0"):
        Stabiliser(0.0)
    with pytest.raises(ConfigError, match="stabiliser: expected 1 <="):
        Stabiliser(min_window=5, max_window=4)


def test_a_confident_draft_has_a_limit_once_the_times_are_known() -> None:
    policy = Confident(first=3, max_window=9)
    assert (policy.first, policy.propose(WindowState(previous=3))) == (3, 3.0)
    assert policy.propose(WindowState(previous=3, draft_step=0.01, rate=20.0)) == 9.0
    assert isinstance(policy, EndsDraftsEarly)
    assert not isinstance(Static(), EndsDraftsEarly)


def test_a_confident_draft_ends_where_a_token_is_not_worth_its_step() -> None:
    policy = Confident(worth=2.0, surest=0.5)
    assert policy.min_acceptance(WindowState(previous=3, draft_step=0.005, rate=20.0), 10) == pytest.approx(0.2)
    assert policy.min_acceptance(WindowState(previous=3, draft_step=0.1, rate=20.0), 10) == 0.5, "the first tokens are worth a round"
    assert policy.min_acceptance(WindowState(previous=3), 10) == 0.0


@pytest.mark.parametrize("wrong", [{"first": 0}, {"max_window": 3}, {"worth": 0.0}, {"surest": 1.5}])
def test_a_confident_window_that_can_not_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Confident(**wrong)  # type: ignore[arg-type]


def test_a_threshold_has_the_papers_number_and_a_limit() -> None:
    policy = Threshold()
    assert (policy.name, policy.first, policy.min_confidence) == ("threshold", 8, 0.6)
    assert policy.propose(WindowState(previous=2, acceptance=0.1)) == 8.0
    assert isinstance(policy, EndsAtDoubtfulToken)
    assert not isinstance(policy, EndsDraftsEarly)
    assert not isinstance(Confident(), EndsAtDoubtfulToken)


@pytest.mark.parametrize("wrong", [{"max_window": 0}, {"min_confidence": -0.1}, {"min_confidence": 1.5}])
def test_a_threshold_that_can_not_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="threshold window"):
        Threshold(**wrong)  # type: ignore[arg-type]


def test_a_dynamic_window_settles_by_the_share_of_all_drafted_tokens_and_grows_by_that_of_the_verified_ones() -> None:
    """Acceptance of 0.85 a token: of a whole draft's tokens 0.68 are accepted at a window of 4, and 0.85 up to the first rejection."""

    def settled(policy: Dynamic, alpha: float) -> int:
        window = policy.first
        for _ in range(30):
            share = sum(alpha**position for position in range(1, window + 1)) / window
            window = round(policy.propose(WindowState(previous=window, acceptance=alpha, drafted_acceptance=share)))
        return window

    assert [settled(Dynamic(), alpha) for alpha in (0.85, 0.92)] == [4, 7]
    assert settled(Dynamic(acceptance_of="verified"), 0.85) == MAX_WINDOW
    assert Dynamic().propose(WindowState(previous=4, acceptance=0.9)) == 5.0, "before a round the rate that is believed counts"
