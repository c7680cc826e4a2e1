"""A reader who is far behind: the next round waits, so that nothing is made that may never be read.

What was begun is finished; a chunk that is drafted stays where it is until the reader catches up, and no token is asked for without one.
The time in between is nobody's.
"""

from __future__ import annotations

from streamco.core.speculation.fallback_stream import TimeAccount

__all__ = ["Backpressure"]


class Backpressure:
    """Whether an answer rests.

    Args:
        ledger: is told of time that doesn't count.

    Attributes:
        is_wanted: the reader is far behind.
    """

    def __init__(self, ledger: TimeAccount) -> None:
        self._ledger = ledger
        self.is_wanted = False
        self._since: float | None = None

    def want(self, *, is_streaming: bool, now: float) -> None:
        """The reader is far behind; ``is_streaming``: a plain stream runs, which is not read on from now."""
        self.is_wanted = True
        if is_streaming:
            self._since = now

    def begins(self, *, now: float) -> bool:
        """Return a chunk is drafted, or none is needed: whether it waits."""
        if self.is_wanted and self._since is None:
            self._since = now
        return self.is_wanted

    def end(self, *, now: float) -> bool:
        """Return the reader has caught up; gives whether anything waited."""
        since, self._since, self.is_wanted = self._since, None, False
        if since is not None:
            self._ledger.skip(since, now=now)
        return since is not None
