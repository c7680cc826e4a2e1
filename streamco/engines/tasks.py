"""Tasks of a held sequence: the consumer's side takes predictions, and the engine's side makes them.

The two sides share the ring, ``is_cancelled``, ``is_taken`` and ``ended``. Everything else belongs to the engine's thread. The number of
results is known from the start, so a task is never parked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from streamco._native import WAKE, Ring
from streamco.engines.base import Prediction, RowReader, TaskEnd, TaskTimings
from streamco.engines.consumer import Consumer, EngineSignals
from streamco.engines.kv_slots import Slot
from streamco.engines.prediction import Predictor
from streamco.errors import EngineError
from streamco.policies.drafts.tree_shapes import is_chain, leaves, longest_path, path_to

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["DraftTask", "ExtensionTask", "TaskOwner", "ReadingTask", "Task", "TreeRows", "VerificationTask", "check_length"]

_WHOLE = ("done", "stop")


class TaskOwner(Protocol):
    """The part of a held sequence that its tasks need."""

    ids: list[int]
    slot: Slot | None

    @property
    def engine(self) -> EngineSignals:
        """The engine that holds the sequence."""
        ...


class Task:
    """Implements ``SequenceTask`` and the loop's ``SequenceWork``.

    ``target_ids`` are the sequence's ids after the task, and ``prompt`` the ids that are in memory when its first prediction is made. Of
    the ids in memory before the task, only the first ``rollback_length`` may stay.

    Args:
        owner: the sequence.
        wake: called when there is something to take. If it raises an error, the task is cancelled and ends with that error.
        max_predictions: maximum number of predictions.
    """

    wants_logits = True
    is_parked = False

    def __init__(self, owner: TaskOwner, wake: Callable[[], None] | None, *, max_predictions: int) -> None:
        self.owner = owner
        self.requested_at = perf_counter()
        self.previous: Task | None = None  # the one requested before, if its end has not been taken
        self.target_ids: list[int] = []
        self.prompt: list[int] = []
        self.rollback_length = 0
        self.next_token: int | None = None
        self.is_cancelled = False
        self.is_taken = False
        self.late_s = 0.0
        self.side_rows = 0  # rows decoded on side paths of a tree
        self.ended: TaskEnd | None = None
        self._consumer = Consumer(wake)
        self._ring: Ring[Prediction] = Ring(max(1, max_predictions))
        self._began = 0.0
        self._cached = 0  # ids in memory when it began, plus those that other work has read since
        self._made = 0

    # The consumer's side

    def take(self) -> tuple[list[Prediction], TaskEnd | None]:
        """Return all predictions since the last call and, with the last of them, the end. Never blocks."""
        predictions = self._ring.drain()  # before the end is read, because an end that is set later wakes the consumer again
        ended = self.ended
        if ended is not None:
            predictions += self._ring.drain()
            self.is_taken = True
        return predictions, ended

    def cancel(self) -> None:
        """Ask to stop; idempotent, never blocks."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self.owner.engine.interrupt(self)
            self.owner.engine.notify()

    # The engine's side

    @property
    def slot(self) -> Slot | None:
        """The slot that holds the sequence's tokens."""
        return self.owner.slot

    @property
    def is_done(self) -> bool:
        """True once the task has ended."""
        return self.ended is not None

    @property
    def has_failed(self) -> bool:
        """True once the task has ended without all of its results."""
        return self.ended is not None and self.ended.reason not in _WHOLE

    @property
    def missing(self) -> int:
        """Number of prompt tokens still to be decoded."""
        return len(self.prompt) - (len(self.owner.slot.ids) if self.owner.slot is not None else 0)

    def logits_needed(self, rows: int) -> int:
        """Return how many of the next ``rows`` rows need logits: 1 if they end the prompt, otherwise 0."""
        return int(rows == self.missing and self.wants_logits)

    def plan(self, context: int) -> None:
        """Set ``target_ids``, ``prompt`` and ``rollback_length`` from the current ids.

        Raises:
            EngineError: the ids don't fit a context of ``context`` tokens, or there are none.
        """
        raise NotImplementedError

    def begin(self) -> None:
        """Begin the task, now that the sequence has a slot and is rolled back; may end it."""
        self._began = perf_counter()
        self._cached = len(self.owner.slot.ids) if self.owner.slot is not None else 0

    def record_cached(self, count: int) -> None:
        """Count ``count`` more prompt tokens that are in memory and were not decoded for this task."""
        self._cached += count

    def accept(self, logits: NDArray[np.float32]) -> None:
        """Use the logits of the next row that needs them; may end the task."""
        raise NotImplementedError

    def end_prefill(self) -> None:
        """End the task, because the prompt is decoded and no logits are needed."""
        self.finish("done")

    def unpark(self) -> None:
        """Do nothing, because a task is never parked."""

    def emit(self, prediction: Prediction) -> None:
        """Give a prediction to the consumer."""
        self._made += 1
        if self._ring.push(prediction) & WAKE and not self._consumer.wake():
            self.is_cancelled = True

    def finish(self, reason: str, *, error: Exception | None = None) -> None:
        """End the task; idempotent.

        Args:
            reason: see ``TaskEnd``.
            error: what made the task fail, if anything.
        """
        if self.ended is not None:
            return
        now = perf_counter()
        began = self._began or now
        rows = max(0, len(self.owner.slot.ids) - self._cached) + self.side_rows if self._began and self.owner.slot is not None else 0
        timings = TaskTimings(queued_s=began - self.requested_at, compute_s=now - began, rows=rows, late_s=self.late_s)
        self.ended = TaskEnd(reason, timings, error or self._consumer.failure)
        if self._ring.finish() & WAKE and not self._consumer.wake():
            self.is_cancelled = True


class ExtensionTask(Task):
    """Adds ids and, with a predictor, predicts the token after them.

    Args:
        owner: the sequence.
        wake: see ``Task``.
        ids: the ids to add.
        predictor: makes the prediction; None for no prediction.
    """

    def __init__(self, owner: TaskOwner, wake: Callable[[], None] | None, ids: list[int], predictor: Predictor | None) -> None:
        super().__init__(owner, wake, max_predictions=1)
        self._ids = ids
        self._predictor = predictor
        self.wants_logits = predictor is not None

    def plan(self, context: int) -> None:
        """Plan to decode all ids if there is a predictor, otherwise all but the last, which is decoded with the next task."""
        self.target_ids = self.owner.ids + self._ids
        check_length("sequence", self.target_ids, context)
        self.prompt = self.target_ids if self._predictor is not None else self.target_ids[:-1]
        self.rollback_length = len(self.target_ids) - self.wants_logits

    def begin(self) -> None:
        """Begin the task, and end it at once if nothing is left to be decoded."""
        super().begin()
        if self.missing <= 0:
            self.finish("done")

    def accept(self, logits: NDArray[np.float32]) -> None:
        """Predict the token after the last id."""
        if self._predictor is None:
            raise AssertionError("an extension without a predictor needs no logits")
        self.emit(self._predictor.read_row(logits, len(self.target_ids), None))
        self.finish("done")

    def finish(self, reason: str, *, error: Exception | None = None) -> None:
        """End the task; with the reason "done", its ids become part of the sequence."""
        if self.ended is None and reason == "done":
            self.owner.ids = self.target_ids
        super().finish(reason, error=error)


class TreeRows:
    """The rows of a tree draft: the rows of its longest path, which stays in the sequence, and of its side paths.

    Args:
        draft: tokens of the nodes, beginning with node 1.
        parents: parent of each node (``streamco.policies.drafts.tree_acceptance``).

    Attributes:
        main: nodes of the longest path, or of the first of several equally long ones.
        sides: nodes of each other path to a leaf.
        side_nodes: nodes that aren't on the longest path.
        paths: for each node from 0, the nodes on the path to it; none for node 0.
    """

    def __init__(self, draft: Sequence[int], parents: Sequence[int]) -> None:
        self.main = longest_path(parents)
        paths = (path_to(parents, leaf) for leaf in leaves(parents))
        self.sides = tuple(path for path in paths if path != self.main)
        self.side_nodes = tuple(node for node in range(1, len(draft) + 1) if node not in self.main)
        self.paths = tuple(path_to(parents, node) for node in range(len(draft) + 1))
        self._draft = draft

    def ids(self, path: Sequence[int]) -> list[int]:
        """Return the tokens of these nodes."""
        return [self._draft[node - 1] for node in path]


class VerificationTask(Task):
    """Verifies a draft by reading the model's prediction for each of its positions.

    Args:
        owner: the sequence.
        wake: see ``Task``.
        ids: the draft.
        reader: turns each row of logits into a prediction.
        given: ids that are added before the draft and not verified.
        parents: parent of each id of the draft, in a tree; empty for a chain.
    """

    def __init__(
        self,
        owner: TaskOwner,
        wake: Callable[[], None],
        ids: list[int],
        reader: RowReader,
        *,
        given: Sequence[int] = (),
        parents: Sequence[int] = (),
    ) -> None:
        super().__init__(owner, wake, max_predictions=len(ids) + 1)
        self.tree = None if is_chain(parents) else TreeRows(ids, parents)
        self._given = given
        self._ids = ids if self.tree is None else self.tree.ids(self.tree.main)
        self._rows = len(ids) + 1
        self._reader = reader
        self._first = 0

    def plan(self, context: int) -> None:
        """Plan to decode the given ids and the draft, and the last id before the draft, because its prediction is needed too."""
        ids = [*self.owner.ids, *self._given]
        self.target_ids = self.prompt = ids + self._ids
        check_length("sequence and draft", self.prompt, context)
        if not ids:
            raise EngineError("verify: expected a sequence of at least one id, got an empty one")
        self._first = len(ids)
        self.rollback_length = self._first - 1

    def logits_needed(self, rows: int) -> int:
        """Return how many of the next ``rows`` rows need logits: the last id before the draft and all ids after it do."""
        start = len(self.prompt) - self.missing
        return min(rows, max(0, start + rows - self.rollback_length))

    def accept(self, logits: NDArray[np.float32]) -> None:
        """Read the prediction for the next position, or in a tree for the position after the next node."""
        if self.tree is None:
            position = self._first + self._made
            token = self.prompt[position] if position < len(self.prompt) else None
        else:
            position, token = self._first + len(self.tree.paths[self._made]), None
        self.emit(self._reader.read_row(logits, position, token))
        if self._made == self._rows:
            self.finish("done")

    def finish(self, reason: str, *, error: Exception | None = None) -> None:
        """End the task; with the reason "done", the draft (or the longest path of a tree) becomes part of the sequence."""
        if self.ended is None and reason == "done":
            self.owner.ids = self.prompt
        super().finish(reason, error=error)


class DraftTask(Task):
    """Drafts tokens with this model.

    Args:
        owner: the sequence.
        wake: see ``Task``.
        ids: ids that are added before the draft.
        count: maximum number of tokens to draft.
        predictor: draws the tokens.
        end_ids: tokens that end the draft.
    """

    def __init__(
        self, owner: TaskOwner, wake: Callable[[], None], ids: list[int], count: int, predictor: Predictor, *, end_ids: frozenset[int]
    ) -> None:
        super().__init__(owner, wake, max_predictions=count)
        self._ids = ids
        self._count = count
        self._predictor = predictor
        self._end_ids = end_ids
        self._attention: list[NDArray[np.float32]] = []  # attention of each drafted token's row to the draft

    def plan(self, context: int) -> None:
        """Plan to decode the sequence and the given ids, and to draft as many tokens as fit into the context."""
        ids = self.owner.ids + self._ids
        if not ids:
            raise EngineError("draft: expected a sequence of at least one id, got an empty one")
        self.target_ids = self.prompt = ids
        self.rollback_length = len(ids) - 1
        self._count = min(self._count, context - len(ids))
        if self._count < 1:
            raise EngineError(f"draft: expected a sequence shorter than the context of {context} tokens, got {len(ids)}")

    @property
    def has_drafted(self) -> bool:
        """True if the next row belongs to a token drawn by this task."""
        return self._made > 0

    def record_attention(self, attention: NDArray[np.float32]) -> None:
        """Keep the next row's attention to each token of the sequence, shape (layers, tokens); call before ``accept``."""
        self._attention.append(attention[:, len(self.prompt) :])

    def accept(self, logits: NDArray[np.float32]) -> None:
        """Draw the next token. With the first one, the given ids become part of the sequence."""
        prediction = self._predictor.draw(logits, len(self.prompt) + self._made)
        if self._attention:
            from streamco.policies.importance import draft_importance  # needs numpy, which has been loaded by now

            prediction = replace(prediction, importance=draft_importance(self._attention))
        if prediction.token is None:
            raise AssertionError("a draft draws a token in each row")
        self.next_token = prediction.token
        if not self._made:
            self.owner.ids = list(self.prompt)
        self.owner.ids.append(prediction.token)
        self.emit(prediction)
        if prediction.token in self._end_ids:
            self.finish("stop")
        elif self._made == self._count:
            self.finish("done")


def check_length(what: str, ids: list[int], context: int) -> None:
    """Check that there are ids and that they fit the context.

    Raises:
        EngineError: there are none, or too many.
    """
    if not ids:
        raise EngineError(f"{what}: expected at least one id, got none")
    if len(ids) > context:
        raise EngineError(f"{what}: expected at most {context} tokens (the context), got {len(ids)}")


class ReadingTask(Task):
    """Adds ids and decodes all of them, in the batches of verifications."""

    wants_logits = False

    def __init__(self, owner: TaskOwner, wake: Callable[[], None], ids: list[int]) -> None:
        super().__init__(owner, wake, max_predictions=1)
        self._ids = ids

    def plan(self, context: int) -> None:
        """Plan to decode all ids."""
        self.target_ids = self.prompt = self.owner.ids + self._ids
        check_length("sequence", self.target_ids, context)
        self.rollback_length = len(self.target_ids)

    def begin(self) -> None:
        """Begin the task, and end it at once if nothing is left to be decoded."""
        super().begin()
        if self.missing <= 0:
            self.finish("done")

    def finish(self, reason: str, *, error: Exception | None = None) -> None:
        """End the task; with the reason "done", its ids become part of the sequence."""
        if self.ended is None and reason == "done":
            self.owner.ids = self.target_ids
        super().finish(reason, error=error)
