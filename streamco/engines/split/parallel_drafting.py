"""Decides whether a device continues drafting while a verdict is out (HAT, section 3.5). Belongs to the engine's thread.

In the paper, a device always does, because its processor is idle until the verdict comes. But a server on the same machine computes with
that processor. It is idle only while data is on the link, so branches need a link that takes at least as long as one draft step. They must
also match verdicts now and then, because a device has other uses for its processor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from streamco.core.speculation.averages import DecayedRatio

__all__ = ["ParallelDrafting"]

_TOKENS = 3  # at each position; docs/research/split.md shows what they gain
_ENOUGH = 16  # rounds with branches before which they aren't given up
_FEWEST_HITS = 0.1  # of the verdicts on rounds with branches
_PROBE = 16  # rounds, one of which has branches if they are seldom right
_MEMORY = 0.98  # weight of a round after the next one


class ParallelDrafting:
    """Decides how many branches begin at each position of a draft, for all answers of an engine.

    Args:
        tokens: number of tokens at each position that begin branches, 0 or more; "auto" for three, in rounds where that is worth it.
        round_trip: returns for how many seconds of a wait for a verdict the server computes nothing; 0 if not measured.
    """

    def __init__(self, tokens: int | Literal["auto"], round_trip: Callable[[], float]) -> None:
        self._tokens: int | Literal["auto"] = tokens
        self._round_trip = round_trip
        self._hits = DecayedRatio(_MEMORY)
        self._rounds = 0  # with branches
        self._skipped = 0  # rounds in a row

    def tokens(self, step_seconds: float) -> int:
        """Return how many tokens at each position begin branches in the next round, or 0 if no branches should be drafted.

        Args:
            step_seconds: time of a draft step; 0 if not known.
        """
        if self._tokens != "auto":
            return self._tokens
        if not 0.0 < step_seconds <= self._round_trip():
            return 0
        if self._rounds >= _ENOUGH and self._hits.value < _FEWEST_HITS:
            self._skipped = (self._skipped + 1) % _PROBE
            return 0 if self._skipped else _TOKENS
        self._skipped = 0
        return _TOKENS

    def record_verdict(self, *, is_hit: bool) -> None:
        """Record whether the verdict on a round with branches matched one of them."""
        self._rounds += 1
        self._hits.record(float(is_hit))
