"""Runs any core machine on asyncio: passes it events, carries out its commands in order, and wakes it at its deadline.

``streamco/sim/driver.py`` does the same in SimPy. Drivers inherit from these classes instead of holding an instance of them, because two
objects that refer to each other would stay in memory until the garbage collector runs.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, Protocol, Self, TypeVar

from streamco.core.machine import Machine

__all__ = ["MachineDriver", "StepLog", "TaskDriver", "clock_of"]

_MIN_DELAY = 0.001  # seconds until a timer that fired early is set again: uvloop rounds a shorter delay to zero, which would spin

EventT = TypeVar("EventT")
CommandT = TypeVar("CommandT")
Event_contra = TypeVar("Event_contra", contravariant=True)


class StepLog(Protocol[Event_contra, CommandT]):
    """Records each step of a machine. It may be a list, for replay, or an object that turns the steps into log lines."""

    def append(self, step: tuple[float, Event_contra | None, list[CommandT]], /) -> None:
        """Record a step, given as its time in seconds, its event (None for the deadline or the start), and its commands."""
        ...


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return the system's monotonic clock, or the loop's own clock if the loop runs on virtual time.

    The system's clock is better than an ordinary loop's clock, because uvloop truncates the time to milliseconds, and asyncio's clock costs
    one more call.
    """
    has_own = isinstance(loop, asyncio.BaseEventLoop) and type(loop).time is not asyncio.BaseEventLoop.time
    return loop.time if has_own else time.monotonic


class MachineDriver(ABC, Generic[EventT, CommandT]):
    """Runs a machine on the running event loop, with a clock and a timer. All methods must be called in the loop's thread.

    Args:
        machine: the machine, which must not be started yet.
        clock: a monotonic clock in seconds; if None, ``clock_of`` chooses one for the loop.
        log: records every step, for replay or for log lines; None records nothing.

    Attributes:
        machine: the given machine.
    """

    __slots__ = (
        "__weakref__",
        "_armed",
        "_clock",
        "_events",
        "_has_crashed",
        "_is_over",
        "_is_stepping",
        "_log",
        "_loop",
        "_timer",
        "machine",
    )

    def __init__(
        self,
        machine: Machine[EventT, CommandT],
        *,
        clock: Callable[[], float] | None = None,
        log: StepLog[EventT, CommandT] | None = None,
    ) -> None:
        self.machine = machine
        self._loop = asyncio.get_running_loop()
        self._clock = clock or clock_of(self._loop)
        self._log = log
        self._events: deque[EventT | None] = deque()  # None stands for a deadline that has passed
        self._is_stepping = True  # events that arrive before the start wait for it
        self._has_crashed = False  # if True, the machine is given no more events
        self._is_over = False  # if True, no timer is set any more
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0.0  # the time that the timer is set for

    @property
    def now(self) -> float:
        """The time on the driver's clock, in seconds."""
        return self._clock()

    def start(self) -> None:
        """Start the machine and carry out its first commands."""
        now = self._clock()
        try:
            self.machine.start(now=now)
            self._carry_out(None, now)
        except Exception as error:  # noqa: BLE001  an error must reach the reader as an error, not as silence
            self._crash(error)
        finally:
            self._is_stepping = False
        self._process()

    def emit(self, event: EventT) -> None:
        """Pass an event to the machine, at once or after the step that is running."""
        if not self._has_crashed:
            self._events.append(event)
            self._process()

    # What a driver defines

    @abstractmethod
    def _run_command(self, command: CommandT, now: float) -> None:
        """Carry out one command."""

    @abstractmethod
    def _crash(self, error: BaseException) -> None:
        """Handle an exception from the machine, from a command or from a task."""

    def _receive(self, event: EventT, now: float) -> None:
        """Pass one event to the machine."""
        self.machine.receive(event, now=now)

    def _after_step(self, now: float) -> None:
        """Do nothing after a step's commands; subclasses may override this hook."""

    def _next_deadline(self) -> float | None:
        """Return when ``_on_deadline`` should be called next, or None if there is no deadline."""
        return self.machine.next_deadline()

    def _on_deadline(self, now: float) -> None:
        """Handle the deadline, by letting the machine do the work that is due at ``now``."""
        if not self._has_crashed:
            self._events.append(None)
            self._process()

    # The steps of the machine

    def _process(self) -> None:
        """Pass the queued events to the machine in order, and carry out the commands after each event."""
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events:
                event = self._events.popleft()
                now = self._clock()
                if event is None:
                    self.machine.handle_deadline(now=now)
                else:
                    self._receive(event, now)
                self._carry_out(event, now)
        except Exception as error:  # noqa: BLE001  an error must reach the reader as an error, not as silence
            self._crash(error)
        finally:
            self._is_stepping = False

    def _carry_out(self, event: EventT | None, now: float) -> None:
        commands = self.machine.take_commands()
        if self._log is not None:
            self._log.append((now, event, commands))
        for command in commands:
            self._run_command(command, now)
        self._after_step(now)
        self._arm(now)

    def _arm(self, now: float) -> None:
        """Set the timer for the next deadline. A timer that would fire too early is kept, because it is cheaper to set it again then."""
        deadline = None if self._has_crashed or self._is_over else self._next_deadline()
        if self._timer is not None:
            if deadline is not None and self._armed <= deadline:
                return
            self._disarm()
        if deadline is not None:
            self._set_timer(deadline, max(0.0, deadline - now))

    def _set_timer(self, deadline: float, delay: float) -> None:
        self._armed = deadline
        self._timer = self._loop.call_later(delay, self._on_timer)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        now, deadline = self._clock(), self._next_deadline()
        if deadline is None or self._has_crashed:
            return
        if deadline > now:  # it was moved, or the timer fired early, as uvloop's may do by a millisecond
            self._set_timer(deadline, max(_MIN_DELAY, deadline - now))
            return
        self._on_deadline(now)
        if self._timer is None:  # otherwise the step has set it
            self._arm(now)

    def _report_error(self, message: str, error: BaseException) -> None:
        """Report an error that no reader would otherwise see."""
        self._loop.call_exception_handler({"message": message, "exception": error})


class TaskDriver(MachineDriver[EventT, CommandT]):
    """A driver that does its IO in tasks. It is over when its work is done and the last task has ended.

    Args:
        machine: the machine, which must not be started yet.
        on_over: called once when the work is done and all tasks have ended.
        clock: as for ``MachineDriver``.
        log: as for ``MachineDriver``.
    """

    __slots__ = ("_on_over", "_tasks")

    def __init__(
        self,
        machine: Machine[EventT, CommandT],
        *,
        on_over: Callable[[Self], None] | None = None,
        clock: Callable[[], float] | None = None,
        log: StepLog[EventT, CommandT] | None = None,
    ) -> None:
        super().__init__(machine, clock=clock, log=log)
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_over: Callable[[Any], None] | None = on_over

    @property
    def is_over(self) -> bool:
        """True if the work is done and no task is running any more."""
        return self._is_over

    async def aclose(self) -> None:
        """Stop all work and wait until it has ended. This is idempotent. If the caller is cancelled, the work is stopped all the same."""
        self.leave()
        await self._wait_for_tasks()

    @abstractmethod
    def leave(self) -> None:
        """Stop all work without waiting, and drop everything unread."""

    def leave_soon(self) -> None:
        """Schedule ``leave`` from any thread, even from a finaliser. This does nothing if the loop is closed."""
        with suppress(RuntimeError):  # the loop is closed, so no work can run
            self._loop.call_soon_threadsafe(self.leave)

    # What a driver defines

    @abstractmethod
    def _is_done(self) -> bool:
        """Return True if no new task will be started."""

    # Tasks and the end

    def _spawn(self, coroutine: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crash(error)
        self._end_if_idle()

    async def _wait_for_tasks(self) -> None:
        """Wait until no task is running, including tasks that start in the meantime."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _carry_out(self, event: EventT | None, now: float) -> None:
        super()._carry_out(event, now)
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._is_over or self._tasks or not self._is_done():
            return
        self._is_over = True
        self._disarm()
        if self._on_over is not None:
            try:
                self._on_over(self)
            except Exception as error:  # noqa: BLE001  the answer is complete, and an error afterwards must not spoil it
                self._report_error("streamco could not record the end of an answer", error)
