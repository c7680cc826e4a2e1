"""Time limits for waiting, by phase, with a single loop timer per stream.

A limit is a moving deadline. Resetting a timer for each network read, or wrapping each read in ``asyncio.timeout``, costs more than the
read itself. So a read changes only a few numbers. When the timer fires, it checks whether its deadline has moved, and sets itself again.

Only waiting counts: the clock stops while no task awaits the stream, so a slow reader is never mistaken for a stalled server. Only content
resets the token limits. Keep-alive comments, role deltas and empty chunks only reset the socket limit, because servers send those for
minutes while nothing happens (DeepSeek, OpenRouter). Nothing resets the limit for the whole answer, which includes retries.

After the loop was blocked, a limit counts as exceeded only after a second check (``endpoints.network.peer_timeout``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Literal

from streamco.config import Timeouts
from streamco.endpoints.network.peer_timeout import SecondLook
from streamco.errors import EndpointTimeoutError

__all__ = ["Watchdog"]


def _ignore(_error: EndpointTimeoutError) -> None:
    """Do nothing, because the stream is over."""


class Watchdog:
    """Enforces the time limits of one stream, which owns it.

    Args:
        loop: the event loop for the clock and the timers.
        timeouts: ``first_token``, ``next_token``, ``socket`` and ``total``, in seconds; the other limits are enforced elsewhere.
        on_expired: called once with the error when a limit is exceeded; it must end the wait.
        elapsed: how many seconds of ``total`` other endpoints of the same answer have already used.
    """

    __slots__ = (
        "_armed_for",
        "_bytes_since",
        "_content_limit",
        "_content_since",
        "_handle",
        "_idle",
        "_is_nearer",
        "_is_stopped",
        "_is_suspended",
        "_look",
        "_loop",
        "_next_limit",
        "_on_expired",
        "_paused_at",
        "_phase",
        "_socket_limit",
        "_timeouts",
        "_total_limit",
        "_total_since",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timeouts: Timeouts,
        on_expired: Callable[[EndpointTimeoutError], None],
        elapsed: float = 0.0,
    ) -> None:
        self._loop = loop
        self._timeouts = timeouts
        self._on_expired = on_expired
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = inf
        self._is_nearer = True  # True if the deadline may be earlier than the timer's
        self._next_limit = inf if timeouts.next_token is None else timeouts.next_token
        self._total_limit = inf if timeouts.total is None else timeouts.total
        self._paused_at: float | None = loop.time()
        self._idle = 0.0  # seconds without a waiter; the times named "since" have it taken off, so that only waiting counts
        self._total_since = self._paused_at - elapsed
        self._is_stopped = False
        self._look = SecondLook()
        self.restart()

    @property
    def idle(self) -> float:
        """Seconds so far in which no task was waiting; continues to count after ``stop``."""
        return self._idle if self._paused_at is None else self._idle + self._loop.time() - self._paused_at

    def restart(self) -> None:
        """Begin a new attempt, which waits for a first token again; all limits except the total start again."""
        now = self._loop.time()
        first = self._timeouts.first_token
        self._content_limit = inf if first is None else first
        self._socket_limit = inf if self._timeouts.socket is None else self._timeouts.socket
        self._phase: Literal["first_token", "next_token"] = "first_token"
        self._content_since = self._bytes_since = now - self._idle
        self._is_suspended = False
        self._is_nearer = True
        if self._paused_at is None:
            self._watch()
        else:
            self._paused_at = now

    def suspend(self) -> None:
        """Expect nothing from the server until ``restart`` (during the wait before a retry); only the total keeps counting."""
        self._is_suspended = True

    def resume(self) -> None:
        """Start the clock, because a task begins to wait."""
        paused_at = self._paused_at
        if paused_at is not None:
            self._idle += self._loop.time() - paused_at
            self._paused_at = None
        if self._is_nearer or self._handle is None:
            self._watch()

    def pause(self) -> None:
        """Stop the clock, because no task waits any more."""
        self._paused_at = self._loop.time()

    def charge(self, seconds: float) -> None:
        """Count idle seconds towards the total, because the reader was waiting in that time, though not for this stream."""
        self._idle -= seconds
        self._content_since += seconds  # so that only the total counts them
        self._bytes_since += seconds
        self._is_nearer = True

    def feed(self, *, has_content: bool) -> None:
        """Record that bytes arrived; must be called between ``pause`` and ``resume``.

        Args:
            has_content: True if the bytes contained tokens of the answer.
        """
        assert self._paused_at is not None, "feed comes after pause"
        since = self._bytes_since = self._paused_at - self._idle
        if has_content:
            self._content_since = since
            if self._phase == "first_token" or self._content_limit != self._next_limit:
                self._content_limit, self._phase, self._is_nearer = self._next_limit, "next_token", True

    def expect_end(self, limit: float) -> None:
        """Wait at most ``limit`` seconds for the formal end of an answer that is otherwise complete."""
        self._content_since = (self._loop.time() if self._paused_at is None else self._paused_at) - self._idle
        self._content_limit = min(self._content_limit, limit)
        self._is_nearer = True

    def expect_whole(self, limit: float) -> None:
        """Allow ``limit`` seconds for this attempt if the usual limits are shorter, because the answer only arrives as a whole."""
        self._content_limit = max(self._content_limit, limit)
        self._socket_limit = max(self._socket_limit, limit)

    def stop(self) -> None:
        """Stop watching; idempotent."""
        self._is_stopped = True
        self._on_expired = _ignore  # it refers to the stream, which refers to this, a cycle that only the garbage collector would free
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _deadline(self) -> float:
        if self._is_stopped:
            return inf
        total = self._total_since + self._total_limit
        if self._is_suspended:
            return total + self._idle
        return min(self._content_since + self._content_limit, self._bytes_since + self._socket_limit, total) + self._idle

    def _watch(self) -> None:
        self._is_nearer = False
        deadline = self._deadline()
        if self._handle is None:
            self._arm(deadline)
        elif deadline < self._armed_for and not self._look.is_pending:
            self._handle.cancel()
            self._arm(deadline)

    def _arm(self, deadline: float) -> None:
        self._armed_for = deadline
        self._handle = None if deadline == inf else self._loop.call_at(deadline, self._check)

    def _check(self) -> None:
        self._handle = None
        if self._paused_at is not None:
            return  # the next resume sets the timer again
        now, deadline = self._loop.time(), self._deadline()
        if now < deadline:
            self._look.reset()
            self._arm(deadline)
            return
        error = self._error(deadline)
        again = self._look.wait(now - self._armed_for, error.limit)
        if again is not None:
            self._arm(now + again)
            return
        self._is_stopped = True
        self._on_expired(error)

    def _error(self, deadline: float) -> EndpointTimeoutError:
        if deadline == self._total_since + self._total_limit + self._idle:
            text = f"expected the whole answer within {self._total_limit:g} s, got no end"
            return EndpointTimeoutError(text, phase="total", limit=self._total_limit)
        limit, wanted = self._content_limit, "the first token" if self._phase == "first_token" else "the next token"
        if self._bytes_since + self._socket_limit < self._content_since + limit:
            limit, wanted = self._socket_limit, "bytes of any kind"
        return EndpointTimeoutError(f"expected {wanted} within {limit:g} s, got none", phase=self._phase, limit=limit)
