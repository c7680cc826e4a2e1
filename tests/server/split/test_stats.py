"""Counters of a split server."""

from __future__ import annotations

from streamco.core.verifier.events import BatchPart, RunBatch
from streamco.server.split.stats import SplitStats


def test_rows_batches_rounds_and_refusals_are_counted() -> None:
    stats = SplitStats()
    stats.record_batch(RunBatch(1, "verify", (BatchPart("a", 0, (0,) * 4, 4), BatchPart("b", 0, (0,) * 60))))
    stats.record_batch(RunBatch(2, "prefill", (BatchPart("b", 60, (0,) * 8, 1),)))
    stats.record_round(4, queued=0.25, computed=0.5)
    stats.record_part(3)
    stats.record_part(1)
    stats.record_refusal("evicted")
    stats.record_failure()
    figures = stats.figures()
    assert (figures["batches"], figures["shared_batches"], figures["rows"], figures["failed_batches"]) == (2, 1, 72, 1)
    assert (figures["rounds"], figures["returned_rows"], figures["queued_s"], figures["compute_s"]) == (1, 4, 0.25, 0.5)
    assert figures["merged_rounds"] == 2
    assert figures["refused"] == {"evicted": 1}
