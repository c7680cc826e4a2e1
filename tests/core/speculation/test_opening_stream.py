"""An answer that the stream begins while the device reads the prompt."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.core.speculation.events import (
    CloseRemote,
    ConnectVerifier,
    DeliverIds,
    DraftTokens,
    OpenRemote,
    ReaderFellBehind,
    RemoteFailed,
    RemoteTokensReceived,
    SendDraft,
    VerifierConnected,
)
from tests.core.speculation.test_machine import REMOTE_ERROR, STREAM, Answer, has, only, verdict

WAIT = 0.1  # seconds of a round by the prior


def reading(**options: Any) -> Answer:
    return Answer(prior=STREAM, **{"may_begin_by_stream": True, **options})


def test_a_device_that_is_still_reading_after_a_rounds_time_has_the_stream_begin() -> None:
    answer = reading()
    assert answer.commands() == [ConnectVerifier(()), DraftTokens(1, 0, (), 3)]
    assert answer.machine.next_deadline() == pytest.approx(WAIT)
    assert answer.wait(WAIT / 2) == []
    assert answer.wait(WAIT / 2) == [OpenRemote(2, (), None)]  # and the device reads on
    assert answer.report.why_remote == "the device reads the prompt"
    assert answer.receive(RemoteTokensReceived(2, (5,))) == [DeliverIds((5,), "remote")]
    assert answer.report.fallbacks == 0


def test_drafting_starts_when_the_device_has_read_the_prompt() -> None:
    answer = reading()
    answer.begin()
    answer.wait(WAIT)
    answer.receive(RemoteTokensReceived(2, (5, 6)), after=0.3)
    found = answer.drafts(1, 5, 6, 7, after=0.1)
    assert found == [CloseRemote(2), DraftTokens(3, 2, (), 3)]  # what the device drafted was right and is kept
    assert answer.drafts(3, 8, 9, 10) == [SendDraft(1, 0, (5, 6), (8, 9, 10))]
    assert has(answer.receive(verdict(1, 3, 11)), DeliverIds)
    assert answer.machine.answer.ids == [5, 6, 8, 9, 10, 11]


def test_a_device_that_drafts_in_time_needs_no_stream() -> None:
    answer = reading()
    answer.begin()
    answer.drafts(1, 5, is_finished=False, after=WAIT / 2)
    assert answer.wait(10 * WAIT) == []
    assert answer.drafts(1, 6, 7) == [SendDraft(1, 0, (), (5, 6, 7))]


def test_a_device_that_has_far_to_catch_up_reads_while_the_stream_continues() -> None:
    answer = reading()
    answer.begin()
    answer.wait(WAIT)
    for token in range(20):
        answer.receive(RemoteTokensReceived(2, (token,)), after=0.3)
    assert only(answer.drafts(1, 90, 91, 92), DraftTokens).ids == tuple(range(20))  # it was wrong from its first token on
    assert not has(answer.receive(RemoteTokensReceived(2, (20,)), after=0.3), CloseRemote)
    assert has(answer.drafts(3, 21, 22, 23, after=0.1), CloseRemote)


def test_a_connection_that_comes_later_starts_drafting() -> None:
    answer = reading()
    answer.wait(WAIT)
    answer.receive(RemoteTokensReceived(2, (5,)), after=0.3)
    assert not has(answer.drafts(1, 5, 6, 7, after=0.1), CloseRemote)
    assert has(answer.receive(VerifierConnected(0)), CloseRemote)


def test_a_stream_that_fails_leaves_the_answer_to_drafting() -> None:
    answer = reading()
    answer.begin()
    answer.wait(WAIT)
    found = answer.receive(RemoteFailed(2, REMOTE_ERROR))
    assert has(found, DraftTokens)
    assert answer.wait(10 * WAIT) == []
    assert has(answer.drafts(only(found, DraftTokens).version, 5, 6, 7), SendDraft)


@pytest.mark.parametrize("options", [{"may_begin_by_stream": False}, {"is_adaptive": False}, {"has_remote": False}, {"budget": 0.5}])
def test_it_is_left_out_where_it_is_not_wanted_or_not_possible(options: dict[str, Any]) -> None:
    answer = reading(**options)
    answer.begin()
    assert not has(answer.wait(WAIT), OpenRemote)


def test_no_stream_is_opened_for_a_reader_who_is_far_behind() -> None:
    answer = reading()
    answer.begin()
    answer.receive(ReaderFellBehind())
    assert answer.wait(2 * WAIT) == []
