"""Runs one answer of a split model: it reads the model's stream and puts deliveries into a queue for the reader.

With a pace, a task reads the model's stream, and a timer releases the tokens that are due. Without one, the reader's own task reads the
stream once the first token has arrived. So a reader that pauses slows the model down, because the engine's ring fills up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from streamco.client.answer_log import describe_error
from streamco.client.delivery_queue import DeliveryQueue
from streamco.client.driver import Batch, Relay
from streamco.client.error_translation import as_failure, as_raised, failure_of
from streamco.client.modes.split.report import PromptFacts, SplitProgress, split_cost, split_report, split_usage
from streamco.config import READING, ReaderPace, fixed_rate
from streamco.core.delivery import Delivery
from streamco.core.race.commands import DeliverTokens
from streamco.core.report import Opening, Report, opening_of
from streamco.core.report_parts import AnswerUsage
from streamco.core.split.events import SplitCommand, SplitEvent
from streamco.core.totals import AnswerCost
from streamco.endpoints.base import Endpoint, Request
from streamco.endpoints.split.driver import SplitDriver
from streamco.endpoints.split.endpoint import SplitEndpoint, SplitStream
from streamco.errors import StreamcoError
from streamco.events import StreamEnded, TokensReceived
from streamco.machine_driver import StepLog
from streamco.openai_types import ChatCompletionChunk

__all__ = ["SplitAnswerDriver"]


class SplitAnswerDriver(SplitDriver):
    """The ``AnswerDriver`` of a split model: it makes one answer and delivers it to the reader.

    Args:
        endpoint: the model, which must have started.
        request: the request to it.
        facts: what is known about the prompt.
        pace: how fast the reader gets text: a number of tokens per second, "smooth" to spread it evenly at the rate at which it arrives, or
            None to send it as soon as it arrives.
        reader_rate: reading speed, in tokens per second, of the virtual reader that is used to measure quality; None uses the pace if it
            is a number, or else the usual reading speed.
        max_held: number of tokens that may be held for the pace or wait for the reader; above it, reading from the model stops.
        on_over: called once when the answer and all its work have ended.
        on_open: returns the request that is actually sent to the endpoint; None sends it unchanged.
        write_line: writes a line to the log when the model starts, ends, fails or is cancelled; None if there is no log.
        clock: a monotonic clock in seconds; None uses the system's, or the loop's if the loop doesn't use the system's (virtual time).
        log: records every step of the machine, for replay; None records nothing.

    Attributes:
        endpoint: as given.
        progress: how far the answer has come.

    Raises:
        EngineError: the endpoint hasn't started.
    """

    def __init__(
        self,
        endpoint: SplitEndpoint,
        request: Request,
        *,
        facts: PromptFacts,
        pace: ReaderPace = None,
        reader_rate: float | None = None,
        max_held: int = 4096,
        on_over: Callable[[SplitAnswerDriver], None] | None = None,
        on_open: Callable[[str, Endpoint, Request], Request] | None = None,
        write_line: Callable[[str], None] | None = None,
        clock: Callable[[], float] | None = None,
        log: StepLog[SplitEvent, SplitCommand] | None = None,
    ) -> None:
        super().__init__(*endpoint.parts(), on_over=on_over, clock=clock, log=log)
        self.endpoint = endpoint
        self.progress = SplitProgress()
        self._request, self._facts = request, facts
        self._on_open, self._write_line = on_open, write_line
        self._delivery = Delivery(pace, reader_rate or fixed_rate(pace) or READING)
        self._max_held = max_held
        self._queue = DeliveryQueue()
        self._early: list[ChatCompletionChunk] = []  # chunks before the first one with content
        self._texts: list[str] = []  # texts of all other chunks
        self._stream: SplitStream | None = None  # None if it hasn't begun, or its work has ended
        self._reader: asyncio.Task[None] | None = None
        self._is_direct = False  # True if the reader's own task reads the stream
        self._is_complete = False  # True if the model has ended; tokens may still be held for the pace
        self._paused: asyncio.Future[None] | None = None  # done when reading from the stream may continue
        self._final: Report | None = None

    def start(self) -> None:
        """Begin the answer."""
        self.progress.began = self._clock()
        super().start()
        self._write("starts")
        request = self._request
        try:
            if self._on_open is not None:
                request = self._on_open(self.endpoint.name, self.endpoint, request)
            self._stream = self.endpoint.open(request, self)
        except Exception as error:  # noqa: BLE001  neither should raise here
            self._fail(error)
        else:
            self._reader = self._spawn(self._read_stream(self._stream), f"streamco read {self.endpoint.name}")

    # The reader's side

    @property
    def was_broken_off(self) -> bool:
        """True if the reader left before the answer had ended."""
        return self._queue.was_broken_off

    @property
    def has_changed_hands(self) -> bool:
        """Always False, because one model makes the whole answer, whichever servers run its middle layers."""
        return False

    async def next_batch(self, relay: Relay | None = None) -> Batch | None:
        """Wait for the next delivery; see ``DeliveryQueue.next``."""
        if self._queue.in_hand:
            self._queue.in_hand = 0
            self._resume_if_read()
        await self._read()
        return self._queue.take()

    async def peek(self) -> None:
        """Wait until there is a delivery or the answer has ended, without taking anything; see ``DeliveryQueue.peek``."""
        await self._read()
        if not self._queue.batches:
            self._queue.check_end()

    def leave(self) -> None:
        """Stop all work of this answer without waiting, and drop everything unread. Must be called in the loop's thread."""
        if self._queue.has_left:
            return
        self.progress.was_left = not self._queue.has_finished
        self._queue.leave()
        if self.progress.finished is None:
            self.progress.finished = self._clock()
        self.progress.dropped += self._delivery.drop()
        self._cancel_soon("reader left")
        self._resume()
        self._end_if_idle()

    async def _read(self) -> None:
        """Wait until the queue has a delivery or the answer has ended, and read the stream meanwhile if no task does."""
        queue = self._queue
        queue.begin_reading()
        try:
            while not queue.batches and not queue.has_finished and not queue.has_left:
                stream = self._stream
                if not self._is_direct or stream is None:
                    await queue.wait_for_wake()
                    continue
                try:
                    event = await stream.receive()
                except Exception as error:  # noqa: BLE001  it may be any error
                    if self._is_direct:  # otherwise another task has closed this answer
                        self._fail(error)
                else:
                    self._take(event)
        finally:
            queue.is_reading = False

    # Figures

    def report(self) -> Report:
        """Return the report on the answer so far; final (and cached) once ``is_over`` is True."""
        if self._final is not None:
            return self._final
        is_final = self._is_over and self.progress.finished is not None
        report = split_report(
            self.progress,
            self._delivery.meter,
            self._facts,
            self.endpoint,
            self.endpoint.figures_of(self.tally, self.made),
            now=self.now,
            is_final=is_final,
        )
        if is_final:
            self._final = report
        return report

    def opening(self) -> Opening:
        """Return the part of the report that is known at the first token."""
        return opening_of(self.report())

    def usage(self) -> AnswerUsage:
        """Return the token counts of the answer as it was delivered."""
        return split_usage(self.progress, self._delivery.meter, self._facts)

    def cost(self) -> AnswerCost:
        """Return the cost of the answer so far."""
        return split_cost(self.progress, self._delivery.meter, self._facts, self.endpoint)

    # The model's stream

    async def _read_stream(self, stream: SplitStream) -> None:
        """Read the stream until it ends, or until the reader's own task can read it."""
        while True:
            try:
                event = await stream.receive()
            except Exception as error:  # noqa: BLE001  it may be any error
                self._fail(error)
                return
            self._take(event)
            if isinstance(event, StreamEnded):
                return
            if self.progress.has_won and not self._delivery.is_paced and not self._queue.has_left:
                self._is_direct = True
                self._queue.wake()
                return
            if self._held > self._max_held:
                await self._wait_for_reader()

    def _take(self, event: TokensReceived | StreamEnded) -> None:
        now, progress = self._clock(), self.progress
        if isinstance(event, StreamEnded):
            self._write("has ended")
            progress.finish_reason, progress.usage = event.finish_reason, event.usage
            self._stop_reading(now)
            if not progress.has_won:  # an answer without content
                progress.has_won = True
                self._hand_on(self._early, 0, now)
            self._is_complete = True
            self._finish_if_read(now)
        else:
            self._take_tokens(event, now)
        self._arm(now)

    def _take_tokens(self, event: TokensReceived, now: float) -> None:
        progress = self.progress
        if event.tokens:
            progress.made += event.tokens
            progress.confidence.record(event.confidences)
            if progress.first_token is None:
                progress.first_token = now - progress.began
        if self._queue.has_left:
            progress.late += event.tokens
        elif progress.has_won or event.tokens or event.has_output:
            progress.has_won = True
            early, self._early = self._early, []
            self._hand_on(early + event.chunks, event.tokens, now)
        else:
            self._early += event.chunks

    def _fail(self, error: Exception) -> None:
        """End the answer with an error: a failure of the model, a mistake in the caller's request, or a defect."""
        name, now, stream = self.endpoint.name, self._clock(), self._stream
        self._stop_reading(now)
        self.end()
        if self._queue.has_finished or self._queue.has_left:
            return
        failure: StreamcoError
        try:
            failure = failure_of(error, name)
        except StreamcoError as other:
            failure = as_raised(other, "split", self._text_so_far())
            if stream is not None:  # it may still be at work, unless it failed itself
                self._spawn(self._cancel(stream, None), f"streamco cancel {name}")
        else:
            self._write(f"has failed: {describe_error(failure)}")
        self._finish_with(failure, now)

    def _finish_with(self, error: StreamcoError, now: float) -> None:
        """Deliver all tokens that are held, and then the error."""
        self._deliver(self._delivery.flush(now=now), now)
        self.progress.error, self.progress.finished = error, now
        self._queue.finish(error)
        self._end_if_idle()

    def _text_so_far(self) -> str:
        """Return the text that the reader has received or will receive."""
        return "".join(self._texts)

    def _stop_reading(self, now: float) -> None:
        """Drop the reference to the stream, which has ended, because the two refer to each other."""
        self._stream, self._is_direct = None, False
        if self.progress.stopped is None:
            self.progress.stopped = now - self.progress.began

    def _cancel_soon(self, reason: str) -> None:
        stream, reader = self._stream, self._reader
        self._is_direct = False
        if stream is not None:
            self._write(f"is cancelled: {reason}")
            self._stream = self._reader = None
            self._spawn(self._cancel(stream, reader), f"streamco cancel {self.endpoint.name}")

    async def _cancel(self, stream: SplitStream, reader: asyncio.Task[None] | None) -> None:
        if reader is not None and not reader.done():
            reader.cancel()
            await asyncio.wait([reader])
        try:
            await stream.cancel()
        except Exception as error:  # noqa: BLE001  the work must end all the same
            self.progress.error = self.progress.error or as_failure(error, self.endpoint.name)
        self._stop_reading(self._clock())

    def _write(self, text: str) -> None:
        if self._write_line is not None:
            self._write_line(f"{self.endpoint.name} {text}")

    # Delivery

    def _hand_on(self, chunks: list[ChatCompletionChunk], tokens: int, now: float) -> None:
        if chunks:
            self._texts += [choice.delta.content for chunk in chunks for choice in chunk.choices[:1] if choice.delta.content]
            self._deliver(self._delivery.take(self.endpoint.name, chunks, tokens, now=now), now)

    def _deliver(self, deliveries: Sequence[DeliverTokens], now: float) -> None:
        for delivery in deliveries:
            self._queue.put((delivery.source, delivery.chunks, now))

    def _finish_if_read(self, now: float) -> None:
        """End the answer if the model has ended and nothing is held for the pace any more."""
        if self._is_complete and not self._queue.has_finished and self._delivery.is_empty:
            if self.progress.finished is None:
                self.progress.finished = now
            self._queue.finish()
            self._end_if_idle()

    def _next_deadline(self) -> float | None:
        return None if self.progress.finished is not None else self._delivery.next_due()

    def _on_deadline(self, now: float) -> None:
        self._deliver(self._delivery.release(now=now), now)
        self._finish_if_read(now)
        self._resume_if_read()

    @property
    def _held(self) -> int:
        """Number of tokens that have arrived but that the reader hasn't finished with."""
        return self._queue.unread + self._queue.in_hand + self._delivery.buffered

    def _resume_if_read(self) -> None:
        if self._held <= self._max_held // 2:
            self._resume()

    def _resume(self) -> None:
        if self._paused is not None and not self._paused.done():
            self._paused.set_result(None)

    async def _wait_for_reader(self) -> None:
        self._paused = self._loop.create_future()
        await self._paused

    # The end

    def _is_done(self) -> bool:
        return super()._is_done() and (self._queue.has_finished or self._queue.has_left)

    def _crash(self, error: BaseException) -> None:
        """End the model's stream with this error, or the answer if nothing reads the stream any more."""
        is_read = self._is_direct or (self._reader is not None and not self._reader.done())
        super()._crash(error)
        if not is_read and not self._queue.has_finished:
            raised = as_raised(error, "split", self._text_so_far())
            self._cancel_soon("failed")
            self._finish_with(raised, self._clock())
        self._end_if_idle()
