"""Windows planned with a verifier's price list: long where rows are free, short where they are dear, and whole stairs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamco.core.speculation.draft_window import DraftWindow
from streamco.policies.learned_window import Adaptive
from streamco.policies.mode_switch import ModeSwitch, Predicted, RoundConditions, best_window, conditions_of, predict_rates
from streamco.policies.window import Confident, EndsDraftsEarly, WindowPolicy, WindowState, stair_surcharges
from streamco.profiles.row_costs import RowCosts, padded_costs

STAIRS = RowCosts(padded_costs({1: 0.038, 2: 0.075, 3: 0.108, 4: 0.081, 5: 0.113, 6: 0.145, 8: 0.149, 9: 0.187, 12: 0.195, 16: 0.19}))
FLAT = RowCosts({1: 0.05, 32: 0.0502})
STEEP = RowCosts({rows: 0.038 * rows for rows in range(1, 33)})


def state_with(costs: RowCosts, *, acceptance: float = 0.85, draft_step: float = 0.018, link: float = 0.001) -> WindowState:
    """A state of a pair on a CPU: 38 ms a token of the stream."""
    state = WindowState(
        previous=4,
        acceptance=acceptance,
        tpot=0.038,
        draft_step=draft_step,
        wait=link + costs.seconds(5),
        hit_rate=0.6,
        slowdown=1.3,
        rounds=20.0,
        calibrated_acceptance=acceptance,
        row_costs=costs,
        fixed_wait=link,
    )
    conditions = conditions_of(state)
    best = replace(conditions, window=best_window(conditions, is_parallel=True))
    return replace(state, rate=predict_rates(best).speculative)


def drafted(policy: WindowPolicy, state: WindowState) -> int:
    """The length of an average draft: each of its tokens is accepted with the mean probability."""
    window = DraftWindow(policy, None)
    tokens = window.propose(state)
    chance = 1.0
    for length in range(1, tokens + 1):
        chance *= state.calibrated_acceptance
        if window.should_end(chance, 1.0, length=length):
            return length
    return tokens


@pytest.mark.parametrize("policy", [Predicted(min_window=1), Confident(), Adaptive(may_fuse=False)], ids=lambda policy: policy.name)
def test_stairs_are_filled(policy: WindowPolicy) -> None:
    assert drafted(policy, state_with(STAIRS)) == 3, "four rows: three drafted tokens and the verifier's own"


@pytest.mark.parametrize("policy", [Predicted(min_window=1), Confident()], ids=lambda policy: policy.name)
def test_free_rows_make_long_windows_and_dear_ones_short(policy: WindowPolicy) -> None:
    free, dear = state_with(FLAT, acceptance=0.95, draft_step=0.002), state_with(STEEP, acceptance=0.95, draft_step=0.002)
    assert drafted(policy, free) >= 7
    assert drafted(policy, dear) <= 2


def test_the_networks_window_is_moved_only_where_rows_cost_much() -> None:
    policy = Adaptive(may_fuse=False)
    flat = state_with(FLAT)
    assert policy.propose(flat) == policy.propose(replace(flat, row_costs=None))
    assert policy.propose(state_with(STEEP)) == 2.0


def test_surcharges_are_none_within_a_stair_and_large_at_its_end() -> None:
    surcharges = stair_surcharges(state_with(STAIRS), 10)
    assert len(surcharges) == 9
    assert surcharges[1] == pytest.approx(0.0)
    assert surcharges[2] > 0.3
    assert surcharges[2] > surcharges[3], "on the next stair there is room again"
    assert stair_surcharges(replace(state_with(STAIRS), row_costs=None), 10) == []
    assert stair_surcharges(replace(state_with(STAIRS), rate=0.0), 10) == []


lists = st.dictionaries(st.integers(1, 16), st.floats(0.001, 0.3), min_size=1, max_size=10)


@given(lists, st.floats(0.1, 0.98), st.floats(0.001, 0.03), st.floats(0.0, 0.1))
def test_no_other_window_is_predicted_to_be_faster(table: Mapping[int, float], acceptance: float, step: float, link: float) -> None:
    costs = RowCosts(padded_costs(table))
    state = state_with(costs, acceptance=acceptance, draft_step=step, link=link)
    chosen = int(Predicted(min_window=1).propose(state))

    def rate(window: int) -> float:
        return predict_rates(replace(conditions_of(state), window=window)).parallel

    assert rate(chosen) == pytest.approx(max(rate(window) for window in range(1, 13)))


@given(lists, st.floats(0.1, 0.98), st.floats(0.001, 0.03), st.floats(0.0, 0.1))
def test_surcharges_are_never_negative_and_rise_with_the_rate(
    table: Mapping[int, float], acceptance: float, step: float, link: float
) -> None:
    state = state_with(RowCosts(padded_costs(table)), acceptance=acceptance, draft_step=step, link=link)
    surcharges, faster = stair_surcharges(state, 10), stair_surcharges(replace(state, rate=2 * state.rate), 10)
    assert all(0.0 <= one <= other for one, other in zip(surcharges, faster, strict=True))


@given(lists, st.floats(0.2, 0.95))
def test_costs_count_as_a_wait_that_grows_with_the_window(table: Mapping[int, float], acceptance: float) -> None:
    costs = RowCosts(table)
    with_list = RoundConditions(acceptance=acceptance, window=3, draft_step=0.01, remote_step=0.04, verify=0.02, row_costs=costs)
    plain = replace(with_list, verify=0.02 + costs.seconds(4), row_costs=None)
    assert with_list.wait == pytest.approx(plain.wait)
    assert predict_rates(with_list) == pytest.approx(predict_rates(plain))


def test_the_mode_switch_goes_by_the_list() -> None:
    def mode(costs: RowCosts) -> str:
        conditions = RoundConditions(
            acceptance=0.85, window=3, draft_step=0.018, remote_step=0.038, verify=0.001, hit_rate=0.6, slowdown=1.3, row_costs=costs
        )
        return ModeSwitch(is_lossless=True).choose(conditions)

    assert mode(STAIRS) == "speculate"
    assert mode(STEEP) == "remote"


def test_policies_that_end_drafts_early_are_still_told_apart() -> None:
    assert isinstance(Confident(), EndsDraftsEarly)
    assert isinstance(Adaptive(), EndsDraftsEarly)
