from dataclasses import dataclass
from itertools import pairwise

import pytest
from msgspec.structs import replace

from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.verifier.options import SchedulerOptions
from streamco.sim.fleet.fleet import DeviceModel, Execution, FleetDevice
from streamco.sim.hardware.links import ConstantLink
from tests.sim.fleets import DRAFT_STEP, OPEN, RTT, STEP, SmallFleet, requests


@dataclass
class Case:
    execution: Execution
    branches: int = 0


CASES = [Case("distributed"), Case("distributed", 6), Case("fused"), Case("auto"), Case("auto", 6)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_request_gets_its_whole_answer_whatever_the_execution(case: Case) -> None:
    requested = requests(12, gap=0.2, acceptance=0.7)
    small = SmallFleet(requested, execution=case.execution, branches=case.branches, servers=2)
    assert sorted(outcomes.request.number for outcomes in small.outcomes) == [*range(12)]
    for outcomes in small.outcomes:
        assert outcomes.error is None
        assert outcomes.tokens == outcomes.request.output_tokens - 1  # the last one ends the text and isn't shown
        assert outcomes.first is not None
        assert outcomes.request.arrival <= outcomes.began < outcomes.first <= outcomes.ended
    assert small.fleet.in_flight == 0
    assert [server.load for server in small.servers] == [0, 0]


def test_one_device_alone_takes_what_arithmetic_says_round_by_round() -> None:
    small = SmallFleet(requests(1, tokens=26), devices=1)
    (outcomes,) = small.outcomes
    assert outcomes.first is not None
    assert outcomes.first == pytest.approx(30 * 0.001 + 4 * DRAFT_STEP + RTT + STEP)  # the verifier reads the prompt meanwhile
    rounds = 26 / 5  # all four and the bonus token
    assert outcomes.ended - outcomes.first == pytest.approx((rounds - 1) * (4 * DRAFT_STEP + RTT + STEP), rel=0.2)
    assert outcomes.windows[:5] == [4] * 5


def test_the_target_alone_takes_a_step_a_token_and_half_a_round_trip_each_way() -> None:
    small = SmallFleet(requests(1, tokens=21), devices=1, execution="fused")
    (outcomes,) = small.outcomes
    assert outcomes.first == pytest.approx(RTT + STEP)
    assert outcomes.ended == pytest.approx(RTT + 21 * STEP)
    assert outcomes.report is None
    assert outcomes.mode == "fused"


def test_branches_save_time_where_drafts_are_accepted() -> None:
    waiting, drafting = (SmallFleet(requests(1, tokens=60), devices=1, branches=branches).outcomes[0] for branches in (0, 6))
    assert drafting.ended < 0.9 * waiting.ended
    assert drafting.report is not None
    assert drafting.report.hits > 0


def test_a_device_reads_what_all_prompts_begin_with_once() -> None:
    requested = [replace(request, common_tokens=15) for request in requests(3, gap=10.0, tokens=26)]
    small = SmallFleet(requested, devices=1)
    waits = [(outcomes.first or 0.0) - outcomes.began for outcomes in small.outcomes]
    after = 4 * DRAFT_STEP + RTT + STEP
    assert waits == pytest.approx([30 * 0.001 + after, 15 * 0.001 + after, 15 * 0.001 + after])
    assert [outcomes.joules - 2.0 * outcomes.drafted for outcomes in small.outcomes] == [15.0, 7.5, 7.5]
    assert small.devices[0].has_read == 15


def test_a_device_answers_one_request_at_a_time_and_the_others_wait_for_it() -> None:
    small = SmallFleet(requests(3, gap=0.0), devices=1)
    began = sorted((outcomes.began, outcomes.ended) for outcomes in small.outcomes)
    for (_, ended), (later, _) in pairwise(began):
        assert later == pytest.approx(ended)


def test_requests_go_where_fewest_are() -> None:
    requested = [replace(request, device=request.number) for request in requests(8, gap=0.001)]
    small = SmallFleet(requested, devices=8, servers=4)
    assert sorted(outcomes.server for outcomes in small.outcomes) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_server_that_refuses_is_asked_again_and_no_answer_is_lost() -> None:
    tight = SchedulerOptions(kv_tokens=200, places=2, context_tokens=100, idle_after=0.1, min_retry=0.05)
    small = SmallFleet(requests(6, gap=0.0), devices=6, options=tight)
    assert [outcomes.error for outcomes in small.outcomes] == [None] * 6


def test_energy_is_that_of_the_prompt_and_of_all_that_was_drafted() -> None:
    (outcomes,) = SmallFleet(requests(1), devices=1).outcomes
    assert outcomes.joules == pytest.approx(0.5 * 30 + 2.0 * outcomes.drafted)


def test_nothing_of_a_finished_request_stays_with_a_server() -> None:
    small = SmallFleet(requests(10, gap=0.3), servers=2, execution="auto")
    small.env.run(until=small.env.now + 5.0)
    for server in small.servers:
        assert not server.sessions
        assert not server.known
    assert OPEN.sessions > 0


@pytest.mark.parametrize("branches", [0, 6])
def test_siblings_save_rounds_where_rows_cost_nothing(branches: int) -> None:
    requested = requests(1, tokens=400, acceptance=0.7)
    chain, tree = (
        SmallFleet(requested, devices=1, branches=branches, ahead=branches // 2, siblings=siblings).outcomes[0] for siblings in (0, 7)
    )
    assert chain.report is not None
    assert tree.report is not None
    assert tree.tokens == chain.tokens
    assert tree.report.rounds < 0.95 * chain.report.rounds
    assert (tree.report.verified + tree.report.siblings) / tree.report.rounds > 5
    assert chain.report.verified / chain.report.rounds <= 4
    assert tree.ended < chain.ended


def test_a_device_knows_the_times_of_each_server_apart() -> None:
    model = DeviceModel(name="device", step_times=(DRAFT_STEP,), seconds_per_token=0.001, token_joules=2.0, prompt_joules=0.5)
    device = FleetDevice(0, model, ConstantLink(RTT), SpeculationEstimates(), rtt=RTT)
    near, far = (device.estimates_at(name, None) for name in ("server0", "server1"))
    far.record_wait(0.5, queue_depth=0.0, server_seconds=0.1)
    assert device.estimates_at("server1", None).wait == pytest.approx(0.5)
    assert device.estimates_at("server0", None).wait == near.wait != pytest.approx(0.5)
    near.record_prompt(0.25)
    assert device.estimates_at("server1", None).prompt_time == near.prompt_time == 0.25, "all else is shared"
