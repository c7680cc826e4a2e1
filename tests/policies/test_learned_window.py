"""The window that a network proposes: its arithmetic against a plain one, its verdicts, and the way into fused mode and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamco.client.modes.speculation.mode import Speculate
from streamco.client.modes.speculation.options import SpeculationTuning
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.prior import EstimatesPrior
from streamco.errors import ConfigError
from streamco.policies.learned_window import INPUTS, Adaptive, Layer, WindowNet, WindowWeights, inputs_of, packaged_weights
from streamco.policies.mode_switch import ModeSwitch, RoundConditions
from streamco.policies.window import EndsDraftsEarly, Static, WindowPolicy, WindowState
from streamco.sim.fleet.drafting_device import DraftingDevice
from streamco.sim.single.answer import SpeculationOutcome, simulate_answer
from streamco.sim.single.faulty_verifier import Fault, FaultyLink, VerifyingServer
from streamco.sim.workload.token_models import DeterministicModel

KNOWN = WindowState(previous=4, acceptance=0.75, rtt=0.02, tpot=0.05, draft_step=0.005, wait=0.08, hit_rate=0.4, slowdown=1.5)


def plain(weights: WindowWeights, inputs: Sequence[float]) -> list[float]:
    """The network as the paper draws it, number by number."""

    def through(layer: Layer, given: Sequence[float]) -> list[float]:
        return [sum(map(float.__mul__, row, given)) + bias for row, bias in zip(layer.weights, layer.bias, strict=True)]

    def silu(values: Sequence[float]) -> list[float]:
        return [value / (1.0 + math.exp(-value)) for value in values]

    bounds = zip(inputs, weights.low, weights.high, weights.mean, weights.deviation, strict=True)
    held = silu(through(weights.entry, [(min(high, max(low, value)) - mean) / deviation for value, low, high, mean, deviation in bounds]))
    for inner, outer in weights.blocks:
        held = [before + change for before, change in zip(held, through(outer, silu(through(inner, held))), strict=True)]
    return through(weights.exit, held)


@given(st.tuples(st.floats(0, 1), st.floats(0, 1), *[st.floats(-8, 8)] * 2, st.floats(0, 1), st.floats(-1, 3), st.floats(1, 12)))
def test_it_reckons_as_the_paper_draws_it(inputs: tuple[float, ...]) -> None:
    weights = packaged_weights()
    assert list(WindowNet(weights).evaluate(inputs)) == pytest.approx(plain(weights, inputs), abs=1e-3)


def test_the_same_state_gets_the_same_window_whatever_was_asked_before() -> None:
    policy, rng = Adaptive(), Random(1)
    first = policy.propose(KNOWN)
    for _ in range(50):
        policy.propose(replace(KNOWN, acceptance=rng.random(), wait=rng.random() + 0.01))
    assert policy.propose(KNOWN) == first == Adaptive().propose(KNOWN)


@given(st.floats(0.01, 100.0))
def test_a_world_in_which_everything_takes_longer_has_the_same_window(times: float) -> None:
    slower = replace(KNOWN, rtt=KNOWN.rtt * times, tpot=KNOWN.tpot * times, draft_step=KNOWN.draft_step * times, wait=KNOWN.wait * times)
    assert inputs_of(slower) == pytest.approx(inputs_of(KNOWN))


def test_nothing_goes_in_beyond_what_was_seen_in_training() -> None:
    weights = packaged_weights()
    net = WindowNet(weights)
    assert net.evaluate([-1e9] * len(INPUTS)) == net.evaluate(weights.low)
    assert net.evaluate([1e9] * len(INPUTS)) == net.evaluate(weights.high)


def test_sure_drafts_are_long_doubtful_ones_short_and_hopeless_ones_fused() -> None:
    policy = Adaptive()
    usual = policy.propose(KNOWN)
    assert policy.propose(replace(KNOWN, acceptance=0.95)) > usual > policy.propose(replace(KNOWN, acceptance=0.6)) > 1.0
    assert policy.propose(replace(KNOWN, rtt=0.3, wait=0.36)) <= 1.0, "six steps of the server for a verdict"


def test_where_nobody_can_go_on_alone_it_never_proposes_fused_mode() -> None:
    assert Adaptive(may_fuse=False).propose(replace(KNOWN, rtt=0.3, wait=0.36)) >= 2.0
    options = Speculate(
        window="adaptive",
        is_adaptive=False,
        tuning=SpeculationTuning(prior=EstimatesPrior(acceptance=0.1, wait=1.0, remote_step=0.01)),
    )
    pair = options.estimates(1.0)
    assert pair.propose_window() >= 2
    assert pair.proposal >= 2.0


@pytest.mark.parametrize("missing", [{"acceptance": None}, {"draft_step": 0.0}, {"wait": 0.0}, {"tpot": 0.0}])
def test_what_is_not_known_leaves_the_first_window(missing: dict[str, float | None]) -> None:
    assert Adaptive(5).propose(replace(KNOWN, **missing)) == 5.0


def test_it_is_a_window_policy_as_the_others() -> None:
    policies: list[WindowPolicy] = [Adaptive(), Static()]
    assert [policy.name for policy in policies] == ["adaptive", "static"]
    assert policies[0].first == 4
    assert Adaptive(max_window=5).propose(replace(KNOWN, acceptance=0.95)) <= 5.0


def test_a_draft_ends_as_doubtful_as_a_usual_one_of_its_window_and_goes_twice_as_far_at_most() -> None:
    policy, state = Adaptive(max_window=10), replace(KNOWN, rounds=30.0, calibrated_acceptance=0.8)
    assert isinstance(policy, EndsDraftsEarly)
    assert 0.8**4 < policy.min_acceptance(state, 4.0) < 0.8**3, "the fourth of four usual tokens is the last"
    assert [policy.max_draft_tokens(state, window) for window in (2, 4, 5, 7)] == [4, 8, 10, 10]


def test_before_confidence_has_shown_what_it_is_worth_the_window_is_all_that_counts() -> None:
    policy, state = Adaptive(), replace(KNOWN, rounds=3.0, calibrated_acceptance=0.8)
    assert (policy.max_draft_tokens(state, 5), policy.min_acceptance(state, 5.0)) == (5, 0.0)


@pytest.mark.parametrize(("first", "max_window"), [(1, 12), (6, 5)])
def test_bounds_that_exclude_each_other_are_refused(first: int, max_window: int) -> None:
    with pytest.raises(ConfigError, match="adaptive window: expected 2 <="):
        Adaptive(first, max_window=max_window)


def test_the_file_says_how_it_was_made_and_is_small() -> None:
    text = msgspec.json.encode(packaged_weights())
    assert len(text) < 60_000
    made = {name: msgspec.json.decode(value) for name, value in packaged_weights().made.items()}
    assert {"by", "data", "worlds", "rows", "loss", "seed", "in unseen worlds"} <= made.keys()
    assert sum(made["worlds"]) >= 600


def test_weights_that_fit_nothing_are_refused() -> None:
    weights = packaged_weights()
    with pytest.raises(ConfigError, match="expected the inputs queue_depth"):
        replace(weights, inputs=("rtt",))
    with pytest.raises(ConfigError, match="expected mean, deviation"):
        replace(weights, deviation=(0.0,) * len(INPUTS))
    with pytest.raises(ConfigError, match="expected a layer of 2 x"):
        replace(weights, exit=weights.entry)


class Texts:
    """A target, and a draft model that foresees seven of eight of its tokens."""

    def __init__(self) -> None:
        target = self.target = DeterministicModel(1)

        @cache
        def drafted(length: int, last: int) -> Mapping[int, float]:
            right = target.next_token(length, last)
            return {right if length % 8 else right + 1: 0.9}

        self.draft = lambda ids: drafted(len(ids), ids[-1] if ids else 0)


def answers(late: Mapping[int, float], count: int) -> list[SpeculationOutcome]:
    """Of one pair in a good world, but that some rounds' verdicts come late: seconds, by the round's number over all answers."""
    texts, rounds = Texts(), iter(range(10_000))

    def fault(_: int) -> Fault | None:
        seconds = late.get(next(rounds), 0.0)
        return Fault("slow", seconds) if seconds else None

    device = DraftingDevice(model=texts.draft, step_times=tuple(0.004 * (1.0 + 0.1 * more) for more in range(6)))
    server = VerifyingServer(model=texts.target, step=0.05, prompt_time=0.1, faults=fault)
    pair = Speculate(window="adaptive", tuning=SpeculationTuning(prior=EstimatesPrior(remote_step=0.05))).estimates(1.0)
    outcomes = []
    for number in range(count):
        outcome = simulate_answer(pair, SpeculationMachineOptions(max_tokens=256), device, server, FaultyLink(rtt=0.02), seed=number)
        assert outcome is not None
        assert len(outcome.ids) == 256
        outcomes.append(outcome)
    return outcomes


def test_where_drafting_pays_it_drafts_throughout() -> None:
    first, second = answers({}, 2)
    assert first.report.remote <= 128, "until it is seen that the device is faster than was believed"
    assert (second.report.remote, second.report.fallbacks) == (0, 0)


def test_a_verifier_that_is_slow_for_a_while_is_left_and_found_again() -> None:
    outcomes = answers(dict.fromkeys(range(12, 20), 0.4), 24)
    assert outcomes[0].report.fallbacks == 1
    streamed = [outcome.report.remote for outcome in outcomes]
    assert max(streamed) == 256, "the server goes on alone meanwhile"
    assert sum(outcome.report.rounds for outcome in outcomes[1:12]) < 12, "with a round now and then"
    assert streamed[-1] == 0, "which leads back"


def test_fused_mode_takes_two_proposals_in_a_row_and_so_does_the_way_back() -> None:
    switch = ModeSwitch(is_lossless=True)
    conditions = RoundConditions(acceptance=0.8, window=4, draft_step=0.005, remote_step=0.05, verify=0.06, rtt=0.02)
    proposals = (5.0, 0.4, 5.0, 1.0, 0.7, 5.0, 0.9, 5.0, 5.0)
    modes = []
    for proposal in proposals:
        mode = switch.choose(conditions, window=proposal)
        switch.record(mode, seconds=0.2, tokens=4, remote_step=0.05)
        modes.append(mode)
    assert modes == ["speculate"] * 4 + ["remote"] * 4 + ["speculate"]
