"""The window that the arithmetic speaks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamco.errors import ConfigError
from streamco.policies.mode_switch import Conditions, predict_rates
from streamco.policies.predicted import Predicted
from streamco.policies.window import Static, WindowPolicy, WindowState

KNOWN = WindowState(previous=4, acceptance=0.75, tpot=0.05, draft_step=0.01, wait=0.1, hit_rate=0.5, slowdown=1.2)


def rate(state: WindowState, window: int) -> float:
    assert state.acceptance is not None
    conditions = Conditions(
        acceptance=state.acceptance,
        window=window,
        draft_step=state.draft_step,
        remote_step=state.tpot,
        verify=state.wait,
        hit_rate=state.hit_rate,
        slowdown=state.slowdown,
    )
    return predict_rates(conditions).parallel


@given(st.floats(0.0, 1.0), st.floats(0.001, 0.1), st.floats(0.01, 0.5), st.floats(0.0, 1.0), st.floats(1.0, 4.0))
def test_no_window_of_the_range_is_predicted_to_be_faster(
    acceptance: float, draft_step: float, wait: float, hit_rate: float, slowdown: float
) -> None:
    state = replace(KNOWN, acceptance=acceptance, draft_step=draft_step, wait=wait, hit_rate=hit_rate, slowdown=slowdown)
    window = int(Predicted(shortest=1).propose(state))
    assert rate(state, window) == pytest.approx(max(rate(state, other) for other in range(1, 13)))


def test_surer_drafts_and_longer_links_get_longer_windows() -> None:
    policy = Predicted()
    usual = policy.propose(KNOWN)
    assert policy.propose(replace(KNOWN, acceptance=0.95)) > usual > policy.propose(replace(KNOWN, acceptance=0.4))
    assert policy.propose(replace(KNOWN, wait=0.5)) > usual
    assert policy.propose(replace(KNOWN, draft_step=0.04)) < usual


@pytest.mark.parametrize("missing", [{"acceptance": None}, {"draft_step": 0.0}, {"wait": 0.0}, {"tpot": 0.0}])
def test_what_is_not_known_leaves_the_first_window(missing: dict[str, float | None]) -> None:
    assert Predicted(first=5).propose(replace(KNOWN, **missing)) == 5.0


def test_it_leaves_fused_mode_to_others() -> None:
    assert Predicted().propose(replace(KNOWN, acceptance=0.0)) == 2.0


def test_it_is_a_window_policy_as_the_others() -> None:
    policies: list[WindowPolicy] = [Predicted(), Static()]
    assert [policy.name for policy in policies] == ["predicted", "static"]
    assert policies[0].first == 4


@pytest.mark.parametrize("bounds", [(0, 4, 12), (5, 4, 12), (2, 4, 3)])
def test_bounds_that_exclude_each_other_are_refused(bounds: tuple[int, int, int]) -> None:
    shortest, first, longest = bounds
    with pytest.raises(ConfigError):
        Predicted(first=first, shortest=shortest, longest=longest)
