"""Held sequences without a model: the real engine's tables, with a function in place of the weights."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING

from streamco.engines.kv_slots import SlotTable
from streamco.engines.sequence import HeldSequence
from streamco.engines.sequence_table import SequenceTable
from streamco.engines.tasks import DraftTask, Task, VerificationTask
from streamco.errors import EngineError
from streamco.sim.workload.token_models import TokenModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["FakeSequenceEngine"]

_NEVER = -1e4  # a logit whose exponential is 0
_NOTHING = 1e-6  # a remaining probability below this is a rounding error
_BATCHES = 9  # the time of a row is estimated as the median of this many batches
_LATE = 0.002  # seconds; a batch that starts later than planned by more than this counts as late


class FakeSequenceEngine:
    """Runs the tasks of held sequences, without the rest of an engine, which ``HeldSequence`` doesn't need.

    In mode ``thread``, a batch that follows another starts at the scheduled end of the previous one, so that delays don't add up. It
    contains the tasks that were submitted before the previous one had been computed. Because computing takes time with large vocabularies,
    it begins that much before the batch's scheduled end. If it begins more than 2 ms late, the tasks' timings say so (``late_s``).

    Args:
        successor: the model, from ids to the probabilities of the next id.
        vocabulary_size: number of ids.
        max_sequences: number of sequences that can have memory at once.
        context_tokens: maximum number of tokens in a sequence.
        mode: with ``instant``, tasks are done when the call that submits them returns; with ``thread``, a thread does them on time; with
            ``manual``, calls of ``step`` do them.
        prefill_s: seconds to read a token (thread).
        token_s: seconds to write a token (thread).
        step_time: a function from the number of sequences that write and the number of tokens that are read to the seconds of a batch; used
            instead of ``prefill_s`` and ``token_s`` (thread). The tokens that are read are prompts, verifications, and all ids that a draft
            must read except the last one.
        end_ids: tokens that end a draft.
    """

    def __init__(
        self,
        successor: TokenModel,
        *,
        vocabulary_size: int,
        max_sequences: int,
        context_tokens: int,
        mode: str,
        prefill_s: float = 0.0,
        token_s: float = 0.0,
        step_time: Callable[[int, int], float] | None = None,
        end_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.vocabulary_size = vocabulary_size
        self.draft_paths = 8
        self.end_ids = end_ids
        self.rounds = 0  # batches that decoded anything
        self._successor = successor
        self._mode = mode
        self._prefill_s = prefill_s
        self._token_s = token_s
        self._step_time = step_time
        self._table = SequenceTable(SlotTable(_NoKVCache(), max_sequences, max_idle_tokens=context_tokens), max_sequences, context_tokens)
        self._work: list[Task] = []
        self._row_times: deque[float] = deque([0.0], _BATCHES)  # seconds to compute a row of logits, in the last batches
        self._is_busy = False
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def held(self) -> int:
        """Number of sequences with memory."""
        return self._table.held

    def hold(self, label: Hashable = None, *, owner: str | None = None) -> HeldSequence:
        """Return a new, empty sequence.

        Raises:
            EngineError: the engine is closed.
            UsageError: the label isn't hashable.
        """
        with self._changed:
            self._check_open()
            if self._mode == "thread" and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="streamco-fake-sequences", daemon=True)
                self._thread.start()
        return HeldSequence(self, self, label, owner=owner)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Start all tasks that are submitted inside the ``with`` block together."""
        with self._changed:
            was_busy, self._is_busy = self._is_busy, True
            try:
                yield
            finally:
                self._is_busy = was_busy
        self.notify()

    def put(self, task: Task) -> None:
        """Queue a task."""
        with self._changed:
            self._check_open()
            self._table.add(task)
        self.notify()

    def notify(self) -> None:
        """Wake the thread, or do the work at once in mode ``instant``."""
        with self._changed:
            self._changed.notify_all()
            if not self._is_busy:
                while self._mode == "instant" and self._collect():
                    self._round(self._work)

    def interrupt(self, work: object) -> None:
        """Do nothing, because batches are short."""

    def step(self) -> None:
        """Run one batch of all tasks: whole prompts, whole verifications and one token of each draft."""
        with self._changed:
            if self._collect():
                self._round(self._work)

    def close(self) -> None:
        """Cancel everything; idempotent."""
        with self._changed:
            self._is_closed = True
            for task in self._work:
                task.finish("cancelled")
            self._table.end("cancelled", None)
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineError("engine: already closed")

    def _collect(self) -> bool:
        """End cancelled tasks and start the next ones; return True if there is anything to decode."""
        self._table.reap()
        for task in [task for task in self._work if task.is_cancelled]:
            task.finish("cancelled")
            self._put_away(task)
        self._work += self._table.begin_ready()
        return bool(self._work)

    def _round(self, batch: Sequence[Task]) -> None:
        self._is_busy = True  # a consumer that is woken up may cancel a task, which calls notify
        self.rounds += 1
        for task in list(batch):
            self._advance(task)
            if task.is_done:
                self._put_away(task)
        self._is_busy = False

    def _put_away(self, task: Task) -> None:
        self._work.remove(task)
        self._table.release(task)

    def _advance(self, task: Task) -> None:
        slot = task.slot
        if slot is None:
            raise AssertionError("a task that has begun has a slot")
        more = [task.next_token] if task.next_token is not None else task.prompt[len(slot.ids) :]
        rows = _rows([task])
        slot.ids += more
        if isinstance(task, VerificationTask) and task.tree is not None:
            task.side_rows = len(task.tree.side_nodes)
        for ids in _texts(task, slot.ids, rows):
            try:
                task.accept(self._logits(ids))
            except EngineError as exc:
                task.finish("error", error=exc)
        if not rows:
            task.end_prefill()

    def _logits(self, ids: list[int]) -> NDArray[np.float32]:
        import numpy as np

        found = self._successor(ids)
        rest = (1.0 - sum(found.values())) / max(1, self.vocabulary_size - len(found))
        logits = np.full(self.vocabulary_size, math.log(rest) if rest > _NOTHING / self.vocabulary_size else _NEVER, dtype=np.float32)
        for token, probability in found.items():
            logits[token] = math.log(probability) if probability > 0 else _NEVER
        return logits

    def _run(self) -> None:
        ends = 0.0
        with self._changed:
            while True:
                if not self._collect():
                    self._changed.wait_for(lambda: self._is_closed or self._collect())
                    ends = monotonic()
                if self._is_closed:
                    return
                batch = list(self._work)
                ends += self._cost(batch)
                begin = ends - median(self._row_times) * _rows(batch)
                self._pause(begin, batch)
                self._collect()  # ends tasks that were cancelled meanwhile
                if wanted := [task for task in batch if not task.is_done]:
                    _note_lateness(wanted, monotonic() - begin)
                    self._compute(wanted)
                else:
                    ends = min(ends, monotonic())

    def _compute(self, batch: Sequence[Task]) -> None:
        rows, began = _rows(batch), monotonic()
        self._round(batch)
        if rows:
            self._row_times.append((monotonic() - began) / rows)

    def _cost(self, batch: Sequence[Task]) -> float:
        if self._step_time is not None:
            drafting = [task for task in batch if isinstance(task, DraftTask)]
            missing = sum(task.missing - 1 if isinstance(task, DraftTask) else task.missing for task in batch if task.next_token is None)
            return self._step_time(len(drafting), missing)
        reading = [task.missing for task in batch if task.next_token is None]
        return max(self._token_s if len(batch) > len(reading) else 0.0, self._prefill_s * max(reading, default=0))

    def _pause(self, until: float, batch: Sequence[Task]) -> None:
        """Wait until this time, or until all tasks are cancelled."""
        while (left := until - monotonic()) > 0 and not self._is_closed and not all(task.is_cancelled for task in batch):
            self._changed.wait(left)


def _texts(task: Task, ids: list[int], rows: int) -> Iterator[list[int]]:
    """Yield, for each row of logits, the ids that come before it: the last ``rows`` prefixes, or the ids up to each node of a tree."""
    tree = task.tree if isinstance(task, VerificationTask) else None
    if tree is None:
        for length in range(len(ids) - rows + 1, len(ids) + 1):
            yield ids[:length]
        return
    for path in tree.paths:
        yield ids[: len(ids) - len(tree.main)] + tree.ids(path)


def _note_lateness(batch: Sequence[Task], seconds: float) -> None:
    if seconds > _LATE:
        for task in batch:
            task.late_s += seconds


def _rows(batch: Sequence[Task]) -> int:
    """Return the number of rows of logits that a batch must compute."""
    return sum(1 if task.next_token is not None else task.logits_needed(task.missing) for task in batch)


class _NoKVCache:
    """A KV cache that holds nothing, because the slots' lists are enough. Implements ``Memory``."""

    def remove(self, sequence: int, start: int, stop: int = -1) -> bool:
        return True

    def copy(self, source: int, target: int, stop: int) -> None:
        pass
