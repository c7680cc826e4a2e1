"""Who stops a decode: all those whose rows are in it together, and nobody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from streamco.engines.base import SequenceTask
from streamco.engines.decoder import Decoder, SequenceWork
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.context import NO_KV_SLOT
from tests.engines.asking import Answer, asked, draft, extend, verify
from tests.engines.conftest import MakeEngine
from tests.engines.fakes import FakeContext, start


class Meddler:
    """Does something once, just before the first batch that holds rows of ``size`` tasks is decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.meddle: Callable[[], None] | None = None
        self.size = 0
        compute = Decoder.compute

        def meddle_and_compute(decoder: Decoder, batch: Sequence[SequenceWork], **options: Any) -> bool:
            if self.meddle is not None and len(batch) == self.size:
                meddle, self.meddle = self.meddle, None
                meddle()
            return compute(decoder, batch, **options)

        monkeypatch.setattr(Decoder, "compute", meddle_and_compute)


def hold_decodes() -> FakeContext:
    """From now on decodes wait for ``allow``; an abort ends the waiting."""
    context = FakeContext.last
    while context.entered.acquire(blocking=False):
        pass
    context.batches.clear()
    context.hold()
    return context


class Pair:
    """A trunk that has read "abc", and a fork of it, that draft in the same batches."""

    def __init__(self, engine: LlamaEngine) -> None:
        self.trunk = engine.hold()
        extend(self.trunk, b"abc")
        self.branch = self.trunk.fork()
        extend(self.branch, b"")
        self.engine = engine
        self.tasks: list[SequenceTask] = []
        self.answers: list[Answer] = []

    def begin(self) -> None:
        with self.engine.together():
            for sequence in (self.trunk, self.branch):
                task, answer = asked(sequence, "draft", 9)
                self.tasks.append(task)
                self.answers.append(answer)

    def cancel_trunk(self) -> None:
        self.tasks[0].cancel()

    def cancel_both(self) -> None:
        for task in self.tasks:
            task.cancel()

    def reasons(self) -> list[str]:
        return [answer.read(task).reason for task, answer in zip(self.tasks, self.answers, strict=True)]


@pytest.mark.parametrize("exact", [False, True])
def test_a_decode_stops_when_the_last_of_those_in_it_is_cancelled(make_engine: MakeEngine, exact: bool) -> None:
    pair = Pair(make_engine(held_sequences=2, max_sequences=1, exact=exact))
    context = hold_decodes()
    pair.begin()
    assert context.entered.acquire(timeout=10)
    assert len(context.batches[0]) == (4 if exact else 2)  # with a neighbour for each
    pair.cancel_trunk()
    pair.cancel_trunk()
    assert context.abort.times_set == 0
    pair.tasks[1].cancel()
    assert pair.reasons() == ["cancelled"] * 2
    assert context.abort.times_set == 1
    assert not context.abort.is_set
    assert len(context.batches) == 1


@pytest.mark.parametrize("exact", [False, True])
def test_a_stopped_batch_leaves_what_each_sequence_had(make_engine: MakeEngine, exact: bool) -> None:
    pair = Pair(make_engine(held_sequences=2, max_sequences=1, exact=exact))
    context = hold_decodes()
    pair.begin()
    for _ in range(3):
        assert context.entered.acquire(timeout=10)
        context.allow()
    assert context.entered.acquire(timeout=10)
    pair.cancel_both()
    assert pair.reasons() == ["cancelled"] * 2
    context.let_go()
    assert [bytes(answer.tokens) for answer in pair.answers] == [b"def"] * 2
    assert [bytes(draft(each, 2).tokens) for each in (pair.trunk, pair.branch)] == [b"gh"] * 2
    assert all(not tokens for sequence, tokens in context.kv.items() if exact and sequence % 2)  # of the neighbours nothing stays


def test_a_generation_and_a_draft_in_one_batch_stop_it_together(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=1)
    sequence = engine.hold()
    extend(sequence, b"lmn")
    context = hold_decodes()
    generation, reader = start(engine, "a", max_tokens=50)
    task, answer = asked(sequence, "draft", 50)
    assert context.entered.acquire(timeout=10)
    while len(context.batches[-1]) < 2:
        context.allow()
        assert context.entered.acquire(timeout=10)
    generation.cancel()
    assert context.abort.times_set == 0
    task.cancel()
    assert [reader.read(generation).reason, answer.read(task).reason] == ["cancelled"] * 2
    assert context.abort.times_set == 1


def test_who_was_cancelled_before_the_batch_is_not_waited_for(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    meddler = Meddler(monkeypatch)
    pair = Pair(make_engine(held_sequences=2))
    context = hold_decodes()
    meddler.size, meddler.meddle = 2, pair.cancel_trunk
    pair.begin()
    assert context.entered.acquire(timeout=10)
    assert len(context.batches[0]) == 2  # its row was in the batch already
    assert context.abort.times_set == 0
    pair.tasks[1].cancel()
    assert pair.reasons() == ["cancelled"] * 2
    assert context.abort.times_set == 1


def test_a_batch_for_nobody_is_not_decoded(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    meddler = Meddler(monkeypatch)
    pair = Pair(make_engine(held_sequences=2))
    context = FakeContext.last
    context.batches.clear()
    meddler.size, meddler.meddle = 2, pair.cancel_both
    pair.begin()
    assert pair.reasons() == ["cancelled"] * 2
    assert context.batches == []
    assert (context.count, context.abort.times_set) == (0, 0)
    assert draft(pair.trunk, 2).tokens == list(b"de")


def test_a_batch_for_nobody_leaves_the_next_one_s_attention_unread(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    meddler = Meddler(monkeypatch)
    engine = make_engine(held_sequences=1, attention_layers=[0])
    context = hold_decodes()
    task, answer = asked(engine.hold(), "draft", 9, ids=b"abc")
    meddler.size = 1
    assert context.entered.acquire(timeout=10)
    meddler.meddle = task.cancel  # before the second batch, which would read
    context.allow()
    assert answer.read(task).reason == "cancelled"
    assert len(context.batches) == 1
    assert not context.reads_attention


def test_the_time_of_a_batch_ends_with_its_logits(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(held_sequences=1)
    rows: list[int] = []
    logits = FakeContext.logits

    def recorded(context: FakeContext, row: int) -> Any:
        rows.append(row)
        return logits(context, row)

    monkeypatch.setattr(FakeContext, "logits", recorded)
    assert engine._loop.time_batch(3) is not None
    assert rows == [2]


STAIRS = {1: 0.04, 2: 0.075, 3: 0.11, 4: 0.08, 5: 0.16, 8: 0.14}


def padding(engine: LlamaEngine) -> FakeContext:
    engine._loop.pad_batches(STAIRS)
    context = FakeContext.last
    context.batches.clear()
    return context


def test_a_batch_of_verification_rows_is_padded_to_a_cheaper_size(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2)
    sequence = engine.hold()
    extend(sequence, b"abc")
    context = padding(engine)
    answer = verify(sequence, b"de")
    assert [prediction.greedy for prediction in answer.predictions] == list(b"def")
    assert [len(batch) for batch in context.batches] == [4]
    pad = context.batches[0][3]
    assert (pad.position, pad.sequence, pad.wants_logits) == (5, context.batches[0][2].sequence, False)
    assert context.kv[pad.sequence] == list(b"abcde"), "nothing of it stays"
    answer = verify(sequence, b"fgh")
    assert answer.predictions[-1].greedy == ord("i")
    assert [len(batch) for batch in context.batches] == [4, 4]


def test_exact_mode_is_never_padded(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2, exact=True)
    sequence = engine.hold()
    extend(sequence, b"abc")
    context = padding(engine)
    verify(sequence, b"de")
    assert [len(batch) for batch in context.batches] == [3]


def test_a_padded_batch_without_memory_is_tried_again_as_it_is(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2)
    sequence = engine.hold()
    extend(sequence, b"abc")
    context = padding(engine)
    context.statuses.append(NO_KV_SLOT)
    answer = verify(sequence, b"de")
    assert [prediction.greedy for prediction in answer.predictions] == list(b"def")
    assert [len(batch) for batch in context.batches] == [4, 3]
    verify(sequence, b"gh")
    assert len(context.batches[-1]) == 4, "the next one is padded again"


def test_padding_without_memory_is_given_up_though_others_have_their_turn(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(held_sequences=2)
    sequence = engine.hold()
    extend(sequence, b"abc")
    padding(engine)
    context = hold_decodes()
    decode = FakeContext.decode

    def full_if_padded(fake: FakeContext) -> int:
        if not fake._batch[-1].wants_logits:
            fake.statuses.append(NO_KV_SLOT)
        return decode(fake)

    monkeypatch.setattr(FakeContext, "decode", full_if_padded)
    generation, reader = start(engine, "a", max_tokens=20)
    assert context.entered.acquire(timeout=10)
    task, answer = asked(sequence, "verify", list(b"de"))
    context.let_go()
    answer.read(task)
    reader.read(generation)
    assert answer.greedy == list(b"def")
    assert [len(batch) for batch in context.batches if len(batch) > 1] == [4, 3]


def test_rows_of_several_answers_are_padded_together(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=3)
    sequences = [engine.hold(), engine.hold()]
    for sequence in sequences:
        extend(sequence, b"abc")
    context = padding(engine)
    with engine.together():
        asked_both = [asked(sequence, "verify", list(b"d" * count)) for sequence, count in zip(sequences, (1, 2), strict=True)]
    for task, answer in asked_both:
        answer.read(task)
    assert [len(batch) for batch in context.batches] == [8], "five rows cost less in a batch of eight"
