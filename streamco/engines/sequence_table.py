"""The sequences that an engine holds: their places in memory, their turns and their eviction. Belongs to the engine's thread.

The number of places is limited. If none is left, a sequence that needs one gets the place of the sequence that has been idle longest. A
sequence that has a task keeps its memory. The memory of an evicted sequence stays as it is until it is overwritten, and a new sequence that
begins with the same ids finds it.
"""

from __future__ import annotations

import logging

from streamco.engines.base import TaskEnd, TaskTimings
from streamco.engines.kv_slots import Slot, SlotTable
from streamco.engines.sequence import CloseTask, ForkTask, HeldSequence, TruncationTask
from streamco.engines.tasks import Task
from streamco.errors import EngineError

__all__ = ["SequenceTable"]

logger = logging.getLogger("streamco.engine")

_NO_TIME = TaskTimings(queued_s=0.0, compute_s=0.0, rows=0)


class SequenceTable:
    """All held sequences of an engine.

    Args:
        slots: slots of the context, at least ``places`` more than generations use.
        places: number of sequences that may have memory.
        context: maximum number of tokens in a sequence.
        is_private: only sequences of the same label share what they have read.
    """

    def __init__(self, slots: SlotTable, places: int, context: int, *, is_private: bool = False) -> None:
        self._slots = slots
        self._places = places
        self._context = context
        self._is_private = is_private
        self._clock = 0
        self._holders: set[HeldSequence] = set()  # sequences with a slot
        self._with_tasks: dict[HeldSequence, None] = {}  # sequences with a task, in the order of the requests

    def add(self, task: Task) -> None:
        """Add a new task to the queue of its sequence."""
        sequence = _sequence(task)
        if isinstance(task, CloseTask):
            sequence.is_closing = True
            for each in (sequence.running, *sequence.queue):
                if each is not None:
                    each.is_cancelled = True
            self._drop_if_idle(sequence)
            return
        sequence.queue.append(task)
        self._with_tasks[sequence] = None

    @property
    def held(self) -> int:
        """Number of sequences that have a place."""
        return len(self._holders)

    @property
    def has_ready(self) -> bool:
        """True if ``begin_ready`` would begin anything."""
        return any(sequence.is_ready for sequence in self._with_tasks)

    def begin_ready(self) -> list[Task]:
        """Begin the next task of each sequence that is ready; return the tasks that have something to decode."""
        begun: list[Task] = []
        while ready := [sequence for sequence in self._with_tasks if sequence.is_ready]:  # a fork may make its child ready
            for sequence in ready:
                task = sequence.queue.popleft()
                sequence.running = task
                self._begin(sequence, task)
                if task.is_done:
                    self.release(task)
                else:
                    begun.append(task)
        return begun

    def _begin(self, sequence: HeldSequence, task: Task) -> None:
        previous, task.previous = task.previous, None
        failure = sequence.failure or (previous.ended if previous is not None and previous.has_failed else None)
        if failure is not None or task.is_cancelled:
            self._fail(task, failure or TaskEnd("cancelled", _NO_TIME))
            return
        try:
            task.plan(self._context)
            if isinstance(task, ForkTask):
                self._fork(sequence, task)
            elif not isinstance(task, TruncationTask) and sequence.slot is None:
                sequence.slot = self._claim(sequence, task.target_ids)
        except Exception as exc:  # noqa: BLE001  # of this task alone: other work must go on
            self._fail(task, TaskEnd("error", _NO_TIME, _engine_error(exc)))
            return
        if sequence.slot is not None and len(sequence.slot.ids) > task.rollback_length:
            self._slots.truncate(sequence.slot, task.rollback_length)
        if isinstance(task, ForkTask | TruncationTask):
            task.finish("done")
        else:
            task.begin()

    def _fail(self, task: Task, failure: TaskEnd) -> None:
        task.previous = None
        if isinstance(task, ForkTask):
            self._finish_fork(task.child, failure)
        task.finish(failure.reason, error=failure.error)

    def _fork(self, source: HeldSequence, task: ForkTask) -> None:
        child = task.child
        failure = None
        if source.slot is not None and child.ids:
            try:
                child.slot = self._claim(child, child.ids, like=source.slot, spared=source)
            except EngineError as exc:
                failure = TaskEnd("error", _NO_TIME, exc)
        self._finish_fork(child, failure)

    def _finish_fork(self, child: HeldSequence, failure: TaskEnd | None) -> None:
        child.exists = True
        child.failure = failure
        if child.is_closing:
            self._drop_if_idle(child)

    def _claim(self, sequence: HeldSequence, ids: list[int], *, like: Slot | None = None, spared: HeldSequence | None = None) -> Slot:
        """Return a slot for these ids.

        Args:
            sequence: the sequence that gets it.
            ids: its ids.
            like: a slot that holds them; None to choose the slot that holds their longest prefix.
            spared: a sequence that must not be evicted for it; None if any may be.
        """
        if len(self._holders) >= self._places and not self.evict(spared):
            raise EngineError(f"sequence: expected an idle place among {self._places}, got all busy")
        self._holders.add(sequence)
        self._mark_used(sequence)
        if like is not None:
            return self._slots.fork(like, ids)
        return self._slots.acquire(ids, (sequence.label, sequence.owner) if self._is_private else sequence.owner)

    def evict(self, spared: HeldSequence | None = None) -> bool:
        """Take the memory of the sequence that has been idle longest. Returns False if none is idle."""
        idle = [sequence for sequence in self._holders if sequence.is_idle and sequence is not spared]
        if not idle:
            return False
        oldest = min(idle, key=lambda sequence: sequence.last_used)
        count = len(oldest.ids)
        error = EngineError(f"sequence: its {count} tokens were evicted, because {self._places} others were used since")
        oldest.failure = TaskEnd("evicted", _NO_TIME, error)
        self._give_up_slot(oldest)
        return True

    def release(self, task: Task) -> None:
        """Release the sequence of a task that has ended: its memory is cut to its ids, and its next task may begin."""
        sequence = _sequence(task)
        sequence.running = None
        slot = sequence.slot
        if slot is not None and len(slot.ids) > len(sequence.ids):
            self._slots.truncate(slot, len(sequence.ids))
        self._mark_used(sequence)
        self._drop_if_idle(sequence)

    def reap(self) -> None:
        """End each task that was cancelled before it began, and all later tasks of its sequence."""
        for sequence in list(self._with_tasks):
            start = next((index for index, task in enumerate(sequence.queue) if task.is_cancelled), None)
            if start is not None:
                self._end_queue(sequence, TaskEnd("cancelled", _NO_TIME), start)
                self._drop_if_idle(sequence)

    def end(self, reason: str, error: EngineError | None) -> None:
        """End all waiting tasks, because the engine stops."""
        for sequence in self._with_tasks:
            self._end_queue(sequence, TaskEnd(reason, _NO_TIME, error))

    def _end_queue(self, sequence: HeldSequence, failure: TaskEnd, start: int = 0) -> None:
        while len(sequence.queue) > start:
            task = sequence.queue[start]
            del sequence.queue[start]
            self._fail(task, failure)

    def _drop_if_idle(self, sequence: HeldSequence) -> None:
        if sequence.is_idle:
            self._with_tasks.pop(sequence, None)
            if sequence.is_closing and sequence.exists:
                self._give_up_slot(sequence)

    def _give_up_slot(self, sequence: HeldSequence) -> None:
        self._holders.discard(sequence)
        if sequence.slot is not None:
            self._slots.release(sequence.slot)
            sequence.slot = None

    def _mark_used(self, sequence: HeldSequence) -> None:
        self._clock += 1
        sequence.last_used = self._clock


def _engine_error(error: Exception) -> EngineError:
    if isinstance(error, EngineError):
        return error
    logger.error("one task of a held sequence failed in the engine's thread; the others go on", exc_info=error)
    wrapped = EngineError(f"engine: can't begin this task: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _sequence(task: Task) -> HeldSequence:
    owner = task.owner
    if not isinstance(owner, HeldSequence):
        raise AssertionError("the tasks of an engine belong to sequences it holds")
    return owner
