"""However verifier and stream fail, and one after the other, an answer isn't silent for longer than its limit."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import (
    CloseVerifier,
    ConnectVerifier,
    DraftToken,
    DraftTokens,
    FailAnswer,
    OpenRemote,
    ReaderCaughtUp,
    ReaderFellBehind,
    RemoteFailed,
    RemoteTokensReceived,
    SendDraft,
    SpeculationCommand,
    SpeculationEvent,
    TokensDrafted,
    VerdictReceived,
    VerifierConnected,
    VerifierLost,
)
from streamco.core.speculation.machine import SpeculationMachine
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.prior import EstimatesPrior
from streamco.errors import AllEndpointsFailed, EndpointConnectError, EndpointTimeoutError
from streamco.policies.window import Static

REFUSED = EndpointConnectError("expected a connection, got a refusal", endpoint="remote")
LIMITS: dict[str, Any] = {"patience": 2.0, "last_patience": 4.0, "first_silence": 30.0, "silence": 10.0, "verdict_timeout": 4.0}


class Answer:
    """A machine whose deadlines come on time, and a verifier and a stream that behave as they are told."""

    def __init__(self, *, stream_pays: bool = False, **options: Any) -> None:
        prior = EstimatesPrior(remote_step=0.001 if stream_pays else 10.0, wait=0.1, step_times=(0.02,))
        estimates = SpeculationEstimates(window=Static(2), prior=prior)
        settings = SpeculationMachineOptions(**{"is_parallel": False, "may_use_device": True} | LIMITS | options)
        self.now = 0.0
        self.machine = SpeculationMachine(estimates, settings, Random(1))
        self.machine.start(now=0.0)
        self.commands: list[SpeculationCommand] = self.machine.take_commands()

    def receive(self, event: SpeculationEvent, after: float = 0.0) -> list[SpeculationCommand]:
        self.pass_time(after)
        self.machine.receive(event, now=self.now)
        self.commands = self.machine.take_commands()
        return self.commands

    def pass_time(self, seconds: float) -> list[SpeculationCommand]:
        """Let the time pass with all the deadlines in it; return the commands."""
        until, commands = self.now + seconds, list[SpeculationCommand]()
        while (deadline := self.machine.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.machine.handle_deadline(now=self.now)
            commands += self.machine.take_commands()
            for command in commands:
                if isinstance(command, DraftTokens) and self.machine.report.is_exact:
                    self.draft(command.version)
        self.now = until
        self.commands = commands
        return commands

    def is_exact(self) -> bool:
        return self.machine.report.is_exact

    def draft(self, version: int, after: float = 0.0) -> list[SpeculationCommand]:
        return self.receive(TokensDrafted(version, (DraftToken(1), DraftToken(2)), is_finished=True), after)

    def begin(self) -> Answer:
        """Commit a first round and send a second one."""
        self.receive(VerifierConnected(0))
        self.draft(1)
        self.receive(VerdictReceived(round=1, accepted=2, token=3), 0.5)
        (drafting,) = [command for command in self.commands if isinstance(command, DraftTokens)]
        assert any(isinstance(command, SendDraft) for command in self.draft(drafting.version, 0.1))
        return self


def test_a_stopped_verifier_with_a_stopped_stream_leaves_the_answer_to_the_device_at_the_limit() -> None:
    answer = Answer().begin()
    commands = answer.pass_time(9.99)
    assert [type(command) for command in commands if isinstance(command, ConnectVerifier | OpenRemote)] == [ConnectVerifier, OpenRemote]
    assert answer.is_exact()
    answer.pass_time(0.02)
    assert not answer.is_exact()
    assert any(isinstance(command, DraftTokens) for command in answer.commands)
    assert any(isinstance(command, CloseVerifier) for command in answer.commands)


def test_without_a_device_that_may_the_answer_fails_at_the_limit_and_says_which_time_was_over() -> None:
    answer = Answer(may_use_device=False).begin()
    assert not answer.machine.is_done
    (failed,) = [command for command in answer.pass_time(10.0) if isinstance(command, FailAnswer)]
    assert isinstance(failed.error, AllEndpointsFailed)
    for error in failed.error.errors.values():
        assert isinstance(error, EndpointTimeoutError)
        assert (error.phase, error.limit) == ("next_token", 10.0)


def test_a_killed_server_is_waited_for_no_longer_than_the_last_patience() -> None:
    answer = Answer().begin()
    answer.receive(VerifierLost(), 0.3)
    (opened,) = [command for command in answer.pass_time(2.0) if isinstance(command, OpenRemote)]
    answer.receive(RemoteFailed(opened.version, REFUSED), 0.5)
    answer.draft(next(command.version for command in answer.commands if isinstance(command, DraftTokens)))
    answer.pass_time(1.4)
    assert answer.is_exact()
    answer.pass_time(0.2)
    assert not answer.is_exact()


def test_a_stream_that_stalls_counts_as_the_verifier_does() -> None:
    answer = Answer(stream_pays=True)
    (opened,) = [command for command in answer.commands if isinstance(command, OpenRemote)]
    answer.receive(RemoteTokensReceived(opened.version, (1,)), 29.0)
    answer.receive(RemoteTokensReceived(opened.version, (2,)), 9.0)
    assert answer.machine.next_deadline() == pytest.approx(answer.now + 10.0)
    answer.pass_time(10.0)
    assert not answer.is_exact()


def test_before_the_first_token_the_first_limit_holds() -> None:
    answer = Answer(first_verdict_timeout=20.0)
    answer.receive(VerifierConnected(0))
    answer.draft(1)
    answer.pass_time(29.9)
    assert answer.is_exact()
    answer.pass_time(0.2)
    assert not answer.is_exact()


def test_the_readers_and_the_devices_own_time_is_not_silence_of_the_server() -> None:
    answer = Answer().begin()
    answer.receive(ReaderFellBehind(), 3.0)
    commands = answer.receive(VerdictReceived(round=2, accepted=2, token=3), 0.5)
    (drafting,) = [command for command in commands if isinstance(command, DraftTokens)]
    assert not any(isinstance(command, SendDraft) for command in answer.draft(drafting.version, 50.0))
    assert any(isinstance(command, SendDraft) for command in answer.receive(ReaderCaughtUp(), 100.0))
    answer.pass_time(9.9)
    assert answer.is_exact()
    answer.pass_time(0.2)
    assert not answer.is_exact()


def test_without_limits_there_is_no_deadline_of_its_own() -> None:
    answer = Answer(silence=None, first_silence=None, verdict_timeout=1e9, stream_pays=True)
    assert answer.machine.next_deadline() is None
