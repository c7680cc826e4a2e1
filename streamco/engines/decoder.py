"""One decode at a time: the rows the exact mode adds, who may stop it, how long it has to take, and what it leaves when it fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from streamco.engines.kv_slots import Slot, SlotTable
from streamco.engines.llamacpp.batch_invariance import largest_exact_batch
from streamco.engines.llamacpp.context import ABORTED, NO_KV_SLOT, LlamaContext
from streamco.engines.step_emulation import StepEmulator
from streamco.engines.threads import ThreadShare
from streamco.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["CHUNK", "Decoder", "SequenceWork", "slot_of"]

CHUNK = 32  # rows of one sequence in a batch beside others' work: about 0.1 s on two cores, below a reader's 0.2 s a token


class SequenceWork(Protocol):
    """A generation, or what is asked of a held sequence."""

    prompt: list[int]
    next_token: int | None
    is_parked: bool
    asked_at: float  # perf_counter()
    late_s: float  # by which its batches took longer than they were to

    @property
    def slot(self) -> Slot | None:
        """Where its tokens lie; None while it waits."""
        ...

    @property
    def is_cancelled(self) -> bool:
        """The consumer asked it to stop."""
        ...

    @property
    def is_done(self) -> bool:
        """It has ended."""
        ...

    @property
    def missing(self) -> int:
        """Prompt tokens still to be decoded."""
        ...

    @property
    def wants_logits(self) -> bool:
        """Those of the prompt's last token; else it has ended when the prompt is decoded."""
        ...

    def logits_needed(self, rows: int) -> int:
        """Of how many of the next so many rows it wants the logits: the last of them."""
        ...

    def record_cached(self, count: int) -> None:
        """So many tokens of its prompt need not be decoded: somebody else has read them meanwhile."""
        ...

    def accept(self, logits: NDArray[np.float32]) -> None:
        """The logits of its last row; may end it."""
        ...

    def end_prefill(self) -> None:
        """The prompt is decoded, and it wants no logits."""
        ...

    def unpark(self) -> None:
        """Go on if the consumer has made room."""
        ...

    def finish(self, reason: str, *, error: Exception | None = None) -> None:
        """End it; idempotent."""
        ...


def slot_of(work: SequenceWork) -> Slot:
    """Where its tokens lie."""
    if work.slot is None:
        raise AssertionError("work without a slot is still waiting")
    return work.slot


class Decoder:
    """Decodes the rows that were added to a context.

    Args:
        context: in the exact mode it has a neighbour for each slot.
        slots: of that context.
        share: how many threads compute.
        pacer: imposed step times.
        exact: no row is ever alone in a batch.
        wait: waits so many seconds or until something arrives, and takes it in.
        make_room: empties memory that nobody uses; False: there was none.
    """

    def __init__(
        self,
        context: LlamaContext,
        slots: SlotTable,
        share: ThreadShare,
        emulator: StepEmulator,
        *,
        exact: bool,
        wait: Callable[[float], None],
        free_memory: Callable[[], bool],
    ) -> None:
        self.context = context
        self.chunk = CHUNK  # rows of one sequence that a batch may have, where somebody waits or the bits matter
        self.lock = threading.Lock()  # around _wanting and is_closing
        self.is_closing = False
        self._uncancelled: set[object] = set()  # who has rows in the batch being decoded and has not been cancelled
        self._slots = slots
        self._share = share
        self._emulator = emulator
        self._exact = exact
        self._wait = wait
        self._free_memory = free_memory

    # Any thread

    def interrupt(self, work: object) -> None:
        """This work was cancelled: stop the decode that runs, if it is for nobody else any more."""
        with self.lock:
            if work in self._uncancelled:
                self._uncancelled.remove(work)
                if not self._uncancelled:
                    self.context.abort.set()

    def close(self) -> None:
        """Stop every decode from now on."""
        with self.lock:
            self.is_closing = True
            self.context.abort.set()

    # The engine's thread

    def warm_up(self) -> None:
        """Touch the weights once, so that the first answer isn't slower than the others; learn how large exact batches may be.

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

    @property
    def padding_rows(self) -> int:
        """Rows that each work with a single row in a batch takes beside it."""
        return int(self._exact)

    def compute(
        self, batch: Sequence[SequenceWork], *, single: Sequence[SequenceWork] = (), rows: int = 0, prefill_tokens: int = 0
    ) -> bool:
        """Decode the batch, which holds rows of all this work; False: not done, and the cache is as it was before.

        ``single``: those of them with one row in it.
        """
        context = self.context
        context.use_threads(self._share.threads)
        # Single rows are computed by other kernels. In the exact mode each sequence has memory of its own, and llama.cpp splits a batch
        # where such sequences aren't neighbours: so every row that is alone in its sequence gets a row of its neighbour beside it. These
        # come last: between two sequences, one would join both, and of a run of two rows the second would be left alone.
        dummies = [slot_of(work).sequence + 1 for work in single] if self._exact else []
        for dummy in dummies:
            context.add(0, 0, dummy, wants_logits=False)
        with self.lock:
            uncancelled: set[object] = set() if self.is_closing else {work for work in batch if not work.is_cancelled}
            if not uncancelled:
                context.count, context.reads_attention = 0, False
                return False
            self._uncancelled = uncancelled
        started = perf_counter()
        status = context.decode()
        with self.lock:
            self._uncancelled = set()
            if not self.is_closing:
                context.abort.clear()
        for dummy in dummies:
            context.remove(dummy, 0)
        if status == 0:
            now = perf_counter()
            asked = max(work.asked_at for work in batch)
            due = self._emulator.due(rows, prefill_tokens, started=started, now=now, asked=asked)
            for work in batch:
                work.late_s += max(0.0, now - due)
            self._wait_until(due, batch)
            return True
        self._clean_up(batch, status)
        return False

    def _wait_until(self, until: float, batch: Sequence[SequenceWork]) -> None:
        """Wait as long as this work still wants the result, taking in what arrives."""
        while not self.is_closing and (left := until - perf_counter()) > 0 and not all(work.is_cancelled for work in batch):
            self._wait(left)
        self._emulator.end_early(perf_counter())

    def _clean_up(self, batch: Sequence[SequenceWork], status: int) -> None:
        for work in batch:
            slot = slot_of(work)
            self._slots.truncate(slot, len(slot.ids))
        if status == ABORTED or (status == NO_KV_SLOT and self._free_memory()):
            return  # cancelled and about to be reaped; or there is room now, and the next round tries again
        for work in batch:
            error = EngineError(f"llama_decode: expected 0, got {status}" + (" (no room in the cache)" if status == NO_KV_SLOT else ""))
            work.finish("error", error=error)
