"""The timer of an event loop's paced answers: on Linux one timerfd, which is late by less than a millisecond and never early.

A loop's own timers wait in ``epoll_wait``, with a timeout of whole milliseconds, and uvloop's may fire a millisecond early. A timerfd has
the kernel's resolution. All answers of a loop share one, with a heap of their deadlines. The first of them opens it, and the last one to
end closes it. Where there is none (another system, a loop that watches no files, no file descriptor left), ``share_timer`` returns None,
and the loop's own timers serve.

After a fork the child's event loop is another one, so it opens a timerfd of its own and leaves the parent's alone.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from itertools import count
from math import ceil, inf
from types import BuiltinFunctionType
from typing import Protocol
from weakref import WeakValueDictionary

__all__ = ["LinuxTimer", "ScheduledRelease", "ReleaseTimer", "WakeFile", "share_timer"]

_FEWEST_TO_DROP = 64  # cancelled deadlines that may stay in the heap however few others there are
_NANOSECONDS = 1_000_000_000
_CLOCK_MONOTONIC, _TFD_TIMER_ABSTIME = 1, 1  # of <time.h> and <sys/timerfd.h>, the same on all of Linux

_pack_times = struct.Struct("4l").pack_into

_log = logging.getLogger("streamco")


class WakeFile(Protocol):
    """A file that becomes readable at a time."""

    def fileno(self) -> int:
        """Return the file descriptor."""
        ...

    def set(self, deadline: float | None) -> None:
        """Be readable from ``deadline`` on (seconds, ``time.monotonic``) and not before; None: not at all."""
        ...

    def close(self) -> None:
        """Close the file; idempotent."""
        ...


class LinuxTimer:
    """A timerfd on the clock of ``time.monotonic``. Implements ``WakeFile``.

    The functions come from the C library, because ``os`` has them from Python 3.13 on only. They are called with the GIL held. They return
    at once, and a GIL that was let go for them might come back milliseconds later from a thread that computes.

    Raises:
        OSError: the system gives no timerfd.
    """

    def __init__(self) -> None:
        self._fd = -1
        library = ctypes.PyDLL(None, use_errno=True)
        try:
            create, self._set_time = library.timerfd_create, library.timerfd_settime
        except AttributeError as error:
            raise OSError("timerfd: expected a C library that has it, got one without") from error
        self._times = (ctypes.c_long * 4)()  # struct itimerspec: interval and time, each in seconds and nanoseconds
        self._fd = create(_CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0:
            raise _system_error()
        self._arguments = self._convert()

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._fd

    def set(self, deadline: float | None) -> None:
        """See ``WakeFile``. A time that has passed makes the file readable at once; setting it takes back that it was readable.

        Raises:
            OSError: the file is closed.
        """
        moment = 0 if deadline is None else max(1, ceil(deadline * _NANOSECONDS))
        _pack_times(self._times, 0, 0, 0, *divmod(moment, _NANOSECONDS))
        if self._set_time(*self._arguments) < 0:
            raise _system_error()

    def _convert(self) -> tuple[object, ...]:
        """Return the arguments of ``timerfd_settime``, converted once: to convert them takes longer than to set the time."""
        address = ctypes.c_void_p(ctypes.addressof(self._times))
        return ctypes.c_int(self._fd), ctypes.c_int(_TFD_TIMER_ABSTIME), address, ctypes.c_void_p(None)

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._arguments = self._convert()
            os.close(fd)

    def __del__(self) -> None:
        """Close the file, if its loop was closed before the answers on it had ended."""
        self.close()


def _system_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"timerfd: {os.strerror(number)}")


class ScheduledRelease:
    """A callback that a ``ReleaseTimer`` will run, in the context of the call that set it.

    Attributes:
        callback: what to run; None: it was run or cancelled.
        context: in which.
    """

    __slots__ = ("_timer", "callback", "context")

    def __init__(self, timer: ReleaseTimer, callback: Callable[[], None]) -> None:
        self._timer = timer
        self.callback: Callable[[], None] | None = callback
        self.context = copy_context()

    def cancel(self) -> None:
        """Don't run the callback; idempotent."""
        if self.callback is not None:
            self.callback = None
            self._timer.count_cancelled()


class ReleaseTimer:
    """The deadlines of one event loop's paced answers. All methods must be called in the loop's thread.

    Args:
        loop: watches the file.
        file: becomes readable at the earliest deadline; closed with the last user.

    Raises:
        NotImplementedError: the loop watches no files.
    """

    clock = staticmethod(time.monotonic)  # in a class, because tools that replace the time look through the globals of modules

    def __init__(self, loop: asyncio.AbstractEventLoop, file: WakeFile) -> None:
        self.loop = loop
        self._file = file
        self._heap: list[tuple[float, int, ScheduledRelease]] = []
        self._numbers = count()  # of equal deadlines the older one comes first
        self._cancelled = 0
        self._set_for = inf  # the time that the file is set for
        self._is_firing = False
        self._users = 0
        Context().run(loop.add_reader, file.fileno(), self._fire)  # no context of one answer lives on in all

    def join(self) -> ReleaseTimer:
        """Count one more user and return the timer; each user must ``leave``."""
        self._users += 1
        return self

    def leave(self) -> None:
        """Close the file if no other user is left. The user's callbacks must be cancelled."""
        self._users -= 1
        if self._users:
            return
        self._heap.clear()
        _timers.pop(id(self.loop), None)
        if not self.loop.is_closed():
            self.loop.remove_reader(self._file.fileno())
        self._file.close()

    def call_at(self, deadline: float, callback: Callable[[], None]) -> ScheduledRelease:
        """Run ``callback`` at ``deadline`` (seconds, ``time.monotonic``) or as soon as possible afterwards, never before."""
        release = ScheduledRelease(self, callback)
        heappush(self._heap, (deadline, next(self._numbers), release))
        if deadline < self._set_for and not self._is_firing:
            self._set(deadline)
        return release

    def count_cancelled(self) -> None:
        """Count a cancelled deadline, and drop all of them if they are the larger part."""
        self._cancelled += 1
        if self._cancelled > _FEWEST_TO_DROP and 2 * self._cancelled > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapify(self._heap)
            self._cancelled = 0

    def _set(self, deadline: float) -> None:
        self._set_for = deadline
        self._file.set(None if deadline == inf else deadline)

    def _fire(self) -> None:
        """Run what is due now. What the callbacks set waits for the loop's next turn, so that other tasks have theirs."""
        now, due = self.clock(), deque[ScheduledRelease]()
        while self._heap and self._heap[0][0] <= now:
            due.append(heappop(self._heap)[2])
        self._is_firing = True
        try:
            while due:
                release = due.popleft()
                callback, release.callback = release.callback, None
                if callback is None:
                    self._cancelled -= 1
                    continue
                try:
                    release.context.run(callback)
                except Exception as error:  # noqa: BLE001  the other answers' tokens are due all the same
                    self.loop.call_exception_handler({"message": "streamco could not release a token", "exception": error})
        finally:
            self._is_firing = False
            for release in due:  # the program is being interrupted; the loop may go on
                heappush(self._heap, (0.0, next(self._numbers), release))
            if self._users:  # the last user may have left
                self._set(self._heap[0][0] if self._heap else inf)


_timers: WeakValueDictionary[int, ReleaseTimer] = (
    WeakValueDictionary()
)  # by the loop's id; a timer keeps its loop, so that the id stays its


def share_timer(
    loop: asyncio.AbstractEventLoop, clock: Callable[[], float], *, make_file: Callable[[], WakeFile] = LinuxTimer
) -> ReleaseTimer | None:
    """Return the loop's timer after counting one more user; each must ``leave`` it. None: the loop's own timers must serve.

    Args:
        loop: the running loop.
        clock: the clock of the deadlines; any but ``time.monotonic`` needs the loop's timers, also what a program has put in its place.
        make_file: makes the file that wakes the loop.
    """
    if clock is not ReleaseTimer.clock or not isinstance(clock, BuiltinFunctionType) or sys.platform != "linux":
        return None
    timer = _timers.get(id(loop))
    if timer is None:
        try:
            timer = _open_timer(loop, make_file())
        except (OSError, NotImplementedError) as error:
            _log.debug("a paced answer uses the loop's own timers: %s", str(error) or type(error).__name__)
            return None
        _timers[id(loop)] = timer
    return timer.join()


def _open_timer(loop: asyncio.AbstractEventLoop, file: WakeFile) -> ReleaseTimer:
    try:
        return ReleaseTimer(loop, file)
    except BaseException:
        file.close()
        raise
