"""Tasks of a held sequence, without an engine: what each decodes, predicts and leaves behind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from streamco.config import SamplingOptions
from streamco.engines.base import Prediction
from streamco.engines.kv_slots import Slot
from streamco.engines.prediction import Predictor
from streamco.engines.tasks import DraftTask, ExtensionTask, ReadingTask, Task, VerificationTask, check_length
from streamco.errors import EngineError

CONTEXT = 16
GREEDY = SamplingOptions(temperature=0)


class Engine:
    """Remembers its signals."""

    def __init__(self) -> None:
        self.signals: list[object] = []

    def notify(self) -> None:
        self.signals.append("notify")

    def interrupt(self, work: object) -> None:
        self.signals.append(work)


class Owner:
    """A sequence with some ids, the first ``cached`` of them in memory."""

    def __init__(self, ids: list[int], cached: int = 0) -> None:
        self.ids = ids
        self.slot: Slot | None = Slot(0)
        self.slot.ids = ids[:cached]
        self.engine = Engine()


class Reader:
    """Keeps the rows that it reads."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int | None]] = []

    def read_row(self, logits: NDArray[np.float32], position: int, token: int | None) -> Prediction:
        self.rows.append((position, token))
        return Prediction(position=position, greedy=int(logits.argmax()), token=token)


def row(token: int) -> NDArray[np.float32]:
    logits = np.zeros(32, dtype=np.float32)
    logits[token] = 9.0
    return logits


def begin(task: Task) -> Task:
    """Plan it and decode its prompt, as an engine does."""
    task.plan(CONTEXT)
    task.begin()
    assert task.slot is not None
    task.slot.ids[:] = task.prompt
    return task


def no_wake() -> None:
    """Nothing waits."""


def test_an_extension_leaves_its_last_id_to_the_next_task() -> None:
    owner = Owner([1, 2])
    task = ExtensionTask(owner, None, [3], None)
    task.plan(CONTEXT)
    assert (task.target_ids, task.prompt, task.rollback_length) == ([1, 2, 3], [1, 2], 3)
    assert (task.missing, task.logits_needed(2)) == (2, 0)
    task.begin()
    task.end_prefill()
    assert owner.ids == [1, 2, 3]


def test_an_extension_with_a_predictor_predicts_the_next_token() -> None:
    owner = Owner([1, 2])
    task = ExtensionTask(owner, None, [3], Predictor(GREEDY, 1))
    task.plan(CONTEXT)
    assert (task.prompt, task.rollback_length) == ([1, 2, 3], 2)
    assert [task.logits_needed(rows) for rows in (1, 2, 3)] == [0, 0, 1]
    begin(task).accept(row(4))
    predictions, end = task.take()
    assert end is not None
    assert (end.reason, [(each.position, each.greedy) for each in predictions]) == ("done", [(3, 4)])


def test_an_extension_that_is_in_memory_already_is_done_at_once() -> None:
    task = ExtensionTask(Owner([1, 2], cached=2), None, [], None)
    task.plan(CONTEXT)
    task.begin()
    assert task.is_done
    assert not task.has_failed


def test_a_verification_reads_a_row_for_each_id_and_one_more() -> None:
    owner, reader = Owner([1, 2]), Reader()
    task = VerificationTask(owner, no_wake, [4, 5], reader, given=[3])
    task.plan(CONTEXT)
    assert (task.prompt, task.rollback_length) == ([1, 2, 3, 4, 5], 2)
    assert [task.logits_needed(rows) for rows in (1, 2, 3, 5)] == [0, 0, 1, 3]
    begin(task)
    for token in (4, 6, 7):
        assert not task.is_done
        task.accept(row(token))
    assert reader.rows == [(3, 4), (4, 5), (5, None)]
    assert task.is_done
    assert owner.ids == [1, 2, 3, 4, 5]


def test_a_cancelled_verification_leaves_the_ids_as_they_were() -> None:
    owner = Owner([1, 2])
    task = begin(VerificationTask(owner, no_wake, [3], Reader()))
    task.accept(row(3))
    task.finish("cancelled")
    assert task.has_failed
    assert owner.ids == [1, 2]


def test_a_draft_draws_as_many_tokens_as_asked_for() -> None:
    owner = Owner([1, 2])
    task = begin(DraftTask(owner, no_wake, [3], 2, Predictor(GREEDY, 0), end_ids=frozenset({0})))
    assert owner.ids == [1, 2]
    task.accept(row(4))
    assert (task.next_token, owner.ids) == (4, [1, 2, 3, 4])
    task.accept(row(5))
    predictions, end = task.take()
    assert end is not None
    assert (end.reason, [each.token for each in predictions]) == ("done", [4, 5])
    assert owner.ids == [1, 2, 3, 4, 5]


def test_a_draft_stops_at_an_end_token_and_keeps_it() -> None:
    owner = Owner([1])
    task = begin(DraftTask(owner, no_wake, [], 5, Predictor(GREEDY, 0), end_ids=frozenset({0})))
    task.accept(row(0))
    _, end = task.take()
    assert end is not None
    assert end.reason == "stop"
    assert not task.has_failed
    assert owner.ids == [1, 0]


def test_a_draft_ends_with_the_context() -> None:
    task = begin(DraftTask(Owner(list(range(CONTEXT - 1))), no_wake, [], 5, Predictor(GREEDY, 0), end_ids=frozenset()))
    task.accept(row(4))
    assert task.is_done


def test_a_reading_decodes_all_ids_and_predicts_nothing() -> None:
    owner = Owner([1, 2], cached=1)
    task = ReadingTask(owner, no_wake, [3])
    task.plan(CONTEXT)
    assert (task.prompt, task.missing, task.logits_needed(2)) == ([1, 2, 3], 2, 0)
    begin(task).end_prefill()
    assert owner.ids == [1, 2, 3]
    predictions, end = task.take()
    assert end is not None
    assert (predictions, end.reason) == ([], "done")


@pytest.mark.parametrize(
    "make",
    [
        lambda owner: ExtensionTask(owner, None, [9] * CONTEXT, None),
        lambda owner: VerificationTask(owner, no_wake, [9] * CONTEXT, Reader()),
        lambda owner: DraftTask(owner, no_wake, [9] * CONTEXT, 1, Predictor(GREEDY, 0), end_ids=frozenset()),
        lambda owner: ReadingTask(owner, no_wake, [9] * CONTEXT),
    ],
)
def test_ids_beyond_the_context_are_refused_and_change_nothing(make: Callable[[Owner], Task]) -> None:
    owner = Owner([1])
    with pytest.raises(EngineError, match=rf"expected .* context .*{CONTEXT} tokens|{CONTEXT} tokens \(the context\)"):
        make(owner).plan(CONTEXT)
    assert owner.ids == [1]


def test_no_ids_are_refused() -> None:
    with pytest.raises(EngineError, match="sequence: expected at least one id, got none"):
        check_length("sequence", [], CONTEXT)
    with pytest.raises(EngineError, match="verify: expected a sequence of at least one id"):
        VerificationTask(Owner([]), no_wake, [1], Reader()).plan(CONTEXT)


def test_cancelling_signals_the_engine_once() -> None:
    owner = Owner([1])
    task = ReadingTask(owner, no_wake, [2])
    task.cancel()
    task.cancel()
    assert task.is_cancelled
    assert owner.engine.signals == [task, "notify"]


def test_the_first_end_stays() -> None:
    task = begin(ReadingTask(Owner([1]), no_wake, [2]))
    task.finish("error", error=EngineError("no"))
    task.finish("done")
    assert not task.is_taken
    _, end = task.take()
    assert end is not None
    assert (end.reason, str(end.error), task.is_taken) == ("error", "no", True)


def test_timings_count_the_rows_that_were_decoded_for_it() -> None:
    task = ReadingTask(Owner([1, 2], cached=1), no_wake, [3, 4])
    task.plan(CONTEXT)
    task.begin()
    task.record_cached(1)  # of three missing
    assert task.slot is not None
    task.slot.ids[:] = task.prompt
    task.end_prefill()
    _, end = task.take()
    assert end is not None
    assert end.timings.rows == 2


def test_a_wake_that_raises_cancels_and_comes_with_the_end() -> None:
    def fail() -> None:
        raise RuntimeError("wake")

    task = begin(VerificationTask(Owner([1]), fail, [2], Reader()))
    task.accept(row(2))
    assert task.is_cancelled
    task.finish("cancelled")
    assert task.ended is not None
    assert str(task.ended.error) == "wake"
