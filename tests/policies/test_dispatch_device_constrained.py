"""Algorithm 2 and equations 1-2: the server at once, the device after a wait, the budget never overspent."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.policies.dispatch_device_constrained import DeviceConstrained, ProportionalWait
from streamco.profiles import DeviceSpeed, LengthDistribution, TTFTDistribution
from tests.policies.worlds import PIXEL, World, budgets, devices, expected, lognormal_world, prompts, times

TENTHS = TTFTDistribution.from_samples([0.1 * step for step in range(1, 11)])  # 0.1 ... 1.0
FOUR = LengthDistribution([10, 20, 30, 40], [1, 1, 1, 1])  # shares of tokens 0.1, 0.2, 0.3, 0.4


@given(times, prompts, budgets, st.floats(0.0, 1.0))
def test_the_planned_share_is_kept_on_the_plans_own_curves(
    server_times: list[float], lengths: list[int], budget: float, tail: float
) -> None:
    world = World(TTFTDistribution.from_samples(server_times), LengthDistribution.from_samples(lengths), PIXEL)
    policy = DeviceConstrained.plan(world.ttft, world.lengths, budget, tail)
    _, share = expected(policy, world, "device")
    assert share == pytest.approx(policy.planned_share, abs=1e-9)
    assert share <= budget + 1e-9


@given(times, prompts, budgets, st.floats(0.0, 1.0))
def test_longer_prompts_never_wait_less(server_times: list[float], lengths: list[int], budget: float, tail: float) -> None:
    ttft, seen = TTFTDistribution.from_samples(server_times), LengthDistribution.from_samples(lengths)
    policy = DeviceConstrained.plan(ttft, seen, budget, tail)
    waits = [policy.decide(length, Random(0)).device_wait for length in range(1, 310)]
    finite = [math.inf if wait is None else wait for wait in waits]
    assert finite == sorted(finite)
    assert all(policy.decide(length, Random(0)).server_wait == 0.0 for length in lengths)


def test_a_budget_within_the_tail_is_all_spent_on_the_tail() -> None:
    policy = DeviceConstrained.plan(TENTHS, FOUR, 0.2, tail=0.3)
    assert policy.limits == ()
    assert list(policy.waits) == [pytest.approx(0.8)]  # F^-1(1 - 0.2)
    assert policy.planned_share == pytest.approx(0.2)


def test_what_the_tail_leaves_starts_the_shortest_prompts_at_once() -> None:
    # tail 0.2 holds the device back until 0.8 s; starting at once costs 0.8 p(l) l / E[l] more: 0.08 + 0.16 of the 0.3 left
    policy = DeviceConstrained.plan(TENTHS, FOUR, 0.5, tail=0.2)
    assert policy.decide(10, Random(0)).device_wait == 0.0
    assert policy.decide(20, Random(0)).device_wait == 0.0
    # 0.06 is left for length 30: (S(w) - 0.2) 0.3 = 0.06 gives S(w) = 0.4, so w = 0.6
    assert policy.decide(30, Random(0)).device_wait == pytest.approx(0.6)
    assert policy.decide(40, Random(0)).device_wait == pytest.approx(0.8)
    assert policy.planned_share == pytest.approx(0.5)


def test_the_printed_line_18_would_spend_something_else() -> None:
    # F(w) * length_cost = what is left gives F(w) = 0.06 / 0.24 = 0.25, so w = 0.3 and a start with probability 0.7: 0.09 too much
    policy = DeviceConstrained.plan(TENTHS, FOUR, 0.5, tail=0.2)
    printed = DeviceConstrained(policy.limits, (0.0, 0.3001, policy.waits[-1]), 0.0)
    world = World(TENTHS, FOUR, PIXEL)
    assert expected(policy, world, "device")[1] == pytest.approx(0.5)
    assert expected(printed, world, "device")[1] == pytest.approx(0.59)


def test_prompts_between_the_planned_lengths_take_the_wait_of_the_next_longer() -> None:
    policy = DeviceConstrained.plan(TENTHS, FOUR, 0.5, tail=0.2)
    waits = {length: policy.decide(length, Random(0)).device_wait for length in (1, 20, 21, 30, 31, 1000)}
    assert waits == {1: 0.0, 20: 0.0, 21: pytest.approx(0.6), 30: pytest.approx(0.6), 31: pytest.approx(0.8), 1000: pytest.approx(0.8)}


def test_a_whole_budget_starts_everything_at_once() -> None:
    policy = DeviceConstrained.plan(TENTHS, FOUR, 1.0)
    assert policy.waits == (0.0,)
    assert policy.planned_share == 1.0


def test_no_budget_never_starts_the_device() -> None:
    policy = DeviceConstrained.plan(TENTHS, FOUR, 0.0)
    assert policy.decide(5, Random(0)).device_wait is None
    assert "no budget" in policy.decide(5, Random(0)).reason


def test_a_server_that_often_never_answers_gets_no_device_it_can_not_pay() -> None:
    # 30 % are never answered: a wait that spends only 10 % does not exist
    policy = DeviceConstrained.plan(TTFTDistribution([0.5, 1.0], [0.5, 0.3]), FOUR, 0.1)
    assert policy.decide(10, Random(0)).device_wait is None
    assert policy.planned_share == 0.0


def test_the_tail_is_cut_at_the_wait() -> None:
    world = lognormal_world(4)
    policy = DeviceConstrained.plan(world.ttft, world.lengths, 0.3)
    latest = policy.waits[-1]
    assert latest is not None
    assert world.ttft.survival_at(latest) <= 0.05 < world.ttft.survival_at(latest - 1e-6)


def test_reasons_say_what_happens() -> None:
    policy = DeviceConstrained.plan(TENTHS, FOUR, 0.5, tail=0.2)
    assert policy.decide(10, Random(0)).reason == "short prompt, both at once"
    assert policy.decide(40, Random(0)).reason == "server first, device after 0.800 s"
    assert policy.decide(10, Random(0)).policy == policy.name == "device-constrained"
    assert policy.outcomes(40) == ((1.0, policy.decide(40, Random(0))),)


@pytest.mark.parametrize(
    ("budget", "tail", "name"), [(-0.1, 0.05, "budget"), (1.1, 0.05, "budget"), (math.nan, 0.05, "budget"), (0.5, 2.0, "tail")]
)
def test_shares_outside_0_to_1_are_refused(budget: float, tail: float, name: str) -> None:
    for plan in (DeviceConstrained.plan, ProportionalWait.plan):
        with pytest.raises(ConfigError, match=f"{name}: expected a share from 0 to 1, got"):
            plan(TENTHS, FOUR, budget, tail)


# Equations 1 and 2


@given(times, prompts, budgets, st.integers(0, 100))
def test_proportional_waits_keep_the_budget_too(server_times: list[float], lengths: list[int], budget: float, threshold: int) -> None:
    world = World(TTFTDistribution.from_samples(server_times), LengthDistribution.from_samples(lengths), PIXEL)
    policy = ProportionalWait.plan(world.ttft, world.lengths, budget, threshold=threshold)
    _, share = expected(policy, world, "device")
    assert share == pytest.approx(policy.planned_share, abs=1e-9)
    at_once = world.lengths.token_shares[world.lengths.lengths <= threshold].sum()
    assert share <= max(budget, at_once + budget) + 1e-9


def test_the_wait_grows_with_the_prompt_up_to_the_tails() -> None:
    world = lognormal_world(5)
    policy = ProportionalWait.plan(world.ttft, world.lengths, 0.3, threshold=10)
    waits = [policy.decide(length, Random(0)).device_wait for length in (5, 10, 11, 22, 100_000)]
    assert waits[:2] == [0.0, 0.0]
    assert waits[2] == pytest.approx(11 * policy.seconds_per_token)
    assert waits[3] == pytest.approx(22 * policy.seconds_per_token)
    assert waits[4] == policy.latest == world.ttft.quantile(0.95)
    assert policy.decide(11, Random(0)).policy == policy.name == "proportional-wait"


@pytest.mark.parametrize("device", [None, PIXEL])
@pytest.mark.parametrize("budget", [0.1, 0.3, 0.6, 0.9])
def test_the_whole_budget_is_spent(budget: float, device: DeviceSpeed | None) -> None:
    world = lognormal_world(6)
    policy = ProportionalWait.plan(world.ttft, world.lengths, budget, device=device)
    assert budget - 0.03 <= policy.planned_share <= budget + 1e-9


@pytest.mark.parametrize("budget", [0.05, 0.1, 0.3, 0.6, 0.9])
def test_the_threshold_is_the_one_with_the_soonest_first_tokens(budget: float) -> None:
    world = lognormal_world(6)
    policy = ProportionalWait.plan(world.ttft, world.lengths, budget, device=PIXEL)
    others = [ProportionalWait.plan(world.ttft, world.lengths, budget, threshold=tokens) for tokens in (0, 5, 10, 15, 20, 30, 50, 80)]
    means = [expected(other, world, "device")[0] for other in others if other.planned_share <= budget + 1e-9]
    assert expected(policy, world, "device")[0] <= min(means) + 1e-3


def test_more_lengths_than_are_told_apart_keep_the_budget_too() -> None:
    draws = np.random.default_rng(3)
    lengths = LengthDistribution.from_samples(np.maximum(1, draws.lognormal(5.0, 1.0, 3000)).astype(np.int64))
    ttft = TTFTDistribution.from_samples(draws.lognormal(-0.7, 0.7, 900))
    for budget in (0.06, 0.2, 0.5, 0.9):
        for device in (None, PIXEL):
            assert ProportionalWait.plan(ttft, lengths, budget, device=device).planned_share <= budget + 1e-9


def test_without_the_devices_speed_the_threshold_is_the_highest_within_the_budget() -> None:
    world = lognormal_world(6)
    policy = ProportionalWait.plan(world.ttft, world.lengths, 0.4)
    longer = int(world.lengths.lengths[world.lengths.lengths > policy.threshold][3])
    assert policy.threshold > 10
    assert ProportionalWait.plan(world.ttft, world.lengths, 0.4, threshold=longer).planned_share > 0.4


@given(times, prompts, budgets, devices)
def test_a_chosen_threshold_keeps_the_budget(server_times: list[float], lengths: list[int], budget: float, device: DeviceSpeed) -> None:
    world = World(TTFTDistribution.from_samples(server_times), LengthDistribution.from_samples(lengths), device)
    for speed in (None, device):
        policy = ProportionalWait.plan(world.ttft, world.lengths, budget, device=speed)
        assert expected(policy, world, "device")[1] == pytest.approx(policy.planned_share, abs=1e-9)
        assert policy.planned_share <= budget + 1e-9


def test_proportional_waits_without_a_budget_never_end() -> None:
    assert ProportionalWait.plan(TENTHS, FOUR, 0.0).decide(7, Random(0)).device_wait is None
    never = ProportionalWait.plan(TTFTDistribution([0.5, 1.0], [0.5, 0.3]), FOUR, 0.1)
    assert never.decide(7, Random(0)).device_wait is None
