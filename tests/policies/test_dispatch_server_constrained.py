"""Algorithm 3: the device always, the server for long prompts, the budget met exactly."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given

from streamco.errors import ConfigError
from streamco.policies.dispatch_server_constrained import ServerConstrained
from streamco.profiles import LengthDistribution
from tests.policies.worlds import budgets, expected, lognormal_world, prompts

FOUR = LengthDistribution([10, 20, 30, 40], [1, 1, 1, 1])  # shares of tokens 0.1, 0.2, 0.3, 0.4


@given(prompts, budgets)
def test_exactly_the_budget_is_spent(lengths: list[int], budget: float) -> None:
    seen = LengthDistribution.from_samples(lengths)
    policy = ServerConstrained.plan(seen, budget)
    spent = sum(
        share * probability
        for length, share in zip(seen.lengths.tolist(), seen.token_shares.tolist(), strict=True)
        for probability, decision in policy.outcomes(length)
        if decision.server_wait is not None
    )
    assert spent == pytest.approx(budget, abs=1e-9)
    assert policy.planned_share == budget


@given(prompts, budgets)
def test_the_server_joins_for_long_prompts_and_the_device_always_starts(lengths: list[int], budget: float) -> None:
    policy = ServerConstrained.plan(LengthDistribution.from_samples(lengths), budget)
    chances = []
    for length in range(1, 310):
        outcomes = policy.outcomes(length)
        assert sum(probability for probability, _ in outcomes) == pytest.approx(1)
        assert all(decision.device_wait == 0.0 for _, decision in outcomes)
        chances.append(sum(probability for probability, decision in outcomes if decision.server_wait == 0.0))
    assert chances == sorted(chances)


def test_equation_3_finds_the_threshold() -> None:
    policy = ServerConstrained.plan(FOUR, 0.5)  # 0.4 for the longest, 0.1 of the 0.3 at length 30
    assert policy.threshold == 30
    assert policy.share_at_threshold == pytest.approx(1 / 3)


def test_a_budget_that_falls_between_two_lengths_needs_no_dice() -> None:
    policy = ServerConstrained.plan(FOUR, 0.4)
    decisions = {length: {policy.decide(length, Random(seed)).is_hedged for seed in range(50)} for length in (10, 30, 40, 500)}
    assert decisions == {10: {False}, 30: {False}, 40: {True}, 500: {True}}


def test_dice_fall_as_often_as_planned() -> None:
    policy, rng = ServerConstrained.plan(FOUR, 0.5), Random(8)
    joined = sum(policy.decide(30, rng).is_hedged for _ in range(6000))
    assert joined / 6000 == pytest.approx(1 / 3, abs=0.02)


def test_dice_are_thrown_only_at_the_threshold() -> None:
    policy, rng = ServerConstrained.plan(FOUR, 0.5), Random(8)
    before = rng.getstate()
    policy.decide(29, rng)
    policy.decide(31, rng)
    assert rng.getstate() == before


def test_the_ends_of_the_scale_are_device_alone_and_both() -> None:
    none, all_of_it = ServerConstrained.plan(FOUR, 0.0), ServerConstrained.plan(FOUR, 1.0)
    for length in (1, 10, 40, 100_000):
        assert none.decide(length, Random(0)).server_wait is None
    for length in (10, 20, 40, 100_000):
        assert all_of_it.decide(length, Random(0)).server_wait == 0.0


def test_reasons_say_what_happens() -> None:
    policy = ServerConstrained.plan(FOUR, 0.4)
    assert policy.decide(10, Random(0)).reason == "short prompt, device alone"
    assert policy.decide(40, Random(0)).reason == "long prompt, both at once"
    assert policy.decide(40, Random(0)).policy == policy.name == "server-constrained"


def test_sparing_the_server_for_long_prompts_beats_sparing_it_at_random() -> None:
    world = lognormal_world(9)
    for budget in (0.1, 0.4, 0.8):
        flipped = ServerConstrained(10**9, 0.0, 0.0)
        mean, share = expected(ServerConstrained.plan(world.lengths, budget), world, "server")
        alone, _ = expected(flipped, world, "server")
        both, _ = expected(ServerConstrained(0, 1.0, 1.0), world, "server")
        assert share == pytest.approx(budget)
        assert mean < (1 - budget) * alone + budget * both  # what dice would give


def test_a_budget_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"budget: expected a share from 0 to 1, got 1\.5"):
        ServerConstrained.plan(FOUR, 1.5)
