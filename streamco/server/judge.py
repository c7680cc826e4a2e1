"""The scheduler's batches on an engine's held sequences: what a batch reads is asked for at once, and judged when all of it was read.

A session's sequence holds precisely the tokens that the scheduler counts as cached. One batch is out at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from streamco.core.verification import BatchFailed, BatchFinished, BatchPart, Judgement, RunBatch
from streamco.engines.base import HoldingEngine, SequenceTask, TaskEnd, TokenSequence
from streamco.errors import EngineError, StreamcoError
from streamco.server.rulings import Question, Ruling, TargetRows
from streamco.server.worker import Waker

__all__ = ["BatchReport", "Judge"]

logger = logging.getLogger("streamco.server.verify")


class BatchReport(Struct, frozen=True):
    """How a batch ended.

    Args:
        event: for the scheduler.
        rulings: by session, of the parts that were judged.
        late_s: seconds by which it took longer than the imposed step times.
        error: why it failed.
    """

    event: BatchFinished | BatchFailed
    rulings: Mapping[str, Ruling]
    late_s: float = 0.0
    error: StreamcoError | None = None


class Asks(Protocol):
    """Knows what to judge."""

    def __call__(self, session: str, /) -> Question:
        """The question that the session's pending draft is."""
        ...


class Judge:
    """Runs batches; every method belongs to the event loop.

    Args:
        engine: holds the sequences; stays the caller's.
        waker: of the loop.
        now: seconds on the scheduler's clock.
        ask: what a session wants to have judged; called when its part begins.
        tell: called on the loop, later than ``begin``, when a batch has ended.
        context_tokens: of one session; behind so many there is no room for a token.
    """

    def __init__(
        self,
        engine: HoldingEngine,
        waker: Waker,
        now: Callable[[], float],
        ask: Asks,
        tell: Callable[[BatchReport], None],
        *,
        context_tokens: int,
    ) -> None:
        self.context_tokens = context_tokens
        self._engine = engine
        self._waker = waker
        self._now = now
        self._ask = ask
        self._tell = tell
        self._sequences: dict[str, TokenSequence] = {}
        self._is_closed = False

    def begin(self, batch: RunBatch) -> None:
        """Have a batch decoded and judged."""
        running = _Running(self, batch, self._now())
        wake = self._waker.bind(running)
        try:
            with self._engine.together():
                for part in batch.parts:
                    running.parts.append(self._begin(part, wake))
        except EngineError as error:  # the engine is closed or has failed
            running.fail(error)
        except Exception as error:
            logger.exception("batch %d failed", batch.number)
            running.fail(_defect(batch.number, error))
        wake()  # where nothing could be asked, nobody else does

    def truncate(self, session: str, length: int) -> None:
        """Keep the first ``length`` tokens of a session."""
        self._sequences[session].truncate(length)

    def drop(self, session: str) -> None:
        """Keep nothing of a session."""
        sequence = self._sequences.pop(session, None)
        if sequence is not None:
            sequence.close()

    def close(self) -> None:
        """Drop all sessions; nothing is told any more."""
        self._is_closed = True
        for session in list(self._sequences):
            self.drop(session)

    def finish(self, report: BatchReport) -> None:
        """Tell how a batch ended."""
        if not self._is_closed:
            self._tell(report)

    def now(self) -> float:
        """Seconds."""
        return self._now()

    def _begin(self, part: BatchPart, wake: Callable[[], None]) -> _Part:
        sequence = self._sequences.get(part.session)
        if sequence is None:
            if part.start:
                raise AssertionError(f"{part.session}: expected a sequence of {part.start} tokens, got none")
            sequence = self._sequences[part.session] = self._engine.hold(part.session)
        if not part.judged:
            return _Part(part, sequence.read(part.ids, wake), None)
        rows = TargetRows(self._ask(part.session))
        border = len(part.ids) - part.judged + 1
        return _Part(part, sequence.verify(part.ids[border:], wake, given=part.ids[:border], reader=rows), rows)


class _Part:
    """One session's share of the batch that runs."""

    def __init__(self, part: BatchPart, task: SequenceTask, rows: TargetRows | None) -> None:
        self.session = part.session
        self.length = part.start + len(part.ids)
        self.judged = part.judged
        self.rows = rows
        self.end: TaskEnd | None = None
        self.task = task


class _Running:
    """The batch that runs; rung when something of it has ended."""

    def __init__(self, judge: Judge, batch: RunBatch, started: float) -> None:
        self.parts: list[_Part] = []
        self._judge = judge
        self._batch = batch
        self._started = started
        self._error: EngineError | None = None
        self._is_over = False

    def fail(self, error: EngineError) -> None:
        """Not all of it could be asked for: what was is of no use."""
        self._error = error
        for part in self.parts:
            part.task.cancel()

    def ring(self) -> None:
        """See what has ended."""
        for part in self.parts:
            if part.end is None:
                _, part.end = part.task.take()
        if not self._is_over and all(part.end is not None for part in self.parts):
            self._is_over = True
            self._judge.finish(self._report())

    def _report(self) -> BatchReport:
        number, ends = self._batch.number, [part.end for part in self.parts if part.end is not None]
        try:
            self._check(ends)
            rulings = {part.session: self._rule(part, part.rows) for part in self.parts if part.rows is not None}
        except StreamcoError as error:
            return BatchReport(BatchFailed(number), {}, 0.0, error)
        judgements = tuple(Judgement(session, ruling.accepted, ruling.token) for session, ruling in rulings.items())
        seconds = self._judge.now() - self._started
        late = max((end.timings.late_s for end in ends), default=0.0)
        return BatchReport(BatchFinished(number, judgements, seconds), rulings, late)

    def _rule(self, part: _Part, rows: TargetRows) -> Ruling:
        ruling = rows.rule()
        is_full = ruling.accepted == part.judged - 1 and part.length >= self._judge.context_tokens
        return Ruling(ruling.accepted, None, ruling.rows) if is_full else ruling

    def _check(self, ends: list[TaskEnd]) -> None:
        if self._error is not None:
            raise self._error
        failed = next((end for end in ends if end.reason != "done"), None)
        if failed is not None:
            raise EngineError(f"batch {self._batch.number}: expected it to be read, got {failed.reason}: {failed.error}") from failed.error


def _defect(number: int, cause: Exception) -> EngineError:
    """What must not happen ends its own batch and nothing else: the scheduler waits for the end of each."""
    error = EngineError(f"batch {number}: expected it to be judged, got {type(cause).__name__}")
    error.__cause__ = cause
    return error
