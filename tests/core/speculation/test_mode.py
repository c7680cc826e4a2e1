"""Who goes on with an answer, and how long trouble with the verifier is borne."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from streamco.core.report import SpeculationReport
from streamco.core.speculation.answer import ProvisionalAnswer
from streamco.core.speculation.draft_state import DraftState
from streamco.core.speculation.estimates import EstimatesPrior, SpeculationEstimates
from streamco.core.speculation.events import DraftRefused, DraftToken, SpeculationCommand, VerdictReceived, VerifierConnected
from streamco.core.speculation.fallback_stream import RemoteStream, TimeAccount
from streamco.core.speculation.mode import ModeSelector
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.verification import VerifierChannel
from streamco.errors import EngineError, VerifierError

DRAFTING_PAYS = EstimatesPrior(remote_step=10.0, wait=0.1, step_times=(0.02,))
STREAM_PAYS = EstimatesPrior(remote_step=0.001, wait=0.1, step_times=(0.02,))
SLOW_ROUNDS = EstimatesPrior(wait=30.0, step_times=(0.02,))


class Parties:
    def __init__(self, budget: float = 1.0, *, prior: EstimatesPrior = DRAFTING_PAYS, **options: Any) -> None:
        made = SpeculationMachineOptions(**options)
        said: list[SpeculationCommand] = []
        self.pair = SpeculationEstimates(budget, prior=prior)
        self.answer = ProvisionalAnswer("verified", frozenset(), made.max_tokens)
        self.drafting = DraftState(self.pair, SpeculationReport(), said.append, count(1).__next__)
        self.judging = VerifierChannel(said.append, verdict_patience=5.0, prompt_patience=30.0)
        self.remote = RemoteStream(made.has_remote, said.append, count(1).__next__)
        self.ledger = TimeAccount(self.pair)
        self.ways = ModeSelector(
            self.pair, made, answer=self.answer, drafting=self.drafting, judging=self.judging, remote=self.remote, ledger=self.ledger
        )

    def connect(self) -> Parties:
        self.judging.connect([], now=0.0)
        self.judging.connected(VerifierConnected(0), [], now=0.0)
        return self

    def send(self) -> None:
        self.judging.submit([DraftToken(1)], [], now=0.0)

    def without(self, *names: str) -> Parties:
        if "device" in names:
            self.drafting.failure = EngineError("gone")
        if "verifier" in names:
            self.judging.fail(VerifierError("gone"))
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
        (("device", "remote"), "judge"),
        (("verifier", "remote"), None),
        (("device", "verifier", "remote"), None),
    ],
)
def test_a_lossless_answer_is_never_left_to_the_device(gone: tuple[str, ...], way: str | None) -> None:
    assert Parties().connect().without(*gone).ways.choose(now=1.0) == way


def test_but_where_that_is_allowed() -> None:
    parties = Parties(may_use_device=True).connect().without("verifier")
    assert parties.ways.choose(now=1.0) == "remote"
    assert parties.without("remote").ways.choose(now=1.0) == "device"
    assert parties.without("device").ways.choose(now=1.0) is None


@pytest.mark.parametrize(
    ("gone", "way"),
    [
        ((), "speculate"),
        (("remote",), "speculate"),
        (("verifier",), "device"),
        (("verifier", "remote"), "device"),
        (("device",), "remote"),
        (("device", "remote"), "judge"),
        (("device", "verifier", "remote"), None),
    ],
)
def test_a_selective_answer_is_the_devices_as_long_as_there_is_one(gone: tuple[str, ...], way: str | None) -> None:
    assert Parties(0.5).connect().without(*gone).ways.choose(now=1.0) == way


def test_what_pays_is_chosen_unless_nothing_is_to_be_chosen() -> None:
    assert Parties(prior=STREAM_PAYS).connect().ways.choose(now=1.0) == "remote"
    assert Parties(prior=STREAM_PAYS, is_adaptive=False).connect().ways.choose(now=1.0) == "speculate"
    assert Parties(prior=STREAM_PAYS, has_remote=False).connect().ways.choose(now=1.0) == "speculate"
    assert Parties(0.5, prior=SLOW_ROUNDS).connect().ways.choose(now=1.0) == "device"


def test_a_device_that_goes_on_alone_tries_the_verifier_now_and_then() -> None:
    parties = Parties(0.5, prior=SLOW_ROUNDS).connect()
    parties.ways.unasked = 63
    assert parties.ways.choose(now=1.0) == "device"
    parties.ways.unasked = 64
    assert parties.ways.choose(now=1.0) == "speculate"


def test_behind_the_early_exit_the_device_goes_on_alone() -> None:
    parties = Parties(0.5, max_tokens=10).connect()
    parties.answer.settle([1] * 8, "device")
    assert parties.ways.choose(now=1.0) == "speculate"
    parties.answer.settle([1], "device")
    assert parties.ways.choose(now=1.0) == "device"
    whole = Parties(1.0, max_tokens=10).connect()
    whole.answer.settle([1] * 9, "accepted")
    assert whole.ways.choose(now=1.0) == "speculate", "a lossless answer has no early exit"


def test_drafting_begins_before_the_connection_stands_but_not_behind_the_patience_for_it() -> None:
    parties = Parties(link_patience=2.0)
    parties.judging.connect([], now=0.0)
    assert parties.ways.choose(now=1.9) == "speculate"
    assert parties.ways.choose(now=2.0) == "remote"


def test_a_verifier_that_refused_is_left_alone_for_as_long_as_it_said() -> None:
    parties = Parties().connect()
    parties.send()
    parties.judging.refuse(DraftRefused(1, 3.0), now=1.0)
    parties.judging.abandon()
    assert not parties.ways.is_promising(3.9)
    assert not parties.ways.pays_again(now=3.9)
    assert parties.ways.is_promising(4.0)


def test_drafting_pays_again_only_where_somebody_can_draft_and_judge() -> None:
    assert Parties().connect().ways.pays_again(now=1.0)
    assert not Parties(prior=STREAM_PAYS).connect().ways.pays_again(now=1.0)
    assert not Parties().connect().without("device").ways.pays_again(now=1.0)
    assert not Parties().connect().without("verifier").ways.pays_again(now=1.0)
    assert not Parties(0.5).connect().ways.pays_again(now=1.0), "a selective answer is streamed for want of a device"
    connecting = Parties()
    connecting.judging.connect([], now=0.0)
    assert not connecting.ways.pays_again(now=0.1), "the stream goes on until there is a connection"


def test_patience_depends_on_who_else_could_go_on() -> None:
    assert Parties(link_patience=2.0, last_patience=9.0).ways.patience == 2.0
    assert Parties(link_patience=2.0, last_patience=9.0, has_remote=False).ways.patience == 9.0
    assert Parties(0.5, link_patience=2.0, has_remote=False).ways.patience == 2.0
    assert Parties(0.5, link_patience=2.0, last_patience=9.0, has_remote=False).without("device").ways.patience == 9.0


def test_a_reader_of_a_selective_answer_waits_for_two_rounds_at_most() -> None:
    parties = Parties(0.5, link_patience=2.0)
    parties.ledger.note_device(now=1.0)
    assert parties.ways.patience == pytest.approx(0.2)


def test_only_a_round_that_waits_is_given_up() -> None:
    parties = Parties(link_patience=2.0)
    parties.judging.connect([], now=1.0)
    assert parties.ways.give_up_at() is None
    parties.judging.submit([DraftToken(1)], [], now=1.5)
    assert parties.ways.give_up_at() == 3.0
    parties.judging.connected(VerifierConnected(0), [], now=2.0)
    assert parties.ways.give_up_at() is None, "it is out"
    parties.judging.accept(VerdictReceived(round=1, accepted=1, token=2), [])
    assert parties.ways.give_up_at() is None
