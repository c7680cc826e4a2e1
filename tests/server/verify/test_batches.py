"""Batches on held sequences: what is asked for together, what is judged, and what becomes of a batch that fails."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from random import Random

import pytest

from streamco.core.verifier.events import BatchFailed, BatchFinished, BatchPart, DraftVerdict, RunBatch
from streamco.emulation.step_emulation import StepEmulator
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.policies.acceptance import Rule
from streamco.server.verify.batches import BatchReport, BatchRunner
from streamco.server.verify.verdicts import TargetRowCollector
from streamco.server.wakeup import WakeCoalescer
from streamco.sim.workload.token_models import FakeDistribution
from streamco.testing.engine import FakeEngine
from tests.engines import fakes
from tests.server.verifying import SIZE, greedy_text, target
from tests.support.verify_frames import make_draft

TRUTH = FakeDistribution(1, SIZE)
TEXT = (3, 1, 4, 1, 5)


class Bench:
    """A judge and what it told."""

    def __init__(self, engine: FakeEngine | LlamaEngine, *, context_tokens: int = 100) -> None:
        self.reports: asyncio.Queue[BatchReport] = asyncio.Queue()
        self.drafts: dict[str, tuple[int, ...]] = {}
        now = asyncio.get_running_loop().time
        self.owners: dict[str, str] = {}
        self.judge = BatchRunner(
            engine,
            WakeCoalescer(),
            now,
            self.ask,
            self.reports.put_nowait,
            owner_of=self.owner_of,
            context_tokens=context_tokens,
        )

    def owner_of(self, session: str) -> str | None:
        return self.owners.get(session)

    def ask(self, session: str) -> TargetRowCollector:
        return TargetRowCollector(session, make_draft(0, 0, 0, self.drafts[session]), rule=Rule(), rng=Random(1))

    async def run(self, *parts: BatchPart, number: int = 1) -> BatchReport:
        self.judge.begin(RunBatch(number, "verify", parts))
        return await self.reports.get()

    def part(self, session: str, start: int, given: Sequence[int], draft: Sequence[int]) -> BatchPart:
        self.drafts[session] = tuple(draft)
        return BatchPart(session, start, (*given, *draft), len(draft) + 1)


def verdicts(report: BatchReport) -> dict[str, DraftVerdict]:
    return {verdict.session: verdict for verdict in report.event.verdicts} if isinstance(report.event, BatchFinished) else {}


async def test_parts_are_judged_each_by_its_own_question() -> None:
    bench = Bench(target(successor=TRUTH))
    own = {"a": greedy_text(TRUTH, TEXT, 3), "b": greedy_text(TRUTH, (7, 7), 3)}
    report = await bench.run(
        bench.part("a", 0, TEXT, own["a"][:2]), bench.part("b", 0, (7, 7), [own["b"][0], 63 - own["b"][1]]), BatchPart("c", 0, (1, 2))
    )
    assert isinstance(report.event, BatchFinished)
    assert report.event.verdicts == (DraftVerdict("a", 2, own["a"][2]), DraftVerdict("b", 1, own["b"][1]))
    assert report.event.seconds >= 0
    assert set(verdicts(report)) == {"a", "b"}


async def test_a_sequence_goes_on_where_the_scheduler_left_it() -> None:
    bench = Bench(target(successor=TRUTH))
    own = greedy_text(TRUTH, TEXT, 6)
    assert verdicts(await bench.run(BatchPart("a", 0, TEXT[:4]))) == {}
    report = await bench.run(bench.part("a", 4, TEXT[4:], [own[0], 63 - own[1]]))
    assert verdicts(report)["a"].accepted == 1
    bench.judge.truncate("a", 6)
    report = await bench.run(bench.part("a", 6, own[1:2], own[2:4]))
    assert (verdicts(report)["a"].accepted, verdicts(report)["a"].token) == (2, own[4])
    bench.judge.drop("a")
    bench.judge.drop("a")
    report = await bench.run(bench.part("a", 0, (*TEXT, *own[:2]), ()))
    assert verdicts(report)["a"].token == own[2]


async def test_what_others_had_read_is_told() -> None:
    bench = Bench(target(successor=TRUTH))
    first = await bench.run(BatchPart("a", 0, TEXT))
    second = await bench.run(BatchPart("b", 0, TEXT), bench.part("c", 0, (9, *TEXT), ()))
    assert isinstance(first.event, BatchFinished)
    assert isinstance(second.event, BatchFinished)
    assert (first.event.found, second.event.found) == (0, len(TEXT) - 1)


async def test_what_another_owner_had_read_is_not_found() -> None:
    bench = Bench(target(successor=TRUTH))
    bench.owners = {"a": "alice", "b": "bob", "c": "alice"}
    await bench.run(BatchPart("a", 0, TEXT))
    found = []
    for number, name in enumerate("bc", 2):
        event = (await bench.run(BatchPart(name, 0, TEXT), number=number)).event
        assert isinstance(event, BatchFinished)
        found.append(event.found)
    assert found == [0, len(TEXT) - 1]


async def test_where_the_context_is_full_no_token_follows_what_was_accepted_whole() -> None:
    bench = Bench(target(successor=TRUTH), context_tokens=7)
    own = greedy_text(TRUTH, TEXT, 3)
    report = await bench.run(bench.part("a", 0, TEXT, own[:2]))
    assert (verdicts(report)["a"].accepted, verdicts(report)["a"].token) == (2, None)
    bench.judge.drop("a")
    report = await bench.run(bench.part("a", 0, TEXT, [own[0], 63 - own[1]]))
    assert (verdicts(report)["a"].accepted, verdicts(report)["a"].token) == (1, own[1])


async def test_a_batch_of_a_closed_engine_fails() -> None:
    engine = target()
    bench = Bench(engine)
    await bench.run(BatchPart("a", 0, (1,)))
    engine.close()
    report = await bench.run(BatchPart("a", 1, (2,)), BatchPart("b", 0, (1,)), number=2)
    assert report.event == BatchFailed(2)
    assert "already closed" in str(report.error)


async def test_a_part_that_fails_leaves_the_others_as_they_are() -> None:
    bench = Bench(target(successor=TRUTH, context_tokens=6))
    own = greedy_text(TRUTH, TEXT, 1)
    report = await bench.run(
        BatchPart("a", 0, tuple(range(7))), bench.part("b", 0, TEXT, own), BatchPart("c", 3, (1,)), BatchPart("d", 0, (1, 2), 1)
    )
    assert isinstance(report.event, BatchFinished)
    assert report.event.failed == ("a", "c", "d")
    assert [judgement.session for judgement in report.event.verdicts] == list(verdicts(report)) == ["b"]
    assert verdicts(report)["b"].accepted == 1
    assert "expected at most 6 tokens" in str(report.error)


async def test_rows_that_are_no_numbers_fail_their_own_part_alone() -> None:
    bench = Bench(target(successor=lambda ids: {1: math.inf} if ids[0] == 63 else TRUTH(ids)))
    report = await bench.run(bench.part("a", 0, (63, 1), (2,)), bench.part("b", 0, TEXT, ()))
    assert isinstance(report.event, BatchFinished)
    assert report.event.failed == ("a",)
    assert list(verdicts(report)) == ["b"]


async def test_nothing_is_told_once_it_is_closed() -> None:
    engine = target(mode="manual")
    bench = Bench(engine)
    bench.judge.begin(RunBatch(1, "prefill", (BatchPart("a", 0, (1, 2)),)))
    bench.judge.close()
    engine.step()
    await asyncio.sleep(0.01)
    assert bench.reports.empty()


async def test_a_part_that_is_cancelled_leaves_the_others_as_they_are() -> None:
    engine = target(successor=TRUTH, mode="manual")
    bench = Bench(engine)
    own = greedy_text(TRUTH, TEXT, 1)
    bench.judge.begin(RunBatch(1, "verify", (BatchPart("a", 0, (1, 2, 3)), bench.part("b", 0, TEXT, own))))
    bench.judge.cancel("a")
    bench.judge.cancel("a session of another batch")
    engine.step()
    report = await bench.reports.get()
    assert isinstance(report.event, BatchFinished)
    assert (report.event.failed, report.event.is_cut, report.event.found) == (("a",), True, 0)
    assert (report.cancelled, report.is_aborted, report.error) == (1, False, None)
    assert verdicts(report)["b"].accepted == 1


async def test_a_batch_without_other_parts_is_aborted() -> None:
    engine = target(successor=TRUTH, mode="manual")
    bench = Bench(engine)
    bench.judge.begin(RunBatch(1, "verify", (BatchPart("a", 0, (1, 2, 3)), bench.part("b", 0, TEXT, (1,)))))
    for session in "ab":
        bench.judge.cancel(session)
    engine.step()
    report = await bench.reports.get()
    assert isinstance(report.event, BatchFinished)
    assert (report.event.verdicts, report.event.failed, report.event.is_cut) == ((), ("a", "b"), True)
    assert (report.cancelled, report.is_aborted, report.error) == (2, True, None)
    for session in "ab":
        bench.judge.drop(session)
    bench.judge.begin(RunBatch(2, "verify", (bench.part("a", 0, TEXT, ()),)))
    engine.step()
    assert verdicts(await bench.reports.get())["a"].token == greedy_text(TRUTH, TEXT, 1)[0]


async def test_a_part_that_was_read_before_it_is_cancelled_counts_as_read() -> None:
    engine = target(successor=TRUTH, mode="manual")
    bench = Bench(engine)
    bench.judge.begin(RunBatch(1, "verify", (bench.part("a", 0, TEXT, ()),)))
    engine.step()
    bench.judge.cancel("a")
    report = await bench.reports.get()
    assert isinstance(report.event, BatchFinished)
    assert (report.event.failed, report.event.is_cut, report.cancelled, report.is_aborted) == ((), False, 0, False)
    bench.judge.cancel("a")  # the batch is over


async def test_a_part_that_fails_beside_a_cancelled_one_is_a_failure() -> None:
    engine = target(successor=TRUTH, context_tokens=6, mode="manual")
    bench = Bench(engine)
    bench.judge.begin(RunBatch(1, "verify", (BatchPart("a", 0, tuple(range(7))), BatchPart("b", 0, (1, 2)))))
    bench.judge.cancel("b")
    engine.step()
    report = await bench.reports.get()
    assert isinstance(report.event, BatchFinished)
    assert report.event.failed == ("a", "b")
    assert (report.cancelled, report.is_aborted) == (1, False)
    assert "expected at most 6 tokens" in str(report.error)


async def test_a_part_behind_nothing_is_a_defect_that_ends_its_batch() -> None:
    bench = Bench(target(successor=TRUTH))
    report = await bench.run(BatchPart("a", 3, (1,)))
    assert report.event == BatchFailed(1)
    assert report.error is not None
    assert "a: expected a sequence of 3 tokens, got none" in str(report.error.__cause__)
    assert verdicts(await bench.run(bench.part("a", 0, TEXT, ()), number=2))["a"].accepted == 0


async def test_a_draft_that_nobody_knows_ends_its_batch() -> None:
    report = await Bench(target()).run(BatchPart("a", 0, (1, 2), 1))
    assert report.event == BatchFailed(1)
    assert report.error is not None
    assert isinstance(report.error.__cause__, KeyError)


async def test_all_parts_are_one_decode_of_the_engine_and_its_lateness_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.install(monkeypatch)
    options = EngineOptions(threads=1, context_tokens=100, max_sequences=1, held_sequences=3)
    engine = await asyncio.to_thread(LlamaEngine, "model.gguf", options, pace=StepEmulator(lambda rows, tokens: 1e-9))
    try:
        bench = Bench(engine)
        for number in range(20):
            for session in "abc":
                bench.judge.drop(session)
            fakes.FakeContext.last.batches.clear()
            parts = [bench.part(session, 0, session.encode() + b"x", b"y") for session in "abc"]
            report = await bench.run(*parts, number=number)
            assert len(fakes.FakeContext.last.batches) == 1
            assert report.late_s > 0
            assert verdicts(report)["a"].token == ord("z")
    finally:
        await asyncio.to_thread(engine.close)
