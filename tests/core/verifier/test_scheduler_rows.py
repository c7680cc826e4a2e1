"""Rounds that follow each other, and long ones that are read like prompts: what a split server asks of the scheduler."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamco.core.verifier.events import (
    AcceptSession,
    BatchFailed,
    BatchFinished,
    DraftReceived,
    DraftVerdict,
    RefuseDraft,
    RunBatch,
    SchedulerCommand,
    SendVerdict,
    SessionClosed,
    SessionOpened,
)
from streamco.core.verifier.options import SchedulerOptions
from streamco.core.verifier.scheduler import VerificationScheduler
from streamco.policies.serving.batching import LinearStep, Mixed


class Rounds:
    """A scheduler that serves rows, and its running batch."""

    def __init__(self, **limits: Any) -> None:
        options = SchedulerOptions(kv_tokens=1200, places=4, context_tokens=300, **{"draft_stretch": math.inf, **limits})
        self.scheduler = VerificationScheduler(options, LinearStep(setup=0.01, per_token=0.001), Mixed(room=64))
        self.running: RunBatch | None = None

    def tell(self, event: Any) -> list[SchedulerCommand]:
        self.scheduler.receive(event, now=0.0)
        commands = self.scheduler.take_commands()
        for command in commands:
            self.running = command if isinstance(command, RunBatch) else self.running
        return commands

    def send(self, session: str, number: int, position: int, rows: int, *, follows: bool = False) -> list[SchedulerCommand]:
        drafted = 0 if rows > 32 else rows - 1
        given, draft = (0,) * (rows - drafted), (0,) * drafted
        return self.tell(
            DraftReceived(session=session, round=number, base=position, given=given, draft=draft, is_prompt=rows > 32, follows=follows)
        )

    def finish(self) -> list[SchedulerCommand]:
        running, self.running = self.running, None
        assert running is not None
        verdicts = tuple(DraftVerdict(part.session, part.verify_rows - 1, 0) for part in running.parts if part.verify_rows)
        return self.tell(BatchFinished(running.number, verdicts, 0.02))

    def parts(self) -> list[tuple[str, int, int]]:
        assert self.running is not None
        return [(part.session, part.start, len(part.ids)) for part in self.running.parts]


def started() -> Rounds:
    rounds = Rounds()
    for session in ("a", "b"):
        rounds.tell(SessionOpened(session, session, ()))
    return rounds


def test_every_row_is_read_once_and_a_cut_reads_on_from_its_position() -> None:
    rounds = started()
    rounds.send("a", 1, 0, 5)
    assert rounds.parts() == [("a", 0, 5)]
    assert any(isinstance(command, SendVerdict) for command in rounds.finish())
    rounds.send("a", 2, 5, 3)
    assert rounds.parts() == [("a", 5, 3)]
    rounds.finish()
    rounds.send("a", 3, 6, 2)
    assert rounds.parts() == [("a", 6, 2)]


def test_a_round_that_follows_is_in_the_next_batch_without_a_gap() -> None:
    rounds = started()
    rounds.send("a", 1, 0, 40)
    rounds.send("b", 1, 0, 4)
    assert rounds.send("a", 2, 40, 40, follows=True) == []
    commands = rounds.finish()
    assert not any(isinstance(command, SendVerdict) for command in commands), "its prompt is longer by now"
    assert sorted(rounds.parts()) == [("a", 40, 40), ("b", 0, 4)]
    commands = rounds.finish()
    assert [(each.session, each.round) for each in commands if isinstance(each, SendVerdict)] == [("b", 1), ("a", 2)]


def test_prompts_that_wait_and_follow_each_other_are_read_together_up_to_the_room() -> None:
    rounds = started()
    rounds.send("b", 1, 0, 4)
    for number, position in enumerate((0, 40, 80), 1):
        rounds.send("a", number, position, 40, follows=number > 1)
    rounds.finish()
    assert rounds.parts() == [("a", 0, 64)]
    rounds.send("b", 2, 5, 3)
    rounds.finish()
    assert sorted(rounds.parts()) == [("a", 64, 56), ("b", 4, 4)]
    verdicts = [(each.session, each.round) for each in rounds.finish() if isinstance(each, SendVerdict)]
    assert sorted(verdicts) == [("a", 3), ("b", 2)]
    assert rounds.running is None


def test_a_draft_does_not_join_the_prompt_that_it_follows_but_prompts_that_follow_a_draft_join_each_other() -> None:
    rounds = started()
    rounds.send("a", 1, 0, 3)
    for number, position, rows in ((2, 3, 40), (3, 43, 40), (4, 83, 5)):
        rounds.send("a", number, position, rows, follows=True)
    seen = []
    while rounds.running is not None:
        parts = rounds.parts()
        seen += [(parts, [each.round for each in rounds.finish() if isinstance(each, SendVerdict)])]
    assert seen == [([("a", 0, 3)], [1]), ([("a", 3, 64)], []), ([("a", 67, 16)], [3]), ([("a", 83, 5)], [4])]


def test_one_refusal_answers_prompts_that_were_read_together_when_their_batch_failed() -> None:
    rounds = started()
    rounds.send("a", 1, 0, 40)
    rounds.send("a", 2, 40, 40, follows=True)
    rounds.send("a", 3, 80, 5, follows=True)
    assert rounds.running is not None
    refused = [each for each in rounds.tell(BatchFailed(rounds.running.number)) if isinstance(each, RefuseDraft)]
    assert [(each.round, each.reason) for each in refused] == [(2, "engine failed"), (3, "gap")]
    rounds.send("a", 4, 0, 50)
    assert rounds.parts() == [("a", 0, 50)], "from the beginning"
    rounds.send("a", 5, 50, 250, follows=True)
    rounds.finish()
    refused = [each for each in rounds.tell(SessionClosed("a")) if isinstance(each, RefuseDraft)]
    assert refused == []


def test_a_prompt_that_would_not_fit_does_not_join_and_is_refused_in_its_turn() -> None:
    rounds = started()
    rounds.send("a", 1, 0, 200)
    rounds.send("a", 2, 200, 50, follows=True)
    rounds.send("a", 3, 250, 60, follows=True)
    said: list[Any] = []
    while rounds.running is not None:
        said += [each for each in rounds.finish() if isinstance(each, SendVerdict | RefuseDraft)]
    assert [(type(each).__name__, each.round) for each in said] == [("SendVerdict", 2), ("RefuseDraft", 3)]
    assert said[1].reason == "too long"


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 60), st.booleans()), max_size=40))
def test_every_row_is_read_once_and_in_order_whatever_follows_when(steps: list[tuple[str, int, bool]]) -> None:
    rounds = started()
    ends, numbers, read, answered = {"a": 0, "b": 0}, {"a": 0, "b": 0}, {"a": 0, "b": 0}, {"a": 0, "b": 0}

    def finish() -> None:
        assert sum(rows for _, _, rows in rounds.parts()) <= 64
        for session, start, rows in rounds.parts():
            assert start == read[session]
            read[session] += rows
        for each in rounds.finish():
            assert not isinstance(each, RefuseDraft)
            if isinstance(each, SendVerdict):
                assert each.round > answered[each.session]
                answered[each.session] = each.round

    for session, rows, then_finish in steps:
        if ends[session] + rows < 290:
            numbers[session] += 1
            rounds.send(session, numbers[session], ends[session], rows, follows=answered[session] + 1 < numbers[session])
            ends[session] += rows
        if then_finish and rounds.running is not None:
            finish()
    while rounds.running is not None:
        finish()
    assert (read, answered) == (ends, numbers)


def test_a_long_round_shares_its_batches_with_short_ones_and_is_cut_at_the_room() -> None:
    rounds = started()
    rounds.send("a", 1, 0, 150)
    assert rounds.parts() == [("a", 0, 64)]
    rounds.send("b", 1, 0, 4)
    rounds.finish()
    assert sorted(rounds.parts()) == [("a", 64, 60), ("b", 0, 4)]
    rounds.finish()
    assert rounds.parts() == [("a", 124, 26)]
    assert any(isinstance(command, SendVerdict) for command in rounds.finish())


def test_rounds_that_follow_one_that_failed_are_refused_in_order() -> None:
    rounds = started()
    rounds.send("a", 1, 0, 5)
    rounds.send("a", 2, 5, 5, follows=True)
    rounds.send("a", 3, 10, 5, follows=True)
    assert rounds.running is not None
    refused = [command for command in rounds.tell(BatchFailed(rounds.running.number)) if isinstance(command, RefuseDraft)]
    assert [(each.round, each.reason) for each in refused] == [(1, "engine failed"), (2, "gap"), (3, "gap")]


def test_a_following_round_that_does_not_fit_is_refused_with_those_after_it() -> None:
    rounds = started()
    rounds.send("a", 1, 0, 290)
    rounds.send("a", 2, 290, 20, follows=True)
    rounds.send("a", 3, 310, 1, follows=True)
    refused: list[tuple[int, str]] = []
    while rounds.running is not None:
        refused += [(each.round, each.reason) for each in rounds.finish() if isinstance(each, RefuseDraft)]
    assert refused == [(2, "too long"), (3, "gap")]


def test_closing_a_session_drops_what_would_follow() -> None:
    rounds = started()
    rounds.send("a", 1, 0, 5)
    rounds.send("a", 2, 5, 5, follows=True)
    rounds.tell(SessionClosed("a"))
    assert not any(isinstance(command, SendVerdict | RefuseDraft) for command in rounds.finish())
    assert rounds.running is None


def test_a_long_round_is_refused_if_other_prompts_would_keep_it_waiting() -> None:
    rounds = Rounds(prefill_within=0.05)
    for session in ("a", "b", "c"):
        rounds.tell(SessionOpened(session, session, ()))
    rounds.send("a", 1, 0, 250)
    rounds.send("b", 1, 0, 250)
    refused = [command for command in rounds.send("c", 1, 0, 250) if isinstance(command, RefuseDraft)]
    assert [each.reason for each in refused] == ["overloaded"]
    assert refused[0].retry_after is not None


def test_devices_that_wait_for_a_place_get_it_before_the_one_that_gave_it_up() -> None:
    rounds = Rounds(idle_after=100.0)
    for device in "abcd":
        rounds.tell(SessionOpened(device, device, ()))
        rounds.send(device, 1, 0, 4)
    while rounds.running is not None:
        rounds.finish()
    accepted: list[str] = []

    def ask(name: str, device: str) -> None:
        accepted.extend(each.session for each in rounds.tell(SessionOpened(name, device, ())) if isinstance(each, AcceptSession))

    ask("e", "e")
    ask("f", "f")
    rounds.tell(SessionClosed("a"))
    ask("a2", "a")
    assert accepted == []
    ask("f2", "f")
    assert accepted == []
    ask("e2", "e")
    assert accepted == ["e2"]
    rounds.tell(SessionClosed("b"))
    ask("a3", "a")
    ask("f3", "f")
    assert accepted == ["e2", "f3"]


def test_a_device_that_does_not_ask_again_loses_its_turn() -> None:
    rounds = Rounds(idle_after=100.0)
    for device in "abcd":
        rounds.tell(SessionOpened(device, device, ()))
        rounds.send(device, 1, 0, 4)
    while rounds.running is not None:
        rounds.finish()
    rounds.tell(SessionOpened("e", "e", ()))
    rounds.scheduler.receive(SessionClosed("a"), now=50.0)
    rounds.scheduler.take_commands()
    rounds.scheduler.receive(SessionOpened("f", "f", ()), now=50.0)
    assert [each.session for each in rounds.scheduler.take_commands() if isinstance(each, AcceptSession)] == ["f"]


def test_a_device_that_is_gone_keeps_no_turn() -> None:
    rounds = Rounds(idle_after=100.0)
    for device in "abcd":
        rounds.tell(SessionOpened(device, device, ()))
        rounds.send(device, 1, 0, 4)
    while rounds.running is not None:
        rounds.finish()
    rounds.tell(SessionOpened("e", "e", ()))
    rounds.tell(SessionClosed("a"))
    rounds.scheduler.leave("e")
    assert AcceptSession("f") in rounds.tell(SessionOpened("f", "f", ()))
