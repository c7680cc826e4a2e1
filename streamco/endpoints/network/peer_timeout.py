"""Limits on the silence of a peer, which look twice before they call it silent.

If the event loop stands still for longer than a limit, because some other task computes or the process was stopped, the timer of that limit
fires before the loop has read what lies in the socket: with uvloop before it has asked the socket at all, with asyncio before the task that
waits has run. The peer was never silent then. So a timer that comes late by more than a part of its limit gives the peer the same part once
more, in which the loop reads what has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

__all__ = ["PeerTimeout", "PeerTimer", "SecondLook"]

_PART = 0.1  # of a limit: lateness that is no accident, and what the peer then has
_MAX_LOOKS = 3  # in a row: an app that blocks its loop again and again must still hear of a dead peer


class SecondLook:
    """Decides whether a limit is over when its timer fires, or must be looked at again."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks = 0

    @property
    def is_pending(self) -> bool:
        """True if the limit will be looked at again."""
        return self._looks > 0

    def reset(self) -> None:
        """Record that the peer wasn't silent."""
        self._looks = 0

    def wait(self, late: float, limit: float) -> float | None:
        """Return the seconds until the limit must be looked at again. None: it is over.

        Args:
            late: seconds by which the timer came late.
            limit: seconds that the peer had.
        """
        if late <= _PART * limit or self._looks >= _MAX_LOOKS:
            self._looks = 0
            return None
        self._looks += 1
        return _PART * limit


class PeerTimer:
    """Calls a function once a peer was silent for longer than a limit, unless it is cancelled before.

    Args:
        loop: the event loop.
        limit: seconds.
        on_silence: called in the loop.
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
        """Call nothing; idempotent."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        self._handle = self._loop.call_at(self._due, self._fire)

    def _fire(self) -> None:
        self._handle = None  # which holds this method: a cycle that the garbage collector would have to find
        wait = self._look.wait(self._loop.time() - self._due, self._limit)
        if wait is None:
            self._on_silence()
        else:
            self._arm(wait)


class PeerTimeout:
    """A limit on waiting for a peer inside ``async with``, used like ``asyncio.timeout``.

    Args:
        limit: seconds. None: no limit.

    Raises:
        TimeoutError: at the end of the block, if the limit was over inside it.
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
