"""The middle layers of a split model on their own thread, which turns batches of rows from several sessions into states (HAT, 3.1).

A batch is one llama.cpp decode. Sequences have their own cells, so no session's results depend on another session. The thread calls back
when a batch has ended. ``close`` stops the running decode.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

from streamco.engines.base import StepPace
from streamco.engines.llamacpp.model_parts import PartInfo
from streamco.engines.llamacpp.row_costs import least_seconds
from streamco.engines.split.layers import MiddlePart, StateRun
from streamco.engines.threads import budget
from streamco.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["LayerEngine", "MiddleEngine", "RowsBatch", "measured_sizes"]

logger = logging.getLogger("streamco.engine")

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class RowsBatch:
    """One batch: the request and its outcome.

    Args:
        runs: rows of different sequences.
        on_end: called once, on the engine's thread, when ``states`` or ``error`` is set.

    Attributes:
        states: an array for each run; None if the batch has not ended, or it failed.
        error: why the batch failed; the contents of its sequences are then unknown. None if it hasn't failed.
        seconds: time that it took, including imposed times.
    """

    def __init__(self, runs: Sequence[StateRun], on_end: Callable[[], None]) -> None:
        self.runs = runs
        self.on_end = on_end
        self.states: list[NDArray[np.float32]] | None = None
        self.error: EngineError | None = None
        self.seconds = 0.0
        self.requested = time.monotonic()

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(len(run.states) for run in self.runs)


def measured_sizes(most: int) -> list[int]:
    """Return the batch sizes to measure, up to ``most`` rows."""
    return [size for size in _SIZES if size <= most]


class LayerEngine(Protocol):
    """An engine that computes layers for rows of states."""

    info: PartInfo
    sequences: int
    cells: int
    batch_rows: int
    is_exact: bool

    def submit(self, batch: RowsBatch, /) -> None:
        """Compute a batch; thread-safe.

        Raises:
            EngineError: the engine is closed or has failed.
        """
        ...

    def row_costs(self) -> Mapping[int, float]:
        """Return how many seconds a batch takes, by number of rows, if nothing else runs."""
        ...

    def ping(self, wake: Callable[[], None], /) -> None:
        """Call ``wake`` on the engine's thread, between two batches.

        Raises:
            EngineError: the engine is closed or has failed.
        """
        ...


class MiddleEngine:
    """The middle part of a model with its computing thread. Implements ``LayerEngine``.

    Args:
        path: the part's file; ``streamco split`` writes it.
        cells: number of positions of each sequence.
        sequences: number of sequences.
        threads: number of computing threads; None for a fair share of the cores.
        pace: decides when the results of a batch may be shown, to behave like larger layers; None to show them at once.
        row_costs: seconds that a batch takes, by its number of rows; None to measure them.
        repack, exact: see ``LayerPart``.

    Raises:
        ConfigError: the file is a different part of a model.
        EngineError: the file isn't a part of a model, or llama.cpp can't load it.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        cells: int = 2048,
        sequences: int = 16,
        threads: int | None = None,
        pace: StepPace | None = None,
        row_costs: Mapping[int, float] | None = None,
        repack: bool = False,
        exact: bool = False,
    ) -> None:
        self._share = budget.claim(threads)
        try:
            self._part = MiddlePart(path, cells=cells, sequences=sequences, threads=self._share.threads, repack=repack, exact=exact)
        except BaseException:
            self._share.release()
            raise
        self.info = self._part.info
        self.is_exact = exact
        self.sequences = sequences
        self.cells = self._part.cells
        self.batch_rows = self._part.batch_rows
        self._threads = self._share.threads
        self._pace = pace
        self._inbox: SimpleQueue[RowsBatch | Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._costs = dict(row_costs or {})
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="streamco-middle", daemon=True)
        self._thread.start()
        _open_engines.add(self)

    def submit(self, batch: RowsBatch) -> None:
        """Compute a batch; see ``LayerEngine.submit``."""
        self._put(batch)

    def ping(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` on the engine's thread; see ``LayerEngine.ping``."""
        self._put(wake)

    def row_costs(self) -> Mapping[int, float]:
        """Return how many seconds a batch takes, by number of rows.

        The first call measures this, which takes a few tenths of a second; no other batch may be in progress meanwhile.
        """
        if not self._costs:
            step = None if self._pace is None else self._pace.step_time
            sizes = measured_sizes(min(self.batch_rows, self.cells))
            self._costs = {
                size: least_seconds(partial(self._compute_ones, size)) if step is None else max(1e-6, step(size, 0)) for size in sizes
            }
        return self._costs

    def close(self) -> None:
        """Stop the running decode, end the thread and free the memory; idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._closing.set()
            self._part.abort.set()
            self._inbox.put(None)
        self._thread.join()
        _open_engines.discard(self)
        self._part.close()
        self._share.release()

    def _put(self, item: RowsBatch | Callable[[], None]) -> None:
        with self._lock:
            if self._failure is not None:
                raise EngineError(f"engine: has failed: {self._failure}") from self._failure
            if self._closing.is_set():
                raise EngineError("engine: already closed")
            self._inbox.put(item)

    def _compute_ones(self, rows: int) -> float:
        """Return the seconds that a batch of ones takes in sequence 0, which loses its earlier contents."""
        import numpy as np

        ended = threading.Event()
        batch = RowsBatch([StateRun(0, 0, np.ones((rows, self.info.width), np.float32))], ended.set)
        self.submit(batch)
        ended.wait()
        if batch.error is not None:
            raise batch.error
        return batch.seconds

    # The engine's thread

    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                if isinstance(item, RowsBatch):
                    self._compute(item)
                else:
                    item()
        except BaseException as failure:
            logger.exception("the engine's thread ended")
            with self._lock:
                self._failure = failure
        self._end()

    def _next(self) -> RowsBatch | Callable[[], None] | None:
        if self._pace is not None:
            self._pace.begin_round(was_idle=self._inbox.empty())
        return self._inbox.get()

    def _compute(self, batch: RowsBatch) -> None:
        started = time.monotonic()
        try:
            if self._share.threads != self._threads:
                self._threads = self._share.threads
                self._part.use_threads(self._threads)
            states = self._part.run_batch(batch.runs)
            if self._pace is not None:
                due = self._pace.due(batch.rows, 0, started=started, now=time.monotonic(), requested=batch.requested)
                self._closing.wait(max(0.0, due - time.monotonic()))
            batch.states = states
        except EngineError as error:
            batch.error = error
        except Exception as error:  # somebody awaits the batch's end, whatever happened
            logger.exception("a batch failed")
            batch.error = EngineError(f"engine: expected {batch.rows} rows to be computed, got {type(error).__name__}")
            batch.error.__cause__ = error
        batch.seconds = time.monotonic() - started
        batch.on_end()

    def _end(self) -> None:
        """End the waiting batches."""
        with self._lock:
            self._closing.set()
        while not self._inbox.empty():
            item = self._inbox.get()
            if isinstance(item, RowsBatch):
                item.error = EngineError("engine: already closed")
                item.on_end()


_open_engines: weakref.WeakSet[MiddleEngine] = weakref.WeakSet()


@atexit.register
def _close_every() -> None:
    """Close all engines, because a thread that is inside llama.cpp while the interpreter exits would crash the process."""
    for engine in list(_open_engines):
        engine.close()
