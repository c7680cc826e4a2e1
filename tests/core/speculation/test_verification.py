"""The verifier as one answer sees it."""

from __future__ import annotations

import pytest

from streamco.core.speculation.draft import Round
from streamco.core.speculation.estimates import SpeculationEstimates
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
from streamco.core.speculation.verification import VerifierChannel, record_wait
from streamco.errors import VerifierError
from streamco.profiles.row_costs import RowCosts


class Verifier:
    def __init__(self) -> None:
        self.emitted: list[SpeculationCommand] = []
        self.channel = VerifierChannel(self.emitted.append, verdict_timeout=5.0, first_verdict_timeout=30.0)

    def commands(self) -> list[SpeculationCommand]:
        emitted = self.emitted[:]
        self.emitted.clear()
        return emitted

    def connect(self, *ids: int) -> None:
        self.channel.connect(ids, now=0.0)
        self.channel.record_connected(VerifierConnected(len(ids)), ids, now=0.0)
        self.emitted.clear()


def draft(*ids: int) -> list[DraftToken]:
    return [DraftToken(token, 0.5) for token in ids]


@pytest.fixture
def verifier() -> Verifier:
    return Verifier()


def test_a_draft_waits_for_the_connection_and_carries_what_the_verifier_lacks(verifier: Verifier) -> None:
    channel = verifier.channel
    channel.connect([1, 2], now=1.0)
    assert verifier.commands() == [ConnectVerifier((1, 2))]
    assert channel.trouble_since == 1.0
    out = channel.submit(draft(4, 5), [1, 2, 3], now=2.0)
    assert verifier.commands() == []
    assert (out.state, channel.next_deadline()) == ("unsent", None)
    assert channel.record_connected(VerifierConnected(1), [1, 2, 3], now=3.0)
    assert verifier.commands() == [SendDraft(1, 1, (2, 3), (4, 5))]
    assert (out.state, out.sent, out.given) == ("sent", 3.0, 2)


def test_a_verdict_is_what_the_verifier_holds_from_then_on(verifier: Verifier) -> None:
    verifier.connect()
    channel = verifier.channel
    out = channel.submit(draft(4, 5, 6), [1], now=0.0)
    assert verifier.commands() == [SendDraft(1, 0, (1,), (4, 5, 6))]
    assert channel.accept_verdict(VerdictReceived(round=1, accepted=2, token=9), [1]) is out
    assert channel.round is None
    channel.submit(draft(7), [1, 4, 5, 9], now=0.0)
    assert verifier.commands() == [SendDraft(2, 4, (), (7,))]


def test_what_nobody_judged_is_given_with_the_next_draft(verifier: Verifier) -> None:
    verifier.connect()
    verifier.channel.submit(draft(4), [1, 2, 3], now=0.0)
    verifier.channel.accept_verdict(VerdictReceived(round=1, accepted=0, token=5), [1, 2, 3])
    verifier.commands()
    verifier.channel.submit(draft(8), [1, 2, 3, 5, 6, 7], now=0.0)
    assert verifier.commands() == [SendDraft(2, 4, (6, 7), (8,))]


def test_a_verdict_without_a_token_leaves_what_was_accepted(verifier: Verifier) -> None:
    verifier.connect()
    verifier.channel.submit(draft(4, 5), [], now=0.0)
    verifier.channel.accept_verdict(VerdictReceived(round=1, accepted=2, token=None), [])
    verifier.commands()
    verifier.channel.submit([], [4, 5], now=0.0)
    assert verifier.commands() == [SendDraft(2, 2, (), ())]


@pytest.mark.parametrize("number", [0, 2])
def test_a_verdict_of_another_round_is_over(verifier: Verifier, number: int) -> None:
    verifier.connect()
    verifier.channel.submit(draft(4), [], now=0.0)
    assert verifier.channel.accept_verdict(VerdictReceived(round=number, accepted=1, token=5), []) is None
    assert verifier.channel.round is not None
    assert not verifier.channel.record_refusal(DraftRefused(number), now=0.0)


def test_a_verdict_that_comes_twice_counts_once(verifier: Verifier) -> None:
    verifier.connect()
    verifier.channel.submit(draft(4), [], now=0.0)
    event = VerdictReceived(round=1, accepted=1, token=5)
    assert verifier.channel.accept_verdict(event, []) is not None
    assert verifier.channel.accept_verdict(event, [4, 5]) is None


def test_a_verdict_can_not_accept_more_than_was_drafted(verifier: Verifier) -> None:
    verifier.connect()
    verifier.channel.submit(draft(4), [], now=0.0)
    with pytest.raises(AssertionError, match="a verdict about 1 tokens can't accept 2"):
        verifier.channel.accept_verdict(VerdictReceived(round=1, accepted=2, token=5), [])


def test_what_each_token_was_drawn_from_goes_with_it(verifier: Verifier) -> None:
    verifier.connect()
    verifier.channel.submit([DraftToken(4, row="a"), DraftToken(5, row="b")], [], now=0.0)
    (command,) = verifier.commands()
    assert isinstance(command, SendDraft)
    assert command.rows == ("a", "b")


def test_a_lost_round_is_sent_again_with_what_the_verifier_lost(verifier: Verifier) -> None:
    verifier.connect(1, 2, 3)
    channel = verifier.channel
    out = channel.submit(draft(4), [1, 2, 3], now=1.0)
    verifier.commands()
    channel.connect([1, 2, 3], now=2.0)
    assert (out.state, channel.trouble_since) == ("unsent", 2.0)
    assert channel.accept_verdict(VerdictReceived(round=1, accepted=1, token=5), [1, 2, 3]) is None
    channel.record_connected(VerifierConnected(2), [1, 2, 3], now=3.0)
    assert verifier.commands() == [ConnectVerifier((1, 2, 3)), SendDraft(2, 2, (3,), (4,))]
    assert out.is_first
    channel.accept_verdict(VerdictReceived(round=2, accepted=1, token=5), [1, 2, 3])
    assert channel.trouble_since is None


def test_a_connection_nobody_asked_for_is_left_alone(verifier: Verifier) -> None:
    assert not verifier.channel.record_connected(VerifierConnected(0), [], now=0.0)
    verifier.connect(1)
    assert not verifier.channel.record_connected(VerifierConnected(0), [1], now=0.0)
    verifier.channel.submit(draft(4), [1], now=0.0)
    assert verifier.commands() == [SendDraft(1, 1, (), (4,))]


def test_the_first_verdict_of_a_connection_may_take_longer(verifier: Verifier) -> None:
    verifier.connect()
    channel = verifier.channel
    channel.submit(draft(4), [], now=1.0)
    assert channel.next_deadline() == 31.0
    channel.accept_verdict(VerdictReceived(round=1, accepted=1, token=5), [])
    assert channel.next_deadline() is None
    channel.submit(draft(6), [4, 5], now=2.0)
    assert channel.next_deadline() == 7.0


def test_a_verdict_that_does_not_come_costs_the_connection(verifier: Verifier) -> None:
    verifier.connect()
    channel = verifier.channel
    channel.submit(draft(4), [], now=1.0)
    verifier.commands()
    channel.retry([], now=31.0)
    assert verifier.commands() == [ConnectVerifier(())]
    assert channel.trouble_since == 31.0


def test_a_refused_draft_is_sent_again_when_the_verifier_says(verifier: Verifier) -> None:
    verifier.connect(1)
    channel = verifier.channel
    out = channel.submit(draft(4), [1], now=1.0)
    assert channel.record_refusal(DraftRefused(1, 2.0), now=1.5)
    assert not channel.record_refusal(DraftRefused(1, 9.0), now=1.6), "told twice"
    assert (out.state, channel.next_deadline(), channel.refused_until, channel.trouble_since) == ("refused", 3.5, 3.5, 1.5)
    verifier.commands()
    channel.retry([1], now=3.5)
    assert verifier.commands() == [SendDraft(2, 1, (), (4,))]
    assert channel.record_refusal(DraftRefused(2, None), now=4.0)
    assert channel.trouble_since == 1.5, "the same trouble"
    assert channel.next_deadline() == 4.25


def test_an_abandoned_round_is_trouble_no_more(verifier: Verifier) -> None:
    verifier.connect()
    channel = verifier.channel
    out = channel.submit(draft(4), [], now=0.0)
    channel.record_refusal(DraftRefused(1, 2.0), now=1.0)
    assert channel.abandon_round() is out
    assert channel.trouble_since is None
    assert channel.accept_verdict(VerdictReceived(round=1, accepted=1, token=5), []) is None


def test_a_lost_connection_stays_trouble_until_it_is_back(verifier: Verifier) -> None:
    verifier.connect()
    verifier.channel.connect([], now=3.0)
    verifier.channel.abandon_round()
    assert verifier.channel.trouble_since == 3.0
    verifier.channel.record_connected(VerifierConnected(0), [], now=4.0)
    assert verifier.channel.trouble_since is None


def test_a_session_is_closed_once_and_one_that_failed_not_at_all(verifier: Verifier) -> None:
    verifier.connect()
    verifier.channel.close()
    verifier.channel.close()
    assert verifier.commands() == [CloseVerifier()]
    other = Verifier()
    other.connect()
    error = VerifierError("expected a verdict, got a failure")
    other.channel.fail(error)
    other.channel.fail(VerifierError("another"))
    other.channel.close()
    assert other.commands() == []
    assert other.channel.failure is error
    never_opened = Verifier()
    never_opened.channel.close()
    assert never_opened.commands() == []


def test_a_round_that_reads_a_chunk_of_the_answer_shows_how_long_verdicts_take_whatever_the_list_says() -> None:
    estimates = SpeculationEstimates(0.5)
    estimates.expect_rtt(0.01)
    estimates.expect_row_costs(RowCosts({1: 0.04, 4: 0.08}))
    out = Round(draft(1, 2, 3), number=1, state="sent", given=20)
    event = VerdictReceived(round=1, accepted=3, token=9, queue_seconds=0.3, compute_seconds=0.4)
    record_wait(estimates, out, event, prompt_time=0.0, now=0.75)
    assert estimates.wait > 0.6
