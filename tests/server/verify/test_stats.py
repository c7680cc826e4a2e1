"""Counters of a verifier: what each event adds, and the JSON object that they become."""

from __future__ import annotations

import json

from streamco.core.verifier.events import BatchFailed, BatchFinished, BatchPart, DraftVerdict, RunBatch, SendVerdict
from streamco.errors import EngineError
from streamco.server.verify.batches import BatchReport
from streamco.server.verify.stats import VerifyStats


def verdict(accepted: int, *, queued: float, compute: float) -> SendVerdict:
    return SendVerdict(verdict=DraftVerdict("a", accepted, 1), round=0, position=9, depth=0, queued=queued, compute=compute)


def test_a_new_server_has_done_nothing() -> None:
    figures = VerifyStats().figures()
    assert all(not value for value in figures.values()), figures
    assert json.loads(json.dumps(figures)) == figures


def test_batches_and_their_tokens_are_counted_by_kind() -> None:
    stats = VerifyStats()
    stats.record_batch(RunBatch(1, "prefill", (BatchPart("a", 0, (1, 2, 3)), BatchPart("b", 0, (4, 5)))))
    stats.record_batch(RunBatch(2, "verify", (BatchPart("a", 3, (6,), 1),)))
    stats.record_batch(RunBatch(3, "verify", (BatchPart("b", 2, (7, 8), 2),)))
    figures = stats.figures()
    assert figures["batches"] == {"prefill": 1, "verify": 2}
    assert figures["batch_tokens"] == {"prefill": 5, "verify": 3}


def test_late_and_failed_batches_are_counted() -> None:
    stats = VerifyStats()
    stats.record_report(BatchReport(BatchFinished(1, (), 0.1)))
    stats.record_report(BatchReport(BatchFinished(2, (), 0.1), late_s=0.01))
    stats.record_report(BatchReport(BatchFailed(3), error=EngineError("engine: expected rows, got none")))
    figures = stats.figures()
    assert (figures["late_batches"], figures["failed_batches"]) == (1, 1)


def test_cancelled_parts_are_no_failures_and_batches_without_others_count_as_aborted() -> None:
    stats = VerifyStats()
    stats.record_report(BatchReport(BatchFinished(1, (), 0.1, ("a",), is_cut=True), cancelled=1))
    stats.record_report(BatchReport(BatchFinished(2, (), 0.1, ("a", "b"), is_cut=True), cancelled=2, is_aborted=True))
    figures = stats.figures()
    assert (figures["cancelled_parts"], figures["aborted_batches"], figures["failed_batches"]) == (3, 1, 0)


def test_verdicts_add_their_tokens_and_seconds() -> None:
    stats = VerifyStats()
    stats.record_verdict(verdict(3, queued=0.25, compute=0.5), 3, is_late=False)
    stats.record_verdict(verdict(0, queued=0.0000001, compute=0.125), 0, is_late=True)
    figures = stats.figures()
    assert (figures["verdicts"], figures["accepted_tokens"], figures["late_verdicts"]) == (2, 3, 1)
    assert (figures["queued_s"], figures["compute_s"]) == (0.25, 0.625)


def test_refusals_are_counted_by_reason() -> None:
    stats = VerifyStats()
    for reason in ("busy", "overloaded", "busy"):
        stats.record_refusal(reason)
    assert stats.figures()["refused"] == {"busy": 2, "overloaded": 1}


def test_a_copy_of_the_counters_does_not_change_later() -> None:
    stats = VerifyStats()
    stats.record_refusal("busy")
    before = stats.figures()
    stats.record_refusal("busy")
    assert before["refused"] == {"busy": 1}
