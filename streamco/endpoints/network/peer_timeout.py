"""Time limits for the silence of a peer, which check twice before they call it silent.

If the event loop is blocked for longer than a limit, because another task computes or the process was stopped, the limit's timer fires
before the loop has read the data in the socket: with uvloop before it has polled the socket at all, with asyncio before the waiting task
has run. But the peer wasn't silent. So if a timer is late by more than a certain part of its limit, the peer gets the same part of the
limit again, in which the loop reads what has arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

__all__ = ["PeerTimeout", "PeerTimer", "SecondLook"]

_PART = 0.1  # of a limit: a timer that is later than this was delayed, and the peer gets this much more time
_MAX_LOOKS = 3  # in a row, so that an app that blocks its loop again and again still notices a dead peer


class SecondLook:
    """Decides, when a limit's timer fires, whether the limit has been exceeded or must be checked again."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks = 0

    @property
    def is_pending(self) -> bool:
        """True if the limit will be checked again."""
        return self._looks > 0

    def reset(self) -> None:
        """Record that the peer wasn't silent."""
        self._looks = 0

    def wait(self, late: float, limit: float) -> float | None:
        """Return the seconds until the limit must be checked again, or None if it is exceeded.

        Args:
            late: seconds by which the timer was late.
            limit: the limit in seconds.
        """
        if late <= _PART * limit or self._looks >= _MAX_LOOKS:
            self._looks = 0
            return None
        self._looks += 1
        return _PART * limit


class PeerTimer:
    """Calls a function once a peer has been silent for longer than a limit, unless it is cancelled first.

    Args:
        loop: the event loop.
        limit: the limit in seconds.
        on_silence: the function, called in the loop.
    """

    __slots__ = ("_due", "_handle", "_limit", "_look", "_loop", "_on_silence")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float, on_silence: Callable[[], None]) -> None:
        self._loop = loop
        self._limit = limit
        self._on_silence = on_silence
        self._look = SecondLook()
        self._handle: asyncio.TimerHandle | None = None
        self._arm(limit)

    def cancel(self) -> None:
        """Cancel the timer; idempotent."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        self._handle = self._loop.call_at(self._due, self._fire)

    def _fire(self) -> None:
        self._handle = None  # it refers to this method, a cycle that only the garbage collector would free
        wait = self._look.wait(self._loop.time() - self._due, self._limit)
        if wait is None:
            self._on_silence()
        else:
            self._arm(wait)


class PeerTimeout:
    """A time limit for waiting for a peer in an ``async with`` block, used like ``asyncio.timeout``.

    Args:
        limit: the limit in seconds, or None.

    Raises:
        TimeoutError: at the end of the block, if the limit was exceeded inside it.
    """

    __slots__ = ("_limit", "_loop", "_scope", "_timer")

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._scope = asyncio.timeout(None)
        self._timer: PeerTimer | None = None

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()
        if self._limit is not None:
            self._loop = asyncio.get_running_loop()
            self._timer = PeerTimer(self._loop, self._limit, self._expire)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None  # another such cycle
        await self._scope.__aexit__(kind, error, traceback)

    def _expire(self) -> None:
        self._scope.reschedule(self._loop.time())
