"""Samples in, plans out: what a plan rests on, when it is made again, and that it comes near the truth."""

from __future__ import annotations

import math
from random import Random
from typing import get_args

import msgspec
import numpy as np
import pytest

from streamco.core.race.learner import CallersPolicy, DeviceTTFT, Learner, Plan, Policy, PolicyName, PromptLength, Sample, ServerTTFT
from streamco.errors import ConfigError, UsageError
from streamco.policies.budget_control import BudgetSteering, steer
from streamco.policies.cost import RATE_DEVICE_CONSTRAINED
from streamco.policies.dispatch import BothAtOnce, Side
from streamco.policies.dispatch_device_constrained import DeviceConstrained
from streamco.policies.dispatch_optimal import Optimal
from streamco.policies.dispatch_server_constrained import ServerConstrained
from streamco.profiles import DeviceSpeed, LengthDistribution, ModelShape, Prices, Profile
from tests.policies.worlds import PIXEL, World, expected, lognormal_world

SHAPE = ModelShape(layers=24, width=1024, heads=16, ffn_width=4096, vocabulary=250_880)
CHEAP = Prices(prompt=0.15e-6, completion=0.60e-6)
WORLD = lognormal_world(21, samples=2000)
PRIOR = Profile(server_ttft=WORLD.ttft, device=PIXEL, lengths=WORLD.lengths)


def feed(learner: Learner, count: int, seed: int = 1) -> None:
    """So many requests whose times were all seen in full."""
    draws = np.random.default_rng(seed)
    for length in np.maximum(1, draws.lognormal(2.8, 0.7, count)).astype(int).tolist():
        samples: list[Sample] = [PromptLength(length), ServerTTFT(draws.lognormal(-0.7, 0.7)), DeviceTTFT(length, PIXEL.ttft(length))]
        for sample in samples:
            learner.observe(sample)


def live(learner: Learner, world: World, count: int, seed: int, budget: float) -> BudgetSteering:
    """Requests as a client would run them: plan, decide, steer, race, learn from what was seen."""
    rng, draws, steering = Random(seed), np.random.default_rng(seed), BudgetSteering(budget)
    lengths = draws.choice(world.lengths.lengths, count, p=world.lengths.probabilities).tolist()
    for length, server_time in zip(lengths, draws.choice(world.ttft.times, count).tolist(), strict=True):
        plan = learner.plan
        decision = plan.decide(length, rng)
        reservation = steering.reserve(length, wanted=decision.wait(plan.constrained) is not None)
        decision = steer(decision, plan.constrained, is_allowed=reservation.is_allowed)
        device_start = math.inf if decision.device_wait is None else decision.device_wait
        server_start = math.inf if decision.server_wait is None else decision.server_wait
        device_end, server_end = device_start + world.device.ttft(length), server_start + server_time
        first = min(device_end, server_end)
        learner.observe(PromptLength(length))
        if server_start < first:
            is_censored = device_end < server_end and not decision.explore
            learner.observe(ServerTTFT((first if is_censored else server_end) - server_start, is_censored))
        if device_start < first and device_end <= first:
            learner.observe(DeviceTTFT(length, device_end - device_start))
        started = server_start < first if plan.constrained == "server" else device_start < first
        steering.settle(reservation, started=started)
    return steering


# What a plan rests on


def test_knowing_nothing_both_sides_start_and_often_run_to_their_first_token() -> None:
    plan = Learner(0.3).plan
    assert plan.policy == BothAtOnce()
    assert plan.explore == 0.25
    assert plan.basis.startswith("too little known yet")
    assert plan.constrained == "server"
    assert plan.budget == 0.3


@pytest.mark.parametrize(
    ("policy", "side", "needed"),
    [
        ("server-constrained", None, {"prompts"}),
        ("device-constrained", None, {"prompts", "server"}),
        ("proportional-wait", None, {"prompts", "server"}),
        ("optimal", "server", {"prompts", "server", "device"}),
        ("optimal", "device", {"prompts", "server", "device"}),
        ("stochastic", "device", set()),
        ("device-only", None, set()),
        ("server-only", None, set()),
        ("both", None, set()),
    ],
)
def test_a_policy_is_planned_once_what_it_needs_is_known(policy: str, side: Side | None, needed: set[str]) -> None:
    kinds: dict[str, list[Sample]] = {
        "prompts": [PromptLength(tokens) for tokens in range(1, 21)],
        "server": [ServerTTFT(0.1 * step) for step in range(1, 21)],
        "device": [DeviceTTFT(10, 0.3)],
    }
    for missing in needed:
        learner = Learner(0.3, policy=policy, constrained=side)
        for kind in needed - {missing}:
            for sample in kinds[kind]:
                learner.observe(sample)
        assert learner.replan().policy == BothAtOnce()
    learner = Learner(0.3, policy=policy, constrained=side)
    for kind in needed:
        for sample in kinds[kind]:
            learner.observe(sample)
    assert learner.replan().policy.name == policy
    assert learner.plan.explore == 0.05


def test_twenty_cut_off_samples_are_not_knowledge() -> None:
    learner = Learner(0.3, policy="device-constrained")
    for tokens in range(1, 31):
        learner.observe(PromptLength(tokens))
        learner.observe(ServerTTFT(0.5, is_censored=True))
    assert learner.replan().policy == BothAtOnce()
    for _ in range(5):
        learner.observe(ServerTTFT(0.4))
    assert isinstance(learner.replan().policy, DeviceConstrained)


@pytest.mark.parametrize("policy", ["device-constrained", "server-constrained", "proportional-wait", "optimal"])
def test_a_prior_is_planned_from_at_once(policy: str) -> None:
    plan = Learner(0.3, policy=policy, prior=PRIOR).plan
    assert plan.policy.name == policy
    assert plan.explore == 0.05


def test_a_plan_says_what_it_rests_on() -> None:
    learner = Learner(0.3)
    feed(learner, 30)
    assert learner.replan().basis == "30 server times (30 in full), 30 device times, 30 prompts"


def test_bursts_teach_nothing() -> None:
    learner = Learner(0.3, policy="device-constrained")
    feed(learner, 40)
    before = learner.replan()
    for _ in range(200):
        learner.observe(ServerTTFT(30.0, is_burst=True))
    after = learner.replan()
    assert after.policy == before.policy
    assert after.basis == before.basis


@pytest.mark.parametrize("seconds", [-0.1, math.nan, math.inf])
def test_impossible_times_are_refused(seconds: float) -> None:
    learner = Learner(0.3)
    for sample in (ServerTTFT(seconds), DeviceTTFT(5, seconds)):
        with pytest.raises(UsageError, match="sample: expected finite seconds >= 0"):
            learner.observe(sample)


# What the server tells of itself


def told_learner(*told: float) -> Learner:
    learner = Learner(0.3, policy="device-constrained")
    learner.tell_server_ttft(told)
    return learner


def test_times_that_the_server_told_are_enough_for_a_plan_once_the_prompts_are_known() -> None:
    learner = told_learner(*[0.5] * 10)
    assert learner.has_samples, "a plan made from them takes numpy"
    assert learner.replan().policy == BothAtOnce()
    for _ in range(20):
        learner.observe(PromptLength(20))
    plan = learner.replan()
    assert isinstance(plan.policy, DeviceConstrained)
    assert plan.basis.endswith(", 10 server times told by it")


def test_measured_times_displace_what_the_server_told() -> None:
    honest, lied_to = (Learner(0.3, policy="device-constrained") for _ in range(2))
    lied_to.tell_server_ttft([60.0] * 10)
    for learner in (honest, lied_to):
        feed(learner, 20)
    assert lied_to.replan().policy == honest.replan().policy
    assert "told" not in lied_to.replan().basis


def test_there_is_a_plan_whatever_was_told_and_however_much_was_measured() -> None:
    for told in ([0.001] * 10, [60.0] * 10, [0.2], []):
        learner = told_learner(*told)
        for count in range(25):
            assert learner.replan().decide(20, Random(count)).device_wait is not None
            feed(learner, 1, seed=count)
        assert isinstance(learner.replan().policy, DeviceConstrained)


def test_a_profile_has_nothing_of_what_the_server_told() -> None:
    learner = told_learner(0.1, 0.2)
    assert learner.profile().server_ttft is None
    learner.observe(ServerTTFT(3.0))
    learned = learner.profile().server_ttft
    assert learned is not None
    assert learned.times.tolist() == [3.0]


@pytest.mark.parametrize("seconds", [-0.1, math.nan, math.inf])
def test_impossible_times_that_were_told_are_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="sample: expected finite seconds >= 0"):
        told_learner(0.1, seconds)


# Which side is spared


def test_auto_follows_algorithm_1() -> None:
    costly_device = Learner(0.3, prior=msgspec.structs.replace(PRIOR, prices=CHEAP, shape=SHAPE), exchange_rate=RATE_DEVICE_CONSTRAINED)
    assert costly_device.plan.constrained == "device"
    assert isinstance(costly_device.plan.policy, Optimal)
    cheap_device = Learner(0.3, prior=msgspec.structs.replace(PRIOR, prices=CHEAP, shape=SHAPE))
    assert cheap_device.plan.constrained == "server"
    assert isinstance(cheap_device.plan.policy, ServerConstrained)


def test_costs_may_become_known_later() -> None:
    learner = Learner(0.3, prior=PRIOR, exchange_rate=RATE_DEVICE_CONSTRAINED)
    spared = [learner.plan.constrained]
    for prices, shape in ((CHEAP, SHAPE), (None, None)):
        learner.set_costs(prices, shape)
        spared.append(learner.plan.constrained)
    assert spared == ["server", "device", "device"]
    assert learner.profile().prices == CHEAP


def test_a_setting_or_a_policys_name_decides_before_costs() -> None:
    assert Learner(0.3, prior=PRIOR, constrained="device").plan.policy.name == "optimal"
    assert Learner(0.3, prior=PRIOR, constrained="server").plan.policy.name == "server-constrained"
    assert Learner(0.3, policy="device-constrained").constrained == "device"
    assert Learner(0.3, policy="proportional-wait").constrained == "device"
    assert Learner(0.3, policy="server-constrained").constrained == "server"
    assert Learner(0.3, policy="stochastic", constrained="device").constrained == "device"


@pytest.mark.parametrize("side", ["device", "server"])
def test_disco_is_algorithm_2_or_3(side: Side) -> None:
    assert Learner(0.3, policy="disco", prior=PRIOR, constrained=side).plan.policy.name == f"{side}-constrained"


@pytest.mark.parametrize("policy", ["device-constrained", "proportional-wait"])
def test_the_papers_rules_are_planned_if_they_are_asked_for_by_name(policy: str) -> None:
    assert Learner(0.3, policy=policy, prior=PRIOR, constrained="device").plan.policy.name == policy


def test_auto_starts_both_until_the_devices_speed_is_known() -> None:
    learner = Learner(0.3, constrained="device")
    for _ in range(30):
        learner.observe(PromptLength(20))
        learner.observe(ServerTTFT(0.4))
    plan = learner.replan()
    assert (plan.policy, plan.explore) == (BothAtOnce(), 0.25), "a device that loses runs to its first token, and its speed is learned"
    learner.observe(DeviceTTFT(20, 0.3))
    assert learner.replan().policy.name == "optimal"


# When plans are made


def test_a_plan_stays_until_enough_was_seen() -> None:
    learner = Learner(0.3, prior=PRIOR, replan_every=50)
    feed(learner, 200)
    plan = learner.plan
    for _ in range(49):
        learner.observe(PromptLength(10))
    assert learner.plan is plan
    learner.observe(PromptLength(10))
    assert learner.plan is not plan
    assert learner.plan.revision == plan.revision + 1


def test_the_first_plans_come_sooner() -> None:
    learner = Learner(0.3)
    revisions = []
    for _ in range(300):
        learner.observe(PromptLength(10))
        revisions.append(learner.plan.revision)
    assert revisions[:6] == [1, 1, 1, 1, 1, 2]
    assert 5 < revisions[99] <= 20
    assert revisions[299] < 30


def test_old_behaviour_is_forgotten() -> None:
    learner = Learner(0.1, policy="device-constrained", window=200)
    for seconds in (5.0, 0.2):
        for index in range(400):
            learner.observe(PromptLength(1 + index % 30))
            learner.observe(ServerTTFT(seconds * (1 + index % 10 / 10)))
    plan = learner.replan()
    waits = [plan.decide(length, Random(0)).device_wait for length in (1, 100)]
    assert waits[1] is not None
    assert waits[1] < 1.0


# Exploration


def test_a_hedge_is_explored_as_often_as_asked() -> None:
    plan = Plan(policy=BothAtOnce(), constrained="server", budget=0.3, explore=0.2)
    rng = Random(4)
    decisions = [plan.decide(10, rng) for _ in range(5000)]
    assert sum(decision.explore for decision in decisions) / 5000 == pytest.approx(0.2, abs=0.02)
    assert {(decision.device_wait, decision.server_wait, decision.policy) for decision in decisions} == {(0.0, 0.0, "both")}


def test_one_side_alone_is_never_explored_and_none_may_be_asked_for() -> None:
    alone = Learner(0.3, policy="server-only", explore=1.0).plan
    assert not alone.decide(10, Random(0)).explore
    learning = Learner(0.3, explore=0.0).plan
    assert not any(learning.decide(10, Random(seed)).explore for seed in range(100))


def test_exploring_shows_the_tail_that_racing_hides() -> None:
    """A device that answers every prompt in 0.4 s hides what the server does later than that."""
    world = World(WORLD.ttft, LengthDistribution([10], [1]), DeviceSpeed(seconds_per_token=0.04))
    tails = {}
    for explore in (0.0, 0.2):
        learner = Learner(1.0, policy="both", explore=explore)
        live(learner, world, 3000, 5, 1.0)
        learned = learner.profile().server_ttft
        assert learned is not None
        tails[explore] = abs(learned.quantile(0.9) - world.ttft.quantile(0.9))
    assert tails[0.2] < 0.5 * tails[0.0]
    assert tails[0.2] < 0.25


# The whole loop


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(("policy", "side"), [("device-constrained", "device"), ("server-constrained", "server"), ("optimal", "device")])
def test_what_is_learned_from_races_comes_near_the_plan_of_one_who_knows(policy: str, side: Side) -> None:
    world = lognormal_world(22, samples=500)
    learner = Learner(0.4, policy=policy, constrained=side)
    live(learner, world, 2500, 6, 0.4)
    known = Learner(0.4, policy=policy, constrained=side, prior=Profile(server_ttft=world.ttft, device=world.device, lengths=world.lengths))
    learned, planned = learner.replan().policy, known.plan.policy
    assert not isinstance(learned, CallersPolicy)
    assert not isinstance(planned, CallersPolicy)
    learned_mean, learned_share = expected(learned, world, side)
    known_mean, known_share = expected(planned, world, side)
    assert learned_mean == pytest.approx(known_mean, rel=0.05)
    assert learned_share == pytest.approx(known_share, abs=0.05)


@pytest.mark.parametrize("policy", get_args(PolicyName))
def test_every_policy_learns_and_keeps_the_budget(policy: str) -> None:
    learner = Learner(0.3, policy=policy)
    steering = live(learner, lognormal_world(23), 700, 7, 0.3)
    assert learner.plan.policy.name == ("server-constrained" if policy in {"auto", "disco"} else policy)
    assert steering.share <= 0.31


# What is kept


def test_what_was_learned_is_the_next_learners_prior() -> None:
    learner = Learner(0.3, policy="device-constrained", prior=Profile(note="kept"))
    feed(learner, 300)
    profile = Profile.from_json(learner.profile("mine").to_json())
    assert profile.name == "mine"
    assert profile.note == "kept"
    assert profile.device is not None
    assert profile.device.seconds_per_token == pytest.approx(PIXEL.seconds_per_token, rel=0.01)
    again = Learner(0.3, policy="device-constrained", prior=profile).plan.policy
    assert isinstance(again, DeviceConstrained)
    assert isinstance(learner.plan.policy, DeviceConstrained)
    assert again.planned_share == pytest.approx(learner.plan.policy.planned_share, abs=0.02)
    assert again.waits[-1] == pytest.approx(learner.plan.policy.waits[-1], rel=0.2)


def test_knowing_nothing_there_is_nothing_to_keep() -> None:
    profile = Learner(0.3).profile("x")
    assert profile == Profile(name="x")


def test_a_learned_curve_of_thousands_of_steps_is_kept_small() -> None:
    learner = Learner(0.3, window=3000)
    feed(learner, 3000)
    profile = learner.profile()
    assert profile.server_ttft is not None
    assert profile.server_ttft.times.size <= 256
    assert len(profile.to_json()) < 60_000


@pytest.mark.parametrize("policy", get_args(PolicyName))
def test_a_plan_can_be_written_into_a_log_and_read_again(policy: str) -> None:
    plan = Learner(0.3, policy=policy, prior=PRIOR).plan
    again = msgspec.json.decode(msgspec.json.encode(plan), type=Plan)
    assert again == plan
    for length in (1, 17, 60, 4000):
        assert again.decide(length, Random(9)) == plan.decide(length, Random(9))


def test_plans_do_not_change() -> None:
    plan = Learner(0.3).plan
    with pytest.raises(AttributeError):
        plan.budget = 0.5  # type: ignore[misc]


# Settings


def test_every_policy_has_a_name() -> None:
    names = {policy.__struct_config__.tag for policy in get_args(Policy)}
    options = {"auto", "disco", "device-first", "server-first"}  # they choose among those with a plan, or are options of one
    assert names == set(get_args(PolicyName)) - options


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"budget": 1.5}, "budget: expected a share from 0 to 1, got 1.5"),
        ({"tail": -1.0}, "tail: expected a share"),
        ({"explore": 2.0}, "explore: expected a share"),
        ({"policy": "best"}, "policy: expected one of auto, both, .*, got 'best'"),
        ({"constrained": "wallet"}, 'constrained: expected "device", "server" or None, got \'wallet\''),
        ({"policy": "device-constrained", "constrained": "server"}, "expected 'device' for policy 'device-constrained', got 'server'"),
        ({"window": 0}, "window and replan_every >= 1"),
        ({"replan_every": 0}, "window and replan_every >= 1"),
        ({"prior_weight": -1.0}, "prior_weight >= 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Learner(**settings)  # type: ignore[arg-type]
