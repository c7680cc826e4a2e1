"""Middle layers without weights: a batch takes the time that a function gives, and returns its own states or those of another function.

With them a split server needs neither a model nor its computing time, so links, batches and prompt chunks of a large model can be tried on
a small machine. The text of an answer means nothing then, unless the function knows its states.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING

from streamco.engines.llamacpp.model_parts import PartInfo
from streamco.engines.split.layers import StateRun
from streamco.engines.split.middle_engine import RowsBatch, measured_sizes
from streamco.errors import ConfigError, EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    States = NDArray[np.float32]

__all__ = ["FakeLayers"]


class FakeLayers:
    """Layers that take imposed times. Implements ``LayerEngine``; pass it to ``streamco.server.split.service.serving_middle``.

    Args:
        info: the middle part of a model, as ``read_part`` returns it.
        seconds: seconds of a batch, from its rows.
        cells: positions of each sequence.
        sequences: number of sequences.
        batch_rows: most rows of a batch.
        compute: returns the states of a run; None: they are the run's own rows.

    Attributes:
        batches: the sizes of the runs of each batch, in order.

    Raises:
        ConfigError: ``info`` is of another part.
    """

    def __init__(
        self,
        info: PartInfo,
        seconds: Callable[[int], float],
        *,
        cells: int = 2048,
        sequences: int = 16,
        batch_rows: int = 512,
        compute: Callable[[StateRun], States] | None = None,
    ) -> None:
        if info.kind != "middle":
            raise ConfigError(f"layers: expected the middle part of a model, got its {info.kind} part")
        self.info, self.cells, self.sequences, self.batch_rows = info, cells, sequences, batch_rows
        self.is_exact = True  # a row's result is the row
        self.batches: list[tuple[int, ...]] = []
        self._seconds = seconds
        self._compute = compute or _own_rows
        self._inbox: SimpleQueue[RowsBatch | Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="streamco-fake-layers", daemon=True)
        self._thread.start()

    def submit(self, batch: RowsBatch) -> None:
        """Compute a batch; see ``LayerEngine.submit``."""
        self._put(batch)

    def row_costs(self) -> Mapping[int, float]:
        """Return the seconds of a batch by rows."""
        return {size: max(1e-6, self._seconds(size)) for size in measured_sizes(min(self.batch_rows, self.cells))}

    def ping(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` on the layers' thread; see ``LayerEngine.ping``."""
        self._put(wake)

    def close(self) -> None:
        """End the thread after the batches that wait; idempotent."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._inbox.put(None)
        self._thread.join()

    def _put(self, item: RowsBatch | Callable[[], None]) -> None:
        with self._lock:
            if self._is_closed:
                raise EngineError("layers: expected open layers, got closed ones")
            self._inbox.put(item)

    def _run(self) -> None:
        free_at = 0.0
        while (item := self._inbox.get()) is not None:
            if not isinstance(item, RowsBatch):
                item()
                continue
            began = max(free_at, item.requested)
            free_at = began + self._seconds(item.rows)
            item.states = [self._compute(run) for run in item.runs]
            time.sleep(max(0.0, free_at - time.monotonic()))
            free_at = max(free_at, time.monotonic())
            self.batches.append(tuple(len(run.states) for run in item.runs))
            item.seconds = free_at - began
            item.on_end()


def _own_rows(run: StateRun) -> States:
    return run.states.copy()
