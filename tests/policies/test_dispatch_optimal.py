"""The bound: within the budget, and nobody does better on the plan's own samples."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings

from streamco.errors import ConfigError
from streamco.policies.dispatch import Side
from streamco.policies.dispatch_device_constrained import DeviceConstrained, ProportionalWait
from streamco.policies.dispatch_optimal import Optimal
from streamco.policies.dispatch_server_constrained import ServerConstrained
from streamco.policies.dispatch_stochastic import Stochastic
from streamco.profiles import DeviceSpeed, LengthDistribution, TTFTDistribution
from tests.policies.worlds import PIXEL, World, budgets, devices, expected, lognormal_world, prompts, times
from tests.support.examples import examples

SIDES: list[Side] = ["device", "server"]


@settings(max_examples=examples(13, thorough=40))
@given(times, prompts, devices, budgets)
def test_planned_figures_are_those_of_the_plans_own_curves(
    server_times: list[float], lengths: list[int], device: DeviceSpeed, budget: float
) -> None:
    world = World(TTFTDistribution.from_samples(server_times), LengthDistribution.from_samples(lengths), device)
    for side in SIDES:
        policy = Optimal.plan(*world, budget, constraint=side)
        mean, share = expected(policy, world, side)
        assert share <= budget + 1e-9
        if budget > 0:
            assert mean == pytest.approx(policy.planned_ttft, abs=1e-6)
            assert share == pytest.approx(policy.planned_share, abs=1e-6)


@settings(max_examples=examples(13, thorough=40))
@given(times, prompts, devices, budgets)
def test_no_rule_does_better_for_the_same_budget(server_times: list[float], lengths: list[int], device: DeviceSpeed, budget: float) -> None:
    world = World(TTFTDistribution.from_samples(server_times), LengthDistribution.from_samples(lengths), device)
    bound = expected(Optimal.plan(*world, budget, constraint="device"), world, "device")[0]
    rules = DeviceConstrained.plan(world.ttft, world.lengths, budget), ProportionalWait.plan(world.ttft, world.lengths, budget)
    for rule in (*rules, Stochastic("device", budget)):
        assert bound <= expected(rule, world, "device")[0] + 1e-6
    bound = expected(Optimal.plan(*world, budget, constraint="server"), world, "server")[0]
    for other in (ServerConstrained.plan(world.lengths, budget), Stochastic("server", budget)):
        assert bound <= expected(other, world, "server")[0] + 1e-6


def test_no_choice_of_waits_does_better_by_brute_force() -> None:
    """Every combination of waits of a small world, with and without dice between two of them, is no better."""
    world = World(
        TTFTDistribution.from_samples([0.2, 0.6, 1.4]), LengthDistribution([4, 10, 25], [3, 2, 1]), DeviceSpeed(seconds_per_token=0.04)
    )
    candidates = [0.0, 0.2, 0.6, 1.4]
    points = []
    for waits in product(candidates, repeat=3):
        policy = Optimal("device", (4, 10, 25), waits, waits, 0.0, 0.0, 0.0)
        points.append(expected(policy, world, "device"))
    for budget in np.linspace(0.02, 0.98, 13):
        best = min(
            mean + (other_mean - mean) * (budget - share) / (other_share - share)
            for (mean, share), (other_mean, other_share) in product(points, repeat=2)
            if share <= budget < other_share
        )
        best = min([best] + [mean for mean, share in points if share <= budget])
        planned = Optimal.plan(*world, float(budget), constraint="device").planned_ttft
        assert planned == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("budget", [0.05, 0.3, 0.7, 0.95])
def test_the_budget_is_spent_to_the_end_where_it_helps(side: Side, budget: float) -> None:
    world = lognormal_world(11, device=DeviceSpeed(seconds_per_token=0.03, jitter=(0.7, 1.0, 1.6)))
    assert Optimal.plan(*world, budget, constraint=side).planned_share == pytest.approx(budget, abs=1e-6)


@pytest.mark.parametrize("side", SIDES)
def test_more_budget_is_never_slower(side: Side) -> None:
    world = lognormal_world(12)
    means = [Optimal.plan(*world, budget, constraint=side).planned_ttft for budget in np.linspace(0.01, 1.0, 12)]
    assert means == sorted(means, reverse=True)


def test_a_steady_device_has_the_server_at_once_or_never() -> None:
    policy = Optimal.plan(*lognormal_world(13), 0.4, constraint="server")
    assert {*policy.waits, *policy.costlier_waits} == {0.0, None}


def test_an_unsteady_device_is_worth_waiting_for() -> None:
    """A device that is usually quick and sometimes very slow: the server starts once it has shown to be slow."""
    device = DeviceSpeed(seconds_per_token=0.01, jitter=(1.0, 1.0, 1.0, 30.0))
    world = World(TTFTDistribution.from_samples([0.5, 0.6]), LengthDistribution([20], [1]), device)
    policy = Optimal.plan(*world, 0.25, constraint="server")
    assert list(policy.waits) == [pytest.approx(0.2)]
    assert policy.planned_share == pytest.approx(0.25)


@pytest.mark.parametrize("side", SIDES)
def test_weighing_the_tail_shortens_it_at_the_means_expense(side: Side) -> None:
    world = lognormal_world(14)
    plain = Optimal.plan(*world, 0.05, constraint=side)
    weighed = Optimal.plan(*world, 0.05, constraint=side, tail_weight=1.0)
    assert weighed.planned_share <= 0.05 + 1e-9
    assert weighed.planned_ttft >= plain.planned_ttft - 1e-9
    assert _slowest(weighed, world) <= _slowest(plain, world) + 1e-9
    if side == "device":
        assert weighed.planned_ttft + _slowest(weighed, world) < plain.planned_ttft + _slowest(plain, world) - 0.05


def _slowest(policy: Optimal, world: World) -> float:
    """Mean of the slowest hundredth, with a steady device."""
    cases: list[tuple[float, float]] = []
    for length, share in zip(world.lengths.lengths.tolist(), world.lengths.probabilities.tolist(), strict=True):
        for probability, decision in policy.outcomes(length):
            for time in world.ttft.times.tolist():
                on_device = float("inf") if decision.device_wait is None else decision.device_wait + world.device.ttft(length)
                on_server = float("inf") if decision.server_wait is None else decision.server_wait + time
                cases.append((min(on_device, on_server), share * probability / world.ttft.times.size))
    cases.sort(reverse=True)
    left = weighed = 0.0
    for value, weight in cases:
        taken = min(weight, 0.01 - left)
        weighed, left = weighed + taken * value, left + taken
    return weighed / left


def test_a_server_that_may_never_answer_is_backed_up_first() -> None:
    ttft = TTFTDistribution([0.3, 0.5], [0.4, 0.2])  # a fifth of the requests is never answered
    policy = Optimal.plan(ttft, LengthDistribution([10, 30], [1, 1]), PIXEL, 0.2, constraint="device")
    assert policy.waits == (0.5, 0.5)
    assert policy.planned_ttft < 2.0
    short = Optimal.plan(ttft, LengthDistribution([10, 30], [1, 1]), PIXEL, 0.05, constraint="device")
    assert None in short.waits  # not even the backup can be paid for everybody
    assert short.planned_share == pytest.approx(0.05)


@pytest.mark.parametrize("side", SIDES)
def test_no_budget_never_starts_the_constrained_side(side: Side) -> None:
    policy = Optimal.plan(*lognormal_world(15), 0.0, constraint=side)
    assert all(policy.decide(length, Random(0)).wait(side) is None for length in (1, 20, 4000))


@pytest.mark.parametrize("side", SIDES)
def test_a_whole_budget_is_both_at_once(side: Side) -> None:
    world = lognormal_world(16)
    policy = Optimal.plan(*world, 1.0, constraint=side)
    both = expected(Stochastic(side, 1.0), world, side)[0]
    assert policy.planned_ttft == pytest.approx(both)


@pytest.mark.parametrize("side", SIDES)
def test_many_steps_and_lengths_are_thinned_out_without_harm(side: Side) -> None:
    dice = np.random.default_rng(17)
    ttft = TTFTDistribution.from_samples(dice.lognormal(-0.7, 0.7, 20_000))
    lengths = LengthDistribution.from_samples(dice.integers(1, 2000, 20_000))
    fine = Optimal.plan(ttft, lengths, PIXEL, 0.3, constraint=side)
    coarse = Optimal.plan(ttft, lengths, PIXEL, 0.3, constraint=side, candidates=32, groups=32)
    assert len(coarse.limits) == 32
    assert coarse.planned_ttft == pytest.approx(fine.planned_ttft, rel=0.05)
    assert coarse.decide(10**9, Random(0)).policy == "optimal"


def test_dice_fall_as_often_as_planned_and_only_where_they_matter() -> None:
    policy = Optimal("device", (10, 20), (1.0, 0.5), (0.2, 0.5), 0.25, 0.0, 0.0)
    rng = Random(18)
    waits = [policy.decide(10, rng).device_wait for _ in range(4000)]
    assert waits.count(0.2) / 4000 == pytest.approx(0.25, abs=0.03)
    before = rng.getstate()
    assert policy.decide(15, rng).device_wait == 0.5
    assert rng.getstate() == before
    assert [probability for probability, _ in policy.outcomes(10)] == [0.75, 0.25]
    assert len(policy.outcomes(20)) == 1


def test_reasons_say_what_happens() -> None:
    device = Optimal("device", (10, 20), (0.25, None), (0.25, None), 0.0, 0.0, 0.0)
    assert [device.decide(length, Random(0)).reason for length in (10, 20)] == ["server first, device after 0.250 s", "server first"]
    server = Optimal("server", (10, 20), (0.25, None), (0.25, None), 0.0, 0.0, 0.0)
    assert [server.decide(length, Random(0)).reason for length in (10, 20)] == ["device first, server after 0.250 s", "device alone"]
    assert server.decide(10, Random(0)).device_wait == 0.0
    assert device.decide(10, Random(0)).server_wait == 0.0


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="budget: expected a share"):
        Optimal.plan(*lognormal_world(1), 1.2, constraint="device")
    with pytest.raises(ConfigError, match="tail weight: expected >= 0, got -1"):
        Optimal.plan(*lognormal_world(1), 0.2, constraint="device", tail_weight=-1)
