"""Runs a speculation machine on asyncio: drafts, verdicts and the remote stream's tokens go in, commands come out.

The machine gets all events in order. Its commands for the reader go through ``SpeculativeOutput``. One timer serves both the machine's
deadline and the reader's pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from streamco.client.delivery_queue import DeliveryQueue
from streamco.client.driver import Batch, Relay
from streamco.client.error_translation import as_raised, with_partial
from streamco.client.modes.speculation.output import SpeculativeOutput
from streamco.client.modes.speculation.remote_stream import OpenRemoteStream, RemoteStreamReader
from streamco.client.modes.speculation.report import (
    SpeculationProgress,
    SpeculationRecord,
    speculation_cost,
    speculation_report,
    speculation_usage,
)
from streamco.core.report import Opening, Report, opening_of
from streamco.core.report_parts import AnswerUsage
from streamco.core.speculation.events import (
    AdoptBranch,
    CloseRemote,
    CloseVerifier,
    CommitIds,
    ConnectVerifier,
    DeliverIds,
    DeviceFailed,
    DraftBranch,
    DraftTokens,
    DropDrafts,
    FailAnswer,
    FinishAnswer,
    OpenRemote,
    ReaderCaughtUp,
    ReaderFellBehind,
    RemoteFailed,
    RetractIds,
    SendDraft,
    SpeculationCommand,
    SpeculationEvent,
    VerifierConnected,
    VerifierFailed,
    VerifierLost,
)
from streamco.core.speculation.machine import SpeculationMachine
from streamco.core.totals import AnswerCost
from streamco.endpoints.verifiers.base import VerifierSession
from streamco.errors import StreamcoError
from streamco.events import ReaderLeft
from streamco.machine_driver import StepLog, TaskDriver

__all__ = ["DrafterLike", "EmitEvent", "SpeculationDriver", "SpeculationLog"]

DraftCommand = DraftTokens | DraftBranch | AdoptBranch | DropDrafts
EmitEvent = Callable[[SpeculationEvent], None]
SpeculationLog = list[tuple[float, SpeculationEvent | None, list[SpeculationCommand]]]


class DrafterLike(Protocol):
    """Drafts on the device for one answer (``streamco.endpoints.device_drafter.DeviceDrafter``)."""

    def run(self, command: DraftCommand) -> None:
        """Start a command without blocking."""
        ...

    async def aclose(self) -> None:
        """Release the draft sequences; idempotent."""
        ...


class SpeculationDriver(TaskDriver[SpeculationEvent, SpeculationCommand]):
    """Does the IO of one speculated answer: the drafter, the verifier's session, the remote stream and the reader.

    Args:
        machine: the answer's machine, which hasn't started yet.
        output: turns the machine's commands into deliveries.
        drafter: creates the drafter; its argument is called with the drafter's events.
        session: creates the verifier's session; its argument is called with the session's events.
        remote: opens a remote stream, or None if there is no server for it.
        remote_name: name of the remote stream's endpoint.
        prompt_tokens: number of tokens in the prompt.
        vocabulary_size: number of token ids that the remote stream may use; None allows any id.
        max_unread: number of tokens that may wait for the reader; above it, no new round starts.
        max_ahead: number of tokens that may wait for the reader or be held for the pace; above it, no new round starts.
        asked_at: when the answer was requested, in seconds on the driver's clock; None stands for the time when it starts.
        record: the data that the report needs besides the driver's own; without it the driver can't report.
        on_over: called once when the answer and all its work have ended.
        clock: a monotonic clock in seconds; None uses the system's, or the loop's if the loop doesn't use the system's (virtual time).
        log: records every step, for replay or for log lines; None records nothing.

    Attributes:
        output: as given.
        session: the verifier's session.
        remote_stream: reads the remote streams.
        began, finished: when reading the prompt began and when the answer ended (None if it hasn't), in seconds on the driver's clock.
        finish_reason: "stop" or "length"; None if the answer hasn't finished, or has failed.
        failures: why the "verifier", the "device" or the "remote" stream was lost for the rest of the answer.
        unconnected: how many seconds connecting to the verifier had already taken when the answer's work ended; 0 if it was connected.
        was_refused: True if the verifier refused a session and said how long to wait, and hasn't accepted one since.
        dropped: tokens that were held for the pace when the reader left.
    """

    machine: SpeculationMachine

    def __init__(
        self,
        machine: SpeculationMachine,
        output: SpeculativeOutput,
        *,
        drafter: Callable[[EmitEvent], DrafterLike],
        session: Callable[[EmitEvent], VerifierSession],
        remote: OpenRemoteStream | None = None,
        remote_name: str = "remote",
        prompt_tokens: int = 0,
        vocabulary_size: int | None = None,
        max_unread: int = 4096,
        max_ahead: int = 4096,
        asked_at: float | None = None,
        record: SpeculationRecord | None = None,
        on_over: Callable[[SpeculationDriver], None] | None = None,
        clock: Callable[[], float] | None = None,
        log: StepLog[SpeculationEvent, SpeculationCommand] | None = None,
    ) -> None:
        super().__init__(machine, on_over=on_over, clock=clock, log=log)
        self.output = output
        self._record = record
        self.began = 0.0
        self._asked_at = asked_at
        self.finished: float | None = None
        self.finish_reason: str | None = None
        self.dropped = 0
        self.failures: dict[Literal["verifier", "device", "remote"], StreamcoError] = {}
        self.unconnected = 0.0
        self.was_refused = False
        self._connecting_since: float | None = None
        self._queue = DeliveryQueue()
        self._max_unread, self._max_ahead = max_unread, max_ahead
        self._is_behind = False  # True if too much is waiting for the reader
        self._is_complete = False  # True if all tokens are committed; text may still be held for the pace
        self._is_winding_up = False
        self.remote_stream = RemoteStreamReader(
            remote, name=remote_name, prompt_tokens=prompt_tokens, vocabulary_size=vocabulary_size, emit=self.emit, spawn=self._spawn
        )
        self._drafter = drafter(self.emit)
        self.session = session(self.emit)

    # For the reader

    @property
    def was_broken_off(self) -> bool:
        """True if the reader left before the answer had ended."""
        return self._queue.was_broken_off

    @property
    def has_changed_hands(self) -> bool:
        """Always False, because the chunks' usage covers the whole answer."""
        return False

    @property
    def error(self) -> StreamcoError | None:
        """The error that the answer ended with, or None."""
        return self._queue.error

    def start(self) -> None:
        """Start the machine and carry out its first commands."""
        self.began = self._clock() if self._asked_at is None else self._asked_at
        super().start()

    async def next_batch(self, relay: Relay | None = None) -> Batch | None:
        """Wait for the next delivery; see ``DeliveryQueue.next``."""
        if self._queue.in_hand:
            self._queue.in_hand = 0
            self._check_reader()
        return await self._queue.next()

    async def peek(self) -> None:
        """Wait until there is a delivery or the answer has ended, without taking anything; see ``DeliveryQueue.peek``."""
        await self._queue.peek()

    def leave(self) -> None:
        """Stop all work of this answer without waiting, and drop everything unread. Must be called in the loop's thread."""
        if self._queue.has_left:
            return
        self._queue.leave()
        self.dropped = self.output.delivery.drop()
        self.emit(ReaderLeft())
        self._wind_up()
        self._end_if_idle()

    # Figures

    def report(self) -> Report:
        """Return the report on the answer so far; final once ``is_over`` is True."""
        return speculation_report(self.progress(), self._recorded(), now=self.now)

    def opening(self) -> Opening:
        """Return the part of the report that is known at the first token."""
        return opening_of(self.report())

    def usage(self) -> AnswerUsage:
        """Return the token counts of the answer as it was delivered."""
        return speculation_usage(self.progress(), self._recorded())

    def cost(self) -> AnswerCost:
        """Return the cost of the answer so far."""
        return speculation_cost(self.progress(), self._recorded())

    def progress(self) -> SpeculationProgress:
        """Return how far the answer has come."""
        return SpeculationProgress(
            report=self.machine.report,
            meter=self.output.delivery.meter,
            streams=self.remote_stream.parts,
            bytes_up=self.session.bytes_up,
            bytes_down=self.session.bytes_down,
            began=self.began,
            finished=self.finished,
            first=self.output.first,
            finish_reason=self.finish_reason,
            dropped=self.dropped,
            error=self.error,
            was_left=self.was_broken_off,
            is_final=self.is_over,
        )

    def _recorded(self) -> SpeculationRecord:
        if self._record is None:
            raise AssertionError("expected the record of the prepared answer, which a report is made from, got none")
        return self._record

    # The machine's events and commands

    def _receive(self, event: SpeculationEvent, now: float) -> None:
        self._record_losses(event)
        super()._receive(event, now)

    def _after_step(self, now: float) -> None:
        self._check_reader()

    def _record_losses(self, event: SpeculationEvent) -> None:
        if self._is_winding_up:
            return
        match event:
            case VerifierConnected():
                self._connecting_since = None
                self.was_refused = False
            case VerifierLost(retry_after):
                self.was_refused = retry_after is not None
            case VerifierFailed(error):
                self.failures["verifier"] = error
            case DeviceFailed(error):
                self.failures["device"] = error
            case RemoteFailed(_, error):
                self.failures["remote"] = error

    def _check_reader(self) -> None:
        """Emit ``ReaderFellBehind`` or ``ReaderCaughtUp`` if one is due; between the two, no new round starts."""
        unread = self._queue.unread + self._queue.in_hand
        ahead = unread + self.output.delivery.buffered  # text that is due but unread still counts
        if not self._is_behind and (unread > self._max_unread or ahead > self._max_ahead):
            self._is_behind = True
            self.remote_stream.pause()
            self.emit(ReaderFellBehind())
        elif self._is_behind and unread <= self._max_unread // 2 and ahead <= self._max_ahead // 2:
            self._is_behind = False
            self.remote_stream.resume()
            self.emit(ReaderCaughtUp())

    def _run_command(self, command: SpeculationCommand, now: float) -> None:
        match command:
            case DraftTokens() | DraftBranch() | AdoptBranch() | DropDrafts():
                self._drafter.run(command)
            case ConnectVerifier() | SendDraft() | CloseVerifier():
                if isinstance(command, ConnectVerifier) and self._connecting_since is None:
                    self._connecting_since = now
                self.session.run(command)
            case OpenRemote():
                self.remote_stream.begin(command, now=now)
            case CloseRemote(version):
                self.remote_stream.end(version)
            case DeliverIds() | CommitIds() | RetractIds():
                if not self._is_complete:
                    self._deliver(self.output.show(command, now=now))
                    if self.output.is_stopped:
                        self._complete("stop", now)
                        self._events.append(ReaderLeft("stop string"))
            case FinishAnswer(reason):
                self._complete(reason, now)
            case FailAnswer(error):
                self._fail(error, now)

    def _next_deadline(self) -> float | None:
        times = (self.machine.next_deadline(), self.output.delivery.next_due())
        return min((time for time in times if time is not None), default=None)

    def _on_deadline(self, now: float) -> None:
        self._deliver(self.output.release(now=now))
        self._finish_if_read(now)
        self._check_reader()
        super()._on_deadline(now)

    def _deliver(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._queue.put(batch)

    # The end

    def _complete(self, reason: str, now: float) -> None:
        """End the answer, because all of its tokens are committed."""
        if self._is_complete or self._queue.has_finished:
            return
        self._is_complete = True
        batches = self.output.finish(reason, now=now)
        self.finish_reason = "stop" if self.output.is_stopped else reason
        self._deliver(batches)
        self._wind_up()
        self._finish_if_read(now)

    def _finish_if_read(self, now: float) -> None:
        """End the reader's queue if the answer is complete and no token is held for the pace any more."""
        if self._is_complete and not self._queue.has_finished and self.output.delivery.is_empty:
            self.finished = now
            self._queue.finish()

    def _fail(self, error: StreamcoError, now: float) -> None:
        if self._is_complete or self._queue.has_finished:
            return
        self._hand_out(now)
        self.finished = now
        self._queue.finish(with_partial(error, self.output.text, "verifier"))
        self._wind_up()

    def _hand_out(self, now: float) -> None:
        """Deliver everything that is held, whether it is due or not."""
        if not self._is_complete:
            self._deliver(self.output.finish(None, now=now))
        self._deliver(self.output.flush(now=now))

    def _wind_up(self) -> None:
        """Release the drafter, the session and the remote stream, but only once."""
        if not self._is_winding_up:
            self._is_winding_up = True
            if self._connecting_since is not None:
                self.unconnected = self._clock() - self._connecting_since
            self.remote_stream.end_all()
            self._spawn(self._release(), "streamco release a speculated answer")

    async def _release(self) -> None:
        results = await asyncio.gather(self._drafter.aclose(), self.session.aclose(), return_exceptions=True)
        for error in results:
            if error is not None:
                raise error

    def _crash(self, error: BaseException) -> None:
        """End the answer with this error, a defect here or in an endpoint, unless the answer is already complete."""
        self._has_crashed = True
        is_unseen = self._queue.has_left or self._queue.has_finished or self._is_complete
        if is_unseen:
            self._report_error("streamco speculated answer failed", error)
        if not (self._queue.has_left or self._queue.has_finished):
            self.finished = self._clock()
            try:
                self._hand_out(self.finished)
            except Exception as another:  # noqa: BLE001  even if the output itself is broken, the reader must not wait forever
                self._report_error("streamco speculated answer failed", another)
            self._queue.finish(None if is_unseen else as_raised(error, "speculation", self.output.text))
        self._wind_up()
        self._events.clear()
        self._end_if_idle()

    def _is_done(self) -> bool:
        return self._is_winding_up and (self._queue.has_finished or self._queue.has_left)
