"""Runs a race machine on asyncio: events in, commands out.

While several endpoints are at work, or tokens are released at a pace, a separate task reads each endpoint's stream, and a timer of the loop
serves the machine's deadlines. Once only the winner is left and nothing is timed, the reader's own task reads the stream directly. Then
there is no task switch and no wake-up between the socket and the reader. A reader that pauses slows the endpoint down, because TCP's window
or the engine's ring fills up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from weakref import WeakMethod

from msgspec.structs import replace

from streamco.client.delivery_queue import DeliveryQueue
from streamco.client.driver import Batch, Relay
from streamco.client.error_translation import FailedStream, FinishedStream, as_failure, as_raised, failure_of
from streamco.client.modes.race.continuing import continued, count_text
from streamco.client.modes.race.dispatch_record import DispatchRecord
from streamco.client.modes.race.endpoint_states import Watch
from streamco.client.modes.race.report import build_cost, build_opening, build_report, describe_usage, with_split_figures
from streamco.client.modes.race.server_bill import has_counted
from streamco.core.race.attempt import Attempt
from streamco.core.race.commands import (
    LATE,
    CancelStream,
    Command,
    ContinueStream,
    DeliverTokens,
    FailDelivery,
    FinishDelivery,
    OpenStream,
    PauseStream,
    PrepareStream,
    ResumeStream,
)
from streamco.core.race.machine import RaceMachine
from streamco.core.report import Opening, Report, opening_of
from streamco.core.report_parts import AnswerUsage, SplitFigures
from streamco.core.totals import AnswerCost
from streamco.endpoints.base import (
    Endpoint,
    EndpointStream,
    Request,
    WrittenStream,
    changes_of,
    idle_of,
    joules_of,
    pause,
    repeating_stream,
    resume,
    split_figures_of,
    watch_retries,
)
from streamco.endpoints.continuation import split_trailing_whitespace
from streamco.errors import EndpointError, StreamcoError, UsageError
from streamco.events import (
    AbilitiesFound,
    Event,
    Partial,
    ReaderLeft,
    StreamCancelled,
    StreamEnded,
    StreamFailed,
    StreamRetrying,
    TextCount,
    TextRepeated,
    TokensReceived,
)
from streamco.machine_driver import StepLog, TaskDriver

__all__ = ["OnOpen", "RaceDriver"]

OnOpen = Callable[[str, Endpoint, Request], Request]
"""A function that gets an endpoint's name, the endpoint and the request to it, and returns the request with additional headers."""


class RaceDriver(TaskDriver[Event, Command]):
    """Does the IO of one raced answer: it reads the endpoints, feeds the machine and passes deliveries to the reader.

    Args:
        machine: the race, which hasn't started yet.
        endpoints: the endpoints of all attempts in the machine's plan, by name.
        request: the request to the endpoints.
        max_unread: number of tokens that may wait for the reader and the pace; above it, reading from endpoints stops.
        max_ahead: the same bound for a device's tokens, by default ``max_unread``. A server gets the larger bound: if nobody reads from
            a server, it eventually closes the connection, and still bills what it has written.
        record: record of the dispatch decision; without it the driver can't report.
        on_over: called once when the answer and all its work have ended.
        clock: a monotonic clock in seconds; None uses the system's, or the loop's if the loop doesn't use the system's (virtual time).
        log: records every step, for replay or for log lines. With a log, every token passes through a step of the machine.
        on_open: returns the request that is actually sent to an endpoint; None sends the machine's request unchanged.
        watch: is told which endpoints fail and which ones answer; None if nobody needs to know.
    """

    # Slots, here and in the other objects that every token touches: with a thousand streams, a token costs 4 to 8 % less processor time.
    __slots__ = (
        "_counts",
        "_direct",
        "_endpoints",
        "_final",
        "_final_cost",
        "_going_on",
        "_idle",
        "_joules",
        "_max_ahead",
        "_max_unread",
        "_on_open",
        "_paused",
        "_queue",
        "_readers",
        "_record",
        "_stopped",
        "_streams",
        "_watch",
        "request",
        "unlimited",
    )

    machine: RaceMachine

    def __init__(
        self,
        machine: RaceMachine,
        endpoints: Mapping[str, Endpoint],
        request: Request,
        *,
        max_unread: int = 4096,
        max_ahead: int | None = None,
        record: DispatchRecord | None = None,
        on_over: Callable[[RaceDriver], None] | None = None,
        clock: Callable[[], float] | None = None,
        log: StepLog[Event, Command] | None = None,
        on_open: OnOpen | None = None,
        watch: Watch | None = None,
    ) -> None:
        super().__init__(machine, on_over=on_over, clock=clock, log=log)
        self.request = request
        self._endpoints = endpoints
        self._record = record
        self._on_open = on_open
        self._watch = watch
        self._max_unread = max_unread
        self._max_ahead = max_unread if max_ahead is None else min(max_ahead, max_unread)
        self._queue = DeliveryQueue()
        self._streams: dict[str, EndpointStream] = {}  # streams by endpoint
        self._readers: dict[str, asyncio.Task[None]] = {}  # the tasks that read them, except cancelled ones
        self._direct: tuple[str, EndpointStream] | None = None  # the stream that the reader's own task reads
        self._paused: asyncio.Future[None] | None = None  # done when reading from endpoints may continue
        self._stopped: dict[str, tuple[asyncio.Future[None], float]] = {}  # of paused endpoints: done when they resume; since when
        self._counts: dict[Attempt, TextCount] = {}
        self._joules: dict[Attempt, float | None] = {}  # energy of attempts that have ended
        self._final: Report | None = None
        self._final_cost: AnswerCost | None = None
        self._going_on: set[str] = set()  # endpoints that were asked to continue the answer, or to read it in advance
        self._idle: dict[EndpointStream, float] = {}  # for streams that have ended: seconds that they waited for the reader
        self.unlimited: str | None = None
        """The endpoint that continued with the full ``max_tokens``, because the number of earlier tokens is only an estimate; or None."""

    # The reader's side

    @property
    def was_broken_off(self) -> bool:
        """True if the reader left before the answer had ended."""
        return self._queue.was_broken_off

    @property
    def has_changed_hands(self) -> bool:
        """True if a second endpoint continued the answer, so that its usage doesn't cover the whole answer."""
        return bool(self.machine.hand_overs)

    async def next_batch(self, relay: Relay | None = None) -> Batch | None:
        """Wait for the next delivery, and read it directly from the stream if nothing else has to be done; see ``AnswerDriver``."""
        queue = self._queue
        if queue.in_hand:
            queue.in_hand = 0
            self._resume_if_read()
        queue.begin_reading()
        direct: tuple[str, EndpointStream] | None = None
        try:
            while not queue.batches and not queue.has_finished and not queue.has_left:
                if self._direct is None:
                    await queue.wait_for_wake()
                    continue
                if direct is not self._direct:
                    direct = self._direct
                    source, stream = direct
                    repeating = None if relay is None else repeating_stream(stream)
                event: Event | TextRepeated | None
                try:  # the same as ``_read_event``, but inline: every token takes this path, and each coroutine on it costs time
                    event = await (stream.receive() if repeating is None else repeating.receive(repeats=True))
                except Exception as error:  # noqa: BLE001
                    event = self._translate(source, error) if self._direct is direct else None
                if event is None:  # the answer has ended
                    continue
                if self._direct is not direct:  # another task has closed this answer
                    break
                if isinstance(event, TextRepeated):
                    if relay is not None and self._log is None and self.machine.pass_on(event, now=self._clock()):
                        await relay(event.like, event.text)
                        continue
                    event = event.expand()
                if not isinstance(event, TokensReceived):
                    self._keep_figures(source, stream, event)
                    self._direct = None
                elif self._log is None and self.machine.pass_on(event, now=(now := self._clock())):
                    return source, event.chunks, now
                self.emit(event)
        finally:
            queue.is_reading = False
        return queue.take()

    async def peek(self) -> None:
        """Wait until there is a delivery or the answer has ended, without taking anything; see ``DeliveryQueue.peek``."""
        if not self._queue.batches and (batch := await self.next_batch()) is not None:
            self._queue.put_back(batch)

    def changes(self) -> list[tuple[str, str, str]]:
        """Return the requests that were resent in another form after a refusal: endpoint, short name of the form, and a sentence."""
        return [(source, *change) for source, stream in self._streams.items() for change in changes_of(stream).items()]

    def note_abilities(self, name: str) -> None:
        """Tell the machine that an endpoint's capabilities have become known."""
        if not self._is_over:
            can = self._endpoints[name].capabilities
            self.emit(AbilitiesFound(name, can.continuation != "none", can.vocabulary))

    def leave(self) -> None:
        """Stop all work of this answer without waiting, and drop everything unread. Must be called in the loop's thread."""
        if not self._queue.has_left:
            self._queue.leave()
            self._direct = None
            if not self._is_over:
                self.emit(ReaderLeft())
            self._resume()

    # Figures

    def report(self) -> Report:
        """Return the report on the answer so far; final (and cached) once ``is_over`` is True."""
        if self._final is not None:
            return self._final
        report = build_report(self.machine, self._dispatched(), self._endpoints, self.cost(), now=self.now)
        report = with_split_figures(report, [*self.split_figures().values()])
        if self._is_over and report.is_final:
            self._final = report
        return report

    def opening(self) -> Opening:
        """Return the part of the report that is known at the first token."""
        if self.split_figures():
            return opening_of(self.report())
        return build_opening(self.machine, self._dispatched(), self._endpoints)

    def split_figures(self) -> dict[str, SplitFigures]:
        """Return the figures of the split models that took part in the answer, by name."""
        found = {source: split_figures_of(stream) for source, stream in self._streams.items()}
        return {source: figures for source, figures in found.items() if figures is not None}

    def usage(self) -> AnswerUsage:
        """Return the token counts of the answer as it was delivered."""
        return describe_usage(self.machine, self._dispatched().prompt_tokens)

    def cost(self) -> AnswerCost:
        """Return the cost of the answer so far; final (and cached) once ``is_over`` is True."""
        if self._final_cost is not None:
            return self._final_cost
        cost = build_cost(
            self.machine, self._dispatched(), self._endpoints, was_left=self.was_broken_off, counts=self._counts, joules=self._joules
        )
        if self._is_over and self.machine.is_over:
            self._final_cost = cost
        return cost

    def _dispatched(self) -> DispatchRecord:
        if self._record is None:
            raise AssertionError("expected the record of the dispatch decision, which a report is made from, got none")
        return self._record

    # The machine's commands

    def _run_command(self, command: Command, now: float) -> None:
        match command:
            case DeliverTokens(source, chunks):
                self._queue.put((source, chunks, now))
            case OpenStream(source):
                is_rated = self._record is not None and self._record.is_rated and source == self._record.device
                self._open(source, replace(self.request, is_graded=True) if is_rated else self.request)
            case ContinueStream(source, partial):
                self._direct = None
                self._continue(source, partial)
            case PrepareStream(source, partial):
                self._open(source, replace(continued(self.request, partial, None), prefill_only=True))
            case PauseStream(source):
                self._stopped[source] = self._loop.create_future(), now
                pause(self._streams[source])
            case ResumeStream(source):
                stopped, since = self._stopped.pop(source)
                resume(self._streams[source], now - since)
                stopped.set_result(None)
            case CancelStream(source, reason):
                if reason == LATE and self._watch is not None:
                    self._watch.late(source)
                if self._direct is not None and self._direct[0] == source:
                    self._direct = None
                self._cancel_soon(source)
            case FinishDelivery():
                self._queue.finish()
            case FailDelivery(error):
                self._queue.finish(error)

    def _on_deadline(self, now: float) -> None:
        super()._on_deadline(now)
        self._resume_if_read()

    # Endpoints

    def _continue(self, source: str, partial: Partial) -> None:
        """Have an endpoint continue the answer, or end the answer if it already has its maximum number of tokens."""
        limit, written = self.request.sampling.max_tokens, self._count_written(source, partial)
        if limit is None or written is None or written < limit:
            self._open(source, continued(self.request, partial, written))
        else:
            self._start_reading(source, FinishedStream(source, "length"))

    def _count_written(self, target: str, partial: Partial) -> int | None:
        """Return how many tokens of ``max_tokens`` a continued answer has used, or None if there is only an estimate.

        If token ids are handed over, they are counted. Otherwise the text is counted, without the whitespace at its end, which is written
        again. It is counted in the vocabulary of the endpoint that continues, because the rest of the limit applies to its tokens. If that
        isn't possible, it is counted by the ids that have arrived, or in the vocabulary of the endpoint that wrote last.
        """
        if self.request.sampling.max_tokens is None:
            return None
        if partial.is_counted and partial.vocabulary is not None and partial.vocabulary == self.machine.attempts[target].plan.vocabulary:
            return partial.tokens
        text, _ = split_trailing_whitespace(partial.text)
        if (count := count_text(self._endpoints[target], text)) is not None:
            return count.tokens
        if partial.is_counted:
            return partial.tokens - partial.blank_tokens
        for hand_over in self.machine.hand_overs[-1:]:
            if (count := count_text(self._endpoints[hand_over.source], text)) is not None:
                return count.tokens
        self.unlimited = target
        return None

    def _keep_figures(self, source: str, stream: EndpointStream, end: Event | None = None) -> None:
        """Record how long a stream waited for the reader, its energy, and its attempt's tokens in case it reports no usage.

        ``end`` is the stream's last event, or None if it is cancelled.
        """
        self._idle.setdefault(stream, idle_of(stream))
        attempt = self.machine.attempts[source]
        self._joules[attempt] = joules_of(stream)
        usage = end.usage if isinstance(end, StreamEnded) else attempt.usage
        if has_counted(usage, attempt.tokens) or not attempt.tokens or not isinstance(stream, WrittenStream):
            return
        written = stream.written()
        if written.has_ids:
            self._counts[attempt] = TextCount(attempt.tokens, "token ids")
        elif written.text and (count := count_text(self._endpoints[source], written.text)) is not None:
            self._counts[attempt] = count

    def _open(self, source: str, request: Request) -> None:
        stream: EndpointStream
        if request.partial is not None or request.prefill_only:
            self._going_on.add(source)
        if self._watch is not None:
            self._watch.opened(source, is_whole=request.partial is None and not request.prefill_only)
        try:
            elapsed, endpoint = self._elapsed(), self._endpoints[source]
            if self._on_open is not None:
                request = self._on_open(source, endpoint, request)
            stream = endpoint.open(replace(request, elapsed=elapsed) if elapsed else request)
        except Exception as error:  # noqa: BLE001  an endpoint should not raise here
            stream = FailedStream(self._failure_of(source, error))
        self._start_reading(source, stream)

    def _elapsed(self) -> float:
        """Return how many seconds of the whole answer's time limit are used up: the time since its start minus the reader's pauses."""
        if self.request.timeouts is None or self.request.timeouts.total is None:
            return 0.0
        idle = sum(self._idle.values()) + sum(idle_of(stream) for stream in self._streams.values() if stream not in self._idle)
        return max(0.0, self.now - self.machine.began - idle)

    def _start_reading(self, source: str, stream: EndpointStream) -> None:
        self._streams[source] = stream
        retry = WeakMethod(self._retry)  # weak, because the stream must not refer to its owner
        watch_retries(stream, lambda error, wait: (call := retry()) is not None and call(source, error, wait))
        self._readers[source] = self._spawn(self._read_stream(source, stream), f"streamco read {source}")

    def _retry(self, source: str, error: EndpointError, wait: float) -> bool:
        """Tell the machine about a retry; return False if the answer no longer wants the endpoint to retry."""
        if not self._is_over:
            self.emit(StreamRetrying(source, error, wait))
        return not self.machine.attempts[source].is_stopping

    def _receive(self, event: Event, now: float) -> None:
        super()._receive(event, now)
        if self._watch is not None:
            self._watch.receive(event)

    async def _read_stream(self, source: str, stream: EndpointStream) -> None:
        """Read one endpoint until it ends, or until the reader's own task can read it."""
        while True:
            event = await self._read_event(source, stream)
            if not isinstance(event, TokensReceived):
                self._keep_figures(source, stream, event)
            self.emit(event)
            if isinstance(event, StreamEnded | StreamFailed):
                return
            if self.machine.is_direct and not self._queue.has_left:
                self._direct = source, stream
                self._queue.wake()
                return
            if (stopped := self._stopped.get(source)) is not None:
                await stopped[0]
            if source == self.machine.writer and self._held > self._max_held():
                await self._wait_for_reader()

    async def _read_event(self, source: str, stream: EndpointStream) -> Event:
        try:
            return await stream.receive()
        except Exception as error:  # noqa: BLE001  an error that isn't the endpoint's failure ends this task and goes to ``_crash``
            return StreamFailed(source, self._failure_of(source, error))

    def _failure_of(self, source: str, error: Exception) -> EndpointError:
        """Do the same as ``failure_of``, but without ending an answer that another endpoint is writing.

        If an endpoint can't continue an answer, that isn't the caller's mistake. Other mistakes and defects go to the loop's error handler.
        """
        is_ours = source in self._going_on and isinstance(error, UsageError)
        if self.machine.writer in {None, source} and not is_ours:
            return failure_of(error, source)
        if not (is_ours or isinstance(error, EndpointError)):
            self._report_error(f"streamco: {source} failed beside the endpoint that writes the answer", error)
        return as_failure(error, source)

    def _translate(self, source: str, error: Exception) -> StreamFailed | None:
        """Return the event for an endpoint's failure, or None if the error is of another kind and has ended the answer."""
        try:
            return StreamFailed(source, self._failure_of(source, error))
        except StreamcoError as other:
            self._crash(other)
            return None

    def _cancel_soon(self, source: str) -> None:
        self._stopped.pop(source, None)
        reader = self._readers.pop(source, None)  # a cancelled task refers to its frame, and the frame to this object
        self._spawn(self._cancel(source, reader, self._streams[source]), f"streamco cancel {source}")

    async def _cancel(self, source: str, reader: asyncio.Task[None] | None, stream: EndpointStream) -> None:
        if reader is not None and not reader.done():
            reader.cancel()
            await asyncio.wait([reader])
        self._keep_figures(source, stream)
        try:
            await stream.cancel()
        except Exception as error:  # noqa: BLE001  the attempt must end all the same
            self.emit(StreamFailed(source, as_failure(error, source)))
        self._joules[self.machine.attempts[source]] = joules_of(stream)  # the stream has only ended now
        self.emit(StreamCancelled(source))

    # Backpressure

    @property
    def _held(self) -> int:
        """Number of tokens that have arrived but that the reader hasn't finished with."""
        return self._queue.unread + self._queue.in_hand + self.machine.buffered

    def _max_held(self) -> int:
        winner = self.machine.writer
        return self._max_ahead if winner is not None and self._endpoints[winner].kind == "device" else self._max_unread

    def _resume_if_read(self) -> None:
        if self._paused is not None and self._held <= self._max_held() // 2:
            self._resume()

    def _resume(self) -> None:
        if self._paused is not None and not self._paused.done():
            self._paused.set_result(None)

    async def _wait_for_reader(self) -> None:
        if self._paused is None or self._paused.done():
            self._paused = self._loop.create_future()
        await asyncio.shield(self._paused)  # shared by the attempts: cancelling one of them must not cancel it

    # The end

    def _is_done(self) -> bool:
        return self.machine.is_over or self._has_crashed

    def _crash(self, error: BaseException) -> None:
        """End the answer with this error: a mistake of the caller, or a defect here or in an endpoint."""
        if self._queue.has_left or self._queue.has_finished:  # no reader would see it
            self._report_error("streamco race failed", error)
        if self._has_crashed:
            return
        self._has_crashed = True
        self._direct = None
        if not self._queue.has_finished:
            self._queue.finish(as_raised(error, "race", self._text_so_far()))
        for source in self._streams:
            self._cancel_soon(source)
        self._end_if_idle()

    def _text_so_far(self) -> str:
        """Return the text that the reader has received or will receive; "" if there is none, or if it wasn't kept."""
        stream: object = self._streams.get(self.machine.writer or "")
        if self.machine.text or not isinstance(stream, WrittenStream):
            return self.machine.text
        return stream.written().text or ""
