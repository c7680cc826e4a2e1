"""Measuring the acceptance rate from the stream."""

from __future__ import annotations

from itertools import count

import pytest

from streamco.core.speculation.draft_state import DraftState
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import DraftToken, DraftTokens, SpeculationCommand, TokensDrafted
from streamco.core.speculation.prior import EstimatesPrior
from streamco.core.speculation.report import SpeculationReport
from streamco.core.speculation.shadow import ShadowDrafter
from streamco.errors import EngineError
from streamco.policies.window import Static


class Listener:
    """A device that drafts beside a stream of 0, 1, 2, ..."""

    def __init__(self, window: int = 3, estimates: SpeculationEstimates | None = None) -> None:
        self.estimates = estimates or SpeculationEstimates(window=Static(window), prior=EstimatesPrior(acceptance=0.5))
        self.emitted: list[SpeculationCommand] = []
        self.draft_state = DraftState(self.estimates, SpeculationReport(), self.emitted.append, count(1).__next__)
        self.shadow = ShadowDrafter(self.draft_state, self.estimates)
        self.settled: list[int] = []

    def stream(self, tokens: int) -> list[SpeculationCommand]:
        for _ in range(tokens):
            self.settled.append(len(self.settled))
            self.shadow.follow(self.settled, 1, now=0.0)
        emitted = self.emitted[:]
        self.emitted.clear()
        return emitted

    def draft(self, version: int, *ids: int, row: object = None) -> None:
        self.draft_state.record_tokens(TokensDrafted(version, tuple(DraftToken(token, 0.5, row=row) for token in ids)), now=0.0)


def test_the_device_drafts_beside_the_stream_and_what_comes_is_compared() -> None:
    listener = Listener()
    assert listener.stream(4) == [DraftTokens(1, 0, (0, 1, 2, 3), 3)]
    listener.draft(1, 4, 5, 99)
    assert listener.stream(2) == []
    assert listener.estimates.acceptance == 0.5, "the stream has not passed it yet"
    listener.stream(1)
    held, tried = 4.0, 8.0
    for is_held in (True, True, False):
        held, tried = held * 0.98 + is_held, tried * 0.98 + 1.0
    assert listener.estimates.acceptance == pytest.approx(held / tried)
    assert listener.draft_state.trunk is None


def test_times_of_a_draft_beside_the_stream_are_marked_as_such() -> None:
    listener = Listener()
    states = [listener.shadow.is_drafting]
    listener.stream(4)
    states.append(listener.shadow.is_drafting)
    listener.draft(1, 4)
    listener.draft_state.record_tokens(TokensDrafted(1, (DraftToken(5, 0.5), DraftToken(6, 0.5)), is_finished=True), now=2.0)
    assert listener.estimates.step_times[0] > 0.3, "nothing else is known"
    listener.stream(3)
    states.append(listener.shadow.is_drafting)
    assert states == [False, True, False], "from its start until it is compared"
    listener.estimates.record_draft(1, 10, 0.1)
    assert listener.estimates.step_times[0] == pytest.approx(0.01)


def test_on_the_way_back_the_device_reads_up_to_the_stream() -> None:
    listener = Listener()
    listener.stream(4)
    listener.draft(1, 4, 5, 6)
    assert listener.shadow.has_caught_up(listener.settled)
    listener.stream(3 + 7)
    assert not listener.shadow.has_caught_up(listener.settled)
    listener.shadow.catch_up(listener.settled, now=0.0)
    listener.shadow.catch_up(listener.settled, now=0.0)
    assert listener.emitted == [DraftTokens(2, 7, tuple(range(7, 14)), 3)], "once"
    assert not listener.shadow.has_caught_up(listener.settled), "it is reading"
    listener.draft(2, 14, 15, 16)
    assert listener.shadow.has_caught_up(listener.settled)


def test_drafts_become_rarer() -> None:
    listener = Listener(estimates=SpeculationEstimates(window=Static(3), prior=EstimatesPrior(acceptance=0.5, remote_step=1.0)))
    begun: list[int] = []
    for _ in range(400):
        for command in listener.stream(1):
            assert isinstance(command, DraftTokens)
            begun.append(len(listener.settled))
            listener.draft(command.version, 1, 2, 3)
    assert begun == [4, 15, 34, 69, 136, 203, 270, 337]


def test_where_drafting_cannot_pay_the_device_drafts_once_in_a_few_answers() -> None:
    estimates = SpeculationEstimates(
        window=Static(3), prior=EstimatesPrior(acceptance=0.5, step_times=(0.05, 0.06), wait=0.2, remote_step=0.02)
    )
    estimates.record_draft(1, 8, 8 * 0.05)
    begun: list[int] = []
    for answer in range(6):
        listener = Listener(estimates=estimates)
        for _ in range(100):
            for command in listener.stream(1):
                assert isinstance(command, DraftTokens)
                begun.append(100 * answer + len(listener.settled))
                listener.draft(command.version, 1, 2, 3)
    assert begun == [256, 516], "a draft is compared three tokens after it began, and it is looked every four"


def test_where_drafting_may_pay_by_what_is_known_the_device_listens_at_once() -> None:
    estimates = SpeculationEstimates(
        window=Static(3), prior=EstimatesPrior(acceptance=0.5, step_times=(0.05, 0.06), wait=0.2, remote_step=0.02)
    )
    assert estimates.can_pay(), "nobody knows how fast the device is"
    estimates.record_draft(1, 8, 8 * 0.05)
    assert not estimates.can_pay()
    listener = Listener(estimates=estimates)
    assert not listener.stream(8)
    for _ in range(20):
        estimates.record_remote(8, 8 * 0.5)
    assert estimates.can_pay()
    assert listener.stream(4), "in the same answer, for the stream has become slower"


def test_a_draft_that_is_slower_than_the_stream_is_compared_when_it_is_there() -> None:
    listener = Listener()
    listener.stream(10)
    listener.draft(1, 4, 5, 6)
    listener.stream(1)
    assert listener.estimates.acceptance > 0.6


def test_tokens_that_were_drawn_say_nothing_and_no_more_are_drawn() -> None:
    listener = Listener()
    listener.stream(4)
    listener.draft(1, 4, 5, 6, row="drawn")
    assert listener.stream(200) == []
    assert listener.estimates.acceptance == 0.5


def test_a_draft_that_was_dropped_is_forgotten() -> None:
    listener = Listener()
    listener.stream(4)
    listener.draft_state.drop()
    listener.emitted.clear()
    listener.draft(1, 99, 99, 99)
    assert listener.stream(1) == [DraftTokens(2, 4, (4,), 3)]
    assert listener.estimates.acceptance == 0.5


def test_a_device_without_room_drafts_nothing() -> None:
    listener = Listener()
    listener.draft_state.is_full = True
    assert listener.stream(100) == []


def test_a_device_that_failed_reads_nothing_more_and_has_never_caught_up() -> None:
    listener = Listener()
    listener.stream(4)
    listener.draft(1, 4, 5, 6)
    listener.draft_state.record_failure(EngineError("expected a decode, got a failure"))
    assert not listener.shadow.has_caught_up(listener.settled)
    listener.shadow.catch_up(listener.settled, now=0.0)
    assert listener.emitted == []


def test_a_device_whose_context_is_full_has_not_caught_up() -> None:
    listener = Listener()
    listener.stream(4)
    listener.draft(1)
    assert not listener.shadow.has_caught_up(listener.settled)
    assert listener.draft_state.is_full
