"""Runs the scheduler's batches on the engine's token sequences.

The parts of a batch are submitted to the engine together, and drafts are verified when every part has been read. A session's sequence
holds exactly the tokens that the scheduler counts as cached. Only one batch runs at a time.

If a session is closed meanwhile, its part is cancelled. The engine skips the chunks of that part that it hasn't begun, and aborts a
forward pass if all its rows belong to cancelled parts. On a CPU the pass stops within milliseconds; on a GPU it is completed first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from streamco.core.verifier.events import BatchFailed, BatchFinished, BatchPart, DraftVerdict, RunBatch
from streamco.engines.base import HoldingEngine, SequenceTask, TaskEnd, TokenSequence
from streamco.errors import EngineError, StreamcoError
from streamco.policies.drafts.tree_acceptance import path_to
from streamco.server.verify.verdicts import TargetRowCollector
from streamco.server.wakeup import WakeCoalescer

__all__ = ["BatchReport", "BatchRunner"]

logger = logging.getLogger("streamco.server.verify")


class BatchReport(Struct, frozen=True):
    """The outcome of a batch.

    Args:
        event: the event for the scheduler.
        late_s: seconds by which the batch took longer than the imposed step times.
        error: the reason if the batch failed, or else the error of the first part that failed, if any.
        cancelled: number of parts that were cancelled before they were read.
        is_aborted: True if all parts were cancelled, so that the rest of the batch wasn't computed.
    """

    event: BatchFinished | BatchFailed
    late_s: float = 0.0
    error: StreamcoError | None = None
    cancelled: int = 0
    is_aborted: bool = False


class DraftLookup(Protocol):
    """Looks up the draft of a session."""

    def __call__(self, session: str, /) -> TargetRowCollector:
        """Return a new collector for the rows of the session's pending draft."""
        ...


class BatchRunner:
    """Runs batches. Every method must be called on the event loop. The session manager owns it.

    Args:
        engine: holds the sequences; the caller closes it.
        waker: wakes the event loop.
        now: clock of the scheduler, in seconds.
        look_up: returns the draft of a session; called when its part begins.
        emit: called on the loop, after ``begin`` has returned, when a batch has ended.
        owner_of: returns a session's owner, or None if it has no key. Only sessions with the same owner share cached prefixes.
        context_tokens: size of one session's context. When it is full, no further token follows.
    """

    def __init__(
        self,
        engine: HoldingEngine,
        waker: WakeCoalescer,
        now: Callable[[], float],
        look_up: DraftLookup,
        emit: Callable[[BatchReport], None],
        *,
        owner_of: Callable[[str], str | None],
        context_tokens: int,
    ) -> None:
        self.context_tokens = context_tokens
        self._engine = engine
        self._waker = waker
        self._now = now
        self._look_up = look_up
        self._owner_of = owner_of
        self._emit = emit
        self._sequences: dict[str, TokenSequence] = {}
        self._parts: list[_Part] = []  # of the running batch
        self._is_closed = False

    def begin(self, batch: RunBatch) -> None:
        """Start decoding a batch and verifying its drafts."""
        running = _Running(self, batch, self._now())
        wake = self._waker.bind(running)
        self._parts = running.parts
        with self._engine.together():
            for each in batch.parts:
                part = _Part(each)
                running.parts.append(part)
                try:
                    self._begin(each, part, wake)
                except Exception as error:  # noqa: BLE001  # concerns only this part; reported with the batch's end
                    part.error = error
        wake()  # if no part could be submitted, the engine never wakes it

    def cancel(self, session: str) -> None:
        """Stop computing a session's part of the running batch, unless it has already been read."""
        for part in self._parts:
            if part.session == session:
                part.cancel()

    def truncate(self, session: str, length: int) -> None:
        """Keep the first ``length`` tokens of a session."""
        self._sequences[session].truncate(length)

    def drop(self, session: str) -> None:
        """Discard a session's tokens."""
        sequence = self._sequences.pop(session, None)
        if sequence is not None:
            sequence.close()

    def close(self) -> None:
        """Drop all sessions. No report is emitted afterwards."""
        self._is_closed = True
        for session in list(self._sequences):
            self.drop(session)

    def finish(self, report: BatchReport) -> None:
        """Emit the outcome of a batch, unless the runner is closed."""
        self._parts = []
        if not self._is_closed:
            self._emit(report)

    def now(self) -> float:
        """Return the time on the scheduler's clock, in seconds."""
        return self._now()

    def _begin(self, part: BatchPart, running: _Part, wake: Callable[[], None]) -> None:
        sequence = self._sequences.get(part.session)
        if sequence is None:
            if part.start:
                raise AssertionError(f"{part.session}: expected a sequence of {part.start} tokens, got none")
            sequence = self._sequences[part.session] = self._engine.hold(part.session, owner=self._owner_of(part.session))
        if not part.verify_rows:
            running.task = sequence.read(part.ids, wake)
            return
        running.rows = rows = self._look_up(part.session)
        border = len(part.ids) - part.verify_rows + 1
        running.task = sequence.verify(part.ids[border:], wake, given=part.ids[:border], reader=rows, parents=rows.draft.parents)


class _Part:
    """One session's part of the running batch."""

    def __init__(self, part: BatchPart) -> None:
        self.session = part.session
        self.tokens = len(part.ids)
        self.length = part.start + self.tokens
        self.verify_rows = part.verify_rows
        self.rows: TargetRowCollector | None = None
        self.task: SequenceTask | None = None
        self.end: TaskEnd | None = None
        self.error: Exception | None = None  # why it couldn't be submitted
        self.was_asked_to_stop = False

    def cancel(self) -> None:
        """Ask the engine to stop. The end comes as usual."""
        if self.task is not None and self.end is None:
            self.was_asked_to_stop = True
            self.task.cancel()

    def look(self) -> bool:
        """Take the task's end if it has come, and return True if the part has ended."""
        if self.task is not None and self.end is None:
            _, self.end = self.task.take()
        return self.end is not None or self.error is not None

    @property
    def is_cancelled(self) -> bool:
        """True if the part ended because it was cancelled here."""
        return self.was_asked_to_stop and self.end is not None and self.end.reason == "cancelled" and self.end.error is None

    @property
    def found(self) -> int:
        """Number of the part's tokens that were in the engine's cache already."""
        return max(0, self.tokens - self.end.timings.rows) if self.end is not None and self.end.reason == "done" else 0

    def check(self) -> None:
        """Raise the error that ended the part, if any."""
        if self.error is not None:
            raise self.error
        if self.end is not None and self.end.reason != "done":
            raise EngineError(f"{self.session}: expected tokens to be read, got {self.end.reason}: {self.end.error}") from self.end.error


class _Running:
    """The running batch. Implements ``Wakeable``."""

    def __init__(self, runner: BatchRunner, batch: RunBatch, started: float) -> None:
        self.parts: list[_Part] = []
        self._runner = runner
        self._batch = batch
        self._started = started
        self._is_over = False

    def wake(self) -> None:
        """Emit the report if every part has ended."""
        have_ended = [part.look() for part in self.parts]
        if not self._is_over and all(have_ended):
            self._is_over = True
            self._runner.finish(self._report())

    def _report(self) -> BatchReport:
        number = self._batch.number
        verdicts: list[DraftVerdict] = []
        errors: dict[str, StreamcoError] = {}
        cancelled = [part.session for part in self.parts if part.is_cancelled]
        for part in self.parts:
            if part.is_cancelled:
                continue
            try:
                part.check()
                if part.rows is not None:
                    verdicts.append(self._verdict_of(part, part.rows))
            except StreamcoError as error:
                errors[part.session] = error
            except Exception as error:
                logger.exception("batch %d: a part failed", number)
                errors[part.session] = _defect(part.session, error)
        first = next(iter(errors.values()), None)
        if len(errors) == len(self.parts):
            return BatchReport(BatchFailed(number), 0.0, first)
        seconds = self._runner.now() - self._started
        late = max((part.end.timings.late_s for part in self.parts if part.end is not None), default=0.0)
        found = sum(part.found for part in self.parts)
        event = BatchFinished(number, tuple(verdicts), seconds, (*errors, *cancelled), found, is_cut=bool(cancelled))
        is_aborted = len(cancelled) == len(self.parts)
        return BatchReport(event, late, first, cancelled=len(cancelled), is_aborted=is_aborted)

    def _verdict_of(self, part: _Part, rows: TargetRowCollector) -> DraftVerdict:
        verdict = rows.verdict()
        end = part.length - (part.verify_rows - 1) + len(path_to(rows.draft.parents, verdict.accepted))
        is_full = end >= self._runner.context_tokens
        return replace(verdict, token=None) if is_full else verdict


def _defect(session: str, cause: Exception) -> EngineError:
    """Return the error for an unexpected exception. It ends only its own part, because the scheduler waits for the end of every batch."""
    error = EngineError(f"{session}: expected its draft to be verified, got {type(cause).__name__}")
    error.__cause__ = cause
    return error
