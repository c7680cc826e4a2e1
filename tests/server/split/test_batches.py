"""The runner of a split server's batches: sequences that are given and freed, sessions that are gone, an engine that is closed."""

from __future__ import annotations

import asyncio

import numpy as np
from numpy.typing import NDArray

from streamco.core.verifier.events import BatchFailed, BatchFinished, BatchPart, DraftVerdict, RunBatch
from streamco.engines.split.middle_engine import RowsBatch
from streamco.errors import EngineError
from streamco.server.split.batches import RowsReport, RowsRunner
from streamco.server.wakeup import WakeCoalescer
from tests.server.split.serving_layers import SummingLayers
from tests.server.split.test_sessions import some


class Run:
    """A runner over layers without weights, and its reports."""

    def __init__(self, engine: SummingLayers) -> None:
        self.reports: list[RowsReport] = []
        self.present: dict[str, NDArray[np.float32]] = {}
        self.runner = RowsRunner(engine, WakeCoalescer(), lambda part: self.present.get(part.session), self.reports.append)

    async def batch(self, *parts: BatchPart) -> RowsReport:
        self.runner.begin(RunBatch(len(self.reports) + 1, "verify", parts))
        before = len(self.reports)
        for _ in range(20):
            await asyncio.sleep(0)
            if len(self.reports) > before:
                return self.reports[-1]
        raise AssertionError("expected a report, got none")


async def test_parts_get_sequences_of_their_own_and_verdicts_that_accept_all() -> None:
    engine = SummingLayers(sequences=2)
    run = Run(engine)
    run.present = {"a": some(3), "b": some(2, 1)}
    report = await run.batch(BatchPart("a", 0, (0,) * 3, 3), BatchPart("b", 0, (0,) * 2))
    assert engine.batches == [[(0, 0, 3), (1, 0, 2)]]
    assert isinstance(report.event, BatchFinished)
    assert report.event.verdicts == (DraftVerdict("a", 2, 0),)
    assert (report.rows, sorted(report.states)) == (5, ["a", "b"])
    run.runner.drop("a")
    run.runner.drop("a")
    run.present["c"] = some(1, 2)
    await run.batch(BatchPart("c", 0, (0,), 1))
    assert engine.batches[-1] == [(0, 0, 1)]


async def test_a_session_that_is_gone_fails_alone() -> None:
    run = Run(SummingLayers())
    run.present = {"a": some(1)}
    report = await run.batch(BatchPart("a", 0, (0,), 1), BatchPart("gone", 0, (0,), 1))
    assert isinstance(report.event, BatchFinished)
    assert (report.event.failed, sorted(report.states)) == (("gone",), ["a"])
    report = await run.batch(BatchPart("gone", 0, (0,), 1))
    assert isinstance(report.event, BatchFailed)


class ClosedLayers(SummingLayers):
    """An engine that takes no batch."""

    def submit(self, batch: RowsBatch) -> None:
        raise EngineError("engine: already closed")


async def test_an_engine_that_takes_no_batch_fails_it_after_begin_has_returned() -> None:
    run = Run(ClosedLayers())
    run.present = {"a": some(1)}
    report = await run.batch(BatchPart("a", 0, (0,), 1))
    assert isinstance(report.event, BatchFailed)
    assert "closed" in str(report.error)


async def test_a_closed_runner_reports_nothing() -> None:
    run = Run(SummingLayers())
    run.present = {"a": some(1)}
    run.runner.begin(RunBatch(1, "verify", (BatchPart("a", 0, (0,), 1),)))
    run.runner.close()
    for _ in range(20):
        await asyncio.sleep(0)
    assert run.reports == []
