"""How the next tokens are made, and how long trouble with the verifier may last."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from streamco.core.speculation.answer import SpeculativeAnswer
from streamco.core.speculation.draft_state import DraftState
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import DraftRefused, DraftToken, SpeculationCommand, VerdictReceived, VerifierConnected
from streamco.core.speculation.fallback_stream import RemoteStream, TimeAccount
from streamco.core.speculation.mode import ModeSelector
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.prior import EstimatesPrior
from streamco.core.speculation.report import SpeculationReport
from streamco.core.speculation.verification import VerifierChannel
from streamco.errors import EngineError, VerifierError

DRAFTING_PAYS = EstimatesPrior(remote_step=10.0, wait=0.1, step_times=(0.02,))
STREAM_PAYS = EstimatesPrior(remote_step=0.001, wait=0.1, step_times=(0.02,))
SLOW_ROUNDS = EstimatesPrior(wait=30.0, step_times=(0.02,))


class Parties:
    def __init__(self, budget: float = 1.0, *, prior: EstimatesPrior = DRAFTING_PAYS, **settings: Any) -> None:
        options = SpeculationMachineOptions(**settings)
        emitted: list[SpeculationCommand] = []
        self.estimates = SpeculationEstimates(budget, prior=prior)
        self.answer = SpeculativeAnswer(emitted.append, SpeculationReport(), max_tokens=options.max_tokens)
        self.draft_state = DraftState(self.estimates, SpeculationReport(), emitted.append, count(1).__next__)
        self.verifier = VerifierChannel(emitted.append, verdict_timeout=5.0, first_verdict_timeout=30.0)
        self.remote = RemoteStream(options.has_remote, emitted.append, count(1).__next__)
        self.time_account = TimeAccount(self.estimates)
        self.mode_selector = ModeSelector(
            self.estimates,
            options,
            answer=self.answer,
            draft_state=self.draft_state,
            verifier=self.verifier,
            remote=self.remote,
            time_account=self.time_account,
        )

    def connect(self) -> Parties:
        self.verifier.connect([], now=0.0)
        self.verifier.record_connected(VerifierConnected(0), [], now=0.0)
        return self

    def send(self) -> None:
        self.verifier.submit([DraftToken(1)], [], now=0.0)

    def without(self, *names: str) -> Parties:
        if "device" in names:
            self.draft_state.failure = EngineError("gone")
        if "verifier" in names:
            self.verifier.fail(VerifierError("gone"))
        if "remote" in names:
            self.remote.failure = EngineError("gone")
        return self


@pytest.mark.parametrize(
    ("gone", "way"),
    [
        ((), "speculate"),
        (("remote",), "speculate"),
        (("device",), "remote"),
        (("verifier",), "remote"),
        (("device", "verifier"), "remote"),
        (("device", "remote"), "verify one"),
        (("verifier", "remote"), None),
        (("device", "verifier", "remote"), None),
    ],
)
def test_a_lossless_answer_is_never_left_to_the_device(gone: tuple[str, ...], way: str | None) -> None:
    assert Parties().connect().without(*gone).mode_selector.choose(now=1.0) == way


def test_but_where_that_is_allowed() -> None:
    parties = Parties(may_use_device=True).connect().without("verifier")
    assert parties.mode_selector.choose(now=1.0) == "remote"
    assert parties.without("remote").mode_selector.choose(now=1.0) == "device"
    assert parties.without("device").mode_selector.choose(now=1.0) is None


@pytest.mark.parametrize(
    ("gone", "way"),
    [
        ((), "speculate"),
        (("remote",), "speculate"),
        (("verifier",), "device"),
        (("verifier", "remote"), "device"),
        (("device",), "remote"),
        (("device", "remote"), "verify one"),
        (("device", "verifier", "remote"), None),
    ],
)
def test_a_selective_answer_is_the_devices_as_long_as_there_is_one(gone: tuple[str, ...], way: str | None) -> None:
    assert Parties(0.5).connect().without(*gone).mode_selector.choose(now=1.0) == way


def test_what_pays_is_chosen_unless_nothing_is_to_be_chosen() -> None:
    assert Parties(prior=STREAM_PAYS).connect().mode_selector.choose(now=1.0) == "remote"
    assert Parties(prior=STREAM_PAYS, is_adaptive=False).connect().mode_selector.choose(now=1.0) == "speculate"
    assert Parties(prior=STREAM_PAYS, has_remote=False).connect().mode_selector.choose(now=1.0) == "speculate"
    assert Parties(0.5, prior=SLOW_ROUNDS).connect().mode_selector.choose(now=1.0) == "device"


def test_a_device_that_goes_on_alone_tries_the_verifier_now_and_then() -> None:
    parties = Parties(0.5, prior=SLOW_ROUNDS).connect()
    parties.mode_selector.record_unverified(63)
    assert parties.mode_selector.choose(now=1.0) == "device"
    parties.mode_selector.record_unverified(1)
    assert parties.mode_selector.choose(now=1.0) == "speculate"


def test_behind_the_early_exit_the_device_goes_on_alone() -> None:
    parties = Parties(0.5, max_tokens=10).connect()
    parties.answer.commit([1] * 8, "device")
    assert parties.mode_selector.choose(now=1.0) == "speculate"
    parties.answer.commit([1], "device")
    assert parties.mode_selector.choose(now=1.0) == "device"
    whole = Parties(1.0, max_tokens=10).connect()
    whole.answer.commit([1] * 9, "accepted")
    assert whole.mode_selector.choose(now=1.0) == "speculate", "a lossless answer has no early exit"


def test_drafting_begins_before_the_connection_stands_but_not_behind_the_patience_for_it() -> None:
    parties = Parties(patience=2.0)
    parties.verifier.connect([], now=0.0)
    assert parties.mode_selector.choose(now=1.9) == "speculate"
    assert parties.mode_selector.choose(now=2.0) == "remote"


def test_a_verifier_that_refused_is_left_alone_for_as_long_as_it_said() -> None:
    parties = Parties().connect()
    parties.send()
    parties.verifier.record_refusal(DraftRefused(1, 3.0), now=1.0)
    parties.verifier.abandon_round()
    assert not parties.mode_selector.can_verify_soon(3.9)
    assert not parties.mode_selector.pays_again(now=3.9)
    assert parties.mode_selector.can_verify_soon(4.0)


def test_drafting_pays_again_only_where_somebody_can_draft_and_judge() -> None:
    assert Parties().connect().mode_selector.pays_again(now=1.0)
    assert not Parties(prior=STREAM_PAYS).connect().mode_selector.pays_again(now=1.0)
    assert not Parties().connect().without("device").mode_selector.pays_again(now=1.0)
    assert not Parties().connect().without("verifier").mode_selector.pays_again(now=1.0)
    assert not Parties(0.5).connect().mode_selector.pays_again(now=1.0), "a selective answer is streamed for want of a device"
    connecting = Parties()
    connecting.verifier.connect([], now=0.0)
    assert not connecting.mode_selector.pays_again(now=0.1), "the stream goes on until there is a connection"


def test_patience_depends_on_who_else_could_go_on() -> None:
    assert Parties(patience=2.0, last_patience=9.0).mode_selector.patience == 2.0
    assert Parties(patience=2.0, last_patience=9.0, has_remote=False).mode_selector.patience == 9.0
    assert Parties(0.5, patience=2.0, has_remote=False).mode_selector.patience == 2.0
    assert Parties(0.5, patience=2.0, last_patience=9.0, has_remote=False).without("device").mode_selector.patience == 9.0


def test_a_reader_of_a_selective_answer_waits_for_two_rounds_at_most() -> None:
    parties = Parties(0.5, patience=2.0)
    parties.time_account.record_device(now=1.0)
    assert parties.mode_selector.patience == pytest.approx(0.2)


def test_only_a_round_that_waits_is_given_up() -> None:
    parties = Parties(patience=2.0)
    parties.verifier.connect([], now=1.0)
    assert parties.mode_selector.gives_up_at() is None
    parties.verifier.submit([DraftToken(1)], [], now=1.5)
    assert parties.mode_selector.gives_up_at() == 3.0
    parties.verifier.record_connected(VerifierConnected(0), [], now=2.0)
    assert parties.mode_selector.gives_up_at() is None, "it is out"
    parties.verifier.accept_verdict(VerdictReceived(round=1, accepted=1, token=2), [])
    assert parties.mode_selector.gives_up_at() is None
