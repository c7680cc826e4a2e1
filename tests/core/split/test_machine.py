"""The machine of one split answer: chunks, what is sent again after a loss, and that no row is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.core.split.events import (
    AnswerEnded,
    CloseSession,
    ComputeRows,
    OpenSession,
    RowsAdded,
    RowsComputed,
    SendRows,
    SessionLost,
    SessionReady,
    SplitCommand,
    SplitEvent,
    StatesArrived,
    Truncated,
)
from streamco.core.split.machine import SplitMachine
from streamco.policies.chunking import PromptPlan


def machine(chunk: int = 1000, *, max_unanswered: int = 2, **options: int) -> SplitMachine:
    made = SplitMachine(plan=lambda _left, _computed: PromptPlan(chunk, max_unanswered), **options)
    made.start(now=0.0)
    return made


def waits(split: SplitMachine) -> bool:
    return split.is_waiting


def after(split: SplitMachine, *events: SplitEvent) -> list[SplitCommand]:
    for event in events:
        split.receive(event, now=0.0)
    return split.take_commands()


def test_a_session_is_opened_and_the_first_chunk_computed_at_once() -> None:
    split = machine(4)
    assert after(split, RowsAdded(10, 1)) == [OpenSession(0, may_resume=False), ComputeRows(0, 4)]


def test_two_chunks_are_unanswered_while_a_third_is_computed() -> None:
    split = machine(4)
    after(split, RowsAdded(12, 1), SessionReady(0, 0))
    assert after(split, RowsComputed(4)) == [SendRows(0, 0, 4, 0), ComputeRows(4, 8)]
    assert after(split, RowsComputed(8)) == [SendRows(0, 4, 8, 0), ComputeRows(8, 12)]
    assert after(split, RowsComputed(12)) == []
    assert after(split, StatesArrived(0)) == [SendRows(0, 8, 12, 1)]
    after(split, StatesArrived(0))
    assert waits(split)
    after(split, StatesArrived(0))
    assert not waits(split)
    assert (split.counts.chunks, split.counts.rows, split.counts.trips) == (3, 12, 1)


def test_as_many_chunks_are_unanswered_as_the_plan_says() -> None:
    split = machine(2, max_unanswered=5)
    after(split, RowsAdded(20, 1), SessionReady(0, 0))
    assert after(split, RowsComputed(20)) == [SendRows(0, start, start + 2, 0) for start in range(0, 10, 2)]
    assert after(split, StatesArrived(0), StatesArrived(0)) == [SendRows(0, 10, 12, 0), SendRows(0, 12, 14, 0)]


def test_a_prompt_is_planned_once_and_again_for_another_server() -> None:
    planned = []

    def plan(left: int, computed: int) -> PromptPlan:
        planned.append((left, computed))
        return PromptPlan(4)

    split = SplitMachine(plan=plan)
    split.start(now=0.0)
    after(split, RowsAdded(12, 1), RowsComputed(4), SessionReady(0, 0), RowsComputed(12))
    after(split, StatesArrived(0), StatesArrived(0), StatesArrived(0))
    assert planned == [(12, 0), (12, 4)], "again after the server's limits have come"
    after(split, RowsAdded(14, 2), RowsComputed(14), StatesArrived(0))
    assert len(planned) == 2, "a draft is one frame whatever the plan"
    after(split, RowsAdded(15, 1), SessionLost(0, may_resume=False), SessionReady(1, 0))
    assert planned[2:] == [(15, 15)], "a row that is being computed counts as computed"


def test_the_last_chunk_holds_all_rows_whose_states_come_back() -> None:
    split = machine(4, max_rows=4)
    after(split, RowsAdded(6, 3), SessionReady(0, 0))
    assert after(split, RowsComputed(6)) == [SendRows(0, 0, 3, 0), SendRows(0, 3, 6, 3)]


def test_a_rejected_draft_is_replaced_without_a_frame_of_its_own() -> None:
    split = machine()
    after(split, RowsAdded(3, 1), SessionReady(0, 0), RowsComputed(3), StatesArrived(0))
    after(split, RowsComputed(6), RowsAdded(6, 3), StatesArrived(0))
    assert after(split, Truncated(4), RowsAdded(5, 1)) == [ComputeRows(4, 5)]
    assert after(split, RowsComputed(5)) == [SendRows(0, 4, 5, 1)]
    assert split.counts.repeated == 0


def test_after_a_lost_connection_only_unanswered_rows_are_sent_again() -> None:
    split = machine()
    after(split, RowsAdded(3, 1), SessionReady(0, 0), RowsComputed(3), StatesArrived(0), RowsComputed(5), RowsAdded(5, 2))
    assert after(split, SessionLost(0, may_resume=True)) == [OpenSession(1, may_resume=True)]
    assert after(split, SessionReady(1, 5)) == [SendRows(1, 3, 5, 2)], "the server may hold other rows than these there"
    assert split.counts.repeated == 2


def test_rows_that_were_refused_for_load_are_sent_again_in_the_same_session() -> None:
    split = machine(4)
    after(split, RowsAdded(8, 1), SessionReady(0, 0), RowsComputed(4), RowsComputed(8), StatesArrived(0), SessionLost(0, may_resume=True))
    assert after(split, SessionReady(1, 4, is_new=False)) == [SendRows(1, 4, 8, 1)]
    assert (split.counts.sessions, split.counts.repeated) == (1, 4)


def test_another_server_gets_all_rows_without_computing_them_again() -> None:
    split = machine()
    after(split, RowsAdded(3, 1), SessionReady(0, 0), RowsComputed(3), StatesArrived(0), RowsComputed(5), RowsAdded(5, 2))
    after(split, SessionLost(0, may_resume=False))
    assert after(split, SessionReady(1, 0)) == [SendRows(1, 0, 5, 2)]


def test_events_of_an_attempt_that_is_over_change_nothing() -> None:
    split = machine()
    after(split, RowsAdded(3, 1), SessionReady(0, 0), RowsComputed(3), SessionLost(0, may_resume=False))
    assert after(split, StatesArrived(0), SessionReady(0, 3), SessionLost(0, may_resume=True)) == []
    assert waits(split)


def test_rows_are_not_added_while_others_are_awaited() -> None:
    split = machine()
    after(split, RowsAdded(3, 1))
    with pytest.raises(AssertionError, match="when the last ones are answered"):
        split.receive(RowsAdded(4, 1), now=0.0)
    with pytest.raises(AssertionError, match="tokens are dropped"):
        split.receive(Truncated(1), now=0.0)


def test_the_session_is_closed_with_the_answer_and_nothing_comes_after_that() -> None:
    split = machine()
    after(split, RowsAdded(3, 1), SessionReady(0, 0), RowsComputed(3))
    assert after(split, AnswerEnded()) == [CloseSession()]
    assert split.is_over
    assert not waits(split)
    assert after(split, AnswerEnded(), StatesArrived(0), SessionLost(0, may_resume=True), Truncated(1), RowsAdded(5, 1)) == []


def test_an_answer_that_ends_before_its_turn_has_no_session() -> None:
    assert after(machine(), AnswerEnded()) == []


class World:
    """A device, a link and a server around one machine. The server holds what it was sent, as the protocol has it."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        size = data.draw(st.integers(1, 5), "chunk")
        self.split = machine(size, max_rows=8, max_unanswered=data.draw(st.integers(1, 4)))
        self.tokens = list(range(data.draw(st.integers(1, 20), "prompt")))
        self.shallow: list[int] = []
        self.server: list[int] = []
        self.sent: list[tuple[SendRows, list[int]]] = []
        self.opening: list[OpenSession] = []
        self.computing: list[ComputeRows] = []
        self.trips = 0
        self.put(RowsAdded(len(self.tokens), 1))

    def put(self, event: SplitEvent) -> None:
        self.split.receive(event, now=0.0)
        for command in self.split.take_commands():
            if isinstance(command, ComputeRows):
                assert command.start == len(self.shallow)
                self.computing.append(command)
            elif isinstance(command, OpenSession):
                self.sent.clear()
                self.opening.append(command)
            elif isinstance(command, SendRows):
                self.sent.append((command, self.shallow[command.start : command.stop]))

    def store(self) -> SendRows:
        rows, states = self.sent.pop(0)
        assert rows.start <= len(self.server), "no gap"
        self.server[rows.start :] = states
        return rows

    def compute(self) -> None:
        if self.computing:
            command = self.computing.pop()
            self.shallow += self.tokens[command.start : command.stop]
            self.put(RowsComputed(command.stop))

    def open(self) -> None:
        if self.opening:
            wanted = self.opening.pop()
            self.server = self.server if wanted.may_resume else []
            self.put(SessionReady(wanted.attempt, len(self.server)))

    def answer(self) -> None:
        if not self.sent:
            return
        rows = self.store()
        self.put(StatesArrived(rows.attempt))
        if rows.wanted:
            assert self.server == self.tokens, "the server has read just these tokens"
            self.trips += 1
            self.go_on(rows.wanted)

    def go_on(self, wanted: int) -> None:
        kept = len(self.tokens) - (wanted - 1) + self.data.draw(st.integers(0, wanted - 1), "accepted")
        del self.tokens[kept:], self.shallow[kept:]
        self.put(Truncated(kept))
        new = self.data.draw(st.integers(1, 5), "new")
        self.tokens += [100 * self.trips + each for each in range(new)]
        self.put(RowsAdded(len(self.tokens), new))

    def lose(self, *, may_resume: bool) -> None:
        if self.opening or not self.sent:
            return
        attempt = self.sent[0][0].attempt
        if self.data.draw(st.booleans(), "computed before the loss"):
            self.store()
        self.put(SessionLost(attempt, may_resume=may_resume))


@given(st.data())
def test_no_row_is_lost_or_doubled_whatever_is_lost(data: st.DataObject) -> None:
    world = World(data)
    steps: dict[str, Callable[[], None]] = {
        "compute": world.compute,
        "open": world.open,
        "answer": world.answer,
        "lose": lambda: world.lose(may_resume=True),
        "evict": lambda: world.lose(may_resume=False),
    }
    for name in data.draw(st.lists(st.sampled_from([*steps, "answer", "compute"]), max_size=150), "steps"):
        steps[name]()
    for _ in range(100):  # then nothing is lost any more: the answer goes on
        trips = world.trips
        world.open()
        world.compute()
        world.answer()
        if world.trips > trips:
            break
    assert world.trips > trips
    assert world.split.counts.trips == world.trips
