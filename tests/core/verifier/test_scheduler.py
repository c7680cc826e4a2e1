"""The verifier's scheduler, called with ``now``: sessions, drafts, batches, refusals; and any order of them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from streamco.core.verifier.draft_checks import MAX_DRAFT
from streamco.core.verifier.events import (
    AcceptSession,
    BatchFailed,
    BatchFinished,
    CancelPart,
    DraftReceived,
    DraftVerdict,
    DropSequence,
    ForgetSession,
    RefuseDraft,
    RefuseSession,
    RunBatch,
    SchedulerCommand,
    SchedulerEvent,
    SendVerdict,
    SessionClosed,
    SessionExtended,
    SessionOpened,
    TruncateSequence,
)
from streamco.core.verifier.options import SchedulerOptions
from streamco.core.verifier.scheduler import VerificationScheduler
from streamco.policies.serving.batching import CHUNK, Alternating, BatchPolicy, FirstCome, LinearStep, StrictPrefill
from streamco.sim.fleet.batch_policies import Windowed
from tests.support.simulated_verifier import SequenceCache

STEP = LinearStep(setup=0.04, per_token=0.0002)
WIDE: dict[str, Any] = {"kv_tokens": 10_000, "places": 64, "context_tokens": 2000}


class Server:
    """A scheduler and the cache of an engine that runs a batch when told to."""

    def __init__(self, policy: BatchPolicy | None = None, **options: Any) -> None:
        self.options = SchedulerOptions(**{**WIDE, **options})
        self.scheduler = VerificationScheduler(self.options, STEP, policy)
        self.cache = SequenceCache()
        self.now = 0.0
        self.running: RunBatch | None = None
        self.said: list[SchedulerCommand] = []
        self.scheduler.start(now=0.0)

    def tell(self, event: SchedulerEvent) -> list[SchedulerCommand]:
        """What an event leads to."""
        self.scheduler.receive(event, now=self.now)
        return self.carry_out()

    def carry_out(self) -> list[SchedulerCommand]:
        commands = self.scheduler.take_commands()
        for command in commands:
            match command:
                case RunBatch():
                    assert self.running is None
                    self.running = command
                    for part in command.parts:
                        self.cache.read(part)
                case TruncateSequence(session, length):
                    self.cache.truncate(session, length)
                case DropSequence(session):
                    self.cache.drop(session)
        self.said += commands
        return commands

    def open(self, session: str, tokens: int = 50, *, device: str | None = None) -> list[SchedulerCommand]:
        return self.tell(SessionOpened(session, device or session, tuple(range(tokens))))

    def draft(
        self, session: str, *, draft: int = 4, given: int = 0, round_number: int = 1, base: int | None = None
    ) -> list[SchedulerCommand]:
        text = self.scheduler.text(session)
        base = len(text or ()) if base is None else base
        event = DraftReceived(
            session=session, round=round_number, base=base, given=tuple(range(500, 500 + given)), draft=tuple(range(900, 900 + draft))
        )
        return self.tell(event)

    def finish(self, *, accepted: int = 2, token: int | None = 7) -> list[SchedulerCommand]:
        """The batch ends after the time it takes."""
        running = self.running
        assert running is not None
        self.running = None
        seconds = STEP(sum(len(part.ids) for part in running.parts), 0)
        self.now += seconds
        verdicts = tuple(
            DraftVerdict(part.session, min(accepted, part.verify_rows - 1), token) for part in running.parts if part.verify_rows
        )
        return self.tell(BatchFinished(running.number, verdicts, seconds))

    def cut(self, *cancelled: str, seconds: float) -> list[SchedulerCommand]:
        """The batch ends sooner, because these sessions' parts were cancelled."""
        running = self.running
        assert running is not None
        self.running = None
        self.now += seconds
        verdicts = tuple(DraftVerdict(part.session, 0, 7) for part in running.parts if part.verify_rows and part.session not in cancelled)
        return self.tell(BatchFinished(running.number, verdicts, seconds, cancelled, is_cut=True))

    def drain(self) -> list[SchedulerCommand]:
        """Batches until there is nothing to do."""
        said: list[SchedulerCommand] = []
        while self.running is not None:
            said += self.finish()
        return said

    def opened(self, *sessions: str, tokens: int = 50) -> Server:
        for session in sessions:
            self.open(session, tokens)
        self.drain()
        self.said.clear()
        return self


def only(commands: list[SchedulerCommand], kind: type[Any]) -> Any:
    found = [command for command in commands if isinstance(command, kind)]
    assert len(found) == 1, commands
    return found[0]


# Sessions


def test_a_session_that_loses_its_place_while_it_waits_to_be_read_is_read_again_with_its_draft() -> None:
    server = Server(places=3)
    for number in range(3):
        server.open(f"flood{number}", 200, device="flood")
    assert AcceptSession("new") in server.open("new", 4)
    (dropped,) = [command.session for command in server.said if isinstance(command, DropSequence)]
    server.drain()
    assert any(isinstance(command, SendVerdict) for command in [*server.draft("new"), *server.drain()])
    server.tell(SessionClosed("new"))
    verdicts = [command.session for command in [*server.draft(dropped), *server.drain()] if isinstance(command, SendVerdict)]
    assert verdicts == [dropped]


def test_a_session_is_accepted_at_once_and_its_context_read_but_for_the_last_token() -> None:
    accepted, batch = Server().open("a", 50)
    assert accepted == AcceptSession("a")
    assert isinstance(batch, RunBatch)
    assert (batch.kind, batch.parts[0].start, batch.parts[0].ids, batch.parts[0].verify_rows) == ("prefill", 0, tuple(range(49)), 0)


def times_after(found: int) -> tuple[float, float]:
    """Seconds of a batch of 32 and of a prompt's token, as believed when half a second was spent on what was not found of 192 tokens."""
    server = Server()
    server.open("a", 193)
    running = server.running
    assert running is not None
    assert len(running.parts[0].ids) == 192
    server.now += 0.5
    server.tell(BatchFinished(running.number, (), 0.5, (), found))
    return server.scheduler._step(32, 0), server.scheduler._pace.seconds_per_token


def test_what_others_had_read_does_not_make_reading_seem_fast() -> None:
    assert times_after(found=0) < times_after(found=96) < times_after(found=180)
    unmeasured = Server().scheduler._step(32, 0)
    assert times_after(found=192)[0] == unmeasured


def test_a_name_is_given_once() -> None:
    server = Server().opened("a")
    with pytest.raises(AssertionError, match="a: a session's name is used once"):
        server.open("a")


def test_a_context_that_will_never_fit_is_refused_for_good() -> None:
    assert Server().open("a", 2000) == [RefuseSession("a", "too long")]


def test_a_device_has_a_limit_of_its_own() -> None:
    server = Server(sessions_per_device=2)
    for name in "ab":
        server.open(name, device="greedy")
    assert only(server.open("c", device="greedy"), RefuseSession).reason == "device limit"
    assert only(server.open("c", device="other"), AcceptSession).session == "c"
    server.tell(SessionClosed("b"))
    assert only(server.open("d", device="greedy"), AcceptSession).session == "d"


def test_a_context_may_come_in_pieces_and_each_is_a_prefill() -> None:
    server = Server().opened("a", tokens=50)
    batch = only(server.tell(SessionExtended("a", 50, tuple(range(50, 90)))), RunBatch)
    assert (batch.kind, batch.parts[0].start, len(batch.parts[0].ids)) == ("prefill", 49, 40)
    server.drain()
    assert server.cache.ids["a"] == list(range(89))


def test_an_extension_that_cuts_takes_the_cache_with_it() -> None:
    server = Server().opened("a", tokens=50)
    truncate, batch = server.tell(SessionExtended("a", 10, (1, 2, 3)))
    assert truncate == TruncateSequence("a", 10)
    assert isinstance(batch, RunBatch)
    assert batch.parts[0].ids == (1, 2)


def test_an_extension_while_the_cut_part_is_read_is_read_right_after_it() -> None:
    server = Server()
    server.open("a", 50)
    assert server.tell(SessionExtended("a", 10, (1, 2, 3))) == []
    server.drain()
    assert server.cache.ids["a"] == [*range(10), 1, 2]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (SessionExtended("b", 0, (1,)), "unknown session"),
        (SessionExtended("a", 51, (1,)), "gap"),
        (SessionExtended("a", 50, (1,) * 2000), "too long"),
    ],
)
def test_an_extension_that_cannot_be_is_refused_and_changes_nothing(event: SessionExtended, reason: str) -> None:
    server = Server().opened("a", tokens=50)
    assert only(server.tell(event), RefuseSession).reason == reason
    assert server.scheduler.text("a") == tuple(range(50))


def test_closing_frees_the_cache_at_once_or_when_its_batch_has_run() -> None:
    server = Server().opened("a")
    assert server.tell(SessionClosed("a")) == [DropSequence("a")]
    server.open("b")
    assert server.tell(SessionClosed("b")) == [CancelPart("b")]
    assert server.finish() == [DropSequence("b")]
    assert server.scheduler.reserved == 0
    assert server.scheduler.text("b") is None


def test_a_draft_of_a_session_that_is_closed_is_not_answered() -> None:
    server = Server().opened("a")
    server.draft("a")
    assert server.tell(SessionClosed("a")) == [CancelPart("a")]
    assert server.finish() == [DropSequence("a")]


def test_a_session_that_is_closed_while_it_waits_has_no_part_to_cancel() -> None:
    server = Server().opened("a", "b")
    server.draft("a")
    server.draft("b")
    assert server.tell(SessionClosed("b")) == [DropSequence("b")]
    assert server.tell(SessionClosed("b")) == []


def test_a_batch_whose_parts_were_all_cancelled_makes_room_for_the_next_one() -> None:
    server = Server().opened("a", "b")
    server.draft("a")
    server.draft("b")
    server.tell(SessionClosed("a"))
    commands = server.cut("a", seconds=0.001)
    assert commands[0] == DropSequence("a")
    assert [part.session for part in only(commands, RunBatch).parts] == ["b"]
    assert only(server.finish(), SendVerdict).session == "b"


def test_a_draft_does_not_wait_for_a_batch_that_is_being_aborted() -> None:
    def answers(*, is_closed: bool) -> list[type[SchedulerCommand]]:
        server = Server(Alternating(batch_tokens=1024), draft_stretch=1.5, late_grace=0.0).opened("a")
        server.open("long", 1000)
        if is_closed:
            server.tell(SessionClosed("long"))
        return [type(command) for command in server.draft("a")]

    assert answers(is_closed=False) == [RefuseDraft]
    assert answers(is_closed=True) == []


def test_the_others_of_a_batch_with_a_cancelled_part_get_their_verdicts() -> None:
    server = Server().opened("a", "b", "c")
    for session in "abc":
        server.draft(session)
    server.finish()  # that of a alone
    assert server.running is not None
    assert [part.session for part in server.running.parts] == ["b", "c"]
    server.tell(SessionClosed("b"))
    commands = server.cut("b", seconds=0.02)
    assert only(commands, SendVerdict).session == "c"
    assert DropSequence("b") in commands
    assert server.scheduler.text("b") is None


def test_the_time_of_a_batch_that_was_cut_teaches_nothing() -> None:
    def refusals(cut: int) -> list[float]:
        server = Server(Alternating(batch_tokens=64), kv_tokens=100_000, prefill_within=1.0, late_grace=0.0, min_retry=0.001)
        names = [f"s{number}" for number in range(40)]
        server.opened("first", *names)
        for number in range(cut):
            server.open(f"gone{number}", 200)
            server.tell(SessionClosed(f"gone{number}"))
            server.cut(f"gone{number}", seconds=0.001)
        for name in names:
            server.draft(name, draft=30)
        for number in range(10):
            server.open(f"new{number}", 1000)
        retries = [command.retry_after for command in server.said if isinstance(command, RefuseSession | RefuseDraft)]
        return [seconds for seconds in retries if seconds is not None]

    assert len(refusals(0)) > 10
    assert refusals(20) == pytest.approx(refusals(0))


# Drafts


def test_a_draft_is_judged_behind_the_last_token_and_what_is_rejected_leaves_the_cache() -> None:
    server = Server().opened("a", tokens=50)
    batch = only(server.draft("a", draft=4), RunBatch)
    assert (batch.kind, batch.parts[0].start, batch.parts[0].ids, batch.parts[0].verify_rows) == ("verify", 49, (49, 900, 901, 902, 903), 5)
    truncate, verdict = server.finish(accepted=2, token=7)
    assert truncate == TruncateSequence("a", 52)
    assert isinstance(verdict, SendVerdict)
    assert (verdict.verdict.accepted, verdict.verdict.token, verdict.position, verdict.round, verdict.queued) == (2, 7, 53, 1, 0.0)
    assert verdict.compute == pytest.approx(0.041)
    assert server.scheduler.text("a") == (*range(50), 900, 901, 7)


def test_a_draft_that_stays_whole_leaves_the_cache_as_it_is_and_the_bonus_is_read_next_time() -> None:
    server = Server().opened("a")
    server.draft("a", draft=4)
    assert not [command for command in server.finish(accepted=4) if isinstance(command, TruncateSequence)]
    batch = only(server.draft("a", draft=1, round_number=2), RunBatch)
    assert (batch.parts[0].start, batch.parts[0].ids) == (54, (7, 900))


def test_tokens_the_device_went_on_with_are_read_with_the_draft() -> None:
    server = Server().opened("a")
    batch = only(server.draft("a", draft=2, given=3), RunBatch)
    assert (batch.parts[0].ids, batch.parts[0].verify_rows) == ((49, 500, 501, 502, 900, 901), 3)
    server.finish()
    assert server.scheduler.text("a") == (*range(50), 500, 501, 502, 900, 901, 7)


def test_many_of_them_are_read_in_chunks_and_the_draft_is_judged_in_one_piece() -> None:
    server = Server().opened("a")
    sizes = [(len(part.ids), part.verify_rows) for part in only(server.draft("a", draft=4, given=60), RunBatch).parts]
    while server.running is not None:
        sizes += [
            (len(part.ids), part.verify_rows) for command in server.finish() if isinstance(command, RunBatch) for part in command.parts
        ]
    assert sizes == [(32, 0), (28, 0), (5, 5)]


def test_without_a_draft_the_next_token_is_asked_for() -> None:
    server = Server().opened("a")
    assert only(server.draft("a", draft=0), RunBatch).parts[0].verify_rows == 1
    assert only(server.finish(), SendVerdict).verdict.token == 7


def test_where_there_is_no_room_for_a_token_the_text_ends_with_the_draft_and_its_last_token_is_read_again() -> None:
    server = Server().opened("a")
    server.draft("a", draft=2)
    server.finish(accepted=2, token=None)
    assert server.scheduler.text("a") == (*range(50), 900, 901)
    assert only(server.draft("a", draft=1, round_number=2), RunBatch).parts[0].ids == (901, 900)


def test_a_draft_before_the_text_s_end_takes_the_rest_back() -> None:
    server = Server().opened("a")
    truncate, batch = server.draft("a", base=20)
    assert truncate == TruncateSequence("a", 19)
    assert isinstance(batch, RunBatch)
    assert batch.parts[0].ids == (19, 900, 901, 902, 903)


def test_a_draft_that_comes_before_the_context_is_read_waits_for_it() -> None:
    server = Server()
    server.open("a", 50)
    assert server.draft("a") == []
    batch = only(server.finish(), RunBatch)
    assert (batch.kind, batch.parts[0].start) == ("verify", 49)


@pytest.mark.parametrize(
    ("session", "draft", "reason"),
    [
        ("nobody", {}, "unknown session"),
        ("a", {"round_number": 1}, "stale round"),
        ("a", {"base": 99, "round_number": 2}, "gap"),
        ("a", {"base": 0, "round_number": 2}, "gap"),
        ("a", {"draft": MAX_DRAFT + 1, "round_number": 2}, "too long"),
        ("a", {"given": 2000, "round_number": 2}, "too long"),
    ],
)
def test_a_draft_that_cannot_be_judged_is_refused_and_changes_nothing(session: str, draft: dict[str, int], reason: str) -> None:
    server = Server().opened("a")
    server.draft("a", draft=1)
    server.drain()
    before = server.scheduler.text("a")
    refusal = only(server.draft(session, **draft), RefuseDraft)
    assert (refusal.reason, refusal.retry_after) == (reason, None)
    assert server.scheduler.text("a") == before


def test_one_draft_of_a_session_is_out_at_a_time() -> None:
    server = Server().opened("a")
    server.draft("a")
    refusal = only(server.draft("a", round_number=2), RefuseDraft)
    assert (refusal.reason, refusal.round) == ("busy", 2)
    assert refusal.retry_after is not None
    assert only(server.finish(), SendVerdict).round == 1


def test_what_a_failed_batch_held_is_dropped_and_its_drafts_may_be_sent_again() -> None:
    server = Server().opened("a", "b")
    server.draft("a", given=3)
    assert server.running is not None
    number, server.running = server.running.number, None
    drop, refusal = server.tell(BatchFailed(number))
    assert drop == DropSequence("a")
    assert refusal == RefuseDraft("a", 1, "engine failed", server.options.min_retry)
    server.draft("a", given=3, base=50, round_number=2)
    assert [type(command) for command in server.drain()] == [RunBatch, TruncateSequence, SendVerdict]
    assert server.scheduler.text("a") == (*range(50), 500, 501, 502, 900, 901, 7)


def test_an_extend_is_admitted_like_a_prompt_and_read_later_where_it_would_wait_too_long() -> None:
    server = Server(prefill_within=0.2).opened("a", tokens=10)
    server.open("b", 1000)
    assert only(server.tell(SessionExtended("a", 10, tuple(range(1000)))), DropSequence).session == "a"
    refusal = only(server.draft("a"), RefuseDraft)
    assert refusal.reason == "overloaded"
    assert refusal.retry_after is not None
    server.drain()
    server.draft("a", round_number=2)
    assert only(server.drain(), SendVerdict).position == 1010 + 3


def test_an_extend_of_what_is_being_read_is_refused_where_it_would_wait_too_long() -> None:
    server = Server(prefill_within=0.2)
    server.open("a", 30)
    assert server.open("b", 300) == [AcceptSession("b")]
    assert only(server.tell(SessionExtended("a", 30, tuple(range(900)))), RefuseSession).reason == "overloaded"
    assert server.scheduler.text("a") == tuple(range(30))


def test_an_extend_alone_or_of_a_few_tokens_is_always_admitted() -> None:
    server = Server(prefill_within=0.2)
    server.open("a", 600)
    assert server.tell(SessionExtended("a", 600, tuple(range(1200)))) == []
    server.drain()
    server.open("b", 1000)
    assert server.tell(SessionExtended("a", 1800, tuple(range(CHUNK)))) == []


def test_an_extend_that_says_nothing_new_is_not_heard() -> None:
    server = Server(places=1, idle_after=5.0).opened("a")
    server.now = 4.0
    assert server.tell(SessionExtended("a", 50, ())) == server.tell(SessionExtended("a", 48, (48, 49))) == []
    server.now = 6.0
    assert only(server.open("b"), DropSequence).session == "a"


def test_one_device_with_all_places_does_not_keep_out_another() -> None:
    server = Server(places=3)
    for name in "abc":
        server.open(name, device="first")
    server.drain()
    assert only(server.open("d", device="second"), DropSequence).session == "a"
    assert AcceptSession("d") in server.said


def test_behind_a_failure_the_text_is_as_if_the_draft_had_not_been_sent() -> None:
    server = Server().opened("a")
    server.draft("a", base=10, given=3)
    server.drain()
    text = server.scheduler.text("a")
    assert text == (*range(10), 500, 501, 502, 900, 901, 7)
    server.draft("a", base=12, given=1, round_number=2)
    assert server.running is not None
    number, server.running = server.running.number, None
    server.tell(BatchFailed(number))
    assert server.scheduler.text("a") == text
    server.draft("a", round_number=3)
    assert only(server.drain(), SendVerdict).position == len(text) + 3


def test_a_part_that_failed_is_dropped_and_the_others_of_its_batch_are_judged() -> None:
    server = Server().opened("a", "b", "c")
    server.open("d", 10)
    for name in "abc":
        server.draft(name)
    server.finish()
    assert server.running is not None
    assert [part.session for part in server.running.parts] == ["a", "b", "c"]
    server.scheduler.receive(SessionClosed("c"), now=server.now)
    number, server.running = server.running.number, None
    commands = server.tell(BatchFinished(number, (DraftVerdict("b", 4, 7),), 0.1, ("a", "c")))
    assert only(commands, RefuseDraft) == RefuseDraft("a", 1, "engine failed", server.options.min_retry)
    assert only(commands, SendVerdict).session == "b"
    assert [command.session for command in commands if isinstance(command, DropSequence)] == ["a", "c"]
    assert server.scheduler.text("c") is None
    server.draft("a", round_number=2)
    assert only(server.drain(), SendVerdict).session == "a"


def test_the_end_of_a_batch_that_is_not_out_is_a_defect_of_the_driver() -> None:
    server = Server().opened("a")
    with pytest.raises(AssertionError, match="expected the end of batch"):
        server.tell(BatchFinished(99, (), 0.1))


def test_more_accepted_tokens_than_were_drafted_are_a_defect_of_the_engine() -> None:
    server = Server().opened("a")
    server.draft("a", draft=2)
    assert server.running is not None
    with pytest.raises(AssertionError, match="expected 0 to 2 accepted tokens, got 3"):
        server.tell(BatchFinished(server.running.number, (DraftVerdict("a", 3, 1),), 0.1))


# The cache


def test_idle_sessions_lose_the_cache_to_new_ones_and_read_their_text_again_when_a_draft_comes() -> None:
    server = Server(kv_tokens=2000, places=2).opened("a", "b")
    refusal = only(server.open("c"), RefuseSession)
    assert refusal.reason == "overloaded"
    assert refusal.retry_after == pytest.approx(5.0, abs=0.2)
    server.now += 5.5
    assert [type(command) for command in server.open("c")] == [DropSequence, AcceptSession, RunBatch]
    server.drain()
    server.now += 5.5
    kinds = [command.kind for command in (*server.draft("a"), *server.drain()) if isinstance(command, RunBatch)]
    assert kinds == ["prefill", "verify"]
    assert server.cache.ids["a"] == [*range(50), 900, 901]
    assert server.scheduler.text("a") == (*range(50), 900, 901, 7)


def test_a_session_that_was_silent_for_too_long_is_forgotten() -> None:
    server = Server(forget_after=60.0).opened("a")
    deadline = server.scheduler.next_deadline()
    assert deadline is not None
    assert deadline == pytest.approx(60.0, abs=0.2)
    server.scheduler.handle_deadline(now=deadline - 1.0)
    assert server.carry_out() == []
    server.scheduler.handle_deadline(now=deadline)
    assert server.carry_out() == [DropSequence("a"), ForgetSession("a")]
    assert server.scheduler.next_deadline() is None
    assert only(server.draft("a"), RefuseDraft).reason == "unknown session"


def test_a_session_that_waits_is_not_forgotten() -> None:
    server = Server(forget_after=0.0).opened("a")
    server.draft("a")
    assert server.scheduler.next_deadline() is None


# Load


def test_a_draft_whose_verdict_would_come_too_late_is_refused_with_the_time_by_which_it_is_too_late() -> None:
    server = Server(Alternating(batch_tokens=CHUNK), late_grace=0.0, draft_stretch=2.0)
    names = [f"s{number}" for number in range(40)]
    server.opened(*names)
    refusals = [command for name in names for command in server.draft(name, draft=30) if isinstance(command, RefuseDraft)]
    assert 0 < len(refusals) < 40
    assert {refusal.reason for refusal in refusals} == {"overloaded"}
    assert all(refusal.retry_after is not None and 0 < refusal.retry_after < 1.0 for refusal in refusals)


def test_an_unloaded_server_never_refuses_a_draft() -> None:
    server = Server(draft_stretch=1.5, late_stretch=1.0, late_grace=0.0).opened("a", tokens=1000)
    for number in range(1, 30):
        server.draft("a", given=number, round_number=number)
        assert only(server.drain(), SendVerdict).round == number


def test_prompts_that_would_wait_too_long_are_refused_and_are_let_in_when_the_others_are_read() -> None:
    server = Server(kv_tokens=100_000, prefill_within=1.0)
    answers = [type(server.open(f"s{number}", 1000)[0]) for number in range(10)]
    assert answers[0] is AcceptSession
    assert answers[-1] is RefuseSession
    refusal = only([command for command in server.said if command == server.said[-1]], RefuseSession)
    assert refusal.reason == "overloaded"
    server.drain()
    assert only(server.open("later", 1000), AcceptSession).session == "later"


def test_where_verdicts_are_late_fewer_sessions_are_let_in() -> None:
    server = Server(Alternating(batch_tokens=CHUNK), late_grace=0.0, draft_stretch=1e6)
    names = [f"s{number}" for number in range(20)]
    server.opened(*names)
    for name in names:
        server.draft(name, draft=20)
    limits = [server.scheduler.session_limit]
    server.drain()
    limits.append(server.scheduler.session_limit)
    assert limits == [None, 18], "nine tenths of 20, once, because none has ended"
    refusal = only(server.open("one more"), RefuseSession)
    assert refusal.reason == "overloaded"
    assert refusal.retry_after is not None
    for name in names[:10]:
        server.tell(SessionClosed(name))
    assert only(server.open("another"), AcceptSession).session == "another"


def test_options_that_make_no_sense_are_refused() -> None:
    for wrong in ({"places": 0}, {"kv_tokens": 1}, {"idle_after": math.inf}, {"draft_stretch": 1.0}, {"max_retry": 0.001}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Server(**wrong)


# Fairness


def test_one_draft_does_not_wait_for_all_those_of_a_device_that_floods() -> None:
    server = Server(Alternating(batch_tokens=CHUNK), sessions_per_device=100, draft_stretch=1e6, late_grace=1e6)
    crowd = [f"s{number}" for number in range(20)]
    for name in crowd:
        server.open(name, device="flood")
    server.open("alone")
    server.drain()
    for name in crowd:
        server.draft(name, draft=30)
    server.draft("alone", draft=4)
    batches = 0
    while not any(isinstance(command, SendVerdict) and command.session == "alone" for command in server.finish()):
        batches += 1
    assert batches <= 2


def test_neither_prompts_nor_drafts_starve_while_more_of_both_come_than_can_be_done() -> None:
    server = Server(Alternating(batch_tokens=64), kv_tokens=1_000_000, places=1000, draft_stretch=1e6, late_grace=1e6, prefill_within=1e6)
    server.opened("one", "two")
    server.open("long", 1500)
    rounds, progress = dict.fromkeys(("one", "two"), 0), [0]
    for number in range(300):
        for name, count in rounds.items():
            if not server.draft(name, round_number=count + 1, draft=20):
                rounds[name] += 1
        server.open(f"short{number}", 70)
        server.finish()
        if number % 100 == 99:
            progress.append(len(server.cache.ids["long"]))
    assert min(rounds.values()) > 50
    assert all(after > before for before, after in pairwise(progress))


def test_strict_prefill_lets_drafts_starve_as_algorithm_1_says() -> None:
    server = Server(StrictPrefill(batch_tokens=64), kv_tokens=1_000_000, places=1000, draft_stretch=1e6, late_grace=1e6, prefill_within=1e6)
    server.opened("a")
    server.open("first", 200)
    server.draft("a")
    for number in range(50):
        server.open(f"s{number}", 200)
        assert not any(isinstance(command, SendVerdict) for command in server.finish())


# Any order of events


class AnyOrder(RuleBasedStateMachine):
    """Devices do what they like; the engine runs, fails, and tells what it likes.

    Ids carry the number of their session, so whatever comes into the wrong sequence is seen.
    """

    sessions = Bundle("sessions")

    @initialize(policy=st.sampled_from([Alternating(batch_tokens=64), StrictPrefill(batch_tokens=48), FirstCome(batch_tokens=32)]))
    def begin(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self.server = Server(policy, kv_tokens=400, places=4, context_tokens=150, sessions_per_device=3, idle_after=2.0, forget_after=20.0)
        self.names = 0
        self.texts: dict[str, list[int]] = {}  # as the devices know them
        self.rounds: dict[str, int] = {}
        self.out: dict[str, DraftReceived] = {}  # drafts that are not answered
        self.cancelled: set[str] = set()  # sessions with a part that the engine may stop

    def ids(self, session: str, count: int) -> tuple[int, ...]:
        self.names += 1
        return tuple(int(session) << 32 | self.names << 8 | place for place in range(count))

    def hear(self, commands: list[SchedulerCommand]) -> list[SchedulerCommand]:
        for command in commands:
            match command:
                case SendVerdict():
                    draft = self.out.pop(command.session)
                    assert command.round == draft.round
                    assert command.verdict.token is not None
                    self.texts[command.session] = [
                        *self.texts[command.session][: draft.base],
                        *draft.given,
                        *draft.draft[: command.verdict.accepted],
                        command.verdict.token,
                    ]
                    assert command.position == len(self.texts[command.session])
                case RefuseDraft(session, round_number, reason, retry_after):
                    assert self.out[session].round == round_number
                    del self.out[session]
                    assert (retry_after is not None) == (reason in {"overloaded", "busy", "engine failed", "device limit"})
                    assert retry_after is None or 0 < retry_after <= 30.0
                case ForgetSession(session):
                    assert session not in self.out
                    del self.texts[session]
                case RunBatch():
                    self.check(command)
        return commands

    def check(self, batch: RunBatch) -> None:
        cache = self.server.cache
        assert cache.tokens <= 400
        assert len(cache.ids) <= 4
        assert sum(len(part.ids) for part in batch.parts) <= self.policy.batch_tokens
        for part in batch.parts:
            if batch.kind == "verify":
                assert len(part.ids) <= CHUNK
                draft = self.out[part.session]
                expected = [*self.texts[part.session][: draft.base], *draft.given, *draft.draft]
                if part.verify_rows:
                    assert part.verify_rows == len(draft.draft) + 1
                    assert cache.ids[part.session] == expected
            else:
                assert not part.verify_rows
                draft_out = self.out.get(part.session)
                expected = self.texts[part.session]
                if draft_out is not None:
                    expected = [*expected[: draft_out.base], *draft_out.given]
            assert part.ids == tuple(expected[part.start : part.start + len(part.ids)])
            assert {identifier >> 32 for identifier in part.ids} == {int(part.session)}

    @rule(target=sessions, device=st.integers(0, 3), tokens=st.integers(0, 160))
    def open(self, device: int, tokens: int) -> Any:
        self.names += 1
        session = str(self.names)
        ids = self.ids(session, tokens)
        self.texts[session] = list(ids)
        commands = self.hear(self.server.tell(SessionOpened(session, f"device{device}", ids)))
        answers = [command for command in commands if isinstance(command, AcceptSession | RefuseSession)]
        assert [answer.session for answer in answers] == [session]
        if isinstance(answers[0], RefuseSession):
            del self.texts[session]
            assert (answers[0].retry_after is not None) == (answers[0].reason in {"overloaded", "device limit"})
            return multiple()
        self.rounds[session] = 0
        return session

    @rule(session=sessions, given=st.integers(0, 60), draft=st.integers(0, 33), back=st.integers(0, 12), may_be_wrong=st.booleans())
    def draft(self, session: str, given: int, draft: int, back: int, may_be_wrong: bool) -> None:
        if session in self.out or (session not in self.texts and not may_be_wrong):
            return
        self.rounds[session] += 1
        base = max(0, len(self.texts.get(session, ())) - (back if may_be_wrong else 0))
        event = DraftReceived(
            session=session, round=self.rounds[session], base=base, given=self.ids(session, given), draft=self.ids(session, draft)
        )
        self.out[session] = event
        self.hear(self.server.tell(event))

    @rule(session=sessions, back=st.integers(0, 20), tokens=st.integers(0, 80))
    def extend(self, session: str, back: int, tokens: int) -> None:
        if session not in self.texts or session in self.out:
            return
        base = max(0, len(self.texts[session]) - back)
        before, ids = self.texts[session], self.ids(session, tokens)
        self.texts[session] = [*before[:base], *ids]
        self.server.scheduler.receive(SessionExtended(session, base, ids), now=self.server.now)
        if self.server.scheduler.text(session) == tuple(before):  # refused
            self.texts[session] = before
        self.hear(self.server.carry_out())

    @rule(session=sessions)
    def close(self, session: str) -> None:
        self.out.pop(session, None)
        self.texts.pop(session, None)
        commands = self.hear(self.server.tell(SessionClosed(session)))
        self.cancelled |= {command.session for command in commands if isinstance(command, CancelPart)}

    @rule(accepted=st.integers(0, 31), is_stopped=st.booleans())
    def run(self, accepted: int, is_stopped: bool = False) -> None:
        running = self.server.running
        if running is None:
            return
        self.server.running = None
        self.server.now += 0.05
        cut = tuple(part.session for part in running.parts if part.session in self.cancelled) if is_stopped else ()
        verdicts = tuple(
            DraftVerdict(part.session, min(accepted, part.verify_rows - 1), self.ids(part.session, 1)[0])
            for part in running.parts
            if part.verify_rows and part.session not in cut
        )
        self.hear(self.server.tell(BatchFinished(running.number, verdicts, 0.05, cut, is_cut=bool(cut))))

    @rule()
    def fail(self) -> None:
        running = self.server.running
        if running is None:
            return
        self.server.running = None
        self.hear(self.server.tell(BatchFailed(running.number)))
        assert not any(part.session in self.out for part in running.parts)

    @rule(seconds=st.floats(0.0, 15.0))
    def wait(self, seconds: float) -> None:
        self.server.now += seconds
        deadline = self.server.scheduler.next_deadline()
        if deadline is not None and deadline <= self.server.now:
            self.server.scheduler.handle_deadline(now=self.server.now)
            self.hear(self.server.carry_out())

    @invariant()
    def both_sides_know_the_same_text(self) -> None:
        for session, text in getattr(self, "texts", {}).items():
            if session not in self.out:
                assert self.server.scheduler.text(session) == tuple(text)

    @invariant()
    def the_engine_does_not_idle_while_somebody_waits(self) -> None:
        if getattr(self, "out", None):
            assert self.server.running is not None

    @invariant()
    def no_more_is_reserved_than_there_is(self) -> None:
        if hasattr(self, "server"):
            assert self.server.scheduler.reserved <= 400

    def teardown(self) -> None:
        """Whatever waits is answered when nothing else comes."""
        if not hasattr(self, "server"):
            return
        for _ in range(100):
            if self.server.running is None:
                break
            self.run(accepted=1)
        assert not self.out
        assert self.server.running is None


AnyOrder.TestCase.settings = settings(stateful_step_count=60)
TestAnyOrder = AnyOrder.TestCase


def test_a_policy_that_waits_for_more_gets_its_batch_when_it_is_full_or_has_waited_long_enough() -> None:
    server = Server(Windowed(requests=2, window=0.1))
    assert not [command for command in server.open("a") if isinstance(command, RunBatch)]
    assert server.scheduler.next_deadline() == pytest.approx(0.1)
    full = only(server.open("b"), RunBatch)
    assert [part.session for part in full.parts] == ["a", "b"]
    server.finish()
    server.now = 1.0
    server.draft("a")
    assert server.running is None
    assert server.scheduler.next_deadline() == pytest.approx(1.1)
    server.now = 1.1
    server.scheduler.handle_deadline(now=1.1)
    assert only(server.carry_out(), RunBatch).kind == "verify"


def test_a_verifier_that_is_told_to_bear_everything_refuses_nothing() -> None:
    server = Server(prefill_within=math.inf, late_stretch=math.inf, draft_stretch=math.inf)
    for number in range(40):
        server.open(f"s{number}", 200)
        server.draft(f"s{number}")
    assert not [command for command in server.said if isinstance(command, RefuseSession | RefuseDraft)]
