"""Backpressure: no new round starts while the reader has much left to read, so that no tokens are generated that may never be read.

A round that has started is finished. A drafted chunk stays where it is until the reader catches up. The time in between is charged neither
to drafting nor to the stream.
"""

from __future__ import annotations

from streamco.core.speculation.fallback_stream import TimeAccount

__all__ = ["Backpressure"]


class Backpressure:
    """Decides whether the next round of an answer is held back.

    Args:
        time_account: skips the time in which a round was held back.

    Attributes:
        is_requested: the reader has much left to read.
    """

    def __init__(self, time_account: TimeAccount) -> None:
        self._time_account = time_account
        self.is_requested = False
        self._held_since: float | None = None

    def request(self, *, is_streaming: bool, now: float) -> None:
        """Record that the reader has much left to read. If ``is_streaming``, a remote stream is open, which isn't read from now on."""
        self.is_requested = True
        if is_streaming:
            self._held_since = now

    def should_hold(self, *, now: float) -> bool:
        """Return True if a round that could start now is held back."""
        if self.is_requested and self._held_since is None:
            self._held_since = now
        return self.is_requested

    def release(self, *, now: float) -> bool:
        """Record that the reader has caught up; return True if a round or the remote stream was held back."""
        since, self._held_since, self.is_requested = self._held_since, None, False
        if since is not None:
            self._time_account.skip(since, now=now)
        return since is not None
