"""An answer that the stream begins while the device reads the prompt."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.core.speculation.events import (
    CloseRemote,
    ConnectVerifier,
    DeliverIds,
    DraftTokens,
    ExpectedVerdict,
    OpenRemote,
    ReaderFellBehind,
    RemoteFailed,
    RemoteTokensReceived,
    SendDraft,
    VerifierConnected,
    VerifierFailed,
)
from tests.core.speculation.test_machine import REMOTE_ERROR, STREAM, VERIFIER_ERROR, Answer, has, only, verdict

WAIT = 0.1  # seconds of a round by the prior


def reading(**options: Any) -> Answer:
    return Answer(prior=STREAM, **{"may_begin_by_stream": True, **options})


def asked() -> Answer:
    """An answer that a token was asked for while the device reads."""
    answer = reading()
    answer.begin()
    assert answer.wait(WAIT) == [SendDraft(1, 0, (), ())]
    return answer


def streaming() -> Answer:
    """An answer that the stream continues while the device reads."""
    answer = asked()
    assert OpenRemote(2, (5,), None) in answer.receive(verdict(1, 0, 5), after=WAIT)
    return answer


def test_a_device_that_is_still_reading_after_a_rounds_time_has_the_verifier_and_then_the_stream_begin() -> None:
    answer = reading()
    assert answer.commands() == [ConnectVerifier(()), DraftTokens(1, 0, (), 3)]
    assert answer.machine.next_deadline() == pytest.approx(WAIT)
    answer.begin()
    assert answer.wait(WAIT / 2) == []
    assert answer.wait(WAIT / 2) == [SendDraft(1, 0, (), ())]  # and the device reads on
    assert answer.receive(verdict(1, 0, 5), after=WAIT) == [DeliverIds((5,), "bonus"), OpenRemote(2, (5,), None)]
    assert answer.report.why_remote == "the device reads the prompt"
    assert answer.receive(RemoteTokensReceived(2, (6,))) == [DeliverIds((6,), "remote")]
    assert answer.report.fallbacks == 0


def test_drafting_starts_when_the_device_has_read_the_prompt() -> None:
    answer = streaming()
    answer.receive(RemoteTokensReceived(2, (6, 7)), after=0.3)
    found = answer.drafts(1, 5, 6, 7, after=0.1)
    assert found == [CloseRemote(2), DraftTokens(3, 3, (), 3)]  # what the device drafted was right and is kept
    assert answer.drafts(3, 8, 9, 10) == [SendDraft(2, 1, (6, 7), (8, 9, 10))]
    assert has(answer.receive(verdict(2, 3, 11)), DeliverIds)
    assert answer.machine.answer.ids == [5, 6, 7, 8, 9, 10, 11]


def test_a_draft_that_comes_before_the_verdict_follows_it_if_it_guessed_the_token() -> None:
    answer = asked()
    assert answer.drafts(1, 5, 6, 7, 8) == []
    found = answer.receive(verdict(1, 0, 5), after=WAIT)
    assert SendDraft(2, 1, (), (6, 7, 8)) in found
    assert not has(found, OpenRemote)


def test_a_device_that_does_not_draft_in_parallel_sends_nothing_ahead_of_the_token() -> None:
    answer = reading(is_parallel=False, max_ahead=3)
    answer.begin()
    answer.wait(WAIT)
    assert answer.drafts(1, 5, 6, 7, 8) == []
    assert SendDraft(2, 1, (), (6, 7, 8)) in answer.receive(verdict(1, 0, 5), after=WAIT)


def test_a_draft_is_sent_ahead_of_the_token_that_it_guesses() -> None:
    answer = reading(is_parallel=True, max_ahead=3)
    answer.begin()
    answer.wait(WAIT)
    assert only(answer.drafts(1, 5, 6, 7, 8), SendDraft).if_verdict == ExpectedVerdict(1, 0, 5)
    found = answer.receive(verdict(1, 0, 5), after=WAIT)
    assert not has(found, SendDraft)
    assert not has(found, OpenRemote)
    answer.receive(verdict(2, 3, 9), after=WAIT)
    assert answer.machine.answer.ids == [5, 6, 7, 8, 9]


def test_a_device_whose_context_is_full_leaves_the_answer_to_the_stream() -> None:
    answer = streaming()
    answer.receive(RemoteTokensReceived(2, (6,)), after=0.3)
    assert answer.drafts(1) == []
    assert answer.receive(RemoteTokensReceived(2, (7,)), after=0.3) == [DeliverIds((7,), "remote")]


def test_a_draft_that_guessed_wrong_is_begun_again() -> None:
    answer = asked()
    assert answer.drafts(1, 90, 91, 92, 93) == []
    assert only(answer.receive(verdict(1, 0, 5), after=WAIT), DraftTokens).ids == (5,)


def test_a_device_that_drafts_in_time_needs_nothing_else() -> None:
    answer = reading()
    answer.begin()
    answer.drafts(1, 5, is_finished=False, after=WAIT / 2)
    assert answer.wait(10 * WAIT) == []
    assert answer.drafts(1, 6, 7) == [SendDraft(1, 0, (), (5, 6, 7))]


def test_a_device_that_has_far_to_catch_up_reads_while_the_stream_continues() -> None:
    answer = streaming()
    for token in range(20):
        answer.receive(RemoteTokensReceived(2, (token,)), after=0.3)
    assert only(answer.drafts(1, 90, 91, 92), DraftTokens).ids == (5, *range(20))  # it was wrong from its first token on
    assert not has(answer.receive(RemoteTokensReceived(2, (20,)), after=0.3), CloseRemote)
    assert has(answer.drafts(3, 21, 22, 23, after=0.1), CloseRemote)


def test_a_verifier_that_connects_late_is_asked_then_or_left_for_the_stream() -> None:
    answer = reading()
    answer.commands()
    assert answer.wait(WAIT) == []
    assert answer.receive(VerifierConnected(0)) == [SendDraft(1, 0, (), ())]
    other = reading()
    other.wait(WAIT)
    assert has(other.receive(VerifierFailed(VERIFIER_ERROR)), OpenRemote)


def test_a_stream_that_fails_leaves_the_answer_to_drafting() -> None:
    answer = streaming()
    found = answer.receive(RemoteFailed(2, REMOTE_ERROR))
    assert has(found, DraftTokens)
    assert answer.wait(10 * WAIT) == []
    assert has(answer.drafts(only(found, DraftTokens).version, 6, 7, 8), SendDraft)


def test_the_wait_for_the_stream_is_not_charged_to_drafting() -> None:
    answer = streaming()
    answer.receive(RemoteTokensReceived(2, (6,)), after=5.0)
    assert answer.estimates.switch.lost_seconds <= 0.0


@pytest.mark.parametrize("options", [{"may_begin_by_stream": False}, {"is_adaptive": False}, {"has_remote": False}, {"budget": 0.5}])
def test_it_is_left_out_where_it_is_not_wanted_or_not_possible(options: dict[str, Any]) -> None:
    answer = reading(**options)
    answer.begin()
    assert answer.wait(WAIT) == []


def test_nothing_is_asked_for_a_reader_who_is_far_behind() -> None:
    answer = reading()
    answer.begin()
    answer.receive(ReaderFellBehind())
    assert answer.wait(2 * WAIT) == []
