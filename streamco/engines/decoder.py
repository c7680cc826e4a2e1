"""Runs one decode at a time, and handles the rows that exact mode adds, interruptions, imposed durations and failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from streamco.engines.base import StepPace
from streamco.engines.kv_slots import Slot, SlotTable
from streamco.engines.llamacpp.batch_invariance import largest_exact_batch
from streamco.engines.llamacpp.context import ABORTED, NO_KV_SLOT, LlamaContext
from streamco.engines.threads import ThreadShare
from streamco.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["CHUNK", "Decoder", "SequenceWork", "slot_of"]

CHUNK = 32  # rows of one sequence in a batch while others wait; about 0.1 s on two cores, less than a reader's 0.2 s per token


class SequenceWork(Protocol):
    """Work for the engine's thread on one sequence: a generation, or a task on a held sequence."""

    prompt: list[int]
    next_token: int | None
    is_parked: bool
    requested_at: float  # perf_counter()
    late_s: float  # seconds by which its batches exceeded the imposed step times

    @property
    def slot(self) -> Slot | None:
        """The slot that holds the work's tokens, or None while the work waits."""
        ...

    @property
    def is_cancelled(self) -> bool:
        """True once the consumer asked the work to stop."""
        ...

    @property
    def is_done(self) -> bool:
        """True once the work has ended."""
        ...

    @property
    def missing(self) -> int:
        """Number of prompt tokens still to be decoded."""
        ...

    @property
    def wants_logits(self) -> bool:
        """True if the work needs the logits of the prompt's last token; otherwise it ends when the prompt is decoded."""
        ...

    def logits_needed(self, rows: int) -> int:
        """Return how many of the next ``rows`` rows need logits; it is always the last ones that do."""
        ...

    def record_cached(self, count: int) -> None:
        """Count ``count`` prompt tokens as found in memory, because other work has read them."""
        ...

    def accept(self, logits: NDArray[np.float32]) -> None:
        """Use the logits of the next row that needs them; may end the work."""
        ...

    def end_prefill(self) -> None:
        """End the work, because the prompt is decoded and no logits are needed."""
        ...

    def unpark(self) -> None:
        """Continue if the consumer has taken enough."""
        ...

    def finish(self, reason: str, *, error: Exception | None = None) -> None:
        """End the work; idempotent.

        Args:
            reason: see ``GenerationEnd`` or ``TaskEnd``.
            error: what made the work fail, if anything.
        """
        ...


def slot_of(work: SequenceWork) -> Slot:
    """Return the slot that holds the work's tokens."""
    if work.slot is None:
        raise AssertionError("work without a slot is still waiting")
    return work.slot


class Decoder:
    """Decodes the rows that were added to a context.

    Args:
        context: the context to decode in. In exact mode, each slot's sequence id is followed by one for padding.
        slots: slots of that context.
        share: number of threads that compute.
        pace: decides when the results of a step may be shown; None to show them at once.
        exact: add rows so that no row of a sequence is computed alone.
        wait: waits for the given number of seconds, or until something arrives, which it accepts.
        free_memory: frees unused memory; returns False if there was none.
    """

    def __init__(
        self,
        context: LlamaContext,
        slots: SlotTable,
        share: ThreadShare,
        pace: StepPace | None,
        *,
        exact: bool,
        wait: Callable[[float], None],
        free_memory: Callable[[], bool],
    ) -> None:
        self.context = context
        self.chunk = CHUNK  # rows of one sequence that a batch may have while others wait, or always in exact mode
        self.lock = threading.Lock()  # around _uncancelled and is_closing
        self.is_closing = False
        self._uncancelled: set[object] = set()  # work in the batch being decoded that has not been cancelled
        self._slots = slots
        self._share = share
        self._pace = pace
        self._exact = exact
        self._wait = wait
        self._free_memory = free_memory
        self._unpadded: set[SequenceWork] = set()  # work in a padded batch that found no memory, whose next batch is not padded
        self._padded: Mapping[int, int] = {}  # number of rows to which a batch of that many is padded, where that is cheaper

    # Any thread

    def interrupt(self, work: object) -> None:
        """Note that ``work`` was cancelled, and stop the running decode if all work in it was cancelled."""
        with self.lock:
            if work in self._uncancelled:
                self._uncancelled.remove(work)
                if not self._uncancelled:
                    self.context.abort.set()

    def close(self) -> None:
        """Stop the running decode and all later ones."""
        with self.lock:
            self.is_closing = True
            self.context.abort.set()

    # The engine's thread

    def warm_up(self) -> None:
        """Read all weights once, so that the first answer isn't slower than the others, and measure how large exact batches may be.

        Raises:
            EngineError: the model does not run.
        """
        self.context.add(0, 0, 0, wants_logits=True)
        status = self.context.decode()
        if status not in {0, ABORTED}:
            raise EngineError(f"llama_decode: expected 0 from the first token, got {status}")
        self.context.clear()
        if self._exact:
            self.chunk = largest_exact_batch(self.context, min(CHUNK, self.context.rows))

    def time_batch(self, rows: int) -> float | None:
        """Return how many seconds it takes to decode ``rows`` rows with logits in empty memory, or None if the decode was stopped.

        Raises:
            EngineError: the model does not run.
        """
        context = self.context
        context.use_threads(self._share.threads)
        context.add_run(range(1, rows + 1), 0, 0, wants_logits=rows)
        started = perf_counter()
        status = context.decode()
        if status == 0:
            context.logits(rows - 1)  # a GPU is still computing after llama_decode has returned
        seconds = perf_counter() - started
        if status not in {0, ABORTED}:
            raise EngineError(f"llama_decode: expected 0 from {rows} rows, got {status}")
        context.clear()
        return None if status == ABORTED else seconds

    def pad_batches(self, costs: Mapping[int, float]) -> None:
        """From now on, pad batches to a larger size where that costs less. Exact mode never does, because the size affects the results.

        Args:
            costs: seconds that a batch takes, by its number of rows.
        """
        if not self._exact:
            from streamco.profiles.row_costs import padded_size  # its package needs numpy

            rows = range(1, min(max(costs, default=0), self.context.rows))
            self._padded = {count: size for count in rows if (size := padded_size(costs, count)) > count}

    def _pad(self, batch: Sequence[SequenceWork]) -> tuple[int, int] | None:
        """Add rows until the batch has a cheaper size; return their sequence and first position, or None if none were added.

        They follow the last row in its sequence, so no other row sees them, and their results are dropped.
        """
        context = self.context
        size = self._padded.get(context.count, 0)
        if not size or not self._unpadded.isdisjoint(batch):
            return None
        sequence, position = context.last_place
        for offset in range(1, size - context.count + 1):
            context.add(0, position + offset, sequence, wants_logits=False)
        return sequence, position + 1

    @property
    def padding_rows(self) -> int:
        """Number of rows that are added for each piece of work that has only one row in a batch."""
        return int(self._exact)

    def compute(
        self,
        batch: Sequence[SequenceWork],
        *,
        single: Sequence[SequenceWork] = (),
        rows: int = 0,
        prefill_tokens: int = 0,
        may_retry: bool = False,
    ) -> bool:
        """Decode the rows in the context. Returns False if they weren't decoded; the KV cache is then as it was before.

        Args:
            batch: the work that the rows belong to.
            single: the work in the batch that has only one row.
            rows: number of rows that decode one token of a generation or draft.
            prefill_tokens: number of all other rows.
            may_retry: let the work continue if memory is short, because its next batch has fewer rows.
        """
        context = self.context
        context.use_threads(self._share.threads)
        # Single rows are computed by other kernels. In exact mode each sequence has its own memory, and llama.cpp splits a batch between
        # sequences with ids that aren't consecutive. So each row that is alone in its sequence gets a row with the next id. These come
        # last: between two sequences, one would join both, and of a run of two rows the second would be left alone.
        dummies = [slot_of(work).sequence + 1 for work in single] if self._exact else []
        for dummy in dummies:
            context.add(0, 0, dummy, wants_logits=False)
        with self.lock:
            uncancelled: set[object] = set() if self.is_closing else {work for work in batch if not work.is_cancelled}
            if not uncancelled:
                context.count, context.reads_attention = 0, False
                return False
            self._uncancelled = uncancelled
        padding = self._pad(batch)
        started = perf_counter()
        status = context.decode()
        with self.lock:
            self._uncancelled = set()
            if not self.is_closing:
                context.abort.clear()
        for dummy in dummies:
            context.remove(dummy, 0)
        if padding is not None and status == 0:
            context.remove(*padding)
        self._unpadded.difference_update(batch)
        if status == 0:
            now = perf_counter()
            if self._pace is not None:
                requested = max(work.requested_at for work in batch)
                due = self._pace.due(rows, prefill_tokens, started=started, now=now, requested=requested)
                for work in batch:
                    work.late_s += max(0.0, now - due)
                self._wait_until(due, batch)
                self._pace.end_early(perf_counter())
            return True
        was_padded = padding is not None and status == NO_KV_SLOT
        if was_padded:  # other work may get its turn first, and must not use this up
            self._unpadded = {work for work in self._unpadded if not work.is_done} | set(batch)
        self._clean_up(batch, status, may_retry=was_padded or (may_retry and status == NO_KV_SLOT))
        return False

    def _wait_until(self, until: float, batch: Sequence[SequenceWork]) -> None:
        """Wait until this time, or until all of the work is cancelled, and accept work that arrives meanwhile."""
        while not self.is_closing and (left := until - perf_counter()) > 0 and not all(work.is_cancelled for work in batch):
            self._wait(left)

    def _clean_up(self, batch: Sequence[SequenceWork], status: int, *, may_retry: bool) -> None:
        for work in batch:
            slot = slot_of(work)
            self._slots.truncate(slot, len(slot.ids))
        if status == ABORTED or may_retry or (status == NO_KV_SLOT and self._free_memory()):
            return  # cancelled and reaped in the next round; or the next round retries, without padding or with the memory freed
        for work in batch:
            error = EngineError(f"llama_decode: expected 0, got {status}" + (" (the KV cache is full)" if status == NO_KV_SLOT else ""))
            work.finish("error", error=error)
