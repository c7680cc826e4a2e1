"""A reader that is far behind holds the next round back, and the time in between is charged to neither side."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from streamco.core.speculation.backpressure import Backpressure
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import (
    DeviceFailed,
    DraftToken,
    ReaderCaughtUp,
    ReaderFellBehind,
    SendDraft,
    SpeculationCommand,
    SpeculationEvent,
    TokensDrafted,
    VerdictReceived,
    VerifierConnected,
    VerifierFailed,
)
from streamco.core.speculation.fallback_stream import TimeAccount
from streamco.core.speculation.machine import SpeculationMachine
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.prior import EstimatesPrior
from streamco.errors import EngineError, VerifierError


class Run:
    """A machine that gets its events by hand."""

    def __init__(self, **options: Any) -> None:
        self.estimates = SpeculationEstimates(prior=EstimatesPrior(remote_step=5.0))
        self.machine = SpeculationMachine(self.estimates, SpeculationMachineOptions(is_parallel=False, **options), Random(1))
        self.machine.start(now=0.0)
        self.commands = self.machine.take_commands()

    def receive(self, event: SpeculationEvent, now: float) -> list[SpeculationCommand]:
        self.machine.receive(event, now=now)
        self.commands = self.machine.take_commands()
        return self.commands

    def draft(self, version: int, now: float) -> list[SpeculationCommand]:
        return self.receive(TokensDrafted(version, tuple(DraftToken(token, 0.9) for token in (1, 2, 3, 4))), now)


def sent(commands: list[SpeculationCommand]) -> bool:
    return any(isinstance(command, SendDraft) for command in commands)


def test_a_whole_chunk_waits_until_the_reader_has_caught_up() -> None:
    run = Run()
    run.receive(VerifierConnected(), 0.1)
    assert not sent(run.receive(ReaderFellBehind(), 0.2))
    assert not sent(run.draft(1, 0.3))
    assert run.machine.next_deadline() is None, "nobody waits for anything"
    seconds = run.estimates.switch.seconds
    assert sent(run.receive(ReaderCaughtUp(), 60.0))
    run.receive(VerdictReceived(round=1, accepted=4, token=5), 60.1)
    assert run.machine.answer.ids == [1, 2, 3, 4, 5]
    assert run.estimates.switch.seconds - seconds < 1.0, "the minute of rest is nobody's"


def test_a_round_that_is_out_is_finished_and_the_next_one_waits() -> None:
    run = Run()
    run.receive(VerifierConnected(), 0.0)
    assert sent(run.draft(1, 0.1))
    run.receive(ReaderFellBehind(), 0.15)
    run.receive(VerdictReceived(round=1, accepted=4, token=5), 0.2)
    assert len(run.machine.answer.ids) == 5
    version = next(command.version for command in run.commands if hasattr(command, "version"))
    assert not sent(run.draft(version, 0.3))
    assert sent(run.receive(ReaderCaughtUp(), 9.0))


def test_a_verifier_that_gives_token_by_token_waits_too() -> None:
    run = Run(has_remote=False)
    run.receive(VerifierConnected(), 0.0)
    assert sent(run.receive(DeviceFailed(EngineError("expected a decode, got a failure")), 0.1))
    run.receive(ReaderFellBehind(), 0.15)
    assert not sent(run.receive(VerdictReceived(round=1, accepted=0, token=5), 0.2))
    assert run.machine.next_deadline() is None
    assert run.receive(ReaderCaughtUp(), 60.0) == [SendDraft(2, 1, (), ())]
    assert run.receive(ReaderCaughtUp(), 60.1) == []
    run.receive(ReaderFellBehind(), 60.2)
    run.receive(VerdictReceived(round=2, accepted=0, token=6), 60.3)
    run.receive(VerifierFailed(VerifierError("expected a verdict, got a failure")), 60.4)
    assert run.machine.is_done, "nobody is left, whether the reader is behind or not"


def test_a_last_token_that_needs_no_draft_waits_too() -> None:
    run = Run(max_tokens=6)
    run.receive(VerifierConnected(), 0.0)
    assert sent(run.draft(1, 0.1))
    run.receive(ReaderFellBehind(), 0.15)
    assert not sent(run.receive(VerdictReceived(round=1, accepted=4, token=5), 0.2))
    assert run.receive(ReaderCaughtUp(), 60.0) == [SendDraft(2, 5, (), ())]


def test_a_reader_who_catches_up_in_time_holds_nothing_back() -> None:
    run = Run()
    run.receive(VerifierConnected(), 0.0)
    run.receive(ReaderFellBehind(), 0.05)
    assert run.receive(ReaderCaughtUp(), 0.06) == []
    assert sent(run.draft(1, 0.1))


def test_a_stream_that_isnt_read_on_is_not_thought_slow() -> None:
    estimates = SpeculationEstimates(prior=EstimatesPrior(remote_step=0.05))
    time_account = TimeAccount(estimates)
    backpressure = Backpressure(time_account)
    time_account.start(now=0.0)
    time_account.record_stream(1, is_first=True, now=1.0)
    backpressure.request(is_streaming=True, now=1.02)
    assert backpressure.release(now=31.02)
    time_account.record_stream(1, is_first=False, now=31.05)
    assert estimates.remote_step == pytest.approx(0.05)
