"""A held sequence's own side: which tasks it hands to the engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamco.engines.sequence import CloseTask, ForkTask, HeldSequence, TruncationTask
from streamco.engines.tasks import DraftTask, ExtensionTask, ReadingTask, Task, VerificationTask
from streamco.errors import ConfigError, EngineError, UsageError


class Engine:
    """Keeps the tasks that it gets."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.is_closed = False

    def put(self, task: Task) -> None:
        if self.is_closed:
            raise EngineError("engine: already closed")
        self.tasks.append(task)

    def notify(self) -> None:
        """Nothing runs."""

    def interrupt(self, work: object) -> None:
        """Nothing runs."""

    @property
    def draft_paths(self) -> int:
        return 3


class Vocabulary:
    """Ten tokens, the first of which ends a text."""

    vocabulary_size = 10
    end_ids = frozenset({0})


def make() -> tuple[HeldSequence, list[Task]]:
    engine = Engine()
    return HeldSequence(engine, Vocabulary(), "phone"), engine.tasks


def no_wake() -> None:
    """Nothing waits."""


def test_each_method_hands_in_a_task_of_its_kind() -> None:
    sequence, tasks = make()
    sequence.extend([1])
    sequence.read([2], no_wake)
    sequence.verify([3], no_wake)
    sequence.draft(2, no_wake)
    sequence.truncate(1)
    sequence.fork()
    kinds = [ExtensionTask, ReadingTask, VerificationTask, DraftTask, TruncationTask, ForkTask]
    assert [type(task) for task in tasks] == kinds


def test_a_task_knows_the_one_before_it_until_that_one_s_end_is_taken() -> None:
    sequence, tasks = make()
    sequence.extend([1])
    sequence.extend([2])
    tasks[1].finish("done")
    tasks[1].take()
    sequence.extend([3])
    assert [task.previous for task in tasks] == [None, tasks[0], None]


def test_a_truncation_keeps_the_first_ids() -> None:
    sequence, tasks = make()
    sequence.ids = [1, 2, 3]
    sequence.truncate(2)
    tasks[0].plan(16)
    assert (sequence.ids, tasks[0].rollback_length) == ([1, 2], 2)


@pytest.mark.parametrize("length", [-1, 4])
def test_a_length_that_is_not_there_is_refused_by_the_task(length: int) -> None:
    sequence, tasks = make()
    sequence.ids = [1, 2, 3]
    sequence.truncate(length)
    sequence.fork(length)
    for task, name in zip(tasks, ("truncate", "fork"), strict=True):
        with pytest.raises(EngineError, match=f"{name}: expected a length from 0 to 3, got {length}"):
            task.plan(16)


def test_a_fork_begins_with_the_ids_of_the_time_when_its_task_runs() -> None:
    sequence, tasks = make()
    child = sequence.fork(2)
    assert not child.exists
    assert not child.is_ready
    sequence.ids = [1, 2, 3]
    tasks[0].plan(16)
    assert (child.ids, child.label) == ([1, 2], "phone")


def test_a_sequence_is_ready_when_it_has_a_task_and_none_runs() -> None:
    sequence, tasks = make()
    states = [(sequence.is_idle, sequence.is_ready)]
    sequence.extend([1])
    sequence.queue.append(tasks[0])  # as the table does
    states.append((sequence.is_idle, sequence.is_ready))
    sequence.running = sequence.queue.popleft()
    states.append((sequence.is_idle, sequence.is_ready))
    assert states == [(True, False), (False, True), (False, False)]


def test_closing_hands_in_one_task_and_refuses_others() -> None:
    sequence, tasks = make()
    sequence.close()
    sequence.close()
    assert [type(task) for task in tasks] == [CloseTask]
    with pytest.raises(UsageError, match="sequence: already closed"):
        sequence.extend([1])


def test_closing_after_the_engine_is_no_error() -> None:
    engine = Engine()
    sequence = HeldSequence(engine, Vocabulary())
    engine.is_closed = True
    sequence.close()
    assert engine.tasks == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda sequence: sequence.extend([1, 10]),
        lambda sequence: sequence.read([1, 10], no_wake),
        lambda sequence: sequence.verify([1, 10], no_wake),
        lambda sequence: sequence.verify([1], no_wake, given=[1, 10]),
        lambda sequence: sequence.draft(1, no_wake, ids=[1, 10]),
    ],
)
def test_ids_beyond_the_vocabulary_are_refused_at_once(ask: Callable[[HeldSequence], object]) -> None:
    sequence, tasks = make()
    with pytest.raises(EngineError, match="ids: expected ids from 0 to 9, got 1 to 10"):
        ask(sequence)
    assert tasks == []


def test_a_draft_of_no_tokens_is_refused() -> None:
    sequence, _ = make()
    with pytest.raises(ConfigError, match="count: expected at least 1 token, got 0"):
        sequence.draft(0, no_wake)


def test_a_tree_has_no_more_paths_than_the_engine_takes_and_different_siblings() -> None:
    sequence, tasks = make()
    sequence.verify([1, 2, 3], no_wake, parents=(0, 0, 0))
    sequence.verify([1] * 40, no_wake, parents=tuple(range(40)))  # a chain
    assert len(tasks) == 2
    with pytest.raises(EngineError, match="verify: expected a tree of at most 31 ids in 3 paths, got one of 4 in 4"):
        sequence.verify([1, 2, 3, 4], no_wake, parents=(0, 0, 0, 0))
    with pytest.raises(EngineError, match="at most 31 ids in 3 paths, got one of 32 in 2"):
        sequence.verify(list(range(2)) * 16, no_wake, parents=(0, *range(1, 31), 30))
    with pytest.raises(ConfigError, match="tree: expected different tokens after node 0, got 1 twice"):
        sequence.verify([1, 1], no_wake, parents=(0, 0))
