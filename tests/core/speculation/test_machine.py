"""One answer, event by event."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import (
    AdoptBranch,
    CloseRemote,
    CloseVerifier,
    CommitIds,
    ConnectVerifier,
    DeliverIds,
    DeviceFailed,
    DraftBranch,
    DraftRefused,
    DraftToken,
    DraftTokens,
    DropDrafts,
    FailAnswer,
    FinishAnswer,
    OpenRemote,
    ReaderCaughtUp,
    ReaderFellBehind,
    RemoteEnded,
    RemoteFailed,
    RemoteTokensReceived,
    RetractIds,
    SendDraft,
    SpeculationCommand,
    SpeculationEvent,
    TokensDrafted,
    VerdictReceived,
    VerifierConnected,
    VerifierFailed,
    VerifierLost,
)
from streamco.core.speculation.machine import SpeculationMachine
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.prior import EstimatesPrior
from streamco.errors import AllEndpointsFailed, EndpointConnectError, EngineError, VerifierError
from streamco.events import ReaderLeft
from streamco.policies.window import Static
from streamco.profiles.row_costs import RowCosts

SLOW_STREAM = EstimatesPrior(remote_step=10.0, wait=0.1, step_times=(0.02, 0.021, 0.022))
"""Drafting always pays."""

FAST_STREAM = EstimatesPrior(remote_step=0.001, wait=0.1, step_times=(0.02, 0.021, 0.022))
"""It never does."""

STREAM = EstimatesPrior(remote_step=0.3, wait=0.1, step_times=(0.02, 0.021, 0.022))
"""Drafting pays, and the stream doesn't stand still meanwhile."""

REMOTE_ERROR = EndpointConnectError("expected a stream, got none", endpoint="remote")
VERIFIER_ERROR = VerifierError("expected a verdict, got a failure")
DEVICE_ERROR = EngineError("expected a decode, got a failure")


class Answer:
    """A machine with a clock that is set by hand."""

    def __init__(self, budget: float = 1.0, *, prior: EstimatesPrior = SLOW_STREAM, window: int = 3, **options: Any) -> None:
        self.now = 0.0
        self.estimates = SpeculationEstimates(budget, window=Static(window), prior=prior)
        self.machine = SpeculationMachine(self.estimates, SpeculationMachineOptions(**{"is_parallel": False, **options}), Random(1))
        self.machine.start(now=0.0)

    @property
    def report(self) -> Any:
        return self.machine.report

    def commands(self) -> list[SpeculationCommand]:
        return self.machine.take_commands()

    def receive(self, event: SpeculationEvent, *, after: float = 0.0) -> list[SpeculationCommand]:
        self.now += after
        self.machine.receive(event, now=self.now)
        return self.commands()

    def wait(self, seconds: float) -> list[SpeculationCommand]:
        self.now += seconds
        self.machine.handle_deadline(now=self.now)
        return self.commands()

    def begin(self) -> None:
        self.receive(VerifierConnected(0))
        self.commands()

    def drafts(
        self, version: int, *ids: int, confidence: float = 0.5, is_finished: bool = True, after: float = 0.0
    ) -> list[SpeculationCommand]:
        tokens = tuple(DraftToken(token, confidence, ((token, confidence), (token + 50, 0.3))) for token in ids)
        return self.receive(TokensDrafted(version, tokens, is_finished), after=after)


def verdict(number: int, accepted: int, token: int | None) -> VerdictReceived:
    return VerdictReceived(round=number, accepted=accepted, token=token)


def only(commands: list[SpeculationCommand], kind: type) -> Any:
    (command,) = [command for command in commands if isinstance(command, kind)]
    return command


def has(commands: list[SpeculationCommand], kind: type) -> bool:
    return any(isinstance(command, kind) for command in commands)


# Rounds


def test_an_answer_begins_with_a_draft_and_a_connection_at_once() -> None:
    answer = Answer()
    assert answer.commands() == [ConnectVerifier(()), DraftTokens(1, 0, (), 3)]


def test_a_draft_is_judged_and_the_next_one_stands_behind_the_verdict() -> None:
    answer = Answer()
    answer.begin()
    assert answer.drafts(1, 5, 6, 7) == [SendDraft(1, 0, (), (5, 6, 7))]
    assert answer.receive(verdict(1, 1, 9)) == [DeliverIds((5,), "accepted"), DeliverIds((9,), "corrected"), DraftTokens(2, 1, (9,), 3)]
    assert answer.drafts(2, 1, 2, 3) == [SendDraft(2, 2, (), (1, 2, 3))]
    assert answer.receive(verdict(2, 3, 4)) == [DeliverIds((1, 2, 3), "accepted"), DeliverIds((4,), "bonus"), DraftTokens(3, 5, (4,), 3)]
    assert answer.machine.answer.ids == [5, 9, 1, 2, 3, 4]
    report = answer.report
    assert (report.rounds, report.verified, report.accepted, report.corrected, report.bonus, report.target_tokens) == (2, 6, 4, 1, 1, 8)


def test_tokens_that_come_one_by_one_are_judged_when_they_are_enough() -> None:
    answer = Answer()
    answer.begin()
    assert answer.drafts(1, 5, is_finished=False) == []
    assert answer.drafts(1, 6, is_finished=False) == []
    assert answer.drafts(1, 7) == [SendDraft(1, 0, (), (5, 6, 7))]


def test_a_draft_that_is_there_first_waits_for_the_connection() -> None:
    answer = Answer()
    answer.commands()
    assert answer.drafts(1, 5, 6, 7) == []
    assert answer.receive(VerifierConnected(0)) == [SendDraft(1, 0, (), (5, 6, 7))]


def test_the_answer_stops_at_the_end_of_the_text() -> None:
    answer = Answer(end_ids=frozenset({0}))
    answer.begin()
    assert answer.drafts(1, 5, 0) == [SendDraft(1, 0, (), (5, 0))]
    assert answer.receive(verdict(1, 2, 8)) == [DeliverIds((5,), "accepted"), CloseVerifier(), FinishAnswer("stop")]
    assert answer.machine.is_done
    assert answer.report.bonus == 0
    assert answer.machine.answer.ids == [5, 0]


def test_a_correction_may_end_the_text() -> None:
    answer = Answer(end_ids=frozenset({0}))
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    assert answer.receive(verdict(1, 1, 0)) == [DeliverIds((5,), "accepted"), CloseVerifier(), FinishAnswer("stop")]


def test_nothing_is_drafted_beyond_the_longest_length() -> None:
    answer = Answer(max_tokens=6)
    assert only(answer.commands(), DraftTokens).count == 3
    answer.receive(VerifierConnected(0))
    answer.drafts(1, 5, 6, 7)
    assert only(answer.receive(verdict(1, 2, 8)), DraftTokens).count == 2
    answer.drafts(2, 1, 2)
    assert answer.receive(verdict(2, 1, 3)) == [DeliverIds((1,), "accepted"), DeliverIds((3,), "corrected"), SendDraft(3, 5, (), ())]
    assert answer.receive(verdict(3, 0, 4)) == [DeliverIds((4,), "bonus"), CloseVerifier(), FinishAnswer("length")]
    assert answer.machine.answer.ids == [5, 6, 8, 1, 3, 4]


def test_an_answer_without_a_token_is_complete_at_once() -> None:
    assert Answer(max_tokens=0).commands() == [FinishAnswer("length")]


def test_a_verifier_without_room_ends_the_answer() -> None:
    answer = Answer()
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    assert answer.receive(verdict(1, 3, None)) == [DeliverIds((5, 6, 7), "accepted"), CloseVerifier(), FinishAnswer("length")]


def test_a_draft_is_no_longer_than_the_verifier_takes() -> None:
    answer = Answer(window=9, max_draft=4)
    assert only(answer.commands(), DraftTokens).count == 4


def test_nothing_is_said_behind_the_end() -> None:
    answer = Answer(end_ids=frozenset({0}))
    answer.begin()
    answer.drafts(1, 0)
    answer.receive(verdict(1, 1, 8))
    for event in (verdict(1, 1, 8), VerifierLost(), VerifierFailed(VERIFIER_ERROR), DeviceFailed(DEVICE_ERROR), ReaderLeft()):
        assert answer.receive(event) == []
    assert answer.machine.next_deadline() is None
    assert answer.wait(1000.0) == []


def test_a_reader_who_leaves_stops_everybody() -> None:
    answer = Answer()
    answer.begin()
    assert answer.receive(ReaderLeft()) == [DropDrafts((1,)), CloseVerifier()]
    assert answer.machine.is_done


# Branches


def branched(**options: Any) -> tuple[Answer, list[DraftBranch]]:
    answer = Answer(is_parallel=True, max_branches=3, **options)
    answer.begin()
    commands = answer.drafts(1, 5, 6, 7)
    assert has(commands, SendDraft)
    return answer, [command for command in commands if isinstance(command, DraftBranch)]


def test_while_the_verdict_is_out_the_device_drafts_along_the_likeliest_ones() -> None:
    _, branches = branched()
    assert len(branches) == 3
    for branch in branches:
        if branch.ids:
            assert branch.ids == ((55, 56, 57)[branch.length],)
            assert branch.count == 3
        else:
            assert (branch.length, branch.count) == (3, 4), "its first token is the guess"


def test_the_branch_that_foresaw_the_verdict_is_adopted_and_judged_at_once_if_it_is_whole() -> None:
    answer, branches = branched()
    branch = next(branch for branch in branches if branch.length == 0)
    others = tuple(other.version for other in branches if other is not branch)
    answer.drafts(branch.version, 20, 21, 22)
    commands = answer.receive(verdict(1, 0, 55))
    assert commands[:4] == [
        DeliverIds((55,), "corrected"),
        AdoptBranch(branch.version),
        DropDrafts(others),
        SendDraft(2, 1, (), (20, 21, 22)),
    ]
    assert (answer.report.hits, answer.report.adopted) == (1, 3)


def test_a_branch_that_was_right_and_is_not_gone_on_with_is_no_hit() -> None:
    answer = Answer(is_parallel=True, max_branches=3)
    answer.begin()
    branches = [command for command in answer.drafts(1, 5, 6, 7) if isinstance(command, DraftBranch)]
    answer.receive(DeviceFailed(DEVICE_ERROR))
    commands = answer.receive(verdict(1, 0, 55))
    assert branches
    assert not has(commands, AdoptBranch)
    assert has(commands, OpenRemote)
    assert answer.report.hits == 0


def test_a_branch_is_adopted_with_what_it_has_and_drafts_on() -> None:
    answer, branches = branched()
    branch = next(branch for branch in branches if branch.length == 0)
    answer.drafts(branch.version, 20, is_finished=False)
    commands = answer.receive(verdict(1, 0, 55))
    assert AdoptBranch(branch.version) in commands
    assert not has(commands, SendDraft)
    assert has(answer.drafts(branch.version, 21, 22), SendDraft)


def test_the_bonus_may_be_the_models_own_next_token() -> None:
    answer, branches = branched()
    branch = next(branch for branch in branches if not branch.ids)
    answer.drafts(branch.version, 8, 9, is_finished=False)
    commands = answer.receive(verdict(1, 3, 8))
    assert AdoptBranch(branch.version) in commands
    assert only(answer.drafts(branch.version, 10, 11), SendDraft).ids == (9, 10, 11)


def test_a_verdict_nobody_foresaw_drops_all_branches_and_begins_anew() -> None:
    answer, branches = branched()
    for branch in branches:
        answer.drafts(branch.version, 20, 21, 22)
    commands = answer.receive(verdict(1, 0, 99))
    assert commands[1:] == [DropDrafts(tuple(branch.version for branch in branches)), DraftTokens(5, 0, (99,), 3)]
    assert answer.report.hits == 0
    assert answer.drafts(branches[0].version, 1) == [], "it is over"


def test_a_branch_that_found_no_room_is_filled_up_on_the_devices_own_sequence() -> None:
    answer, branches = branched()
    branch = next(branch for branch in branches if branch.length == 0)
    answer.drafts(branch.version, 20)
    commands = answer.receive(verdict(1, 0, 55))
    assert commands[-1] == DraftTokens(5, 2, (), 2)
    assert only(answer.drafts(5, 21, 22), SendDraft).ids == (20, 21, 22)


def test_branches_leave_room_for_the_verdict_at_the_end_of_the_answer() -> None:
    _, branches = branched(max_tokens=5)
    assert {branch.length for branch in branches} <= {0, 1, 2}
    assert all(branch.length + 2 + branch.count <= 5 for branch in branches)


@pytest.mark.parametrize("options", [{"is_parallel": False}, {"max_branches": 0}, {"branch_kinds": frozenset()}])
def test_drafting_in_parallel_can_be_left_out(options: dict[str, Any]) -> None:
    answer = Answer(**{"is_parallel": True, **options})
    answer.begin()
    assert answer.drafts(1, 5, 6, 7) == [SendDraft(1, 0, (), (5, 6, 7))]


# The reader of drafts


def test_a_reader_of_drafts_sees_them_at_once_and_what_was_wrong_is_taken_back() -> None:
    answer = Answer(emit="draft")
    answer.begin()
    assert answer.drafts(1, 5, is_finished=False) == [DeliverIds((5,), "draft")]
    assert answer.drafts(1, 6, 7)[0] == DeliverIds((6, 7), "draft")
    assert answer.receive(verdict(1, 1, 9))[:3] == [CommitIds(1, "accepted"), RetractIds(2), DeliverIds((9,), "corrected")]
    assert answer.report.retracted == 2
    answer.drafts(2, 1, 2, is_finished=False)
    assert RetractIds(2) in answer.receive(VerifierFailed(VERIFIER_ERROR)) + answer.receive(RemoteTokensReceived(3, (4,)))


# The remote side alone


def remote(**options: Any) -> Answer:
    answer = Answer(prior=FAST_STREAM, **options)
    assert answer.commands() == [OpenRemote(1, (), options.get("max_tokens"))], "nobody is asked to judge"
    return answer


def after_a_lost_verifier() -> Answer:
    """The stream goes on with a lossless answer whose verifier didn't come back in time."""
    answer = Answer(patience=2.0)
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    answer.receive(VerifierLost())
    answer.wait(2.0)
    return answer


def test_where_drafting_does_not_pay_the_remote_side_streams() -> None:
    answer = remote()
    assert answer.receive(RemoteTokensReceived(1, (3, 4))) == [DeliverIds((3, 4), "remote")]
    assert answer.receive(RemoteTokensReceived(1, (5,)), after=0.001) == [DeliverIds((5,), "remote")]
    assert answer.receive(RemoteEnded(1, "stop")) == [FinishAnswer("stop")]
    assert (answer.report.remote, answer.report.target_tokens, answer.report.fallbacks) == (3, 3, 0)


def test_news_of_another_stream_is_dropped() -> None:
    answer = remote()
    for event in (RemoteTokensReceived(0, (3,)), RemoteEnded(0, "stop"), RemoteFailed(0, REMOTE_ERROR)):
        assert answer.receive(event) == []


def test_a_stream_that_passes_the_end_or_the_limit_is_closed() -> None:
    answer = remote(end_ids=frozenset({0}))
    assert answer.receive(RemoteTokensReceived(1, (3, 0, 4))) == [
        DeliverIds((3,), "remote"),
        CloseRemote(1),
        FinishAnswer("stop"),
    ]
    answer = remote(max_tokens=2)
    assert answer.receive(RemoteTokensReceived(1, (3, 5, 4)))[-1] == FinishAnswer("length")


def test_a_stream_that_fails_is_taken_over_by_drafting() -> None:
    answer = remote()
    answer.receive(RemoteTokensReceived(1, (3, 4)))
    assert answer.receive(RemoteFailed(1, REMOTE_ERROR), after=30.0) == [ConnectVerifier((3, 4)), DraftTokens(2, 0, (3, 4), 3)]
    answer.receive(VerifierConnected(2))
    answer.drafts(2, 5, 6, 7)
    answer.receive(verdict(1, 0, 9), after=20.0)
    assert answer.estimates.switch.lost_seconds == 0.0, "neither that it stalled nor rounds with nobody to go back to are drafting's loss"


def test_when_drafting_pays_again_the_stream_is_closed_and_a_round_begins() -> None:
    answer = remote(window=1)
    commands: list[SpeculationCommand] = []
    for token in range(250):
        commands += answer.receive(RemoteTokensReceived(1, (token,)), after=8.0)
        if has(commands, ConnectVerifier):
            break
    assert answer.receive(RemoteTokensReceived(1, (60, 61, 62, 63)), after=32.0)[0] == DeliverIds((60, 61, 62, 63), "remote")
    assert not has(commands, CloseRemote), "until somebody is there who judges"
    answer.receive(VerifierConnected(len(only(commands, ConnectVerifier).ids)))
    commands += answer.receive(RemoteTokensReceived(1, (64, 65, 66, 67)), after=32.0)
    assert not has(commands, CloseRemote), "nor before the device has read the answer"
    drafts = [command for command in commands if isinstance(command, DraftTokens)]
    commands = answer.drafts(drafts[-1].version, 1, is_finished=False)
    if not has(commands, CloseRemote):  # it had begun to read before the last of the stream came
        commands = answer.drafts(only(commands, DraftTokens).version, 1, is_finished=False)
    assert CloseRemote(1) in commands, "now it has, and at once"
    assert has(commands, DraftTokens)
    assert answer.receive(RemoteTokensReceived(1, (99,))) == [], "it was on its way"


def test_the_first_answer_begins_with_the_stream_so_that_it_is_known_what_drafting_has_to_beat() -> None:
    answer = Answer(prior=EstimatesPrior(wait=0.1, step_times=(0.02,)))
    assert answer.commands() == [OpenRemote(1, (), None)]
    answer.receive(RemoteTokensReceived(1, (5,)), after=0.4)
    commands = answer.receive(RemoteTokensReceived(1, (6, 7, 8, 9)), after=8.0)
    commands += answer.receive(RemoteTokensReceived(1, (10, 11, 12, 13)), after=8.0)
    assert answer.estimates.remote_step == pytest.approx(2.0)
    assert has(commands, ConnectVerifier), "it can be beaten"
    assert Answer(prior=EstimatesPrior(), has_remote=False).commands()[0] == ConnectVerifier(()), "where there is one"
    assert Answer(prior=EstimatesPrior(), is_adaptive=False).commands()[0] == ConnectVerifier(())


def test_an_answer_begins_with_the_stream_where_its_pace_was_seen_long_ago() -> None:
    answer = Answer()
    answer.begin()
    answer.estimates.record_drafted(2100)
    commands = answer.drafts(1, 5, 6, 7)
    commands += answer.receive(verdict(1, 1, 9))
    assert not has(commands, OpenRemote), "an answer that is drafted goes on"
    second = SpeculationMachine(answer.estimates, SpeculationMachineOptions(is_parallel=False), Random(1))
    second.start(now=0.0)
    assert second.take_commands() == [OpenRemote(1, (), None)]
    for place in range(16):
        second.receive(RemoteTokensReceived(1, (place,)), now=10.0 * (place + 1))
    assert has(second.take_commands(), ConnectVerifier), "it was seen, and drafting still pays"


def test_a_server_that_sends_an_answer_in_one_piece_renews_the_pace_also_at_its_longest() -> None:
    answer = Answer()
    answer.estimates.record_drafted(2100)
    machine = SpeculationMachine(answer.estimates, SpeculationMachineOptions(is_parallel=False, max_tokens=20), Random(1))
    machine.start(now=0.0)
    machine.receive(RemoteTokensReceived(1, tuple(range(20))), now=1.0)
    assert machine.answer.ended == "length"
    assert not answer.estimates.is_remote_step_stale


def test_a_stream_that_comes_in_bunches_is_left_too() -> None:
    answer, commands = Answer(prior=EstimatesPrior(wait=0.1, step_times=(0.02,))), list[SpeculationCommand]()
    answer.commands()
    answer.receive(RemoteTokensReceived(1, (200,)), after=0.2)
    for start in range(0, 96, 16):
        receive = answer.receive(RemoteTokensReceived(1, tuple(range(start, start + 16))), after=32.0)
        if has(receive, ConnectVerifier):
            receive += answer.receive(VerifierConnected(0))
        while has(receive, DraftTokens) and not has(receive, CloseRemote):
            drafts = [command for command in receive if isinstance(command, DraftTokens)]
            receive = answer.drafts(drafts[-1].version, 999, is_finished=False, after=0.1)
        commands += receive
        if has(commands, CloseRemote):
            break
    assert has(commands, CloseRemote), "between two bunches the device has read all there is"


def test_a_stream_in_one_piece_says_how_fast_the_remote_side_is() -> None:
    answer = Answer(prior=EstimatesPrior(wait=0.1, step_times=(0.02,)))
    answer.receive(RemoteTokensReceived(1, tuple(range(10))), after=5.0)
    answer.receive(RemoteEnded(1, "stop"))
    assert answer.estimates.has_remote_step
    assert answer.estimates.remote_step == pytest.approx(0.5)


def test_a_stream_is_not_opened_for_a_reader_who_is_far_behind() -> None:
    answer = Answer(prior=EstimatesPrior(wait=0.1, step_times=(0.02,), remote_step=10.0), patience=1.0)
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    answer.receive(ReaderFellBehind())
    answer.receive(VerifierFailed(VERIFIER_ERROR), after=0.5)
    assert answer.commands() == []
    assert has(answer.receive(ReaderCaughtUp(), after=30.0), OpenRemote)
    answer.receive(RemoteTokensReceived(2, (5,)), after=0.5)
    assert answer.estimates.switch.lost_seconds < 2.0, "nobody was at work in between"


def test_a_session_that_is_lost_beside_the_stream_is_made_again_when_it_is_needed() -> None:
    answer = after_a_lost_verifier()
    answer.receive(VerifierConnected(0))
    assert not has(answer.receive(VerifierLost()), ConnectVerifier)
    assert not has(answer.receive(VerifierLost()), ConnectVerifier)
    assert answer.report.losses == 2


def test_rounds_that_pay_no_more_end_in_the_stream() -> None:
    answer = Answer(prior=EstimatesPrior(remote_step=0.05, wait=0.04, step_times=(0.01,)))
    answer.begin()
    commands: list[SpeculationCommand] = []
    for number in range(1, 30):
        answer.drafts(number, 5, 6, 7)
        commands = answer.receive(verdict(number, 0, 9), after=0.5)
        if has(commands, OpenRemote):
            break
    assert only(commands, OpenRemote).ids == (9,) * answer.report.rounds
    assert answer.report.fallbacks == 1
    assert answer.report.rounds <= 4


# Trouble with the verifier


def test_a_lost_connection_is_taken_up_and_the_round_sent_again() -> None:
    answer = Answer()
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    assert answer.receive(VerifierLost(), after=1.0) == [ConnectVerifier(())]
    assert answer.receive(VerifierLost()) == []
    assert answer.receive(VerifierConnected(0), after=0.5) == [SendDraft(2, 0, (), (5, 6, 7))]
    assert answer.receive(verdict(1, 3, 8)) == [], "of the round that was lost"
    assert DeliverIds((5, 6, 7), "accepted") in answer.receive(verdict(2, 3, 8))
    assert (answer.report.losses, answer.report.stale_verdicts) == (1, 1)


def test_a_lossless_answer_goes_on_with_the_stream_when_patience_ends() -> None:
    answer = Answer(patience=2.0)
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    answer.receive(VerifierLost(), after=1.0)
    assert answer.machine.next_deadline() == 3.0
    assert answer.wait(1.9) == []
    assert answer.wait(0.1) == [OpenRemote(2, (), None)]
    answer.receive(RemoteTokensReceived(2, (5,)))
    answer.receive(VerifierConnected(0))
    assert answer.report.fallbacks == 1
    assert answer.report.is_exact


def test_the_verifier_is_used_again_when_it_is_back() -> None:
    answer = after_a_lost_verifier()
    commands: list[SpeculationCommand] = []
    for token in range(8):
        commands += answer.receive(RemoteTokensReceived(2, (token,)), after=0.01)
        assert not has(commands, CloseRemote)
    answer.drafts(only(commands, DraftTokens).version, 99, is_finished=False)
    commands = answer.receive(VerifierConnected(0))
    for token in range(8, 16):
        receive = answer.receive(RemoteTokensReceived(2, (token,)), after=0.01)
        commands += receive
        if has(receive, DraftTokens) and not has(receive, CloseRemote):
            commands += answer.drafts(only(receive, DraftTokens).version, 99, is_finished=False)
            if has(commands, CloseRemote):
                break
    assert CloseRemote(2) in commands
    assert has(commands, DraftTokens)


def test_the_stream_goes_on_if_the_device_fails_while_the_verifier_is_connected_again() -> None:
    answer = after_a_lost_verifier()
    answer.receive(VerifierConnected(0))
    answer.receive(VerifierLost())
    commands: list[SpeculationCommand] = []
    for token in range(16):
        commands += answer.receive(RemoteTokensReceived(2, (token,)), after=0.01)
    assert has(commands, ConnectVerifier)
    answer.receive(DeviceFailed(DEVICE_ERROR))
    assert answer.receive(VerifierConnected(0)) == []
    assert answer.receive(RemoteTokensReceived(2, (16,))) == [DeliverIds((16,), "remote")]


def test_a_verdict_that_never_comes_costs_the_connection_and_says_that_waiting_is_long() -> None:
    answer = Answer(first_verdict_timeout=4.0)
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    assert answer.machine.next_deadline() == 4.0
    assert answer.wait(4.0) == [ConnectVerifier(())]
    assert answer.estimates.wait == pytest.approx(4.0)
    assert answer.report.losses == 1


def test_a_verdict_that_never_comes_says_that_waiting_is_long_though_the_verifier_has_a_price_list() -> None:
    answer = Answer(first_verdict_timeout=4.0)
    answer.estimates.expect_rtt(0.01)
    answer.estimates.expect_row_costs(RowCosts({1: 0.04, 8: 0.08}))
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    assert answer.estimates.wait < 0.1
    answer.wait(4.0)
    assert answer.estimates.wait >= 4.0


def test_a_round_that_gets_no_verdict_twice_ends_in_the_stream() -> None:
    answer = Answer(first_verdict_timeout=4.0, patience=2.0)
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    answer.wait(4.0)
    assert answer.receive(VerifierConnected(0)) == [SendDraft(2, 0, (), (5, 6, 7))]
    assert answer.wait(4.0) == [ConnectVerifier(()), OpenRemote(2, (), None)]
    assert (answer.report.losses, answer.report.fallbacks) == (2, 1)


def test_a_round_that_is_lost_again_behind_all_patience_ends_in_the_stream() -> None:
    answer = Answer(patience=2.0)
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    answer.receive(VerifierLost())
    answer.receive(VerifierConnected(0), after=1.0)
    assert answer.receive(VerifierLost(), after=4.0) == [ConnectVerifier(()), OpenRemote(2, (), None)]


def test_verdicts_that_never_come_leave_the_rest_to_the_device_where_it_may() -> None:
    answer = Answer(has_remote=False, may_use_device=True, max_tokens=5, first_verdict_timeout=4.0, last_patience=3.0)
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    answer.wait(4.0)
    answer.receive(VerifierConnected(0))
    assert answer.wait(4.0) == [ConnectVerifier(()), CloseVerifier(), DraftTokens(2, 0, (), 3)]
    assert not answer.report.is_exact


def test_a_first_prompt_that_takes_too_long_is_tried_once_more() -> None:
    answer = Answer(has_remote=False, first_verdict_timeout=4.0, last_patience=3.0)
    answer.drafts(1, 5, 6, 7)
    answer.receive(VerifierConnected(0))
    assert answer.wait(4.0) == [ConnectVerifier(())]


def test_a_refused_draft_is_sent_again_in_time() -> None:
    answer = Answer()
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    assert answer.receive(DraftRefused(1, 0.5)) == []
    assert answer.machine.next_deadline() == 0.5
    assert answer.wait(0.4) == []
    assert answer.wait(0.1) == [SendDraft(2, 0, (), (5, 6, 7))]
    assert answer.report.refusals == 1


def test_a_refusal_for_longer_than_anybody_waits_ends_in_the_stream_at_once() -> None:
    answer = Answer(patience=2.0)
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    assert answer.receive(DraftRefused(1, 60.0)) == [OpenRemote(2, (), None)]
    for token in range(20):
        assert not has(answer.receive(RemoteTokensReceived(2, (token,)), after=0.01), CloseRemote)


def test_a_session_that_is_refused_for_more_than_two_rounds_is_not_waited_for() -> None:
    answer = Answer(prior=STREAM, patience=2.0)
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    assert answer.receive(VerifierLost(retry_after=0.5)) == [OpenRemote(2, (), None)]
    emitted: list[list[SpeculationCommand]] = []
    for token in range(16):
        emitted.append(answer.receive(RemoteTokensReceived(2, (token,)), after=0.1))
        for command in emitted[-1]:
            if isinstance(command, DraftTokens):
                emitted[-1] += answer.drafts(command.version, *range(1, command.count + 1))
            elif isinstance(command, ConnectVerifier):
                emitted[-1] += answer.receive(VerifierConnected(len(command.ids)))
    (requested,) = (place for place, commands in enumerate(emitted) if has(commands, ConnectVerifier))
    (closed,) = (place for place, commands in enumerate(emitted) if has(commands, CloseRemote))
    assert requested == 7, "looked at with each fourth token, and not before there may be room"
    assert closed >= requested, "it is drafted again, and the stream goes on until then"
    assert has(emitted[closed], DraftTokens)
    assert answer.estimates.switch.lost_seconds == 0.0


def test_a_refusal_that_is_shorter_than_two_rounds_or_a_token_of_the_stream_is_borne() -> None:
    for prior, seconds in ((STREAM, 0.2), (SLOW_STREAM, 1.5)):
        answer = Answer(prior=prior, patience=2.0)
        answer.begin()
        answer.drafts(1, 5, 6, 7)
        assert answer.receive(VerifierLost(retry_after=seconds)) == [ConnectVerifier(())]
        assert answer.receive(VerifierConnected(0), after=seconds) == [SendDraft(2, 0, (), (5, 6, 7))]


def test_short_refusals_do_not_add_up() -> None:
    answer = Answer(prior=STREAM, patience=2.0)
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    assert answer.receive(VerifierLost(retry_after=0.05)) == [ConnectVerifier(())]
    assert answer.machine.next_deadline() == pytest.approx(0.3), "a token of the stream; further refusals aren't told"
    assert answer.wait(0.29) == []
    assert answer.wait(0.01) == [OpenRemote(2, (), None)]


def test_who_is_told_to_draft_bears_a_refusal_as_long_as_any_trouble() -> None:
    answer = Answer(prior=STREAM, patience=2.0, is_adaptive=False)
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    assert answer.receive(VerifierLost(retry_after=1.9)) == [ConnectVerifier(())]
    assert answer.receive(VerifierConnected(0), after=1.9) == [SendDraft(2, 0, (), (5, 6, 7))]
    answer = Answer(prior=STREAM, patience=2.0, is_adaptive=False)
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    assert answer.receive(VerifierLost(retry_after=2.0)) == [OpenRemote(2, (), None)]


def test_an_answer_that_has_begun_bears_a_refusal_as_any_trouble() -> None:
    answer = Answer(prior=STREAM, patience=2.0)
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    answer.receive(verdict(1, 1, 9))
    answer.drafts(2, 1, 2, 3)
    assert answer.receive(VerifierLost(retry_after=1.9)) == [ConnectVerifier((5, 9))]


def test_a_refusal_that_says_nothing_is_borne() -> None:
    for event in (DraftRefused(1, None), VerifierLost()):
        answer = Answer(prior=STREAM, patience=2.0)
        answer.begin()
        answer.drafts(1, 5, 6, 7)
        assert not has(answer.receive(event), OpenRemote)


def test_refusals_without_a_time_between_them_end_in_the_stream() -> None:
    answer = Answer(prior=STREAM, patience=1.0)
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    for number in range(1, 100):
        commands = answer.receive(DraftRefused(number, 0.0))
        if has(commands, OpenRemote):
            return
        next_deadline = answer.machine.next_deadline()
        assert next_deadline is not None
        assert next_deadline > answer.now
        answer.wait(next_deadline - answer.now)
    raise AssertionError("asked again and again")


def test_a_selective_chunk_that_was_refused_a_session_while_it_was_drafted_gets_one_if_there_is_room_by_then() -> None:
    for seconds, is_sent in ((0.5, True), (9.0, False)):
        answer = Answer(0.5, prior=STREAM, patience=1.0, window=3)
        answer.begin()
        answer.drafts(1, 5, is_finished=False)
        answer.receive(VerifierLost(retry_after=seconds))
        commands = answer.drafts(1, 6, 7, confidence=0.01, after=0.6)
        assert has(commands, ConnectVerifier) == is_sent
        assert has(commands, DeliverIds) != is_sent


def test_a_lossless_answer_without_a_stream_waits_longer_and_fails_with_what_is_settled() -> None:
    answer = Answer(has_remote=False, last_patience=10.0, emit="draft")
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    answer.receive(verdict(1, 1, 9))
    answer.drafts(2, 1, 2, 3)
    answer.receive(VerifierLost())
    assert answer.machine.next_deadline() == 10.0
    commands = answer.wait(10.0)
    assert commands[:-1] == [CloseVerifier(), RetractIds(3)]
    assert isinstance(only(commands, FailAnswer).error, VerifierError)
    assert answer.machine.answer.ids == [5, 9]


def test_a_refusal_is_borne_where_nobody_else_could_go_on() -> None:
    answer = Answer(has_remote=False, last_patience=10.0)
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    assert answer.receive(DraftRefused(1, 9.0)) == []
    assert answer.wait(9.0) == [SendDraft(2, 0, (), (5, 6, 7))]


def test_no_unjudged_token_is_settled_for_exact_when_verifier_and_stream_are_gone() -> None:
    answer = Answer()
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    assert answer.receive(VerifierFailed(VERIFIER_ERROR)) == [OpenRemote(2, (), None)]
    commands = answer.receive(RemoteFailed(2, REMOTE_ERROR))
    error = only(commands, FailAnswer).error
    assert isinstance(error, AllEndpointsFailed)
    assert error.errors == {"verifier": VERIFIER_ERROR, "remote": REMOTE_ERROR}
    assert answer.machine.answer.ids == []


def test_the_device_finishes_a_lossless_answer_only_where_it_may_and_the_report_says_so() -> None:
    answer = Answer(has_remote=False, may_use_device=True, max_tokens=5)
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    answer.receive(verdict(1, 0, 9))
    assert answer.report.is_exact
    assert answer.receive(VerifierFailed(VERIFIER_ERROR)) == [DropDrafts((2,)), DraftTokens(3, 1, (), 3)]
    assert not answer.report.is_exact
    assert answer.drafts(3, 1, 2, 3) == [DeliverIds((1, 2, 3), "device"), DraftTokens(4, 4, (), 1)]
    assert answer.drafts(4, 4) == [DeliverIds((4,), "device"), FinishAnswer("length")]
    assert answer.report.device == 4


# Trouble with the device


def test_without_the_device_a_lossless_answer_is_streamed() -> None:
    answer = Answer()
    answer.begin()
    assert answer.receive(DeviceFailed(DEVICE_ERROR)) == [DropDrafts((1,)), OpenRemote(2, (), None)]


def test_a_device_that_fails_while_the_verdict_is_out_leaves_it_out() -> None:
    answer = Answer()
    answer.begin()
    answer.drafts(1, 5, 6, 7)
    assert answer.receive(DeviceFailed(DEVICE_ERROR)) == []
    assert answer.receive(verdict(1, 3, 8))[-1] == OpenRemote(2, (5, 6, 7, 8), None)


def test_without_device_and_stream_the_verifier_gives_token_by_token() -> None:
    answer = Answer(has_remote=False, end_ids=frozenset({0}))
    answer.begin()
    assert answer.receive(DeviceFailed(DEVICE_ERROR)) == [DropDrafts((1,)), SendDraft(1, 0, (), ())]
    assert answer.receive(verdict(1, 0, 5)) == [DeliverIds((5,), "bonus"), SendDraft(2, 1, (), ())]
    assert answer.receive(verdict(2, 0, 0))[-1] == FinishAnswer("stop")
    assert answer.report.is_exact


def test_a_device_without_room_is_out() -> None:
    answer = Answer()
    answer.begin()
    assert only(answer.drafts(1, 5, 6), SendDraft).ids == (5, 6)
    answer.receive(verdict(1, 2, 8))
    assert answer.drafts(2) == [OpenRemote(3, (5, 6, 8), None)]


def test_everybodys_error_is_told_when_nobody_can_go_on() -> None:
    answer = Answer(has_remote=False)
    answer.begin()
    answer.receive(DeviceFailed(DEVICE_ERROR))
    error = only(answer.receive(VerifierFailed(VERIFIER_ERROR)), FailAnswer).error
    assert isinstance(error, AllEndpointsFailed)
    assert error.errors == {"device": DEVICE_ERROR, "verifier": VERIFIER_ERROR}


# Selective mode


def selective(budget: float, **options: Any) -> Answer:
    answer = Answer(budget, **options)
    answer.begin()
    return answer


def test_a_budget_of_nothing_never_asks() -> None:
    answer = Answer(0.0, max_tokens=4)
    assert answer.commands() == [DraftTokens(1, 0, (), 3)]
    assert answer.drafts(1, 5, 6, 7) == [DeliverIds((5, 6, 7), "device"), DraftTokens(2, 3, (), 1)]
    assert answer.drafts(2, 8) == [DeliverIds((8,), "device"), FinishAnswer("length")]


def test_chunks_are_sent_for_as_much_as_the_budget_says() -> None:
    answer = selective(0.4, end_ids=frozenset({0}))
    version, number = 1, 0
    for _ in range(300):
        commands = answer.drafts(version, 5, 6, 7, confidence=0.4)
        if has(commands, SendDraft):
            number += 1
            commands = answer.receive(verdict(number, 3, 8), after=0.05)
        version = only(commands, DraftTokens).version
    report = answer.report
    assert report.offloaded_share == pytest.approx(0.4, abs=0.04)
    assert report.device == pytest.approx(0.6 * 900, abs=30)
    assert report.device + report.accepted == 900


def test_what_was_not_sent_is_given_with_what_is() -> None:
    answer = selective(0.5)
    version, given = 1, 0
    for _ in range(30):
        commands = answer.drafts(version, 5, 6, 7, confidence=0.4)
        if has(commands, SendDraft):
            send = only(commands, SendDraft)
            assert len(send.given) == given
            assert send.base + given == answer.machine.answer.length
            commands, given = answer.receive(verdict(send.round, 3, 8)), 0
        else:
            given += 3
        version = only(commands, DraftTokens).version


def test_nothing_is_sent_behind_the_early_exit() -> None:
    answer = selective(0.99, max_tokens=40)
    version, number, last = 1, 0, 0
    while not answer.machine.is_done:
        commands = answer.drafts(version, 5, 6, 7, confidence=0.1)
        if has(commands, SendDraft):
            number, last = number + 1, answer.machine.answer.length
            commands = answer.receive(verdict(number, 3, 8), after=0.05)
        version = only(commands, DraftTokens).version if has(commands, DraftTokens) else version
        if has(commands, DraftTokens) and only(commands, DraftTokens).count < 3:
            answer.drafts(version, *([5] * only(commands, DraftTokens).count))
    assert 20 < last <= 32
    assert answer.report.device > 0


def test_a_refused_chunk_is_the_devices_and_the_budget_has_it_back() -> None:
    answer = selective(0.9999)
    assert has(answer.drafts(1, 5, 6, 7, confidence=0.1), SendDraft)
    assert answer.receive(DraftRefused(1, 10.0)) == [DeliverIds((5, 6, 7), "device"), DraftTokens(2, 3, (), 3)]
    assert answer.report.offloaded == 0
    assert answer.estimates.steering.offloaded_tokens == 0
    assert answer.drafts(2, 1, 2, 3, confidence=0.1)[0] == DeliverIds((1, 2, 3), "device"), "not asked again so soon"


def test_a_chunk_whose_connection_is_lost_goes_on_along_the_models_own_branch() -> None:
    answer = selective(0.9999, is_parallel=True, has_remote=False)
    commands = answer.drafts(1, 5, 6, 7, confidence=0.5)
    branch = next(command for command in commands if isinstance(command, DraftBranch) and not command.ids)
    answer.drafts(branch.version, 8, 9, is_finished=False)
    assert answer.receive(VerifierLost()) == [ConnectVerifier(())]
    answer.now = answer.machine.next_deadline() or 0.0
    commands = answer.wait(0.0)
    assert commands[:2] == [DeliverIds((5, 6, 7), "device"), AdoptBranch(branch.version)]
    assert answer.report.hits == 0, "no verdict, no hit"
    assert answer.drafts(branch.version, 10, 11)[0] == DeliverIds((8, 9, 10, 11), "device")


def test_a_selective_answer_whose_verifier_is_gone_is_finished_by_the_device() -> None:
    answer = selective(0.9999, end_ids=frozenset({0}))
    answer.receive(VerifierFailed(VERIFIER_ERROR))
    assert answer.drafts(1, 5, 6, 7)[0] == DeliverIds((5, 6, 7), "device")
    assert answer.drafts(2, 5, 0) == [DeliverIds((5,), "device"), FinishAnswer("stop")]


def test_a_full_device_ends_a_selective_answer_where_nobody_else_goes_on() -> None:
    answer = Answer(0.0, has_remote=False)
    answer.commands()
    assert answer.drafts(1, 5) == [DeliverIds((5,), "device"), DraftTokens(2, 1, (), 3)]
    assert answer.drafts(2) == [FinishAnswer("length")]
