"""Runs the scheduler's batches on the engine. It assigns each session a sequence of the engine, and reports the states that come back.

Only one batch runs at a time. Every part says where its rows begin, and the engine forgets a sequence's rows from there on. So sequences
need no other truncation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from streamco.core.verifier.events import BatchFailed, BatchFinished, BatchPart, DraftVerdict, RunBatch
from streamco.engines.split.layers import StateRun
from streamco.engines.split.middle_engine import LayerEngine, RowsBatch
from streamco.errors import EngineError
from streamco.server.wakeup import WakeCoalescer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["RowsReport", "RowsRunner"]


class RowsReport(Struct, frozen=True, eq=False):
    """The outcome of a batch.

    Args:
        event: the event for the scheduler.
        states: by session, the states of all its rows after the middle layers.
        rows: number of rows in the batch.
        seconds: seconds that the engine took.
        error: the reason if the batch failed.
    """

    event: BatchFinished | BatchFailed
    states: Mapping[str, NDArray[np.float32]]
    rows: int
    seconds: float
    error: EngineError | None = None


class RowsRunner:
    """Runs batches. Every method must be called on the event loop. The session manager owns it.

    Args:
        engine: computes the batches; the caller closes it.
        waker: wakes the event loop.
        look_up: returns the states of a part's rows, or None if the session is gone.
        emit: called on the loop, after ``begin`` has returned, when a batch has ended.
    """

    def __init__(
        self,
        engine: LayerEngine,
        waker: WakeCoalescer,
        look_up: Callable[[BatchPart], NDArray[np.float32] | None],
        emit: Callable[[RowsReport], None],
    ) -> None:
        self._engine = engine
        self._waker = waker
        self._look_up = look_up
        self._emit = emit
        self._sequences: dict[str, int] = {}  # of sessions with rows in the engine
        self._free = list(range(engine.sequences - 1, -1, -1))
        self._is_closed = False

    def begin(self, command: RunBatch) -> None:
        """Start computing a batch."""
        running = _RunningRows(self, command)
        wake = self._waker.bind(running)
        runs = []
        for part in command.parts:
            states = self._look_up(part)
            if states is None:
                running.gone.append(part.session)
            else:
                running.present.append(part)
                runs.append(StateRun(self._sequence_of(part.session), part.start, states))
        running.batch = RowsBatch(runs, wake)
        try:
            if not runs:
                raise EngineError("batch: expected sessions that wait, got none")
            self._engine.submit(running.batch)
        except EngineError as error:
            running.batch.error = error
            wake()

    def drop(self, session: str) -> None:
        """Free the session's sequence for another session, which overwrites its rows."""
        sequence = self._sequences.pop(session, None)
        if sequence is not None:
            self._free.append(sequence)

    def close(self) -> None:
        """Stop emitting reports."""
        self._is_closed = True

    def finish(self, report: RowsReport) -> None:
        """Emit the outcome of a batch, unless the runner is closed."""
        if not self._is_closed:
            self._emit(report)

    def _sequence_of(self, session: str) -> int:
        if session not in self._sequences:
            self._sequences[session] = self._free.pop()
        return self._sequences[session]


class _RunningRows:
    """The running batch. Implements ``Wakeable``."""

    def __init__(self, runner: RowsRunner, command: RunBatch) -> None:
        self.batch: RowsBatch | None = None
        self.present: list[BatchPart] = []
        self.gone: list[str] = []
        self._runner = runner
        self._command = command

    def wake(self) -> None:
        """Emit the report."""
        batch, number = self.batch, self._command.number
        assert batch is not None, "a batch that ended was begun"
        if batch.states is None:
            self._runner.finish(RowsReport(BatchFailed(number), {}, batch.rows, batch.seconds, batch.error))
            return
        states = {part.session: each for part, each in zip(self.present, batch.states, strict=True)}
        verdicts = tuple(DraftVerdict(part.session, part.verify_rows - 1, 0) for part in self.present if part.verify_rows)
        event = BatchFinished(number, verdicts, batch.seconds, tuple(self.gone))
        self._runner.finish(RowsReport(event, states, batch.rows, batch.seconds))
