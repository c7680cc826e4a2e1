"""Imposed step times: a small model that takes as long as a large one.

There is no IO and no clock here: the engine's thread asks when a step may end, and waits until then. In each round, the engine decodes a
token for every sequence that is writing, then a chunk of one prompt. A round counts as one step of the large model, which would put both
into one batch.
"""

from __future__ import annotations

from math import inf

from streamco.engines.base import StepTime

__all__ = ["StepEmulator"]


class StepEmulator:
    """Computes when the steps of one engine may end. Implements ``StepPace``.

    Args:
        step_time: function from (decode rows, prefill tokens) to the seconds of one step. Rows of verifications count as prefill tokens.
    """

    def __init__(self, step_time: StepTime) -> None:
        self.step_time = step_time
        self._ends: float | None = None
        self._rows = 0
        self._charged = 0.0

    def begin_round(self, *, was_idle: bool) -> None:
        """Begin a step at the end of the last one, so that delays don't add up, or, after idling, at its first decode."""
        self._rows = 0
        self._charged = 0.0
        if was_idle:
            self._ends = None

    def due(self, rows: int, prefill_tokens: int, *, started: float, now: float, requested: float = -inf) -> float:
        """Return when the results of this decode may be shown: ``now`` or earlier if it has taken long enough.

        Args:
            rows: number of sequences that decoded a token.
            prefill_tokens: number of prompt tokens decoded.
            started: time when the decode began, in seconds.
            now: time when it ended, on the same clock.
            requested: time when the most recent work in it was requested, on the same clock. A step doesn't begin before that.
        """
        self._rows += rows
        cost = self.step_time(self._rows, prefill_tokens)
        begin = started if self._ends is None else max(self._ends, requested)
        due = begin + max(0.0, cost - self._charged)
        self._charged = max(self._charged, cost)
        self._ends = max(due, now)
        return due

    def end_early(self, now: float) -> None:
        """End the step by ``now``, because no work is waiting for it. The next one begins then."""
        if self._ends is not None:
            self._ends = min(self._ends, now)
