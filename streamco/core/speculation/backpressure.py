"""Holds back new rounds while the reader has much left to read, so that no tokens are generated that may never be read.

A round that has started is finished. A draft that is ready waits until the reader catches up. The waiting time is counted neither as
drafting nor as streaming.
"""

from __future__ import annotations

from streamco.core.speculation.fallback_stream import TimeAccount

__all__ = ["Backpressure"]


class Backpressure:
    """Decides whether the next round of an answer is held back.

    Args:
        time_account: leaves out the time in which a round was held back.

    Attributes:
        is_requested: True while the reader has much left to read.
    """

    def __init__(self, time_account: TimeAccount) -> None:
        self._time_account = time_account
        self.is_requested = False
        self._held_since: float | None = None

    def request(self, *, is_streaming: bool, now: float) -> None:
        """Record that the reader has much left to read. ``is_streaming`` says whether a remote stream is open, which then isn't read."""
        self.is_requested = True
        if is_streaming:
            self._held_since = now

    def should_hold(self, *, now: float) -> bool:
        """Return True if the round that could start now must be held back."""
        if self.is_requested and self._held_since is None:
            self._held_since = now
        return self.is_requested

    def release(self, *, now: float) -> bool:
        """Record that the reader has caught up, and return True if a round or the remote stream was held back."""
        since, self._held_since, self.is_requested = self._held_since, None, False
        if since is not None:
            self._time_account.skip(since, now=now)
        return since is not None
