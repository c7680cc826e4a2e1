"""Figures that reports of raced and of speculated answers compute alike."""

from __future__ import annotations

from collections.abc import Iterable

from streamco.core.report_parts import Ending

__all__ = ["answer_ending", "total_cost"]


def total_cost(costs: Iterable[float | None]) -> float | None:
    """Return the sum of the costs; None: one of them is not known."""
    known = []
    for cost in costs:
        if cost is None:
            return None
        known.append(cost)
    return sum(known)


def answer_ending(*, was_left: bool, error: Exception | None, finished: float | None) -> Ending | None:
    """Return how an answer ended; None: it has not.

    Args:
        was_left: True if the reader left before the end.
        error: what the answer ended with; None: no error.
        finished: when it ended; None: not yet.
    """
    if was_left:
        return "left"
    if error is not None:
        return "failed"
    return None if finished is None else "complete"
