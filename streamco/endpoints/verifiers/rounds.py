"""The rounds of a verifier session that have no verdict yet, and the time limit for a verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streamco.config import Timeouts
from streamco.core.speculation.events import ExpectedVerdict
from streamco.endpoints.network.peer_timeout import PeerTimer

__all__ = ["OpenRounds"]


class OpenRounds:
    """The rounds of one session that have no verdict yet; owned by ``RemoteVerifierSession``.

    Args:
        loop: the event loop for the timers.
        timeouts: ``first_token`` limits the first round on a context, because the server reads the context first; ``next_token`` limits
            the others.
        on_timeout: called when no verdict has arrived in time.
    """

    __slots__ = ("_loop", "_on_timeout", "_timeouts", "_timer", "ahead", "has_verdict", "last_verdict", "number")

    def __init__(self, loop: asyncio.AbstractEventLoop, timeouts: Timeouts, on_timeout: Callable[[], None]) -> None:
        self.number: int | None = None
        """The speculator's number for the round that the server is working on, or None."""
        self.ahead: dict[int, int] = {}
        """The drafts sent in advance after that round, as a dict from their numbers on the wire to the speculator's numbers."""
        self.last_verdict: ExpectedVerdict | None = None
        """The verdict on the previous round."""
        self.has_verdict = False
        """True if the server has given a verdict on this context, so that it has read all of it."""
        self._loop = loop
        self._timeouts = timeouts
        self._on_timeout = on_timeout
        self._timer: PeerTimer | None = None

    def begin(self, number: int) -> None:
        """Record that the server is working on this round, and limit the wait for its verdict."""
        self.number = number
        limit = self._timeouts.next_token if self.has_verdict else self._timeouts.first_token
        if limit is not None:
            self._timer = PeerTimer(self._loop, limit, self._expire)

    def end(self) -> int | None:
        """End the round that the server was working on and return its number, or None (and change nothing) if there was none."""
        number, self.number = self.number, None
        if number is not None:
            self._stop_timer()
        return number

    def clear(self) -> None:
        """Forget all open rounds."""
        self.number = None
        self._stop_timer()
        self.ahead.clear()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer, self.number = None, None
        self._on_timeout()
