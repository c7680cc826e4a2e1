"""The verifier's side of an answer."""

from __future__ import annotations

import pytest

from streamco.core.speculation.events import (
    CloseVerifier,
    ConnectVerifier,
    DraftRefused,
    DraftToken,
    SendDraft,
    SpeculationCommand,
    VerdictReceived,
    VerifierConnected,
)
from streamco.core.speculation.verification import VerifierChannel
from streamco.errors import VerifierError


class Verifier:
    def __init__(self) -> None:
        self.said: list[SpeculationCommand] = []
        self.judging = VerifierChannel(self.said.append, verdict_patience=5.0, prompt_patience=30.0)

    def commands(self) -> list[SpeculationCommand]:
        said = self.said[:]
        self.said.clear()
        return said

    def connect(self, *ids: int) -> None:
        self.judging.connect(ids, now=0.0)
        self.judging.connected(VerifierConnected(len(ids)), ids, now=0.0)
        self.said.clear()


def draft(*ids: int) -> list[DraftToken]:
    return [DraftToken(token, 0.5) for token in ids]


@pytest.fixture
def verifier() -> Verifier:
    return Verifier()


def test_a_draft_waits_for_the_connection_and_carries_what_the_verifier_lacks(verifier: Verifier) -> None:
    judging = verifier.judging
    judging.connect([1, 2], now=1.0)
    assert verifier.commands() == [ConnectVerifier((1, 2))]
    assert judging.trouble_since == 1.0
    waiting = judging.submit(draft(4, 5), [1, 2, 3], now=2.0)
    assert verifier.commands() == []
    assert (waiting.state, judging.due()) == ("cut", None)
    assert judging.connected(VerifierConnected(1), [1, 2, 3], now=3.0)
    assert verifier.commands() == [SendDraft(1, 1, (2, 3), (4, 5))]
    assert (waiting.state, waiting.sent, waiting.given) == ("out", 3.0, 2)


def test_a_verdict_is_what_the_verifier_holds_from_then_on(verifier: Verifier) -> None:
    verifier.connect()
    judging = verifier.judging
    waiting = judging.submit(draft(4, 5, 6), [1], now=0.0)
    assert verifier.commands() == [SendDraft(1, 0, (1,), (4, 5, 6))]
    assert judging.accept(VerdictReceived(round=1, accepted=2, token=9), [1]) is waiting
    assert judging.round is None
    judging.submit(draft(7), [1, 4, 5, 9], now=0.0)
    assert verifier.commands() == [SendDraft(2, 4, (), (7,))]


def test_what_nobody_judged_is_given_with_the_next_draft(verifier: Verifier) -> None:
    verifier.connect()
    verifier.judging.submit(draft(4), [1, 2, 3], now=0.0)
    verifier.judging.accept(VerdictReceived(round=1, accepted=0, token=5), [1, 2, 3])
    verifier.commands()
    verifier.judging.submit(draft(8), [1, 2, 3, 5, 6, 7], now=0.0)
    assert verifier.commands() == [SendDraft(2, 4, (6, 7), (8,))]


def test_a_verdict_without_a_token_leaves_what_was_accepted(verifier: Verifier) -> None:
    verifier.connect()
    verifier.judging.submit(draft(4, 5), [], now=0.0)
    verifier.judging.accept(VerdictReceived(round=1, accepted=2, token=None), [])
    verifier.commands()
    verifier.judging.submit([], [4, 5], now=0.0)
    assert verifier.commands() == [SendDraft(2, 2, (), ())]


@pytest.mark.parametrize("number", [0, 2])
def test_a_verdict_of_another_round_is_over(verifier: Verifier, number: int) -> None:
    verifier.connect()
    verifier.judging.submit(draft(4), [], now=0.0)
    assert verifier.judging.accept(VerdictReceived(round=number, accepted=1, token=5), []) is None
    assert verifier.judging.round is not None
    assert not verifier.judging.refuse(DraftRefused(number), now=0.0)


def test_a_verdict_that_comes_twice_counts_once(verifier: Verifier) -> None:
    verifier.connect()
    verifier.judging.submit(draft(4), [], now=0.0)
    event = VerdictReceived(round=1, accepted=1, token=5)
    assert verifier.judging.accept(event, []) is not None
    assert verifier.judging.accept(event, [4, 5]) is None


def test_a_verdict_can_not_accept_more_than_was_drafted(verifier: Verifier) -> None:
    verifier.connect()
    verifier.judging.submit(draft(4), [], now=0.0)
    with pytest.raises(AssertionError, match="a verdict about 1 tokens can't accept 2"):
        verifier.judging.accept(VerdictReceived(round=1, accepted=2, token=5), [])


def test_what_each_token_was_drawn_from_goes_with_it(verifier: Verifier) -> None:
    verifier.connect()
    verifier.judging.submit([DraftToken(4, row="a"), DraftToken(5, row="b")], [], now=0.0)
    (command,) = verifier.commands()
    assert isinstance(command, SendDraft)
    assert command.rows == ("a", "b")


def test_a_lost_round_is_sent_again_with_what_the_verifier_lost(verifier: Verifier) -> None:
    verifier.connect(1, 2, 3)
    judging = verifier.judging
    waiting = judging.submit(draft(4), [1, 2, 3], now=1.0)
    verifier.commands()
    judging.connect([1, 2, 3], now=2.0)
    assert (waiting.state, judging.trouble_since) == ("cut", 2.0)
    assert judging.accept(VerdictReceived(round=1, accepted=1, token=5), [1, 2, 3]) is None
    judging.connected(VerifierConnected(2), [1, 2, 3], now=3.0)
    assert verifier.commands() == [ConnectVerifier((1, 2, 3)), SendDraft(2, 2, (3,), (4,))]
    assert waiting.is_first
    judging.accept(VerdictReceived(round=2, accepted=1, token=5), [1, 2, 3])
    assert judging.trouble_since is None


def test_a_connection_nobody_asked_for_is_left_alone(verifier: Verifier) -> None:
    assert not verifier.judging.connected(VerifierConnected(0), [], now=0.0)
    verifier.connect(1)
    assert not verifier.judging.connected(VerifierConnected(0), [1], now=0.0)
    verifier.judging.submit(draft(4), [1], now=0.0)
    assert verifier.commands() == [SendDraft(1, 1, (), (4,))]


def test_the_first_verdict_of_a_connection_may_take_longer(verifier: Verifier) -> None:
    verifier.connect()
    judging = verifier.judging
    judging.submit(draft(4), [], now=1.0)
    assert judging.due() == 31.0
    judging.accept(VerdictReceived(round=1, accepted=1, token=5), [])
    assert judging.due() is None
    judging.submit(draft(6), [4, 5], now=2.0)
    assert judging.due() == 7.0


def test_a_verdict_that_does_not_come_costs_the_connection(verifier: Verifier) -> None:
    verifier.connect()
    judging = verifier.judging
    judging.submit(draft(4), [], now=1.0)
    verifier.commands()
    judging.retry([], now=31.0)
    assert verifier.commands() == [ConnectVerifier(())]
    assert judging.trouble_since == 31.0


def test_a_refused_draft_is_sent_again_when_the_verifier_says(verifier: Verifier) -> None:
    verifier.connect(1)
    judging = verifier.judging
    waiting = judging.submit(draft(4), [1], now=1.0)
    assert judging.refuse(DraftRefused(1, 2.0), now=1.5)
    assert not judging.refuse(DraftRefused(1, 9.0), now=1.6), "told twice"
    assert (waiting.state, judging.due(), judging.refused_until, judging.trouble_since) == ("held", 3.5, 3.5, 1.5)
    verifier.commands()
    judging.retry([1], now=3.5)
    assert verifier.commands() == [SendDraft(2, 1, (), (4,))]
    assert judging.refuse(DraftRefused(2, None), now=4.0)
    assert judging.trouble_since == 1.5, "the same trouble"
    assert judging.due() == 4.25


def test_an_abandoned_round_is_trouble_no_more(verifier: Verifier) -> None:
    verifier.connect()
    judging = verifier.judging
    waiting = judging.submit(draft(4), [], now=0.0)
    judging.refuse(DraftRefused(1, 2.0), now=1.0)
    assert judging.abandon() is waiting
    assert judging.trouble_since is None
    assert judging.accept(VerdictReceived(round=1, accepted=1, token=5), []) is None


def test_a_lost_connection_stays_trouble_until_it_is_back(verifier: Verifier) -> None:
    verifier.connect()
    verifier.judging.connect([], now=3.0)
    verifier.judging.abandon()
    assert verifier.judging.trouble_since == 3.0
    verifier.judging.connected(VerifierConnected(0), [], now=4.0)
    assert verifier.judging.trouble_since is None


def test_a_session_is_closed_once_and_one_that_failed_not_at_all(verifier: Verifier) -> None:
    verifier.connect()
    verifier.judging.close()
    verifier.judging.close()
    assert verifier.commands() == [CloseVerifier()]
    other = Verifier()
    other.connect()
    error = VerifierError("expected a verdict, got a failure")
    other.judging.fail(error)
    other.judging.fail(VerifierError("another"))
    other.judging.close()
    assert other.commands() == []
    assert other.judging.failure is error
    never_opened = Verifier()
    never_opened.judging.close()
    assert never_opened.commands() == []
