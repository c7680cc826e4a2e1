"""What dispatch wins on recorded services: planned on the first half of each trace, judged on the second."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest

from bench.counted.dispatch import PHONES, Judged, judge, plan_all, realise
from bench.counted.dispatch_learned import compare, run_trace
from bench.counted.gate import calibrate_length, calibrate_tasks, judge_gate, load_answers
from bench.traces import Halves, fastest_traces, prompt_lengths, ttft_traces
from streamco.policies.dispatch import Side
from streamco.profiles import LengthDistribution, TTFTDistribution
from tests.policies.worlds import World, expected
from tests.support.data import data_path

data_path("ttft")
data_path("prompts")

BUDGETS = (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)
SIDES: list[Side] = ["device", "server"]


@pytest.fixture(scope="module")
def traces() -> dict[str, Halves]:
    return ttft_traces()


@pytest.fixture(scope="module")
def prompts() -> Halves:
    return prompt_lengths()


def judged(traces: dict[str, Halves], prompts: Halves, phone: str, side: Side) -> list[dict[str, Judged]]:
    lengths, device = LengthDistribution.from_samples(prompts.judged), PHONES[phone]
    return [
        {
            name: judge(policy, trace.judged, lengths, device, side)
            for name, policy in plan_all(trace, prompts, device, budget, side).items()
        }
        for trace in traces.values()
        for budget in BUDGETS
    ]


@pytest.mark.long
@pytest.mark.parametrize("phone", ["pixel7-bloom-1.1b", "pixel7-bloom-560m"])
def test_sparing_the_server_cuts_the_tail_by_a_quarter(traces: dict[str, Halves], prompts: Halves, phone: str) -> None:
    results = judged(traces, prompts, phone, "server")
    assert len(results) >= 20 * len(BUDGETS)
    assert fmean(1 - case["disco"].p99 / case["stochastic"].p99 for case in results) >= 0.25


@pytest.mark.long
@pytest.mark.parametrize("phone", PHONES)
def test_the_optimum_beats_algorithm_2_on_average(traces: dict[str, Halves], prompts: Halves, phone: str) -> None:
    results = judged(traces, prompts, phone, "device")
    assert fmean(case["optimal"].mean / case["disco"].mean for case in results) < 1.0
    assert fmean(case["disco"].mean / case["stochastic"].mean for case in results) < 0.95


@pytest.mark.long
@pytest.mark.parametrize("side", SIDES)
def test_the_optimum_is_never_worse_on_the_plans_own_samples(traces: dict[str, Halves], prompts: Halves, side: Side) -> None:
    for phone, trace in zip([*PHONES] * len(traces), traces.values(), strict=False):
        world = World(
            TTFTDistribution.from_samples(trace.planned), LengthDistribution.from_samples(prompts.planned).group(40), PHONES[phone]
        )
        planned = Halves(trace.planned, trace.judged)
        grouped = Halves(world.lengths.lengths.repeat(world.lengths.counts.astype(int)), prompts.judged)
        for budget in (0.05, 0.4, 0.95):
            policies = plan_all(planned, grouped, world.device, budget, side)
            figures = {name: expected(policy, world, side) for name, policy in policies.items()}
            for name, (mean, _) in figures.items():
                assert figures["optimal"][0] <= mean + 1e-9, (name, phone, budget)
            assert figures["optimal"][1] <= budget + 1e-9


@pytest.mark.long
@pytest.mark.parametrize("side", SIDES)
def test_with_steering_the_budget_holds_for_every_policy_and_trace(traces: dict[str, Halves], prompts: Halves, side: Side) -> None:
    device = PHONES["pixel7-bloom-560m"]
    for index, trace in enumerate(traces.values()):
        budget = BUDGETS[index % len(BUDGETS)]
        for name, policy in plan_all(trace, prompts, device, budget, side).items():
            run = realise(policy, trace.judged, prompts.judged[:1200], device=device, side=side, budget=budget)
            assert run.total <= 0.01 + 1e-9, (name, budget)
            assert run.window <= 0.05 + 1e-9, (name, budget)


def test_a_judged_share_is_what_a_run_without_steering_comes_to(traces: dict[str, Halves], prompts: Halves) -> None:
    device, trace = PHONES["pixel7-bloom-1.1b"], traces["fireworks llama-2-70b-chat"]
    lengths = LengthDistribution.from_samples(prompts.judged)
    for side in SIDES:
        for policy in plan_all(trace, prompts, device, 0.5, side).values():
            share = judge(policy, trace.judged, lengths, device, side).share
            run = realise(policy, trace.judged, prompts.judged, device=device, side=side, budget=0.0, is_steered=False)
            assert run.total == pytest.approx(share, abs=0.06)


# Learned live


@pytest.mark.long
@pytest.mark.parametrize("side", SIDES)
def test_a_client_that_learns_live_is_never_later_than_chance_and_near_the_optimum(side: Side) -> None:
    phone = {"pixel7-bloom-560m": PHONES["pixel7-bloom-560m"]}
    names = {"llmperf and latencylab": ["bedrock llama-2-13b-chat", "Azure gpt-3.5-turbo-0613"], "thefastest.ai": [*fastest_traces()][::13]}
    parts = [run_trace(services, name, phone, (0.05, 0.3), 1000, side) for services, of in names.items() for name in of]
    cases = [case for part in parts for case in part if case.policy == "auto"]
    assert len(cases) >= 8
    assert max(case.worse_low for case in cases) <= 1e-9
    assert fmean(case.gap for case in cases) <= 0.02
    assert max(case.over for case in cases) <= 0.01 + 1e-9
    assert max(case.window for case in cases) <= 0.05 + 1e-9


def test_a_difference_beyond_chance_has_an_interval_on_one_side_of_zero() -> None:
    recorded, times = np.arange(400) % 40, np.random.default_rng(1).lognormal(0.0, 0.5, 40)[np.arange(400) % 40]
    worse, low = compare(1.1 * times, times, recorded)
    assert worse == pytest.approx(0.1)
    assert low == pytest.approx(0.1)
    noise = np.random.default_rng(2).lognormal(0.0, 0.8, 40)[recorded]
    assert compare(noise, times, recorded)[1] < compare(noise, times, recorded)[0]


# The gate


def test_a_gate_by_task_keeps_what_it_promises_and_beats_one_by_length() -> None:
    data_path("routing_quality")
    answers = load_answers()
    fitted, held_out = answers[::2], answers[1::2]
    for loss in (0.02, 0.05, 0.1):
        by_task, by_length = (calibrate(fitted, loss) for calibrate in (calibrate_tasks, calibrate_length))
        kept, share = judge_gate(by_task, held_out)
        assert kept >= 1 - loss - 0.015
        assert share > 0.1
        assert judge_gate(by_length, fitted)[0] >= 1 - loss


def test_a_loss_of_everything_lets_everything_through() -> None:
    data_path("routing_quality")
    answers = load_answers()
    for calibrate in (calibrate_tasks, calibrate_length):
        assert judge_gate(calibrate(answers, 1.0), answers)[1] == 1.0
