"""Somebody else decides what the next batch holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamco.engines.order import BatchJob
from tests.engines.asking import asked, extend, verify
from tests.engines.conftest import MakeEngine
from tests.engines.fakes import FakeContext, complete, start


class Chooser:
    """Implements ``BatchOrder``."""

    def __init__(self, choose: Callable[[Sequence[BatchJob]], Sequence[int]]) -> None:
        self.seen: list[list[BatchJob]] = []
        self._choose = choose

    def choose(self, jobs: Sequence[BatchJob]) -> Sequence[int]:
        self.seen.append(list(jobs))
        return self._choose(jobs)


def prefills_first(jobs: Sequence[BatchJob]) -> list[int]:
    """Synera's Algorithm 1, with decodes last."""
    for kind in ("prefill", "verify", "decode"):
        chosen = [index for index, job in enumerate(jobs) if job.kind == kind]
        if chosen:
            return chosen
    return []


def shapes() -> list[int]:
    return [len(batch) for batch in FakeContext.last.batches]


def test_batches_are_the_chosen_ones(make_engine: MakeEngine) -> None:
    chooser = Chooser(prefills_first)
    engine = make_engine(order=chooser, held_sequences=1, prefill_chunk=8)
    sequence = engine.hold("phone")
    extend(sequence, b"ab")
    context = FakeContext.last
    context.batches.clear()
    while context.entered.acquire(blocking=False):
        pass
    context.hold()
    generation, reader = start(engine, "n" * 24, max_tokens=2)
    assert context.entered.acquire(timeout=10)
    task, answer = asked(sequence, "verify", b"cd")
    context.let_go()
    assert answer.read(task).reason == "done"
    reader.read(generation)
    assert answer.greedy == list(b"cde")
    assert shapes() == [8, 8, 8, 3, 1]  # the engine's own order would have verified between two chunks
    jobs = [job for jobs in chooser.seen for job in jobs]
    assert {(job.kind, job.label) for job in jobs} == {("prefill", "phone"), ("prefill", None), ("verify", "phone"), ("decode", None)}
    assert [job.rows for job in jobs if job.label is None and job.kind == "prefill"] == [24, 16, 8]
    assert all(job.rows == 3 for job in jobs if job.kind == "verify")


def test_no_choice_is_the_engines_own_order(make_engine: MakeEngine) -> None:
    chooser = Chooser(lambda _jobs: [])
    engine = make_engine(order=chooser, held_sequences=1)
    assert complete(engine, "abc", max_tokens=3).text == "def"
    assert verify_all(engine.hold()) == list(b"bc")
    assert chooser.seen


def verify_all(sequence: object) -> list[int]:
    extend(sequence, b"a")  # type: ignore[arg-type]
    return verify(sequence, b"b").greedy  # type: ignore[arg-type]


def test_the_kinds_never_share_a_batch(make_engine: MakeEngine) -> None:
    engine = make_engine(order=Chooser(lambda jobs: range(len(jobs))), held_sequences=1)
    sequence = engine.hold()
    extend(sequence, b"ab")
    context = FakeContext.last
    while context.entered.acquire(blocking=False):
        pass
    context.hold()
    generation, reader = start(engine, "n" * 24, max_tokens=2)
    assert context.entered.acquire(timeout=10)
    task, answer = asked(sequence, "verify", b"cd")
    context.let_go()
    assert answer.read(task).reason == "error"
    assert "batch order: expected jobs of one kind, got prefill and verify" in answer.error
    assert reader.read(generation).reason == "error"


def test_an_index_that_is_not_there_ends_the_engine_with_the_reason(make_engine: MakeEngine) -> None:
    reader = complete(make_engine(order=Chooser(lambda jobs: [len(jobs)])), "abc", max_tokens=1)
    assert reader.end is not None
    assert "batch order: expected indices from 0 to 0, got [1]" in str(reader.end.error)
