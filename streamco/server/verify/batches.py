"""The scheduler's batches on an engine's held sequences: what a batch reads is asked for at once, and judged when all of it was read.

A session's sequence holds precisely the tokens that the scheduler counts as cached. One batch is out at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from streamco.core.verifier.events import BatchFailed, BatchFinished, BatchPart, DraftVerdict, RunBatch
from streamco.engines.base import HoldingEngine, SequenceTask, TaskEnd, TokenSequence
from streamco.errors import EngineError, StreamcoError
from streamco.server.verify.verdicts import TargetRowCollector, VerificationRequest, VerificationResult
from streamco.server.wakeup import WakeCoalescer

__all__ = ["BatchReport", "BatchRunner"]

logger = logging.getLogger("streamco.server.verify.service")


class BatchReport(Struct, frozen=True):
    """How a batch ended.

    Args:
        event: for the scheduler.
        rulings: by session, of the parts that were judged.
        late_s: seconds by which it took longer than the imposed step times.
        error: why it, or the first part of it that did, failed.
    """

    event: BatchFinished | BatchFailed
    rulings: Mapping[str, VerificationResult]
    late_s: float = 0.0
    error: StreamcoError | None = None


class DraftLookup(Protocol):
    """Knows what to judge."""

    def __call__(self, session: str, /) -> VerificationRequest:
        """Return the question that the session's pending draft is."""
        ...


class BatchRunner:
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
        waker: WakeCoalescer,
        now: Callable[[], float],
        ask: DraftLookup,
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
        with self._engine.together():
            for each in batch.parts:
                part = _Part(each)
                running.parts.append(part)
                try:
                    self._begin(each, part, wake)
                except Exception as error:  # noqa: BLE001  # of this part alone; told with the batch's end
                    part.error = error
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

    def _begin(self, part: BatchPart, running: _Part, wake: Callable[[], None]) -> None:
        sequence = self._sequences.get(part.session)
        if sequence is None:
            if part.start:
                raise AssertionError(f"{part.session}: expected a sequence of {part.start} tokens, got none")
            sequence = self._sequences[part.session] = self._engine.hold(part.session)
        if not part.verify_rows:
            running.task = sequence.read(part.ids, wake)
            return
        running.rows = rows = TargetRowCollector(self._ask(part.session))
        border = len(part.ids) - part.verify_rows + 1
        running.task = sequence.verify(part.ids[border:], wake, given=part.ids[:border], reader=rows)


class _Part:
    """One session's share of the batch that runs."""

    def __init__(self, part: BatchPart) -> None:
        self.session = part.session
        self.tokens = len(part.ids)
        self.length = part.start + self.tokens
        self.verify_rows = part.verify_rows
        self.rows: TargetRowCollector | None = None
        self.task: SequenceTask | None = None
        self.end: TaskEnd | None = None
        self.error: Exception | None = None  # it could not even be asked for

    def look(self) -> bool:
        """See whether it has ended."""
        if self.task is not None and self.end is None:
            _, self.end = self.task.take()
        return self.end is not None or self.error is not None

    @property
    def found(self) -> int:
        """Tokens that it was to read, and others had read before."""
        return max(0, self.tokens - self.end.timings.rows) if self.end is not None and self.end.reason == "done" else 0

    def check(self) -> None:
        """Raise why it was not read."""
        if self.error is not None:
            raise self.error
        if self.end is not None and self.end.reason != "done":
            raise EngineError(f"{self.session}: expected it to be read, got {self.end.reason}: {self.end.error}") from self.end.error


class _Running:
    """The batch that runs; rung when something of it has ended."""

    def __init__(self, judge: BatchRunner, batch: RunBatch, started: float) -> None:
        self.parts: list[_Part] = []
        self._judge = judge
        self._batch = batch
        self._started = started
        self._is_over = False

    def wake(self) -> None:
        """See what has ended."""
        have_ended = [part.look() for part in self.parts]
        if not self._is_over and all(have_ended):
            self._is_over = True
            self._judge.finish(self._report())

    def _report(self) -> BatchReport:
        number = self._batch.number
        rulings: dict[str, VerificationResult] = {}
        errors: dict[str, StreamcoError] = {}
        for part in self.parts:
            try:
                part.check()
                if part.rows is not None:
                    rulings[part.session] = self._rule(part, part.rows)
            except StreamcoError as error:
                errors[part.session] = error
            except Exception as error:
                logger.exception("batch %d: a part failed", number)
                errors[part.session] = _defect(part.session, error)
        first = next(iter(errors.values()), None)
        if len(errors) == len(self.parts):
            return BatchReport(BatchFailed(number), {}, 0.0, first)
        verdicts = tuple(DraftVerdict(session, ruling.accepted, ruling.token) for session, ruling in rulings.items())
        seconds = self._judge.now() - self._started
        late = max((part.end.timings.late_s for part in self.parts if part.end is not None), default=0.0)
        found = sum(part.found for part in self.parts)
        return BatchReport(BatchFinished(number, verdicts, seconds, tuple(errors), found), rulings, late, first)

    def _rule(self, part: _Part, rows: TargetRowCollector) -> VerificationResult:
        ruling = rows.rule()
        is_full = ruling.accepted == part.verify_rows - 1 and part.length >= self._judge.context_tokens
        return VerificationResult(ruling.accepted, None, ruling.rows) if is_full else ruling


def _defect(session: str, cause: Exception) -> EngineError:
    """Return what must not happen ends its own part and nothing else: the scheduler waits for the end of every batch."""
    error = EngineError(f"{session}: expected it to be judged, got {type(cause).__name__}")
    error.__cause__ = cause
    return error
