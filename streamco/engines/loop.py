"""The loop of an engine's thread, which decides which sequences are decoded next, in which batch, and which are stopped.

Each round is one decode of all sequences that are writing (generations and drafts), then one batch of verifications, then one chunk of one
prompt. A prefill batch holds only one sequence. So aborting it affects no other sequence, and the loser of a race stops within its chunk.
On a CPU this costs next to nothing, because a chunk of 32 tokens takes as long as ten decodes.

If a consumer doesn't read, its sequence is parked. The thread continues with the others and sleeps only when there is nothing to do.

An error in one piece of work ends only that work (``_guarded``). Any other error ends the thread and all work.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from streamco.engines.base import EngineOptions, StepPace
from streamco.engines.consumer import Consumer
from streamco.engines.decoder import Decoder, SequenceWork, slot_of
from streamco.engines.generation import RunningGeneration
from streamco.engines.kv_slots import Slot, SlotTable
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.sequence_table import SequenceTable
from streamco.engines.tasks import DraftTask, ReadingTask, Task, TreeRows, VerificationTask
from streamco.engines.threads import ThreadShare
from streamco.errors import EngineError

if TYPE_CHECKING:
    from streamco.engines.answer_drafts import BatchDrafts

__all__ = ["EngineLoop"]

Arrival = RunningGeneration | Task | Consumer | None

logger = logging.getLogger("streamco.engine")


class EngineLoop:
    """The state of the engine's thread, and the few methods that other threads may call.

    Args:
        context: the context, which has a sequence for padding besides those that ``options`` asks for; in exact mode, one for each of those
            (see ``Decoder``).
        slots: slots of that context.
        options: how the engine runs.
        share: number of threads that compute.
        pace: decides when the results of a step may be shown; None to show them at once.
        tokens: maximum number of tokens in a sequence.
        draft_paths: number of paths that a tree draft may have; 1 for chains only.
    """

    def __init__(
        self,
        context: LlamaContext,
        slots: SlotTable,
        options: EngineOptions,
        share: ThreadShare,
        pace: StepPace | None,
        *,
        tokens: int,
        draft_paths: int = 1,
    ) -> None:
        self.draft_paths = draft_paths
        self._context = context
        self._slots = slots
        self._options = options
        self._pace = pace
        self._held = SequenceTable(slots, options.held_sequences, tokens, is_private=options.private)
        self._decoder = Decoder(context, slots, share, pace, exact=options.exact, wait=self._wait, free_memory=self._free_memory)
        self.interrupt = self._decoder.interrupt
        self.warm_up = self._decoder.warm_up
        self.time_batch, self.pad_batches = self._decoder.time_batch, self._decoder.pad_batches
        self.failure: BaseException | None = None
        self._inbox: SimpleQueue[Arrival] = SimpleQueue()
        self._inbox_lock = threading.Lock()  # held while work that belongs together is queued
        self._live: set[SequenceWork] = set()  # all work in the four queues below or between two of them
        self._waiting: deque[RunningGeneration] = deque()
        self._generations = 0  # number of generations with a slot
        self._prefilling: deque[SequenceWork] = deque()
        self._verifying: deque[SequenceWork] = deque()
        self._writing: list[SequenceWork] = []
        self.drafts: BatchDrafts | None = None
        """Proposes tokens of answers; if None, each step gives one token for each answer. Set before ``run``."""
        self._may_draft = True

    @property
    def exact_rows(self) -> int:
        """Maximum number of rows of one sequence that a batch may have in exact mode."""
        return self._decoder.chunk

    # Any thread

    def put(self, arrival: RunningGeneration | Task | Consumer) -> None:
        """Queue work for the engine's thread, or a consumer to wake in its next round.

        Raises:
            EngineError: the engine has failed or is closing.
        """
        with self._decoder.lock:
            if self.failure is not None:
                raise EngineError(f"engine: has failed: {self.failure}") from self.failure
            if self._decoder.is_closing:
                raise EngineError("engine: already closed")
            self._inbox.put(arrival)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make the engine's thread receive all work that is queued inside the ``with`` block at the same time."""
        with self._inbox_lock:
            yield

    def notify(self) -> None:
        """Make the thread check its work again, because something changed."""
        self._inbox.put(None)

    def close(self) -> None:
        """Ask the thread to stop; idempotent."""
        self._decoder.close()
        self.notify()

    # The engine's thread

    def run(self) -> None:
        """Run rounds until ``close``."""
        while self._collect():
            self._reap()
            self._admit()
            self._gather()
            self._decode_writing([work for work in self._writing if not work.is_parked])
            self._verify(self._verifying)
            if self._prefilling:
                self._prefill(self._prefilling[0])

    def end(self, failure: BaseException | None) -> None:
        """End all work, and accept no more."""
        with self._decoder.lock:
            self.failure = failure
            self._decoder.is_closing = True
        self._drain_inbox()
        error = None
        if failure is not None:
            error = EngineError(f"engine: expected its thread to go on, got {type(failure).__name__}: {failure}")
            error.__cause__ = failure
        reason = "error" if error else "cancelled"
        for work in self._live:
            work.finish(reason, error=error)
        self._held.end(reason, error)

    def _collect(self) -> bool:
        """Accept new work, and sleep while there is nothing to do. Returns False if the engine is closing."""
        self._drain_inbox()
        self._end_pauses()
        was_idle = False
        while not self._decoder.is_closing and not self._has_work():
            was_idle = True
            self._take_in(self._inbox.get())
            self._drain_inbox()
            self._end_pauses()
        self._begin_round(was_idle=was_idle)
        return not self._decoder.is_closing

    def _end_pauses(self) -> None:
        """Make paused generations continue if others are waiting for a slot."""
        if self._waiting and not self._has_free_slot:
            for work in self._writing:
                if isinstance(work, RunningGeneration):
                    work.end_pause()

    def _begin_round(self, *, was_idle: bool) -> None:
        if self._pace is not None:
            self._pace.begin_round(was_idle=was_idle)

    def _drain_inbox(self) -> None:
        with self._inbox_lock:
            while not self._inbox.empty():
                self._take_in(self._inbox.get())

    def _wait(self, seconds: float) -> None:
        with suppress(Empty):
            self._take_in(self._inbox.get(timeout=seconds))

    def _take_in(self, arrived: Arrival) -> None:
        match arrived:
            case RunningGeneration():
                self._live.add(arrived)
                self._waiting.append(arrived)
            case Task():
                self._held.add(arrived)
            case Consumer():
                arrived.wake()
            case None:
                for work in self._writing:
                    work.unpark()

    def _has_work(self) -> bool:
        if self._prefilling or self._verifying or self._held.has_ready or (self._waiting and self._has_free_slot):
            return True
        return any(not work.is_parked or work.is_cancelled for work in self._writing) or any(work.is_cancelled for work in self._waiting)

    @property
    def _has_free_slot(self) -> bool:
        return self._generations < self._options.max_sequences

    def _free_memory(self) -> bool:
        """Free the memory of ended work or, if there is none, of an idle held sequence. Returns False if nothing was freed."""
        return self._slots.forget_idle() or (self._held.evict() and self._slots.forget_idle())

    def _reap(self) -> None:
        """End cancelled work, and free the slots of finished work."""
        self._held.reap()
        for queue in (self._waiting, self._prefilling, self._verifying, self._writing):
            for work in [each for each in queue if each.is_cancelled or each.is_done]:
                work.finish("cancelled")
                queue.remove(work)  # type: ignore[arg-type]
                self._release(work)

    def _admit(self) -> None:
        while self._waiting and self._has_free_slot:
            generation = self._waiting.popleft()
            generation.admit(self._slots.acquire(generation.prompt, generation.request.owner))
            self._generations += 1
            self._prefilling.append(generation)
        for task in self._held.begin_ready():
            self._live.add(task)
            self._enqueue(task)

    def _enqueue(self, work: SequenceWork) -> None:
        """Queue work for its next decode. A task that needs only one row is decoded together with the writers, which have one row each."""
        if work.missing == 1 and work.wants_logits and isinstance(work, Task):
            work.next_token = work.prompt[-1]
            self._writing.append(work)
        elif isinstance(work, VerificationTask | ReadingTask):
            self._verifying.append(work)
        elif work.missing:
            self._prefilling.append(work)
        else:
            self._writing.append(work)

    def _gather(self) -> None:
        """Move verifications of one row from the writers to the batch of verifications, if they are the only writers."""
        if self._verifying and all(isinstance(work, VerificationTask) for work in self._writing):
            self._verifying.extend(self._writing)
            self._writing = []

    def _decode_writing(self, ready: Sequence[SequenceWork]) -> None:
        """Decode the next row of each generation or task in ``ready``, and a generation's draft tokens after it if that pays off."""
        if not ready:
            return
        context = self._context
        drafts = self._choose_drafts(ready)
        rows = []
        for work in ready:
            slot = slot_of(work)
            assert work.next_token is not None
            rows.append(context.add(work.next_token, len(slot.ids), slot.sequence, wants_logits=True))
            if draft := drafts.get(work):
                context.add_run(draft, len(slot.ids) + 1, slot.sequence, wants_logits=len(draft))
        context.reads_attention = reads = context.has_attention and any(map(_has_drafted, ready))
        drafted = context.count - len(ready)
        single = [work for work in ready if work not in drafts]
        if not self._decoder.compute(ready, single=single, rows=len(ready), prefill_tokens=drafted, may_retry=drafted > 0):
            self._may_draft = not drafted  # if memory is short, the next batch has no drafts
            return
        self._may_draft = True
        for row, work in zip(rows, ready, strict=True):
            assert work.next_token is not None
            slot_of(work).ids.append(work.next_token)
            if reads and isinstance(work, DraftTask) and work.has_drafted:
                self._guarded(work, self._record_attention, work, row)
            if isinstance(work, RunningGeneration):
                work.drafted += len(drafts.get(work, ()))
            self._guarded(work, self._accept, work, row)
            if self.drafts is not None and isinstance(work, RunningGeneration):
                self._accept_draft(self.drafts, work, drafts.get(work, ()), row)
        if self.drafts is not None:
            self.drafts.end_batch(drafted)
        self._writing = [work for work in self._writing if not self._is_over(work)]

    def _choose_drafts(self, ready: Sequence[SequenceWork]) -> dict[SequenceWork, Sequence[int]]:
        """Return the draft tokens for this batch, by the work in ``ready`` that they belong to."""
        if self.drafts is None:
            return {}
        answers = [work for work in ready if isinstance(work, RunningGeneration)]
        try:
            chosen = self.drafts.choose(answers, len(ready), is_allowed=self._may_draft)
        except Exception:  # something that only makes answers faster must not end them
            logger.exception("drafts of answers failed: from now on there are none")
            self.drafts.close()
            self.drafts = None
            return {}
        return {answer: draft for answer, draft in zip(answers, chosen, strict=True) if draft}

    def _accept_draft(self, drafts: BatchDrafts, work: RunningGeneration, draft: Sequence[int], row: int) -> None:
        """Draw tokens from the rows of a draft as long as they equal the draft's, and remove the rest of the draft from memory."""
        slot, accepted = slot_of(work), 0
        while accepted < len(draft) and work.next_token == draft[accepted] and not (work.is_done or work.is_parked):
            slot.ids.append(draft[accepted])
            accepted += 1
            work.accepted += 1
            self._guarded(work, self._accept, work, row + accepted)
        if accepted < len(draft):
            self._slots.truncate(slot, len(slot.ids))
        drafts.record(work, len(draft), accepted)

    def _verify(self, ready: Iterable[SequenceWork]) -> None:
        """Decode one batch with as much of the work as fits, oldest first. The batch is a separate step, without prefills."""
        batch = self._add_verifications(ready)
        if not batch:
            return
        self._begin_round(was_idle=False)
        single = [part.work for part in batch if part.rows == 1]
        if self._decoder.compute([part.work for part in batch], single=single, prefill_tokens=self._context.count):
            for part in batch:
                part.record()
                for row in part.wanted:
                    self._guarded(part.work, self._accept, part.work, row)
                if not part.work.missing and not part.work.wants_logits:
                    self._guarded(part.work, part.work.end_prefill)
        else:
            for part in batch:
                self._slots.drop_sides(slot_of(part.work))
        self._begin_round(was_idle=False)
        for part in batch:
            self._verifying.remove(part.work)
            if not self._is_over(part.work):
                self._enqueue(part.work)

    def _add_verifications(self, ready: Iterable[SequenceWork]) -> list[_VerifyPart]:
        """Add the rows of the next batch of verifications; return its parts."""
        context, pads = self._context, 0
        batch: list[_VerifyPart] = []
        for work in list(ready):
            if not self._catch_up(work):
                self._verifying.remove(work)
                continue
            self._slots.drop_sides(slot_of(work))  # the accepted path was found
            part = _VerifyPart(work, self._decoder.chunk)
            pads += self._decoder.padding_rows * (part.rows == 1)
            if context.count + part.rows + pads > context.rows:
                break
            if part.add(context, self._slots, [side for each in batch for side in each.sides]):
                batch.append(part)  # otherwise it is the first of the next batch; work with fewer paths needn't wait for that
        return batch

    def _prefill(self, work: SequenceWork) -> None:
        """Decode one chunk of one prompt, which then goes to the end of the queue."""
        self._prefilling.remove(work)
        if not self._catch_up(work):
            return
        slot = slot_of(work)
        start = len(slot.ids)
        is_small = self._writing or self._verifying or self._options.exact or isinstance(work, Task)
        size = min(self._decoder.chunk, self._options.prefill_chunk) if is_small else self._options.prefill_chunk
        chunk = work.prompt[start : start + size]
        needed = work.logits_needed(len(chunk))
        row = self._context.add_run(chunk, start, slot.sequence, wants_logits=needed)
        if self._decoder.compute([work], single=[work] if len(chunk) == 1 else (), prefill_tokens=len(chunk)):
            slot.ids += chunk
            if needed:
                self._guarded(work, self._accept, work, row)
            elif not work.missing:
                self._guarded(work, work.end_prefill)
        if not self._is_over(work):
            self._enqueue(work)

    def _catch_up(self, work: SequenceWork) -> bool:
        """Copy the tokens of this prompt that other work has read since the last turn. Returns False if the work has ended."""
        found = self._slots.catch_up(slot_of(work), work.prompt, len(work.prompt) - work.logits_needed(work.missing))
        if found:
            work.record_cached(found)
            if not work.missing:
                self._guarded(work, work.end_prefill)
        return not self._is_over(work)

    def _accept(self, work: SequenceWork, row: int) -> None:
        work.accept(self._context.logits(row))

    def _record_attention(self, work: DraftTask, row: int) -> None:
        work.record_attention(self._context.attention(row))

    def _guarded(self, work: SequenceWork, function: Callable[..., None], *arguments: object) -> None:
        """Call a function that uses one piece of work. If it raises, that work ends with the error, and all other work continues."""
        if work.is_done:
            return
        try:
            function(*arguments)
        except EngineError as exc:
            work.finish("error", error=exc)
        except Exception as exc:
            logger.exception("one request failed in the engine's thread; the others go on")
            error = EngineError(f"engine: expected to compute this request, got {type(exc).__name__}: {exc}")
            error.__cause__ = exc
            work.finish("error", error=error)

    def _is_over(self, work: SequenceWork) -> bool:
        """Return True if the work has ended, after freeing its slot."""
        if work.is_done:
            self._release(work)
        return work.is_done

    def _release(self, work: SequenceWork) -> None:
        self._live.discard(work)
        if isinstance(work, Task):
            self._held.release(work)
        elif isinstance(work, RunningGeneration) and work.slot is not None:
            self._slots.release(work.slot)
            self._generations -= 1
            if self.drafts is not None:
                self.drafts.forget(work)
            work.slot = None


def _has_drafted(work: SequenceWork) -> bool:
    return isinstance(work, DraftTask) and work.has_drafted


class _VerifyPart:
    """The rows of one piece of work in a batch of verifications.

    Args:
        work: the work.
        chunk: maximum number of rows. A tree's rows must all be in one batch, so the tokens before it may get a separate batch.
    """

    def __init__(self, work: SequenceWork, chunk: int) -> None:
        self.work = work
        self.sides: list[Slot] = []
        self.wanted: Sequence[int] = ()  # rows with logits, in the order in which the work takes them
        self._slot = slot_of(work)
        self._start = start = len(self._slot.ids)
        self._chunk = work.prompt[start : start + chunk]
        self._tree: TreeRows | None = None
        if isinstance(work, VerificationTask) and work.tree is not None:
            if start + chunk < len(work.prompt) + len(work.tree.side_nodes):
                self._chunk = self._chunk[: work.rollback_length - start]
            else:
                self._tree = work.tree

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self._chunk) + (len(self._tree.side_nodes) if self._tree is not None else 0)

    def add(self, context: LlamaContext, slots: SlotTable, busy: Sequence[Slot]) -> bool:
        """Add the rows to the batch. Returns False if too few slots for side paths are left; the batch already uses those in ``busy``."""
        if self._tree is None:
            needed = self.work.logits_needed(len(self._chunk))
            context.add_run(self._chunk, self._start, self._slot.sequence, wants_logits=needed)
            self.wanted = range(context.count - needed, context.count)
            return True
        sides = slots.take_sides(self._slot, len(self._tree.sides), busy)
        if sides is None:
            return False
        self.sides = sides
        self._add_tree(context, self._tree)
        return True

    def _add_tree(self, context: LlamaContext, tree: TreeRows) -> None:
        """Add a row for each token before the draft and for each node. A row belongs to the sequences of all paths through it."""
        first = len(self._chunk) - len(tree.main)  # rows before the draft
        all_paths = [self._slot.sequence, *(side.sequence for side in self.sides)]
        row = -1
        for offset, token in enumerate(self._chunk[:first]):
            row = context.add_shared(token, self._start + offset, all_paths, wants_logits=offset == first - 1)
        wanted = {0: row}
        for node in (*tree.main, *tree.side_nodes):
            through = [side.sequence for side, path in zip(self.sides, tree.sides, strict=True) if node in path]
            sequences = [self._slot.sequence, *through] if node in tree.main else through
            position = self._start + first - 1 + len(tree.paths[node])
            wanted[node] = context.add_shared(tree.ids((node,))[0], position, sequences, wants_logits=True)
        self.wanted = [wanted[node] for node in range(len(wanted))]

    def record(self) -> None:
        """Record the tokens that are in memory after the batch."""
        before = [*self._slot.ids, *self._chunk]
        self._slot.ids += self._chunk
        if self._tree is not None and isinstance(self.work, VerificationTask):
            self.work.side_rows = len(self._tree.side_nodes)
            del before[len(before) - len(self._tree.main) :]
            for side, path in zip(self.sides, self._tree.sides, strict=True):
                side.ids = before + self._tree.ids(path)
