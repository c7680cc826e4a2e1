"""The baselines: the constrained side joins by the roll of dice."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given

from streamco.errors import ConfigError
from streamco.policies.dispatch import Side
from streamco.policies.dispatch_stochastic import Stochastic
from tests.policies.worlds import budgets, expected, lognormal_world


@pytest.mark.parametrize(("constrained", "other"), [("device", "server"), ("server", "device")])
def test_the_other_side_always_runs_and_this_one_as_often_as_planned(constrained: Side, other: Side) -> None:
    policy, rng = Stochastic.plan(constrained, 0.3), Random(2)
    decisions = [policy.decide(17, rng) for _ in range(6000)]
    assert all(decision.wait(other) == 0.0 for decision in decisions)
    joined = [decision for decision in decisions if decision.wait(constrained) is not None]
    assert all(decision.wait(constrained) == 0.0 for decision in joined)
    assert len(joined) / 6000 == pytest.approx(0.3, abs=0.02)


@given(budgets)
def test_outcomes_are_what_the_dice_do(budget: float) -> None:
    policy = Stochastic.plan("server", budget)
    assert [probability for probability, _ in policy.outcomes(5)] == [budget, 1 - budget]
    assert [decision.is_hedged for _, decision in policy.outcomes(5)] == [True, False]
    assert policy.outcomes(5) == policy.outcomes(5000)
    assert policy.planned_share == budget


def test_the_budget_is_spent_where_both_run() -> None:
    world = lognormal_world(3)
    assert expected(Stochastic.plan("server", 0.4), world, "server")[1] == pytest.approx(0.4)
    assert expected(Stochastic.plan("device", 0.4), world, "device")[1] == pytest.approx(0.4)


def test_names_and_reasons() -> None:
    policy = Stochastic.plan("device", 0.0)
    assert policy.decide(3, Random(0)).policy == policy.name == "stochastic"
    assert policy.decide(3, Random(0)).reason == "server alone"
    assert Stochastic.plan("device", 1.0).decide(3, Random(0)).reason == "both at once"


def test_a_budget_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ConfigError, match="budget: expected a share from 0 to 1"):
        Stochastic.plan("device", -0.01)
