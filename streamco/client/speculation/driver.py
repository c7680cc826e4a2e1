"""Runs a speculator on asyncio: the device's drafts, the verifier's verdicts and the remote side's stream in, commands out.

What happens is told to the machine in the order in which it happened; what that means for the reader goes through ``SpeculativeOutput``.
One timer serves the machine's deadline and the reader's pace.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from streamco.client.delivery_queue import DeliveryQueue
from streamco.client.driver import Batch, TaskOwner, clock_of
from streamco.client.error_translation import with_partial
from streamco.client.speculation.output import SpeculativeOutput
from streamco.client.speculation.remote_stream import OpenRemoteStream, RemoteStreamReader
from streamco.core.speculation.events import (
    AdoptBranch,
    CloseRemote,
    CloseVerifier,
    CommitIds,
    ConnectVerifier,
    DeliverIds,
    DraftBranch,
    DraftTokens,
    DropDrafts,
    FailAnswer,
    FinishAnswer,
    OpenRemote,
    ReaderCaughtUp,
    ReaderFellBehind,
    RetractIds,
    SendDraft,
    SpeculationCommand,
    SpeculationEvent,
    VerifierConnected,
    VerifierFailed,
    VerifierLost,
)
from streamco.core.speculation.machine import SpeculationMachine
from streamco.endpoints.verifiers.base import VerifierSession
from streamco.errors import EndpointProtocolError, StreamcoError
from streamco.events import ReaderLeft

__all__ = ["DrafterLike", "SpeculationDriver", "SpeculationLog", "Tell"]

DraftCommand = DraftTokens | DraftBranch | AdoptBranch | DropDrafts
Tell = Callable[[SpeculationEvent], None]
SpeculationLog = list[tuple[float, SpeculationEvent | None, list[SpeculationCommand]]]


class DrafterLike(Protocol):
    """What drafts on the device for one answer (``streamco.endpoints.device_drafter.DeviceDrafter``)."""

    def run(self, command: DraftCommand) -> None:
        """Begin what is asked; never blocks."""
        ...

    async def aclose(self) -> None:
        """Release its sequences; idempotent."""
        ...


class SpeculationDriver(TaskOwner):
    """One speculated answer's IO.

    Args:
        machine: not started yet.
        presentation: what the reader gets.
        drafter: makes what drafts; its events go to what it is given.
        session: the verifier's, likewise.
        remote: opens the remote side's plain stream; None: nobody generates there.
        remote_name: of the endpoint behind it.
        prompt_tokens: in front of the answer.
        unread: chunks delivered and not read, beyond which nothing new is begun.
        ahead: tokens held for the pace, likewise.
        on_over: called once when the answer and all its work have ended.
        clock: seconds, monotonic; None: the system's, or the loop's where the loop has one of its own (virtual time).
        log: collects (now, event or None, commands) of every step, for replay.

    Attributes:
        session: the verifier's.
        began, finished: when; None: not yet.
        finish_reason: stop or length; None: not finished, or failed.
        error: what the answer ended with.
        verifier_error: why the verifier was out for the rest of the answer; None: it was not.
        unconnected: seconds that a connection to it had been asked for in vain when the answer's work ended.
        is_turned_away: the session was refused for a time that was told, and there has been none since.
        dropped: tokens held for a reader who left.
        stand_in: the remote side, where it generates alone.
    """

    def __init__(
        self,
        machine: SpeculationMachine,
        presentation: SpeculativeOutput,
        *,
        drafter: Callable[[Tell], DrafterLike],
        session: Callable[[Tell], VerifierSession],
        remote: OpenRemoteStream | None = None,
        remote_name: str = "remote",
        prompt_tokens: int = 0,
        unread: int = 4096,
        ahead: int = 4096,
        on_over: Callable[[SpeculationDriver], None] | None = None,
        clock: Callable[[], float] | None = None,
        log: SpeculationLog | None = None,
    ) -> None:
        super().__init__()
        self.machine = machine
        self.presentation = presentation
        self.began = 0.0
        self.finished: float | None = None
        self.finish_reason: str | None = None
        self.dropped = 0
        self.verifier_error: StreamcoError | None = None
        self.unconnected = 0.0
        self.is_turned_away = False
        self._connecting_since: float | None = None
        self._mailbox = DeliveryQueue()
        self._on_over = on_over
        self._log = log
        self._clock = clock or clock_of(self._loop)
        self._events: deque[SpeculationEvent | None] = deque()  # None: the machine's deadline has come
        self._is_stepping = True  # until it is started, what happens waits
        self._timer: asyncio.TimerHandle | None = None
        self._armed: float | None = None
        self._unread_limit, self._ahead = unread, ahead
        self._is_behind = False  # the reader is
        self._is_complete = False  # text may still be held for the pace
        self._is_winding_up = False
        self._has_crashed = False
        self._is_over = False
        self.stand_in = RemoteStreamReader(remote, name=remote_name, prompt_tokens=prompt_tokens, tell=self.tell, spawn=self._spawn)
        self._drafter = drafter(self.tell)
        self.session = session(self.tell)

    # For the reader

    @property
    def is_over(self) -> bool:
        """True if nothing of this answer is at work any more."""
        return self._is_over

    @property
    def was_broken_off(self) -> bool:
        """True if it was left before its answer had come to an end."""
        return self._mailbox.has_left and not self._mailbox.has_finished

    @property
    def has_changed_hands(self) -> bool:
        """Its usage is its own, whoever wrote it."""
        return False

    @property
    def error(self) -> StreamcoError | None:
        """What the answer ended with."""
        return self._mailbox.error

    @property
    def now(self) -> float:
        """The driver's clock, seconds."""
        return self._clock()

    def start(self) -> None:
        """Begin."""
        self.began = self._clock()
        self._is_stepping = True
        try:
            self.machine.start(now=self.began)
            self._carry_out(None, self.began)
        except Exception as error:  # noqa: BLE001  whatever it is must reach the reader as an error, not as silence
            self._crash(error)
        finally:
            self._is_stepping = False
        self._process()

    async def next_batch(self) -> Batch | None:
        """Wait for the next delivery; see ``DeliveryQueue.next``."""
        batch = await self._mailbox.next()
        self._heed_reader()
        return batch

    async def peek(self) -> None:
        """Wait until something was delivered or the answer has ended; see ``DeliveryQueue.peek``."""
        await self._mailbox.peek()

    async def aclose(self) -> None:
        """Stop all work of this answer and wait for its end; idempotent."""
        self.leave()
        await self._wait_for_tasks()

    def leave(self) -> None:
        """Stop all work of this answer without waiting; what was not read is dropped. Must run in the loop's thread."""
        if self._mailbox.has_left:
            return
        self._mailbox.leave()
        self.dropped = self.presentation.delivery.drop()
        self.tell(ReaderLeft())
        self._wind_up()
        self._end_if_idle()

    def leave_soon(self) -> None:
        """``leave`` from anywhere, a finaliser in another thread included; does nothing once the loop is closed."""
        with suppress(RuntimeError):  # the loop is closed: nothing of this answer can be at work
            self._loop.call_soon_threadsafe(self.leave)

    # The machine's clockwork

    def tell(self, event: SpeculationEvent) -> None:
        """Something happened. Must run in the loop's thread."""
        if not self._has_crashed:
            self._events.append(event)
            self._process()

    def _process(self) -> None:
        """Tell the machine everything that has happened, and do what it commands."""
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events:
                event = self._events.popleft()
                now = self._clock()
                if event is not None:
                    self._note_verifier(event)
                    self.machine.receive(event, now=now)
                else:
                    now = max(now, self._armed or now)  # uvloop's timers may fire up to a millisecond early
                    self.machine.handle_deadline(now=now)
                self._carry_out(event, now)
        except Exception as error:  # noqa: BLE001  whatever it is must reach the reader as an error, not as silence
            self._crash(error)
        finally:
            self._is_stepping = False

    def _carry_out(self, event: SpeculationEvent | None, now: float) -> None:
        commands = self.machine.take_commands()
        if self._log is not None:
            self._log.append((now, event, commands))
        for command in commands:
            self._obey(command, now)
        self._arm(now)
        self._heed_reader()
        self._end_if_idle()

    def _note_verifier(self, event: SpeculationEvent) -> None:
        if self._is_winding_up:
            return
        match event:
            case VerifierConnected():
                self._connecting_since = None
                self.is_turned_away = False
            case VerifierLost(retry_after):
                self.is_turned_away = retry_after is not None
            case VerifierFailed(error):
                self.verifier_error = error

    def _heed_reader(self) -> None:
        """A reader who is far behind holds the next round back."""
        unread, held = self._mailbox.unread, self.presentation.delivery.buffered
        if not self._is_behind and (unread > self._unread_limit or held > self._ahead):
            self._is_behind = True
            self.stand_in.pause()
            self.tell(ReaderFellBehind())
        elif self._is_behind and unread <= self._unread_limit // 2 and held <= self._ahead // 2:
            self._is_behind = False
            self.stand_in.resume()
            self.tell(ReaderCaughtUp())

    def _obey(self, command: SpeculationCommand, now: float) -> None:
        match command:
            case DraftTokens() | DraftBranch() | AdoptBranch() | DropDrafts():
                self._drafter.run(command)
            case ConnectVerifier() | SendDraft() | CloseVerifier():
                if isinstance(command, ConnectVerifier) and self._connecting_since is None:
                    self._connecting_since = now
                self.session.run(command)
            case OpenRemote():
                self.stand_in.begin(command, now=now)
            case CloseRemote(version):
                self.stand_in.end(version)
            case DeliverIds() | CommitIds() | RetractIds():
                if not self._is_complete:
                    self._mailbox.put(self.presentation.show(command, now=now))
                    if self.presentation.is_stopped:
                        self._complete("stop", now)
                        self._events.append(ReaderLeft("stop string"))
            case FinishAnswer(reason):
                self._complete(reason, now)
            case FailAnswer(error):
                self._fail(error, now)

    def _arm(self, now: float) -> None:
        times = (self.machine.next_deadline(), self.presentation.delivery.next_due())
        deadline = min((time for time in times if time is not None), default=None)
        if self._timer is not None:
            if deadline == self._armed:
                return
            self._timer.cancel()
            self._timer = None
        self._armed = deadline
        if deadline is not None and not self._is_over:
            self._timer = self._loop.call_later(max(0.0, deadline - now), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now = max(self._clock(), self._armed or 0.0)
        self._mailbox.put(self.presentation.release(now=now))
        self._finish_if_read(now)
        self._heed_reader()
        if not self._has_crashed:
            self._events.append(None)
            self._process()

    # Ends

    def _complete(self, reason: str, now: float) -> None:
        """The answer is whole."""
        if self._is_complete or self._mailbox.has_finished:
            return
        self._is_complete = True
        batches = self.presentation.finish(reason, now=now)
        self.finish_reason = "stop" if self.presentation.is_stopped else reason
        self._mailbox.put(batches)
        self._wind_up()
        self._finish_if_read(now)

    def _finish_if_read(self, now: float) -> None:
        """Nothing of a whole answer is held for the pace any more."""
        if self._is_complete and not self._mailbox.has_finished and self.presentation.delivery.is_empty:
            self.finished = now
            self._mailbox.finish()

    def _fail(self, error: StreamcoError, now: float) -> None:
        if self._is_complete or self._mailbox.has_finished:
            return
        self._hand_out(now)
        self.finished = now
        self._mailbox.finish(with_partial(error, self.presentation.text, "verifier"))
        self._wind_up()

    def _hand_out(self, now: float) -> None:
        """Everything that is held, due or not."""
        if not self._is_complete:
            self._mailbox.put(self.presentation.finish(None, now=now))
        self._mailbox.put(self.presentation.flush(now=now))

    def _wind_up(self) -> None:
        """Release everything; once."""
        if not self._is_winding_up:
            self._is_winding_up = True
            if self._connecting_since is not None:
                self.unconnected = self._clock() - self._connecting_since
            self.stand_in.end_all()
            self._spawn(self._release(), "streamco release a speculated answer")

    async def _release(self) -> None:
        results = await asyncio.gather(self._drafter.aclose(), self.session.aclose(), return_exceptions=True)
        for error in results:
            if error is not None:
                raise error

    # Small helpers

    def _crash(self, error: BaseException) -> None:
        """Something here or in an endpoint is broken: end with that, unless the answer is whole already."""
        self._has_crashed = True
        is_unseen = self._mailbox.has_left or self._mailbox.has_finished or self._is_complete
        if is_unseen:
            self._report(error)
        if not (self._mailbox.has_left or self._mailbox.has_finished):
            self.finished = self._clock()
            try:
                self._hand_out(self.finished)
            except Exception as another:  # noqa: BLE001  what is broken may be the presentation: its reader must not wait for ever
                self._report(another)
            self._mailbox.finish(None if is_unseen else _describe(error, self.presentation.text))
        self._wind_up()
        self._events.clear()
        self._end_if_idle()

    def _report(self, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": "streamco speculated answer failed", "exception": error})

    def _end_if_idle(self) -> None:
        if self._is_over or self._tasks or not self._is_winding_up or not (self._mailbox.has_finished or self._mailbox.has_left):
            return
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._on_over is not None:
            try:
                self._on_over(self)
            except Exception as error:  # noqa: BLE001  the answer is complete: what follows it must not take it away
                self._loop.call_exception_handler({"message": "streamco could not settle an answer", "exception": error})


def _describe(error: BaseException, text: str) -> StreamcoError:
    """Return what broke, as an answer's end."""
    if isinstance(error, StreamcoError):
        return with_partial(error, text, "speculation")
    failure = EndpointProtocolError(f"expected events it can handle, got {error!r}", endpoint="speculation", partial=text)
    failure.__cause__ = error
    return failure
