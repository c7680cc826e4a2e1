"""A round of a split session that hasn't been answered yet, with the states that have been computed for it so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamco.wire.split.frames import Rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["PendingRound"]


class PendingRound:
    """One frame of rows that hasn't been answered yet.

    Args:
        rows: the frame.
        turn: number of the round in its session, over all connections.
        is_prompt: True if it is read like a prompt.
        arrived: time when it arrived.
    """

    def __init__(self, rows: Rows, turn: int, *, is_prompt: bool, arrived: float) -> None:
        self.rows = rows
        self.turn = turn
        self.is_prompt = is_prompt
        self.arrived = arrived
        self.done = rows.position  # end of the rows computed so far
        self.computed = 0.0  # seconds of its batches
        self.found: list[NDArray[np.float32]] = []  # states of the wanted rows so far
        self.is_refused = False

    def slice_of(self, start: int, end: int) -> NDArray[np.float32]:
        """Return the states of the frame's rows from position ``start`` to ``end``."""
        first = self.rows.position
        return self.rows.states[max(0, start - first) : max(0, end - first)]

    def keep(self, states: NDArray[np.float32], start: int, seconds: float) -> None:
        """Keep the wanted rows of a batch's states, which begin at position ``start``. The batch took ``seconds``."""
        end = min(self.rows.end, start + len(states))
        first = max(self.done, self.rows.end - self.rows.wanted)
        if first < end:
            self.found.append(states[first - start : end - start].copy())
        self.done = end
        self.computed += seconds
