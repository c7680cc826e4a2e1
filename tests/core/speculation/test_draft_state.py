"""The device's drafts of an answer."""

from __future__ import annotations

from itertools import count

import pytest

from streamco.core.speculation.draft_state import DraftState
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import (
    AdoptBranch,
    DraftBranch,
    DraftToken,
    DraftTokens,
    DropDrafts,
    SpeculationCommand,
    TokensDrafted,
)
from streamco.core.speculation.prior import EstimatesPrior
from streamco.core.speculation.report import SpeculationReport
from streamco.policies.rejection import Branch


class Device:
    def __init__(self) -> None:
        self.estimates = SpeculationEstimates(prior=EstimatesPrior(step_times=(0.02, 0.03, 0.04)))
        self.report = SpeculationReport()
        self.emitted: list[SpeculationCommand] = []
        self.draft_state = DraftState(self.estimates, self.report, self.emitted.append, count(1).__next__)

    def commands(self) -> list[SpeculationCommand]:
        emitted = self.emitted[:]
        self.emitted.clear()
        return emitted

    def receive(self, version: int, *ids: int, is_finished: bool = True, now: float = 0.0) -> bool:
        event = TokensDrafted(version, tuple(DraftToken(token, 0.5) for token in ids), is_finished=is_finished)
        return self.draft_state.record_tokens(event, now=now) is not None

    def draft(self, settled: list[int], *ids: int) -> None:
        self.draft_state.start(settled, len(ids), now=0.0)
        assert self.draft_state.trunk is not None
        self.receive(self.draft_state.trunk.version, *ids)
        self.draft_state.stop_trunk(now=0.0)
        self.emitted.clear()


@pytest.fixture
def device() -> Device:
    return Device()


def test_a_draft_begins_with_what_the_device_does_not_hold_yet(device: Device) -> None:
    device.draft_state.start([1, 2], 3, now=0.0)
    assert device.commands() == [DraftTokens(1, 0, (1, 2), 3)]
    device.receive(1, 3, 4, 5)
    device.draft_state.start([1, 2, 3, 9], 3, now=0.0)
    assert device.commands() == [DraftTokens(2, 3, (9,), 3)]


def test_nothing_is_read_again_where_the_device_kept_its_own_tokens(device: Device) -> None:
    device.draft([1], 2, 3)
    device.draft_state.start([1, 2, 3], 2, now=0.0)
    assert device.commands() == [DraftTokens(2, 3, (), 2)]


def test_a_draft_that_still_runs_is_dropped_for_another(device: Device) -> None:
    device.draft_state.start([], 3, now=0.0)
    device.receive(1, 7, is_finished=False)
    device.commands()
    device.draft_state.start([8], 3, now=0.0)
    assert device.commands() == [DropDrafts((1,)), DraftTokens(2, 0, (8,), 3)]
    assert not device.receive(1, 9)
    assert device.report.drafted == 2, "it was written all the same"


def test_a_trunk_goes_on_behind_all_it_has(device: Device) -> None:
    device.draft_state.start([1], 2, now=0.0)
    device.receive(1, 2, 3)
    trunk = device.draft_state.trunk
    assert trunk is not None
    device.commands()
    device.draft_state.extend(trunk, 2, now=0.0)
    assert device.commands() == [DraftTokens(2, 3, (), 2)]
    assert device.receive(2, 4, 5)
    assert trunk.ids == [2, 3, 4, 5]


def test_a_trunk_that_is_judged_stops(device: Device) -> None:
    device.draft([], 1)
    device.draft_state.start([1], 4, now=0.0)
    device.receive(2, 2, 3, is_finished=False)
    device.commands()
    device.draft_state.stop_trunk(now=3.0)
    assert device.commands() == [DropDrafts((2,))]
    assert device.draft_state.trunk is None
    assert device.estimates.step_times[0] == pytest.approx(0.02 + 0.5 * (1.5 - 0.02)), "two tokens in three seconds"


def test_branches_fork_where_they_bet(device: Device) -> None:
    device.draft([1, 2], 3, 4, 5)
    device.draft_state.start_branches(
        2, [Branch(3, None, 0.4), Branch(1, 9, 0.2), Branch(0, 8, 0.1)], lambda branch: 2 - (branch.token == 8) * 2, width=2, now=0.0
    )
    assert device.commands() == [DraftBranch(2, 5, (), 3), DraftBranch(3, 3, (9,), 2)]
    assert device.report.pre_drafted == 0
    device.receive(3, 6, is_finished=False)
    assert device.report.pre_drafted == 1


def test_a_branch_that_is_adopted_is_the_trunk_and_the_others_are_dropped(device: Device) -> None:
    device.draft([1, 2], 3, 4, 5)
    device.draft_state.start_branches(2, [Branch(3, None, 0.4), Branch(1, 9, 0.2)], lambda _: 2, width=2, now=0.0)
    device.receive(3, 6, is_finished=False)
    device.commands()
    settled = [1, 2, 3, 9]
    assert device.draft_state.find_branch(1, 8) is None
    sequence = device.draft_state.find_branch(1, 9)
    assert sequence is not None
    device.draft_state.adopt(sequence, settled, 9)
    assert device.commands() == [AdoptBranch(3), DropDrafts((2,))]
    assert device.draft_state.trunk is sequence
    assert device.report.adopted == 1
    assert device.receive(3, 7), "it goes on drafting under its own version"
    assert not device.receive(2, 7)
    device.draft_state.start([*settled, 6, 7, 8], 2, now=0.0)
    assert device.commands() == [DraftTokens(4, 6, (8,), 2)], "what it drafted is on the device"


def test_a_branch_that_bet_on_the_models_own_token_is_adopted_without_it(device: Device) -> None:
    device.draft([1], 2)
    device.draft_state.start_branches(1, [Branch(1, None, 0.4)], lambda _: 2, width=2, now=0.0)
    device.receive(2, 3, 4, is_finished=False)
    device.commands()
    sequence = device.draft_state.find_branch(1, 3)
    assert sequence is not None
    device.draft_state.adopt(sequence, [1, 2, 3], 3)
    assert sequence.ids == [4]
    device.receive(2, 5)
    device.draft_state.start([1, 2, 3, 4, 5], 1, now=0.0)
    assert device.commands()[-1] == DraftTokens(3, 5, (), 1)


def test_branches_that_are_not_drafted_side_by_side_begin_when_those_before_are_done(device: Device) -> None:
    device.draft([1], 2, 3, 4)
    guesses = [Branch(3, None, 0.4), Branch(1, 9, 0.2), Branch(0, 8, 0.1)]
    device.draft_state.start_branches(1, guesses, lambda _: 2, width=1, now=0.0)
    assert device.commands() == [DraftBranch(2, 4, (), 3)]
    device.receive(2, 5, 6, is_finished=False, now=1.0)
    assert device.commands() == []
    device.receive(2, 7, now=2.0)
    assert device.commands() == [DraftBranch(3, 2, (9,), 2)]
    assert device.draft_state.find_branch(3, 5) is not None, "a branch that is done still bets"
    device.draft_state.drop()
    assert device.commands() == [DropDrafts((2, 3))]
    device.receive(3, 6, 7)
    assert device.commands() == [], "what waited is dropped with the others"


def test_dropping_names_every_branch_once(device: Device) -> None:
    device.draft([1], 2)
    device.draft_state.start_branches(1, [Branch(1, None, 0.4), Branch(0, 9, 0.4)], lambda _: 2, width=2, now=0.0)
    device.receive(3, 4, 5)
    device.commands()
    device.draft_state.drop()
    device.draft_state.drop()
    assert device.commands() == [DropDrafts((2, 3))]
    assert not device.receive(2, 7)


def test_drafts_say_how_fast_the_device_is(device: Device) -> None:
    device.draft([], 1)
    device.draft_state.start([1], 4, now=10.0)
    device.receive(2, 2, 3, is_finished=False, now=11.0)
    assert device.estimates.step_times[0] == 0.02
    device.receive(2, 4, 5, now=14.0)
    assert device.estimates.step_times[0] == pytest.approx(0.02 + 0.5 * (1.0 - 0.02))


def test_the_prompt_that_the_device_reads_before_its_first_token_says_nothing(device: Device) -> None:
    device.draft_state.start([], 4, now=10.0)
    device.receive(1, 2, is_finished=False, now=50.0)
    device.receive(1, 3, 4, now=52.0)
    assert device.estimates.step_times[0] == pytest.approx(0.02 + 0.5 * (1.0 - 0.02)), "two tokens behind the first one, in two seconds"


def test_nor_does_it_where_the_first_draft_was_dropped_meanwhile(device: Device) -> None:
    device.draft_state.start([], 4, now=10.0)
    device.draft_state.start([7], 1, now=49.0)
    device.receive(2, 8, now=50.0)
    assert list(device.estimates.step_times) == [0.02, 0.03, 0.04]


def test_a_draft_that_has_to_read_much_first_says_nothing(device: Device) -> None:
    device.draft([], 9)
    device.draft_state.start([1, 2, 3], 4, now=0.0)
    device.receive(2, 2, 3, 4, 5, now=4.0)
    assert list(device.estimates.step_times) == [0.02, 0.03, 0.04]


def test_one_of_the_branches_says_how_fast_they_all_are(device: Device) -> None:
    device.draft([1], 2)
    before = list(device.estimates.step_times)
    device.draft_state.start_branches(1, [Branch(0, 8, 0.4), Branch(0, 9, 0.4)], lambda _: 2, width=2, now=10.0)
    device.receive(2, 4, is_finished=False, now=11.0)
    first = before[1] + 0.5 * (1.0 - before[1])
    assert device.estimates.step_times[1] == pytest.approx(first), "without waiting for the last one"
    device.receive(3, 4, is_finished=False, now=11.5)
    assert device.estimates.step_times[1] == pytest.approx(first)
    device.receive(2, 5, now=14.0)
    assert device.estimates.step_times[1] == pytest.approx(first + (3.0 - first) / 3), "the prior and the first times have equal weights"
    measured = list(device.estimates.step_times)
    device.receive(3, 5, now=20.0)
    assert list(device.estimates.step_times) == measured


def test_a_device_is_out_when_it_is_full_or_failed(device: Device) -> None:
    assert not device.draft_state.is_out
    device.draft_state.is_full = True
    assert device.draft_state.is_out
