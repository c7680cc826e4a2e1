"""What becomes of tokens, and what is counted of it."""

from __future__ import annotations

from streamco.core.speculation.draft import Round
from streamco.core.speculation.estimates import SpeculationReport
from streamco.core.provisional import Emit, ProvisionalAnswer
from streamco.core.speculation.answer import Settling
from streamco.core.speculation.events import (
    DeliverIds,
    DraftToken,
    FailAnswer,
    FinishAnswer,
    RetractIds,
    SettleIds,
    SpeculatorCommand,
    VerdictReceived,
)
from streamco.errors import VerifierError


class Told:
    def __init__(self, emit: Emit = "verified", max_tokens: int | None = None) -> None:
        self.said: list[SpeculatorCommand] = []
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
    assert (report.rounds, report.branched_rounds, report.judged, report.accepted, report.corrected) == (1, 1, 3, 1, 1)
    assert (report.cloud, report.given) == (4, 4), "what is only given is read, not computed"


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
    assert (told.report.device, told.report.remote, told.report.cloud) == (2, 2, 3)


def test_the_end_takes_back_what_was_provisional() -> None:
    told = Told("draft")
    told.settling.propose([1, 2])
    told.settling.keep([DraftToken(1)])
    told.settling.finish("length")
    assert told.said == [DeliverIds((1, 2), "draft"), SettleIds(1, "device"), RetractIds(1), FinishAnswer("length")]
    assert told.report.retracted == 1


def test_a_failure_keeps_what_is_settled() -> None:
    told = Told("draft")
    told.settling.propose([1, 2])
    error = VerifierError("expected a verdict, got none")
    told.settling.fail(error)
    assert told.said == [DeliverIds((1, 2), "draft"), RetractIds(2), FailAnswer(error)]
