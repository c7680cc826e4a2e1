"""Wake-ups from the engine's thread to the coroutine of one request.

The engine calls ``wake`` once for each burst of a sequence. ``WakeCoalescer`` merges all calls that come before the loop has run into a
single wake-up of the loop. A ``GenerationReader`` is one generation, read by one coroutine. It takes pieces only when its reader asks for
some. A slow HTTP reader therefore fills the generation's ring and pauses that sequence, but not the engine's thread or other sequences.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from streamco.engines.base import Engine, Generation, GenerationEnd, GenerationRequest, TextPiece
from streamco.engines.llamacpp.reasoning import ReasoningSplitter

__all__ = ["WakeEvent", "Clock", "LoopClock", "PieceHold", "WakeCoalescer", "GenerationReader"]

MAX_HELD_PIECES = 1024  # pieces that a ``PieceHold`` may have; beyond this the ring fills and the sequence pauses
TIMER_SLACK = 0.001  # s; uvloop rounds timers to milliseconds and may fire early


class WakeEvent:
    """An event that one coroutine waits for with a deadline, without a task or a timeout context for each wait."""

    def __init__(self) -> None:
        self._waiter: asyncio.Future[bool] | None = None
        self._is_set = False

    def wake(self) -> None:
        """Set the event and wake the waiter. If there is none, the next wait returns at once. Call it only on the loop's thread."""
        self._is_set = True
        self._settle(True)

    async def wait(self, deadline: float | None) -> bool:
        """Return True once the event is set, or False at ``deadline`` (loop time, if any). Safe to cancel: no wake-up is lost."""
        if not self._is_set:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None if deadline is None else loop.call_at(max(deadline, loop.time() + TIMER_SLACK), self._settle, False)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        was_set, self._is_set = self._is_set, False
        return was_set

    def _settle(self, value: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(value)


class Clock(Protocol):
    """A server's source of time; tests use their own."""

    def now(self) -> float:
        """Return seconds on a monotonic clock."""
        ...

    async def wait(self, event: WakeEvent, deadline: float | None) -> bool:
        """Return True once the event is set, or False at ``deadline``; see ``WakeEvent.wait``."""
        ...


class LoopClock:
    """The running event loop's clock."""

    def now(self) -> float:
        """Return the running loop's time in seconds."""
        return asyncio.get_running_loop().time()

    async def wait(self, event: WakeEvent, deadline: float | None) -> bool:
        """Wait for the event; see ``WakeEvent.wait``."""
        return await event.wait(deadline)


class Wakeable(Protocol):
    """Anything that can be woken on the loop."""

    def wake(self) -> None:
        """React to the wake-up; called on the loop."""
        ...


class WakeCoalescer:
    """Merges the engine's wake calls into one wake-up of the loop. Create it inside the loop that reads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pending: deque[Wakeable] = deque()
        self._is_scheduled = False

    def bind(self, event: Wakeable) -> Callable[[], None]:
        """Return a function for ``Engine.submit`` that wakes this event from any thread."""

        def wake() -> None:
            self._pending.append(event)
            if not self._is_scheduled:
                self._is_scheduled = True
                self._schedule()

        return wake

    def _schedule(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wake_pending)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            # the loop was closed before the engine: nothing is left to wake up, and the engine's thread must survive until it is closed

    def _wake_pending(self) -> None:
        # cleared first, so that a wake during the loop below schedules another round and isn't missed
        self._is_scheduled = False
        while self._pending:
            self._pending.popleft().wake()


class PieceHold(Protocol):
    """Holds back the pieces of one answer until they may be sent. This is a hook for timing other than the engine's own.

    ``streamco.emulation`` has an implementation that imitates a measured server. Times are seconds on the server's clock.
    """

    @property
    def held(self) -> int:
        """Number of pieces that are held back."""
        ...

    def push(self, pieces: Sequence[TextPiece], end: GenerationEnd | None, now: float) -> None:
        """Take over pieces from the engine; ``end`` comes with the last ones."""
        ...

    def pop(self, now: float) -> tuple[list[TextPiece], GenerationEnd | None]:
        """Return the pieces that may be sent by ``now``; the end comes with or after the last piece."""
        ...

    def due(self) -> float | None:
        """Return the time at which ``pop`` next has something to return, or None if it won't until more is pushed."""
        ...


class GenerationReader:
    """One generation, read by one coroutine.

    Args:
        engine: the engine that it runs on.
        request: what to generate.
        waker: coalesces the wake-ups of this loop.
        clock: tells the time for deadlines and ``hold``.
        hold: holds pieces back, or None to pass them on as they come.
        splitter: separates reasoning from content, or None if everything is content.

    Attributes:
        first_at: the clock's time when the first piece was passed on, or None if none has been.
        end: the generation's end once it has been passed on, or None before that or if its reader stopped early.

    Raises:
        EngineError: the engine refused the request.
    """

    def __init__(
        self,
        engine: Engine,
        request: GenerationRequest,
        waker: WakeCoalescer,
        clock: Clock,
        hold: PieceHold | None = None,
        *,
        splitter: ReasoningSplitter | None = None,
    ) -> None:
        self._event = WakeEvent()
        self._clock = clock
        self._hold = hold
        self._splitter = splitter
        self._stopped_by: str | None = None
        self._has_ended = False
        self.first_at: float | None = None
        self.end: GenerationEnd | None = None
        self._generation: Generation = engine.submit(request, waker.bind(self._event))

    @property
    def stopped_by(self) -> str | None:
        """The reason that ``stop`` was called with, or None if it wasn't called."""
        return self._stopped_by

    async def receive(self, deadline: float | None) -> tuple[list[TextPiece], GenerationEnd | None] | None:
        """Return the next burst. The end comes with or after the last one.

        Safe to cancel: nothing is lost.

        Returns:
            None if ``deadline`` (the clock's time) passed first, or if the work was stopped.
        """
        while self._stopped_by is None:
            pieces, end, due = self._collect()
            if pieces or end is not None:
                if pieces and self.first_at is None:
                    self.first_at = self._clock.now()
                self.end = end
                return pieces, end
            until = min((time for time in (deadline, due) if time is not None), default=None)
            if not await self._clock.wait(self._event, until) and deadline is not None and self._clock.now() >= deadline:
                return None
        return None

    def stop(self, reason: str) -> None:
        """Cancel the generation and wake its reader. Idempotent; the first reason is kept."""
        if self._stopped_by is None:
            self._stopped_by = reason
            if not self._has_ended:
                self._generation.cancel()
            self._event.wake()

    def _collect(self) -> tuple[list[TextPiece], GenerationEnd | None, float | None]:
        """Return the pieces and the end that may be sent now, and the time when there will be more, or None if it isn't known."""
        hold = self._hold
        if hold is None:
            return *self._take(), None
        now = self._clock.now()
        if hold.held < MAX_HELD_PIECES and not self._has_ended:
            hold.push(*self._take(), now)
        pieces, end = hold.pop(now)
        return pieces, end, hold.due()

    def _take(self) -> tuple[list[TextPiece], GenerationEnd | None]:
        pieces, end = self._generation.take()
        if self._splitter is not None:
            pieces = self._splitter.split(pieces) + (self._splitter.flush() if end is not None else [])
        self._has_ended = self._has_ended or end is not None
        return pieces, end
