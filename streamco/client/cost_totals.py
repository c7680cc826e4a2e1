"""Figures that the reports of raced and speculated answers compute in the same way."""

from __future__ import annotations

from collections.abc import Iterable

from streamco.core.report_parts import Ending

__all__ = ["answer_ending", "total_cost"]


def total_cost(costs: Iterable[float | None]) -> float | None:
    """Return the sum of the costs, or None if one of them isn't known."""
    known = []
    for cost in costs:
        if cost is None:
            return None
        known.append(cost)
    return sum(known)


def answer_ending(*, was_left: bool, error: Exception | None, finished: float | None) -> Ending | None:
    """Return how an answer ended, or None if it hasn't.

    Args:
        was_left: True if the reader left before the end.
        error: the error that the answer ended with, or None.
        finished: when it ended, or None if it hasn't.
    """
    if was_left:
        return "left"
    if error is not None:
        return "failed"
    return None if finished is None else "complete"
