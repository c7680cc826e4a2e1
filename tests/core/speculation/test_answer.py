"""What becomes of tokens, and what is counted of it."""

from __future__ import annotations

from random import Random

import pytest

from streamco.core.report import SpeculationReport
from streamco.core.speculation.answer import Emit, PeerPrefix, ProvisionalAnswer, Settling
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
from streamco.errors import VerifierError


class Told:
    def __init__(self, emit: Emit = "verified", max_tokens: int | None = None) -> None:
        self.said: list[SpeculationCommand] = []
        self.report = SpeculationReport()
        self.answer = ProvisionalAnswer(emit, frozenset({0}), max_tokens)
        self.settling = Settling(self.answer, self.report, self.said.append)


def out(*ids: int, given: int = 0, branches: int = 0) -> Round:
    return Round([DraftToken(token) for token in ids], given=given, branches=branches)


def test_a_correction_is_settled_behind_what_was_accepted() -> None:
    told = Told()
    assert told.settling.judge(out(1, 2, 3, given=4, branches=2), VerdictReceived(round=1, accepted=1, token=9)) == 2
    assert told.said == [DeliverIds((1,), "accepted"), DeliverIds((9,), "corrected")]
    report = told.report
    assert (report.rounds, report.branched_rounds, report.verified, report.accepted, report.corrected) == (1, 1, 3, 1, 1)
    assert (report.target_tokens, report.given) == (4, 4), "what is only given is read, not computed"


def test_a_bonus_is_settled_behind_a_whole_draft() -> None:
    told = Told()
    assert told.settling.judge(out(1, 2), VerdictReceived(round=1, accepted=2, token=9)) == 3
    assert (told.report.bonus, told.report.corrected, told.report.branched_rounds) == (1, 0, 0)


def test_what_comes_behind_the_end_is_not_counted() -> None:
    told = Told()
    assert told.settling.judge(out(1, 0, 3), VerdictReceived(round=1, accepted=3, token=9)) == 2
    assert (told.report.accepted, told.report.bonus) == (2, 0)
    short = Told(max_tokens=1)
    assert short.settling.judge(out(1, 2), VerdictReceived(round=1, accepted=2, token=9)) == 1
    assert (short.report.accepted, short.report.bonus) == (1, 0)


def test_a_verdict_without_a_token_completes_the_answer() -> None:
    told = Told()
    assert told.settling.judge(out(1, 2), VerdictReceived(round=1, accepted=2, token=None)) == 2
    assert told.answer.ended == "length"


def test_whoever_makes_tokens_alone_is_counted_for_them() -> None:
    told = Told(max_tokens=4)
    assert told.settling.keep([DraftToken(1), DraftToken(2)]) == 2
    told.settling.stream([3, 4, 5])
    assert told.said == [DeliverIds((1, 2), "device"), DeliverIds((3, 4), "remote")]
    assert (told.report.device, told.report.remote, told.report.target_tokens) == (2, 2, 3)


def test_the_end_takes_back_what_was_provisional() -> None:
    told = Told("draft")
    told.settling.propose([1, 2])
    told.settling.keep([DraftToken(1)])
    told.settling.finish("length")
    assert told.said == [DeliverIds((1, 2), "draft"), CommitIds(1, "device"), RetractIds(1), FinishAnswer("length")]
    assert told.report.retracted == 1


def test_a_failure_keeps_what_is_settled() -> None:
    told = Told("draft")
    told.settling.propose([1, 2])
    error = VerifierError("expected a verdict, got none")
    told.settling.fail(error)
    assert told.said == [DeliverIds((1, 2), "draft"), RetractIds(2), FailAnswer(error)]


# The settled answer, what the reader sees of it, and what others hold of it


NO_END = frozenset[int]()


def test_settled_tokens_are_delivered_with_who_vouches_for_them() -> None:
    answer = ProvisionalAnswer("verified", NO_END, None)
    assert answer.settle([1, 2], "accepted") == 2
    assert answer.settle([3], "corrected") == 1
    assert answer.take_commands() == [DeliverIds((1, 2), "accepted"), DeliverIds((3,), "corrected")]
    assert answer.take_commands() == []
    assert answer.ids == [1, 2, 3]
    assert answer.length == 3


def test_a_reader_of_final_tokens_sees_no_draft() -> None:
    answer = ProvisionalAnswer("verified", NO_END, None)
    answer.propose([1, 2])
    assert answer.take_commands() == []


def test_a_draft_is_shown_at_once_and_settled_where_it_holds() -> None:
    answer = ProvisionalAnswer("draft", NO_END, None)
    answer.propose([1])
    answer.propose([1, 2, 3])
    answer.settle([1, 2], "accepted")
    answer.settle([9], "corrected")
    assert answer.take_commands() == [
        DeliverIds((1,), "draft"),
        DeliverIds((2, 3), "draft"),
        CommitIds(2, "accepted"),
        RetractIds(1),
        DeliverIds((9,), "corrected"),
    ]
    assert answer.retracted == 1


def test_another_draft_takes_back_only_what_differs() -> None:
    answer = ProvisionalAnswer("draft", NO_END, None)
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
    answer = ProvisionalAnswer("draft", NO_END, None)
    answer.propose([1, 2])
    answer.take_commands()
    answer.settle([1], "remote")
    answer.settle([2], "remote")
    assert answer.take_commands() == [CommitIds(1, "remote"), CommitIds(1, "remote")]


def test_nothing_comes_behind_the_end_of_the_text_which_is_settled_and_not_delivered() -> None:
    answer = ProvisionalAnswer("draft", frozenset({0}), None)
    answer.propose([1, 0, 2])
    assert answer.settle([1, 0, 2], "accepted") == 2
    assert answer.ids == [1, 0]
    assert answer.ended == "stop"
    assert answer.settle([3], "bonus") == 0
    answer.propose([4])
    assert answer.take_commands() == [DeliverIds((1,), "draft"), CommitIds(1, "accepted")]


def test_what_was_shown_behind_the_end_is_taken_back() -> None:
    answer = ProvisionalAnswer("draft", frozenset({0}), None)
    answer.propose([1, 2, 3])
    answer.settle([1, 0], "remote")
    assert answer.take_commands() == [DeliverIds((1, 2, 3), "draft"), CommitIds(1, "remote"), RetractIds(2)]


def test_an_answer_ends_at_its_limit() -> None:
    answer = ProvisionalAnswer("draft", NO_END, 3)
    answer.propose([1, 2, 3, 4])
    assert answer.left == 3
    assert answer.settle([1, 2, 3, 4], "accepted") == 3
    assert answer.ended == "length"
    assert answer.left == 0
    assert answer.take_commands() == [DeliverIds((1, 2, 3), "draft"), CommitIds(3, "accepted")]
    assert ProvisionalAnswer("draft", NO_END, 0).ended == "length"


def test_the_end_of_the_text_at_the_limit_is_a_stop() -> None:
    answer = ProvisionalAnswer("verified", frozenset({0}), 2)
    answer.settle([1, 0], "accepted")
    assert answer.ended == "stop"


def test_an_answer_that_is_ended_takes_back_what_was_provisional_and_keeps_its_first_reason() -> None:
    answer = ProvisionalAnswer("draft", NO_END, None)
    answer.propose([1, 2])
    answer.end("stop")
    answer.end("length")
    assert answer.ended == "stop"
    assert answer.take_commands() == [DeliverIds((1, 2), "draft"), RetractIds(2)]


@pytest.mark.parametrize("seed", range(20))
def test_a_reader_who_does_what_is_said_has_what_was_settled(seed: int) -> None:
    dice = Random(seed)
    answer = ProvisionalAnswer("draft", frozenset({0}), dice.choice((None, 12)))
    final: list[int] = []
    shown: list[int] = []
    for _ in range(30):
        ids = [dice.randrange(6) for _ in range(dice.randrange(5))]
        if dice.random() < 0.5:
            answer.propose(ids)
        else:
            answer.settle([*shown[: dice.randrange(3)], *ids], "accepted")
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
    mirror = PeerPrefix()
    assert mirror.meet([1, 2, 3]) == 0
    mirror.write(0, [1, 2, 9])
    assert mirror.meet([1, 2, 3]) == 2
    mirror.write(2, [3, 4, 5])
    assert mirror.meet([1, 2, 3, 4]) == 4
    assert mirror.ids == [1, 2, 3, 4, 5]
    mirror.write(1, [])
    assert mirror.meet([1, 2, 3, 4]) == 1


def test_a_mirror_can_not_be_cut_to_more_than_it_holds() -> None:
    with pytest.raises(AssertionError, match="holds 0 tokens can't be cut to 2"):
        PeerPrefix().write(2, [1])
