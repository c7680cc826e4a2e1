"""What is committed, shown and retracted, and what is counted of it."""

from __future__ import annotations

from random import Random

import pytest

from streamco.core.speculation.answer import PeerPrefix, SpeculativeAnswer
from streamco.core.speculation.draft import Round
from streamco.core.speculation.events import (
    CommitIds,
    DeliverIds,
    DraftToken,
    FailAnswer,
    FinishAnswer,
    RetractIds,
    SpeculationCommand,
    VerdictReceived,
)
from streamco.core.speculation.report import SpeculationReport
from streamco.errors import VerifierError


class Answer(SpeculativeAnswer):
    """An answer that keeps what it emits."""

    def __init__(self, *, shows_drafts: bool = False, end_ids: frozenset[int] = frozenset(), max_tokens: int | None = None) -> None:
        self.emitted: list[SpeculationCommand] = []
        self.report = SpeculationReport()
        super().__init__(self.emitted.append, self.report, shows_drafts=shows_drafts, end_ids=end_ids, max_tokens=max_tokens)

    def take_commands(self) -> list[SpeculationCommand]:
        emitted = self.emitted[:]
        self.emitted.clear()
        return emitted


ENDS_AT_0 = frozenset({0})


def out(*ids: int, given: int = 0, branches: int = 0) -> Round:
    return Round([DraftToken(token) for token in ids], given=given, branches=branches)


def test_a_correction_is_settled_behind_what_was_accepted() -> None:
    answer = Answer(end_ids=ENDS_AT_0)
    assert answer.commit_verdict(out(1, 2, 3, given=4, branches=2), VerdictReceived(round=1, accepted=1, token=9)) == 2
    assert answer.emitted == [DeliverIds((1,), "accepted"), DeliverIds((9,), "corrected")]
    report = answer.report
    assert (report.rounds, report.branched_rounds, report.verified, report.accepted, report.corrected) == (1, 1, 3, 1, 1)
    assert (report.target_tokens, report.given) == (4, 4), "what is only given is read, not computed"


def test_a_bonus_is_settled_behind_a_whole_draft() -> None:
    answer = Answer(end_ids=ENDS_AT_0)
    assert answer.commit_verdict(out(1, 2), VerdictReceived(round=1, accepted=2, token=9)) == 3
    assert (answer.report.bonus, answer.report.corrected, answer.report.branched_rounds) == (1, 0, 0)


def test_what_comes_behind_the_end_is_not_counted() -> None:
    answer = Answer(end_ids=ENDS_AT_0)
    assert answer.commit_verdict(out(1, 0, 3), VerdictReceived(round=1, accepted=3, token=9)) == 2
    assert (answer.report.accepted, answer.report.bonus) == (2, 0)
    short = Answer(end_ids=ENDS_AT_0, max_tokens=1)
    assert short.commit_verdict(out(1, 2), VerdictReceived(round=1, accepted=2, token=9)) == 1
    assert (short.report.accepted, short.report.bonus) == (1, 0)


def test_a_verdict_without_a_token_completes_the_answer() -> None:
    answer = Answer(end_ids=ENDS_AT_0)
    assert answer.commit_verdict(out(1, 2), VerdictReceived(round=1, accepted=2, token=None)) == 2
    assert answer.ended == "length"


def test_whoever_makes_tokens_alone_is_counted_for_them() -> None:
    answer = Answer(end_ids=ENDS_AT_0, max_tokens=4)
    assert answer.commit_unverified([DraftToken(1), DraftToken(2)]) == 2
    answer.commit_remote([3, 4, 5])
    assert answer.emitted == [DeliverIds((1, 2), "device"), DeliverIds((3, 4), "remote")]
    assert (answer.report.device, answer.report.remote, answer.report.target_tokens) == (2, 2, 3)


def test_the_end_takes_back_what_was_provisional() -> None:
    answer = Answer(shows_drafts=True, end_ids=ENDS_AT_0)
    answer.propose([1, 2])
    answer.commit_unverified([DraftToken(1)])
    answer.finish("length")
    assert answer.emitted == [DeliverIds((1, 2), "draft"), CommitIds(1, "device"), RetractIds(1), FinishAnswer("length")]
    assert answer.report.retracted == 1


def test_a_failure_keeps_what_is_settled() -> None:
    answer = Answer(shows_drafts=True, end_ids=ENDS_AT_0)
    answer.propose([1, 2])
    error = VerifierError("expected a verdict, got none")
    answer.fail(error)
    assert answer.emitted == [DeliverIds((1, 2), "draft"), RetractIds(2), FailAnswer(error)]


# The committed answer, what the reader sees of it, and what its peers hold of it


def test_settled_tokens_are_delivered_with_who_vouches_for_them() -> None:
    answer = Answer()
    assert answer.commit([1, 2], "accepted") == 2
    assert answer.commit([3], "corrected") == 1
    assert answer.take_commands() == [DeliverIds((1, 2), "accepted"), DeliverIds((3,), "corrected")]
    assert answer.take_commands() == []
    assert answer.ids == [1, 2, 3]
    assert answer.length == 3


def test_a_reader_of_final_tokens_sees_no_draft() -> None:
    answer = Answer()
    answer.propose([1, 2])
    assert answer.take_commands() == []


def test_a_draft_is_shown_at_once_and_settled_where_it_holds() -> None:
    answer = Answer(shows_drafts=True)
    answer.propose([1])
    answer.propose([1, 2, 3])
    answer.commit([1, 2], "accepted")
    answer.commit([9], "corrected")
    assert answer.take_commands() == [
        DeliverIds((1,), "draft"),
        DeliverIds((2, 3), "draft"),
        CommitIds(2, "accepted"),
        RetractIds(1),
        DeliverIds((9,), "corrected"),
    ]
    assert answer.report.retracted == 1


def test_another_draft_takes_back_only_what_differs() -> None:
    answer = Answer(shows_drafts=True)
    answer.propose([1, 2, 3])
    answer.propose([1, 5])
    answer.propose([])
    assert answer.take_commands() == [
        DeliverIds((1, 2, 3), "draft"),
        RetractIds(2),
        DeliverIds((5,), "draft"),
        RetractIds(2),
    ]


def test_tokens_that_turn_out_right_are_settled_one_by_one_without_a_flicker() -> None:
    answer = Answer(shows_drafts=True)
    answer.propose([1, 2])
    answer.take_commands()
    answer.commit([1], "remote")
    answer.commit([2], "remote")
    assert answer.take_commands() == [CommitIds(1, "remote"), CommitIds(1, "remote")]


def test_nothing_comes_behind_the_end_of_the_text_which_is_settled_and_not_delivered() -> None:
    answer = Answer(shows_drafts=True, end_ids=ENDS_AT_0)
    answer.propose([1, 0, 2])
    assert answer.commit([1, 0, 2], "accepted") == 2
    assert answer.ids == [1, 0]
    assert answer.ended == "stop"
    assert answer.commit([3], "bonus") == 0
    answer.propose([4])
    assert answer.take_commands() == [DeliverIds((1,), "draft"), CommitIds(1, "accepted")]


def test_what_was_shown_behind_the_end_is_taken_back() -> None:
    answer = Answer(shows_drafts=True, end_ids=ENDS_AT_0)
    answer.propose([1, 2, 3])
    answer.commit([1, 0], "remote")
    assert answer.take_commands() == [DeliverIds((1, 2, 3), "draft"), CommitIds(1, "remote"), RetractIds(2)]


def test_an_answer_ends_at_its_limit() -> None:
    answer = Answer(shows_drafts=True, max_tokens=3)
    answer.propose([1, 2, 3, 4])
    assert answer.free_tokens == 3
    assert answer.commit([1, 2, 3, 4], "accepted") == 3
    assert answer.ended == "length"
    assert answer.free_tokens == 0
    assert answer.take_commands() == [DeliverIds((1, 2, 3), "draft"), CommitIds(3, "accepted")]
    assert Answer(max_tokens=0).ended == "length"


def test_the_end_of_the_text_at_the_limit_is_a_stop() -> None:
    answer = Answer(end_ids=ENDS_AT_0, max_tokens=2)
    answer.commit([1, 0], "accepted")
    assert answer.ended == "stop"


def test_an_answer_that_is_ended_takes_back_what_was_provisional_and_keeps_its_first_reason() -> None:
    answer = Answer(shows_drafts=True)
    answer.propose([1, 2])
    answer.finish("stop")
    answer.finish("length")
    assert answer.ended == "stop"
    assert answer.take_commands() == [DeliverIds((1, 2), "draft"), RetractIds(2), FinishAnswer("stop"), FinishAnswer("length")]


@pytest.mark.parametrize("seed", range(20))
def test_a_reader_who_does_what_is_said_has_what_was_settled(seed: int) -> None:
    rng = Random(seed)
    answer = Answer(shows_drafts=True, end_ids=ENDS_AT_0, max_tokens=rng.choice((None, 12)))
    final: list[int] = []
    shown: list[int] = []
    for _ in range(30):
        ids = [rng.randrange(6) for _ in range(rng.randrange(5))]
        if rng.random() < 0.5:
            answer.propose(ids)
        else:
            answer.commit([*shown[: rng.randrange(3)], *ids], "accepted")
        for command in answer.take_commands():
            match command:
                case DeliverIds(more, "draft"):
                    shown += more
                case DeliverIds(more):
                    assert not shown, f"seed {seed}"
                    final += more
                case CommitIds(count):
                    final += shown[:count]
                    del shown[:count]
                case RetractIds(count):
                    assert count <= len(shown), f"seed {seed}"
                    del shown[len(shown) - count :]
        assert final == [token for token in answer.ids if token != 0], f"seed {seed}"


def test_a_mirror_meets_the_settled_tokens_where_it_holds_them() -> None:
    peer = PeerPrefix()
    assert peer.common_length([1, 2, 3]) == 0
    peer.update(0, [1, 2, 9])
    assert peer.common_length([1, 2, 3]) == 2
    peer.update(2, [3, 4, 5])
    assert peer.common_length([1, 2, 3, 4]) == 4
    assert peer.ids == [1, 2, 3, 4, 5]
    peer.update(1, [])
    assert peer.common_length([1, 2, 3, 4]) == 1


def test_a_mirror_can_not_be_cut_to_more_than_it_holds() -> None:
    with pytest.raises(AssertionError, match="at most the 0 tokens that the peer holds, got 2"):
        PeerPrefix().update(2, [1])
