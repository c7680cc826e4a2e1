"""How long to wait before a connection is tried again, as often as it takes."""

from __future__ import annotations

from random import Random

__all__ = ["Backoff"]

_LONGEST_WISH = 60.0  # seconds; a server that asks for more is asked sooner


class Backoff:
    """Seconds to wait before the next try: exponential, with full jitter; the first comes at once.

    Args:
        first, longest: seconds; ceilings of the second wait and of any.
        rng: dice.
    """

    def __init__(self, first: float, longest: float, rng: Random) -> None:
        self._first = first
        self._longest = longest
        self._rng = rng
        self._tries = 0

    def next_wait(self, wished: float | None = None) -> float:
        """The wait; what the server wishes goes first, up to a minute."""
        self._tries += 1
        if wished is not None:
            return min(wished, _LONGEST_WISH)
        if self._tries == 1:
            return 0.0
        return self._rng.uniform(0.0, min(self._longest, self._first * 2.0 ** (self._tries - 2)))
