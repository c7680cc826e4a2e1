"""A held sequence: the requests of its owner, and the ids that the engine's thread keeps for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Protocol

from streamco.config import SamplingOptions
from streamco.engines.base import RowReader, SequenceTask, TaskEnd
from streamco.engines.consumer import EngineSignals
from streamco.engines.kv_slots import Slot
from streamco.engines.prediction import Predictor
from streamco.engines.tasks import DraftTask, ExtensionTask, ReadingTask, Task, VerificationTask
from streamco.errors import ConfigError, EngineError, UsageError
from streamco.policies.drafts.tree_shapes import check_tree, is_chain, leaves

__all__ = ["CloseTask", "ForkTask", "HeldSequence", "EngineHandle", "TruncationTask", "Vocabulary"]

_DEFAULT = SamplingOptions()


MAX_TREE = 31  # ids of a tree; with the row before them they are one chunk


class EngineHandle(EngineSignals, Protocol):
    """The interface of an engine for its sequences. Each method may be called from any thread."""

    @property
    def draft_paths(self) -> int:
        """Number of paths that a tree draft may have; 1 for chains only."""
        ...

    def put(self, task: Task) -> None:
        """Queue a task.

        Raises:
            EngineError: the engine is closed or has failed.
        """
        ...


class Vocabulary(Protocol):
    """The part of a model that a sequence needs."""

    vocabulary_size: int
    end_ids: frozenset[int]


class HeldSequence:
    """Implements ``TokenSequence``, and ``TaskOwner`` for its tasks. ``ids`` and the fields after it belong to the engine's thread.

    Raises:
        UsageError: the label isn't hashable. The engine's thread needs to hash it.
    """

    def __init__(
        self, engine: EngineHandle, vocabulary: Vocabulary, label: Hashable = None, *, owner: str | None = None, exists: bool = True
    ) -> None:
        try:
            hash(label)
        except TypeError as error:
            raise UsageError(f"label: expected a value with a hash, got {type(label).__name__}") from error
        self.label = label
        self.owner = owner
        self.engine = engine
        self._vocabulary = vocabulary
        self._last: Task | None = None
        self._is_closed = False
        self.ids: list[int] = []
        self.slot: Slot | None = None
        self.queue: deque[Task] = deque()
        self.running: Task | None = None
        self.last_used = 0
        self.exists = exists  # False for a fork that waits for its source's earlier tasks
        self.is_closing = False
        self.failure: TaskEnd | None = None  # the end of every task from now on

    # The consumer's side

    def extend(
        self, ids: Sequence[int], wake: Callable[[], None] | None = None, *, top: int = 0, sampling: SamplingOptions = _DEFAULT
    ) -> SequenceTask:
        """Add ids at the end; see ``TokenSequence.extend``."""
        predictor = Predictor(sampling, top) if top else None
        return self._submit(ExtensionTask(self, wake, self._checked(ids), predictor))

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` ids; see ``TokenSequence.truncate``."""
        self._submit(TruncationTask(self, length))

    def fork(self, length: int | None = None) -> HeldSequence:
        """Return a sequence that begins like this one; see ``TokenSequence.fork``."""
        child = HeldSequence(self.engine, self._vocabulary, self.label, owner=self.owner, exists=False)
        self._submit(ForkTask(self, child, length))
        return child

    def read(self, ids: Sequence[int], wake: Callable[[], None]) -> SequenceTask:
        """Add ids at the end and decode all of them; see ``TokenSequence.read``."""
        return self._submit(ReadingTask(self, wake, self._checked(ids)))

    def verify(
        self,
        draft_ids: Sequence[int],
        wake: Callable[[], None],
        *,
        given: Sequence[int] = (),
        top: int = 0,
        sampling: SamplingOptions = _DEFAULT,
        reader: RowReader | None = None,
        parents: Sequence[int] = (),
    ) -> SequenceTask:
        """Predict each position of a draft; see ``TokenSequence.verify``."""
        reader = reader or Predictor(sampling, top)
        ids = self._checked(draft_ids)
        if not is_chain(parents):
            check_tree(ids, parents)
            paths, limit = len(leaves(parents)), self.engine.draft_paths
            if paths > limit or len(ids) > MAX_TREE:
                raise EngineError(f"verify: expected a tree of at most {MAX_TREE} ids in {limit} paths, got one of {len(ids)} in {paths}")
        return self._submit(VerificationTask(self, wake, ids, reader, given=self._checked(given), parents=parents))

    def draft(
        self,
        count: int,
        wake: Callable[[], None],
        *,
        ids: Sequence[int] = (),
        top: int = 0,
        row_ids: int = 0,
        sampling: SamplingOptions = _DEFAULT,
    ) -> SequenceTask:
        """Generate tokens; see ``TokenSequence.draft``."""
        if count < 1:
            raise ConfigError(f"count: expected at least 1 token, got {count}")
        predictor = Predictor(sampling, top, row_ids)
        return self._submit(DraftTask(self, wake, self._checked(ids), count, predictor, end_ids=self._vocabulary.end_ids))

    def close(self) -> None:
        """Cancel all tasks and release the memory; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            with suppress(EngineError):  # the engine is closed, and its memory already freed
                self.engine.put(CloseTask(self))

    def _submit(self, task: Task) -> Task:
        if self._is_closed:
            raise UsageError("sequence: already closed")
        last = self._last
        if last is not None and not last.is_taken:
            task.previous = last
        self.engine.put(task)
        self._last = task
        return task

    def _checked(self, ids: Sequence[int]) -> list[int]:
        size = self._vocabulary.vocabulary_size
        if len(ids) and (min(ids) < 0 or max(ids) >= size):
            raise EngineError(f"ids: expected ids from 0 to {size - 1}, got {min(ids)} to {max(ids)}")
        return list(ids)

    # The engine's side

    @property
    def is_idle(self) -> bool:
        """True if the sequence has no task."""
        return self.running is None and not self.queue

    @property
    def is_ready(self) -> bool:
        """True if the sequence can begin its next task."""
        return self.exists and self.running is None and bool(self.queue)


class TruncationTask(Task):
    """Keeps the first ``length`` ids."""

    def __init__(self, owner: HeldSequence, length: int) -> None:
        super().__init__(owner, None, max_predictions=1)
        self.length = length

    def plan(self, context: int) -> None:
        """Cut the ids; the memory is cut to ``rollback_length`` later."""
        ids = self.owner.ids
        if not 0 <= self.length <= len(ids):
            raise EngineError(f"truncate: expected a length from 0 to {len(ids)}, got {self.length}")
        self.owner.ids = ids[: self.length]
        self.rollback_length = self.length


class ForkTask(Task):
    """Makes another sequence that begins with the same ids."""

    def __init__(self, owner: HeldSequence, child: HeldSequence, length: int | None) -> None:
        super().__init__(owner, None, max_predictions=1)
        self.child = child
        self.length = length

    def plan(self, context: int) -> None:
        """Give the child the first ``length`` ids."""
        ids = self.owner.ids
        length = len(ids) if self.length is None else self.length
        if not 0 <= length <= len(ids):
            raise EngineError(f"fork: expected a length from 0 to {len(ids)}, got {length}")
        self.child.ids = ids[:length]
        self.rollback_length = len(ids)


class CloseTask(Task):
    """Ends a sequence. It isn't queued itself, but cancels the queued tasks."""

    def __init__(self, owner: HeldSequence) -> None:
        super().__init__(owner, None, max_predictions=1)
