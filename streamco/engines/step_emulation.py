"""Imposed step times: a small model that takes as long as a large one.

Without IO or clock; the engine's thread asks when a step may end and waits for it. One round of the engine (a decode of all writers, then
a chunk of one prompt) counts as one step of the large model, which would put both into one batch.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

__all__ = ["StepEmulator", "StepTime"]

StepTime = Callable[[int, int], float]  # (decode rows, prefill tokens) -> seconds


class StepEmulator:
    """When the steps of one engine may end.

    Args:
        step_time: seconds of one step; None: steps take what they take.
    """

    def __init__(self, step_time: StepTime | None) -> None:
        self._step_time = step_time
        self._ends: float | None = None
        self._rows = 0
        self._charged = 0.0

    def begin_round(self, *, was_idle: bool) -> None:
        """A new step. It begins where the last one ended, so that lateness doesn't add up; after idling, with its first decode."""
        self._rows = 0
        self._charged = 0.0
        if was_idle:
            self._ends = None

    def due(self, rows: int, prefill_tokens: int, *, started: float, now: float, asked: float = -inf) -> float:
        """When the results of this decode may be shown; not later than ``now`` when it has already taken long enough.

        Args:
            rows: sequences that decoded a token.
            prefill_tokens: prompt tokens decoded.
            started: when the decode began, seconds.
            now: when it ended, same clock.
            asked: when the last of what it holds was asked for, same clock: a step doesn't begin before that.
        """
        if self._step_time is None:
            return now
        self._rows += rows
        cost = self._step_time(self._rows, prefill_tokens)
        begin = started if self._ends is None else max(self._ends, asked)
        due = begin + max(0.0, cost - self._charged)
        self._charged = max(self._charged, cost)
        self._ends = max(due, now)
        return due

    def end_early(self, now: float) -> None:
        """Nobody waits for the step any more; the next one begins now."""
        if self._ends is not None:
            self._ends = min(self._ends, now)
