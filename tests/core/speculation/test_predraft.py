"""Pre-drafting along the likeliest verdicts, and drafts that are sent ahead of one."""

from __future__ import annotations

from streamco.core.speculation.events import (
    AdoptBranch,
    ConnectVerifier,
    DeliverIds,
    DraftBranch,
    DraftRefused,
    DraftTokens,
    DropDrafts,
    ExpectedVerdict,
    OpenRemote,
    ReaderFellBehind,
    SendDraft,
    VerifierConnected,
    VerifierLost,
)
from tests.core.speculation.test_machine import branched, has, only, verdict


def test_a_branch_that_is_whole_is_sent_before_its_verdict_and_that_is_the_next_round() -> None:
    answer, branches = branched(max_ahead=2)
    branch = next(branch for branch in branches if branch.length == 0)
    assert answer.drafts(branch.version, 20, 21, 22) == [SendDraft(2, 1, (), (20, 21, 22), (), ExpectedVerdict(1, 0, 55))]
    commands = answer.receive(verdict(1, 0, 55))
    assert commands[:2] == [DeliverIds((55,), "corrected"), AdoptBranch(branch.version)]
    assert not has(commands, SendDraft), "it is there"
    assert has(commands, DraftTokens), "the device goes on behind the draft that is judged"
    assert (answer.report.hits, answer.report.ahead) == (1, 1)
    assert DeliverIds((20, 21), "accepted") in answer.receive(verdict(2, 2, 9))


def test_the_models_own_next_token_is_what_a_draft_ahead_bets_on() -> None:
    answer, branches = branched(max_ahead=2)
    branch = next(branch for branch in branches if not branch.ids)
    assert answer.drafts(branch.version, 8, 9, 10, 11) == [SendDraft(2, 4, (), (9, 10, 11), (), ExpectedVerdict(1, 3, 8))]
    assert AdoptBranch(branch.version) in answer.receive(verdict(1, 3, 8))


def test_a_draft_is_sent_ahead_before_it_is_whole_when_the_next_token_would_come_too_late() -> None:
    answer, branches = branched(max_ahead=2)
    answer.estimates.expect_rtt(0.06)
    answer.estimates._remote_step.seconds = 0.02
    branch = next(branch for branch in branches if branch.length == 0)
    assert answer.drafts(branch.version, 20, confidence=0.4, is_finished=False, after=0.01) == []
    (sent,) = answer.drafts(branch.version, 21, confidence=0.4, is_finished=False, after=0.06)
    assert isinstance(sent, SendDraft)
    assert (sent.ids, sent.if_verdict) == ((20, 21), ExpectedVerdict(1, 0, 55))


def test_what_the_device_drafts_behind_a_draft_ahead_bets_that_all_of_it_stays() -> None:
    answer, branches = branched(max_ahead=2)
    branch = next(branch for branch in branches if branch.length == 0)
    answer.drafts(branch.version, 20, 21, 22)
    own = only(answer.receive(verdict(1, 0, 55)), DraftTokens)
    assert (own.length, own.ids) == (4, ())
    (sent,) = [command for command in answer.drafts(own.version, 23, 24, 25, 26) if isinstance(command, SendDraft)]
    assert sent == SendDraft(3, 5, (), (24, 25, 26), (), ExpectedVerdict(2, 3, 23))
    commands = answer.receive(verdict(2, 3, 23))
    assert not has(commands, AdoptBranch), "it is the device's own sequence already"
    assert answer.report.ahead == 2
    assert answer.machine.answer.ids == [55, 20, 21, 22, 23]


def test_a_verdict_that_no_draft_ahead_bet_on_is_gone_on_from_as_ever() -> None:
    answer, branches = branched(max_ahead=2)
    branch = next(branch for branch in branches if branch.length == 0)
    answer.drafts(branch.version, 20, 21, 22)
    assert only(answer.receive(verdict(1, 0, 99)), DraftTokens).ids == (99,)
    assert answer.report.ahead == 0


def test_after_a_draft_ahead_failed_its_bet_the_devices_own_sequence_is_cut_back() -> None:
    answer, branches = branched(max_ahead=2)
    branch = next(branch for branch in branches if branch.length == 0)
    answer.drafts(branch.version, 20, 21, 22)
    own = only(answer.receive(verdict(1, 0, 55)), DraftTokens)
    answer.drafts(own.version, 23, 24, is_finished=False)
    commands = answer.receive(verdict(2, 1, 77))
    assert own.version in only(commands, DropDrafts).versions
    assert (only(commands, DraftTokens).length, only(commands, DraftTokens).ids) == (2, (77,))


def test_a_refused_round_is_sent_again_and_what_bet_on_it_is_not() -> None:
    answer, branches = branched(max_ahead=2)
    branch = next(branch for branch in branches if branch.length == 0)
    answer.drafts(branch.version, 20, 21, 22)
    answer.receive(DraftRefused(1, 0.2))
    assert answer.wait(0.3) == [SendDraft(3, 0, (), (5, 6, 7))]
    assert has(answer.receive(verdict(3, 0, 55)), SendDraft), "the branch's draft, now"


def test_a_round_that_was_sent_ahead_is_sent_again_on_another_connection() -> None:
    answer, branches = branched(max_ahead=2)
    branch = next(branch for branch in branches if branch.length == 0)
    answer.drafts(branch.version, 20, 21, 22)
    answer.receive(verdict(1, 0, 55))
    assert ConnectVerifier((55,)) in answer.receive(VerifierLost())
    assert SendDraft(3, 1, (), (20, 21, 22)) in answer.receive(VerifierConnected(1))


def test_no_more_drafts_are_sent_ahead_than_may_be_and_none_for_a_reader_who_is_far_behind() -> None:
    answer, branches = branched(max_ahead=1)
    assert [has(answer.drafts(branch.version, 20, 21, 22, 23), SendDraft) for branch in branches] == [True, False, False]
    answer, branches = branched(max_ahead=3)
    answer.receive(ReaderFellBehind())
    assert not any(has(answer.drafts(branch.version, 20, 21, 22, 23), SendDraft) for branch in branches)


def test_behind_the_end_of_the_text_nothing_is_drafted_and_at_the_longest_length_neither() -> None:
    answer, branches = branched(max_ahead=2, end_ids=frozenset({22}))
    branch = next(branch for branch in branches if branch.length == 0)
    assert only(answer.drafts(branch.version, 20, 22, 23), SendDraft).ids == (20, 22)
    assert not has(answer.receive(verdict(1, 0, 55)), DraftTokens)
    answer, branches = branched(max_ahead=2, max_tokens=6)
    branch = next(branch for branch in branches if branch.length == 0)
    assert only(answer.drafts(branch.version, 20, 21, 22), SendDraft).ids == (20, 21, 22)
    assert not has(answer.receive(verdict(1, 0, 55)), DraftTokens)


def test_a_draft_that_is_being_written_goes_on_as_the_bet_that_what_was_sent_of_it_stays() -> None:
    answer, branches = branched(max_ahead=2, has_remote=False)
    answer.estimates.expect_rtt(0.06)
    answer.estimates._remote_step.seconds = 0.02
    branch = next(branch for branch in branches if branch.length == 0)
    assert has(answer.drafts(branch.version, 20, 21, confidence=0.4, is_finished=False, after=0.07), SendDraft)
    assert not has(answer.receive(verdict(1, 0, 55)), DraftTokens), "it is still writing"
    own = only(answer.drafts(branch.version, 22), DraftTokens)
    assert (own.length, own.count) == (4, 3), "and then goes on"
    assert only(answer.drafts(own.version, 23, 24, 25), SendDraft).if_verdict == ExpectedVerdict(2, 2, 22)


def test_where_the_server_alone_is_faster_a_round_that_was_sent_ahead_is_the_last_one() -> None:
    answer, branches = branched(max_ahead=2)
    answer.estimates._remote_step.seconds = 0.001
    branch = next(branch for branch in branches if branch.length == 0)
    answer.drafts(branch.version, 20, 21, 22)
    own = only(answer.receive(verdict(1, 0, 55)), DraftTokens)
    answer.drafts(own.version, 23, 24, 25, 26)
    commands = answer.receive(verdict(2, 3, 23))
    assert not has(commands, DraftTokens)
    assert not has(commands, DraftBranch)
    assert has(answer.receive(verdict(3, 1, 9)), OpenRemote)
