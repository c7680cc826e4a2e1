"""What an engine's thread does: who is decoded next, together with whom, and who is stopped.

Each round is one decode of all sequences that are writing, then one chunk of one prompt, in turns. Prompts are never mixed into the batch
of the writers: a prefill batch holds one sequence alone, so that aborting it hurts nobody else, and a lost race stops inside its chunk. On
a CPU this costs next to nothing (a chunk of 32 takes as long as ten decodes).

A sequence whose consumer doesn't read is parked; the thread goes on with the others and sleeps only when nothing can be done.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import perf_counter

from streamco.engines.base import EngineOptions
from streamco.engines.context import ABORTED, NO_ROOM, LlamaContext
from streamco.engines.generation import RunningGeneration
from streamco.engines.pacing import StepPacer
from streamco.engines.slots import Slot, SlotTable
from streamco.engines.threads import ThreadShare
from streamco.errors import EngineError

__all__ = ["EngineLoop"]

MIXED_CHUNK = 32  # prompt tokens between two decodes of the others: about 0.1 s on two cores, below a reader's 0.2 s a token


class EngineLoop:
    """The state that belongs to the engine's thread, and the few doors into it from others.

    Args:
        context: has one sequence more than ``options`` asks for; in the exact mode one more for each, see ``_compute``.
        slots: of that context.
        options: how the engine runs.
        share: how many threads compute.
        pacer: imposed step times.
    """

    def __init__(self, context: LlamaContext, slots: SlotTable, options: EngineOptions, share: ThreadShare, pacer: StepPacer) -> None:
        self._context = context
        self._slots = slots
        self._options = options
        self._share = share
        self._pacer = pacer
        self._lock = threading.Lock()  # around _alone, is_closing and failure
        self._alone: RunningGeneration | None = None  # the batch being decoded holds this sequence and no other
        self.is_closing = False
        self.failure: BaseException | None = None
        self._inbox: SimpleQueue[RunningGeneration | None] = SimpleQueue()
        self._live: set[RunningGeneration] = set()  # everybody in the three queues below, and whoever is between them
        self._waiting: deque[RunningGeneration] = deque()
        self._prefilling: deque[RunningGeneration] = deque()
        self._writing: list[RunningGeneration] = []

    # Any thread

    def put(self, sequence: RunningGeneration) -> None:
        """Hand a sequence in.

        Raises:
            EngineError: the engine has failed or is closing.
        """
        with self._lock:
            if self.failure is not None:
                raise EngineError(f"engine: expected a working engine, got one that failed: {self.failure}") from self.failure
            if self.is_closing:
                raise EngineError("engine: expected an open engine, got a closed one")
            self._inbox.put(sequence)

    def nudge(self) -> None:
        """Something changed: look again."""
        self._inbox.put(None)

    def interrupt(self, sequence: RunningGeneration) -> None:
        """Stop the decode that runs, if it is for this sequence alone."""
        with self._lock:
            if self._alone is sequence:
                self._context.abort.set()

    def close(self) -> None:
        """Stop everything soon; idempotent."""
        with self._lock:
            self.is_closing = True
            self._context.abort.set()
        self.nudge()

    # The engine's thread

    def warm_up(self) -> None:
        """Touch the weights once, so that the first answer isn't slower than the others.

        Raises:
            EngineError: the model does not run.
        """
        self._context.add(0, 0, 0, wants_logits=True)
        status = self._context.decode()
        if status not in {0, ABORTED}:
            raise EngineError(f"llama_decode: expected 0 from the first token, got {status}")
        self._context.clear()

    def run(self) -> None:
        """Rounds until ``close``."""
        while self._collect():
            self._reap()
            self._admit()
            self._decode_writing()
            self._prefill_next()

    def end(self, failure: BaseException | None) -> None:
        """End everybody; nothing is taken in any more."""
        with self._lock:
            self.failure = failure
            self.is_closing = True
        self._drain_inbox()
        error = None
        if failure is not None:
            error = EngineError(f"engine: expected its thread to go on, got {type(failure).__name__}: {failure}")
            error.__cause__ = failure
        for sequence in self._live:
            sequence.finish("error" if error else "cancelled", error=error)

    def _collect(self) -> bool:
        """Take in what arrived; sleeps while nothing can be done. False: the engine is closing."""
        self._drain_inbox()
        was_idle = False
        while not self.is_closing and not self._has_work():
            was_idle = True
            self._take_in(self._inbox.get())
            self._drain_inbox()
        self._pacer.begin_round(was_idle=was_idle)
        return not self.is_closing

    def _drain_inbox(self) -> None:
        while not self._inbox.empty():
            self._take_in(self._inbox.get())

    def _take_in(self, arrived: RunningGeneration | None) -> None:
        if arrived is not None:
            self._live.add(arrived)
            self._waiting.append(arrived)
            return
        for sequence in self._writing:
            sequence.unpark()

    def _has_work(self) -> bool:
        if self._prefilling or (self._waiting and self._slots.has_idle):
            return True
        return any(not sequence.is_parked or sequence.is_cancelled for sequence in self._writing) or any(
            sequence.is_cancelled for sequence in self._waiting
        )

    def _reap(self) -> None:
        """End what was cancelled, free the slots of what is done."""
        for queue in (self._waiting, self._prefilling, self._writing):
            for sequence in [each for each in queue if each.is_cancelled or each.is_done]:
                sequence.finish("cancelled")
                queue.remove(sequence)
                self._release(sequence)

    def _admit(self) -> None:
        while self._waiting and self._slots.has_idle:
            sequence = self._waiting.popleft()
            sequence.admit(self._slots.acquire(sequence.prompt))
            self._prefilling.append(sequence)

    def _decode_writing(self) -> None:
        """One token of every sequence that has one to decode."""
        ready = [sequence for sequence in self._writing if not sequence.is_parked]
        if not ready:
            return
        context = self._context
        for sequence in ready:
            slot = _slot(sequence)
            assert sequence.next_token is not None
            context.add(sequence.next_token, len(slot.ids), slot.sequence, wants_logits=True)
        if not self._compute(ready, rows=len(ready)):
            return
        for row, sequence in enumerate(ready):
            assert sequence.next_token is not None
            _slot(sequence).ids.append(sequence.next_token)
            self._accept(sequence, row)
        self._writing = [sequence for sequence in self._writing if not self._is_over(sequence)]

    def _prefill_next(self) -> None:
        """One chunk of the prompt whose turn it is."""
        if not self._prefilling:
            return
        sequence = self._prefilling.popleft()
        slot = _slot(sequence)
        start = len(slot.ids)
        is_small = self._writing or self._options.exact  # llama.cpp's attention sums otherwise from 64 rows on
        size = min(MIXED_CHUNK, self._options.prefill_chunk) if is_small else self._options.prefill_chunk
        chunk = sequence.prompt[start : start + size]
        is_last = len(chunk) == sequence.missing
        row = self._context.add_run(chunk, start, slot.sequence, wants_logits=is_last)
        if self._compute([sequence], prefill_tokens=len(chunk)):
            slot.ids += chunk
            if is_last:
                self._finish_prefill(sequence, row)
                return
        if not self._is_over(sequence):
            self._prefilling.append(sequence)

    def _finish_prefill(self, sequence: RunningGeneration, row: int) -> None:
        if sequence.request.prefill_only:
            sequence.finish("length")
        else:
            self._accept(sequence, row)
        if not self._is_over(sequence):
            self._writing.append(sequence)

    def _accept(self, sequence: RunningGeneration, row: int) -> None:
        try:
            sequence.accept(self._context.logits(row))
        except EngineError as exc:
            sequence.finish("error", error=exc)

    def _is_over(self, sequence: RunningGeneration) -> bool:
        """Whether it has ended; its slot is then free."""
        if sequence.is_done:
            self._release(sequence)
        return sequence.is_done

    def _release(self, sequence: RunningGeneration) -> None:
        self._live.discard(sequence)
        if sequence.slot is not None:
            self._slots.release(sequence.slot)
            sequence.slot = None

    def _compute(self, sequences: list[RunningGeneration], *, rows: int = 0, prefill_tokens: int = 0) -> bool:
        """Decode the batch, which holds rows of these sequences; False: not done, and the cache is as it was before."""
        context = self._context
        context.use_threads(self._share.threads)
        # Single rows are computed by other kernels. In the exact mode each sequence has memory of its own, and llama.cpp splits a batch
        # where such sequences aren't neighbours: so every row that is alone in its sequence gets a row of its neighbour beside it.
        is_single = self._options.exact and context.count == len(sequences)
        dummies = [_slot(sequence).sequence + 1 for sequence in sequences] if is_single else []
        for dummy in dummies:
            context.add(0, 0, dummy, wants_logits=False)
        with self._lock:
            self._alone = sequences[0] if len(sequences) == 1 else None
            if self.is_closing or (self._alone is not None and self._alone.is_cancelled):
                context.count = 0
                self._alone = None
                return False
        started = perf_counter()
        status = context.decode()
        with self._lock:
            self._alone = None
            if not self.is_closing:
                context.abort.clear()
        for dummy in dummies:
            context.remove(dummy, 0)
        if status == 0:
            self._pass_time(self._pacer.due(rows, prefill_tokens, started=started, now=perf_counter()), sequences)
            return True
        self._clean_up(sequences, status)
        return False

    def _pass_time(self, until: float, sequences: list[RunningGeneration]) -> None:
        """Wait as long as these sequences still want the result, taking in what arrives."""
        while not self.is_closing and (left := until - perf_counter()) > 0 and not all(sequence.is_cancelled for sequence in sequences):
            with suppress(Empty):
                self._take_in(self._inbox.get(timeout=left))
        self._pacer.cut(perf_counter())

    def _clean_up(self, sequences: list[RunningGeneration], status: int) -> None:
        for sequence in sequences:
            slot = _slot(sequence)
            self._slots.truncate(slot, len(slot.ids))
        if status == ABORTED or (status == NO_ROOM and self._slots.forget_idle()):
            return  # cancelled and about to be reaped; or there is room now, and the next round tries again
        for sequence in sequences:
            error = EngineError(f"llama_decode: expected 0, got {status}" + (" (no room in the cache)" if status == NO_ROOM else ""))
            sequence.finish("error", error=error)


def _slot(sequence: RunningGeneration) -> Slot:
    if sequence.slot is None:
        raise AssertionError("a sequence without a slot is still waiting")
    return sequence.slot
