"""Runs a session machine on asyncio: events in, commands out.

While several endpoints are at work, or tokens are released at a pace, each endpoint's stream is read by a task of its own and a loop
timer serves the machine's deadlines. Once the winner is alone and nothing is timed, the reader's own task reads it directly: no task
switch and no wake-up stands between the socket and the reader, and a reader that pauses slows the endpoint down by TCP or by the engine's
full ring.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from streamco.client.driver import Batch
from streamco.client.error_translation import FailedStream, translate
from streamco.core.race.commands import (
    CancelStream,
    Command,
    ContinueStream,
    DeliverTokens,
    FailDelivery,
    FinishDelivery,
    OpenStream,
    PrepareStream,
)
from streamco.core.race.machine import RaceMachine
from streamco.endpoints.base import Endpoint, EndpointStream, Request
from streamco.errors import ConcurrentRead, StreamClosed, StreamcoError
from streamco.events import Event, ReaderLeft, StreamCancelled, StreamEnded, StreamFailed, TokensReceived
from streamco.machine_driver import TaskDriver
from streamco.partial import Partial

__all__ = ["RaceDriver"]


class RaceDriver(TaskDriver[Event, Command]):
    """One session's IO.

    Args:
        machine: not started yet.
        endpoints: by name, every attempt of the machine's plan.
        request: what they are asked.
        unread: chunks delivered and not read, or tokens held for the pace, beyond which endpoints are not read on.
        ahead: tokens held for the pace beyond which a device is not read on; None: ``unread``. A server that is not read is cut off in the
            end, and bills what it has written all the same.
        on_over: called once when the session and all its work have ended.
        clock: seconds, monotonic; None: the system's, or the loop's where the loop has one of its own (virtual time).
        log: collects (now, event or None, commands) of every step, for replay.
    """

    machine: RaceMachine

    def __init__(
        self,
        machine: RaceMachine,
        endpoints: Mapping[str, Endpoint],
        request: Request,
        *,
        unread: int = 4096,
        ahead: int | None = None,
        on_over: Callable[[RaceDriver], None] | None = None,
        clock: Callable[[], float] | None = None,
        log: list[tuple[float, Event | None, list[Command]]] | None = None,
    ) -> None:
        super().__init__(machine, on_over=on_over, clock=clock, log=log)
        self.request = request
        self._endpoints = endpoints
        self._unread_limit = unread
        self._ahead = unread if ahead is None else min(ahead, unread)
        self._batches: deque[Batch] = deque()
        self._unread = 0
        self._streams: dict[str, EndpointStream] = {}
        self._pumps: dict[str, asyncio.Task[None]] = {}
        self._direct: tuple[str, EndpointStream] | None = None
        self._reader: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._is_reading = False
        self._has_left = False
        self._has_finished = False
        self._error: StreamcoError | None = None

    # For the reader

    @property
    def was_broken_off(self) -> bool:
        """True if it was left before its answer had come to an end."""
        return self._has_left and not self._has_finished

    @property
    def has_changed_hands(self) -> bool:
        """True if a second endpoint went on with the answer: what that one says of usage is not all."""
        return bool(self.machine.hand_overs)

    async def next_batch(self) -> Batch | None:
        """Wait for the next delivery; None: the answer is complete. Cancelling loses nothing.

        Raises:
            StreamcoError: the answer failed; everything that came before has been handed out.
            StreamClosed: the session was closed.
            ConcurrentRead: another task is waiting here.
        """
        batches = self._batches
        if not batches:
            await self._wait()
        if batches:
            batch = batches.popleft()
            self._unread -= len(batch[1])
            if self._room is not None:
                self._make_room_if_read()
            return batch
        if self._error is not None:
            raise self._error
        if self._has_left:
            raise StreamClosed("expected an open stream, got a read after it was closed")
        return None

    async def peek(self) -> None:
        """Wait until something was delivered or the answer has ended, without taking it.

        Raises:
            StreamcoError: the answer failed before anything was delivered.
            StreamClosed: the session was closed.
            ConcurrentRead: another task is waiting here.
        """
        if not self._batches:
            await self._wait()
        if not self._batches and self._error is not None:
            raise self._error
        if self._has_left:
            raise StreamClosed("expected an open stream, got a read after it was closed")

    def leave(self) -> None:
        """Stop all work of this session without waiting; what was not read is dropped. Must run in the loop's thread."""
        if not self._has_left:
            self._has_left = True
            self._batches.clear()
            self._unread = 0
            self._direct = None
            if not self._is_over:
                self.emit(ReaderLeft())
            self._make_room()
            self._wake_reader()

    # The machine's commands

    def _run_command(self, command: Command, now: float) -> None:
        match command:
            case DeliverTokens(source, chunks):
                if not self._has_left:
                    self._batches.append((source, chunks, now))
                    self._unread += len(chunks)
            case OpenStream(source):
                self._begin(source, self.request)
            case ContinueStream(source, partial):
                self._direct = None
                self._begin(source, _continued(self.request, partial))
            case PrepareStream(source, partial):
                self._begin(source, replace(_continued(self.request, partial), prefill_only=True))
            case CancelStream(source):
                if self._direct is not None and self._direct[0] == source:
                    self._direct = None
                self._begin_cancel(source)
            case FinishDelivery():
                self._has_finished = True
            case FailDelivery(error):
                self._error = error
                self._has_finished = True

    def _after_step(self, now: float) -> None:
        if self._batches or self._has_finished:
            self._wake_reader()

    def _on_deadline(self, now: float) -> None:
        super()._on_deadline(now)
        self._make_room_if_read()

    # Reading endpoints

    async def _pump(self, source: str) -> None:
        """Read one endpoint until it ends, or until its reader can do so itself."""
        stream = self._streams[source]
        while True:
            event = await self._read_event(source, stream)
            self.emit(event)
            if isinstance(event, StreamEnded | StreamFailed):
                return
            if self.machine.is_direct and not self._has_left:
                self._direct = source, stream
                self._wake_reader()
                return
            if source == self.machine.writer and (self._unread > self._unread_limit or self.machine.buffered > self._held_limit()):
                await self._wait_for_room()

    async def _read_event(self, source: str, stream: EndpointStream) -> Event:
        try:
            return await stream.receive()
        except Exception as error:  # noqa: BLE001  a bug in an endpoint must reach the reader as an error, not as silence
            return StreamFailed(source, translate(error, source))

    def _begin(self, source: str, request: Request) -> None:
        self._streams[source] = self._open(source, request)
        self._pumps[source] = self._spawn(self._pump(source), f"streamco read {source}")

    def _open(self, source: str, request: Request) -> EndpointStream:
        try:
            return self._endpoints[source].open(request)
        except Exception as error:  # noqa: BLE001  it should not fail; if it does, it is this attempt that failed
            return FailedStream(translate(error, source))

    def _begin_cancel(self, source: str) -> None:
        self._spawn(self._cancel(source, self._pumps[source], self._streams[source]), f"streamco cancel {source}")

    async def _cancel(self, source: str, pump: asyncio.Task[None], stream: EndpointStream) -> None:
        if not pump.done():
            pump.cancel()
            await asyncio.wait([pump])
        try:
            await stream.cancel()
        except Exception as error:  # noqa: BLE001  the attempt must end all the same
            self.emit(StreamFailed(source, translate(error, source)))
        self.emit(StreamCancelled(source))

    async def _wait(self) -> None:
        """Until there is something to read or an end."""
        if self._is_reading:
            raise ConcurrentRead("expected one reader at a time, got a second read while one waits")
        self._is_reading = True
        try:
            while not self._batches and not self._has_finished and not self._has_left:
                if self._direct is None:
                    self._reader = self._loop.create_future()
                    await self._reader
                    continue
                direct = self._direct
                source, stream = direct
                event: Event
                try:  # as ``_read_event`` does; this is the path of every token, and each coroutine on it costs
                    event = await stream.receive()
                except Exception as error:  # noqa: BLE001
                    event = StreamFailed(source, translate(error, source))
                if self._direct is not direct:  # closed by another task in the meantime
                    return
                if not isinstance(event, TokensReceived):
                    self._direct = None
                elif self._log is None and self.machine.pass_on(event, now=(now := self._clock())):
                    self._batches.append((source, event.chunks, now))
                    self._unread += len(event.chunks)
                    return
                self.emit(event)
        finally:
            self._reader = None
            self._is_reading = False

    # The end

    def _is_done(self) -> bool:
        return self.machine.is_over or self._has_crashed

    def _crash(self, error: BaseException) -> None:
        """The machine could not take what came (a bug here or in an endpoint): end with that error, whatever its state."""
        if self._has_left or self._has_finished:  # nobody would see it
            self._report_error("streamco race failed", error)
        if self._has_crashed:
            return
        if not self._has_finished:
            self._error = StreamcoError(f"session: expected events it can handle, got {error!r}")
            self._error.__cause__ = error
        self._has_crashed = self._has_finished = True
        self._direct = None
        for source in self._streams:
            self._begin_cancel(source)
        self._wake_reader()

    # Small helpers

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _make_room_if_read(self) -> None:
        if self._unread <= self._unread_limit // 2 and self.machine.buffered <= self._held_limit() // 2:
            self._make_room()

    def _held_limit(self) -> int:
        winner = self.machine.writer
        return self._ahead if winner is not None and self._endpoints[winner].kind == "device" else self._unread_limit

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    async def _wait_for_room(self) -> None:
        if self._room is None or self._room.done():
            self._room = self._loop.create_future()
        await asyncio.shield(self._room)  # shared by the attempts: cancelling one of them must not cancel it


def _continued(request: Request, partial: Partial) -> Request:
    """Return the request as somebody gets it who goes on with its answer; an answer of which nothing was seen begins anew."""
    if not partial.text and not partial.ids:
        return request
    limit = request.sampling.max_tokens
    sampling = request.sampling if limit is None else replace(request.sampling, max_tokens=max(1, limit - partial.tokens))
    return replace(request, partial=partial, sampling=sampling)
