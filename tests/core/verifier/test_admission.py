"""How long who asks for more has to wait."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from streamco.core.verifier.admission import Admission
from streamco.core.verifier.load import MeasuredStep, PrefillPace
from streamco.core.verifier.options import SchedulerOptions
from streamco.core.verifier.sessions import HeldSession, SessionTable
from streamco.policies.serving.batching import Alternating, BatchContext, Kind, LinearStep, StrictPrefill, Waiting

OPTIONS = SchedulerOptions(
    kv_tokens=1000, places=4, context_tokens=500, sessions=3, late_stretch=1.5, late_grace=0.03, draft_stretch=2.0, prefill_within=1.0
)
STEP = MeasuredStep(LinearStep(setup=0.1, per_token=0.0))


def work(session: str, kind: Kind = "verify", *, tokens: int = 5, since: float = 0.0) -> Waiting:
    verify_rows, due = (0, math.inf) if kind == "prefill" else (5, 0.0)
    return Waiting(session=session, device=session, kind=kind, tokens=tokens, verify_rows=verify_rows, context=0, since=since, due=due)


class Desk:
    def __init__(self, policy: Alternating | StrictPrefill | None = None) -> None:
        self.residency = SessionTable(tokens=1000, places=4, idle_after=5.0, forget_after=60.0)
        self.pace = PrefillPace(0.01)
        self.admission = Admission(OPTIONS, policy or Alternating(batch_tokens=32), STEP, self.pace, self.residency)

    def until_verdict(self, *waiting: Waiting, now: float = 0.0, begins: float = 0.0) -> float | None:
        served = {each.device: 0.0 for each in waiting} | {"new": 0.0}
        state = BatchContext(now=begins, served=served, verified=1, step=STEP)
        return self.admission.until_verdict(work("new", since=9.0), waiting, state, now=now)


# Drafts


def test_a_verdict_is_due_after_so_many_times_what_it_takes_alone_and_the_grace() -> None:
    assert Desk().admission.due(5, 0, now=10.0) == pytest.approx(10.18)
    assert Desk().admission.due(40, 0, now=10.0) == pytest.approx(10.33)  # two chunks


def test_the_grace_is_that_of_the_batches_shared_with_prompts_at_their_measured_times() -> None:
    step, options = MeasuredStep(LinearStep(setup=0.1, per_token=0.0)), replace(OPTIONS, shared_batches=2)
    residency = SessionTable(tokens=1000, places=4, idle_after=5.0, forget_after=60.0)
    admission = Admission(options, Alternating(batch_tokens=32), step, PrefillPace(0.01), residency)
    assert admission.due(5, 0, now=0.0) == pytest.approx(0.15 + 0.2)
    step.observe(32, 0, 1.0)
    assert admission.due(5, 0, now=0.0) == pytest.approx(1.5 + 2.0)


def test_a_draft_that_goes_with_the_others_in_one_batch_need_not_wait() -> None:
    assert Desk().until_verdict(*(work(f"s{number}") for number in range(5))) is None


def test_a_draft_behind_two_batches_waits_for_what_is_too_much() -> None:
    assert Desk().until_verdict(*(work(f"s{number}", tokens=32) for number in range(2))) == pytest.approx(0.3 - 0.23)


def test_what_remains_of_the_batch_that_runs_counts() -> None:
    assert Desk().until_verdict(now=1.0, begins=1.1) is None
    assert Desk().until_verdict(now=1.0, begins=1.2) == pytest.approx(0.07)


def test_a_device_that_was_served_little_does_not_wait_for_those_who_were_served_much() -> None:
    crowd = [work(f"s{number}", tokens=32) for number in range(8)]
    served = dict.fromkeys((each.device for each in crowd), 100.0) | {"new": 0.0}
    state = BatchContext(now=0.0, served=served, verified=1, step=STEP)
    assert Desk().admission.until_verdict(work("new", since=9.0), crowd, state, now=0.0) is None
    state = BatchContext(now=0.0, served=served | {"new": 200.0}, verified=1, step=STEP)
    assert Desk().admission.until_verdict(work("new", since=9.0), crowd, state, now=0.0) is not None


def test_strictly_a_draft_waits_for_all_prompts_and_in_turns_for_none() -> None:
    prompt = work("p", "prefill", tokens=320)
    assert Desk(StrictPrefill(batch_tokens=32)).until_verdict(prompt) is not None
    assert Desk(Alternating(batch_tokens=32)).until_verdict(prompt) is None


# Prompts and sessions


def test_a_prompt_alone_is_always_let_in() -> None:
    assert Desk().admission.until_prefilled([], 10_000, device="p") is None


def test_a_prompt_behind_others_waits_until_their_rest_is_read_in_time() -> None:
    desk = Desk()
    assert desk.admission.until_prefilled([work("p", "prefill", tokens=50)], 40, device="p") is None
    assert desk.admission.until_prefilled([work("p", "prefill", tokens=100), work("v")], 50, device="p") == pytest.approx(0.5)


def test_a_prompt_waits_for_no_more_of_another_devices_than_it_has_itself() -> None:
    flood = [work("flood", "prefill", tokens=40) for _ in range(20)]
    admission = Desk().admission
    assert admission.until_prefilled(flood, 40, device="flood") == pytest.approx(7.4), "800 tokens before its own"
    assert admission.until_prefilled(flood, 40, device="new") is None
    assert admission.until_prefilled(flood, 60, device="new") == pytest.approx(0.2)
    mine = work("new", "prefill", tokens=20)
    assert admission.until_prefilled([*flood, mine], 40, device="new") == pytest.approx(0.2), "with what waits of the same device"
    others = [work(f"s{number}", "prefill", tokens=10) for number in range(5)]
    assert admission.until_prefilled(others, 50, device="new") is None
    assert admission.until_prefilled(others, 60, device="new") == pytest.approx(0.1)


def test_room_comes_when_the_next_session_is_idle_or_else_when_what_waits_is_done() -> None:
    desk = Desk()
    assert desk.admission.until_free_tokens([work("a", tokens=20)], now=0.0) == pytest.approx(0.2)
    session = HeldSession("a", "a", (1,), now=1.0)
    assert desk.residency.reserve(session, 1, now=1.0) == []
    desk.residency.add(session)
    assert desk.admission.until_free_tokens([], now=2.0) == pytest.approx(4.0)


def test_no_more_sessions_are_remembered_than_is_said() -> None:
    desk = Desk()
    for name in "abc":
        assert desk.admission.until_open([], 10, device="new", now=0.0) is None
        desk.residency.add(HeldSession(name, name, (1,), now=0.0))
    assert desk.admission.until_open([], 10, device="new", now=20.0) == pytest.approx(40.0)


def test_late_verdicts_keep_no_device_below_its_share_of_the_sessions() -> None:
    table = SessionTable(tokens=1000, places=64, idle_after=5.0, forget_after=60.0)
    admission = Admission(SchedulerOptions(kv_tokens=1000, places=64, context_tokens=500), Alternating(), STEP, PrefillPace(0.01), table)
    for number in range(10):
        table.add(HeldSession(f"greedy{number}", "greedy", (1,), now=0.0))
    for _ in range(18):
        admission.limit.observe(is_late=True, present=10, asked=0.0, now=0.0)
    assert 2 <= admission.limit.limit < 10
    for now in (1.0, 4.0, 8.0):
        for session in list(table):
            table.touch(session, now=now)  # kept in use without a draft
        assert admission.until_open([], 10, device="greedy", now=now) is not None
        assert admission.until_open([], 10, device="new", now=now) is None
    crowd = int(admission.limit.limit)
    for number in range(crowd):
        table.add(HeldSession(f"s{number}", f"device{number}", (1,), now=8.0))
    assert admission.until_open([], 10, device="new", now=8.0) is not None, "a share below one session"


def test_late_verdicts_keep_new_sessions_out_while_as_many_are_in_use() -> None:
    desk = Desk()
    for name in "ab":
        desk.residency.add(HeldSession(name, name, (1,), now=0.0))
    for _ in range(9):
        desk.admission.limit.observe(is_late=True, present=2, asked=0.0, now=0.0)
    assert desk.admission.until_open([], 10, device="new", now=1.0) is not None
    assert desk.admission.until_open([], 10, device="new", now=6.0) is None


def test_a_session_that_is_late_by_itself_keeps_nobody_out() -> None:
    desk = Desk()
    desk.residency.add(HeldSession("a", "a", (1,), now=0.0))
    for _ in range(90):
        desk.admission.limit.observe(is_late=True, present=1, asked=0.0, now=0.0)
    assert desk.admission.until_open([], 10, device="new", now=1.0) is None
