"""Picks a few numbers that represent many."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["equally_likely"]


def equally_likely(ordered: Sequence[float], count: int) -> list[float]:
    """Return ``count`` of the numbers, each from the middle of an equal part of them, or all of them if there are fewer.

    Args:
        ordered: the numbers, ascending.
        count: how many, 0 or more.
    """
    size = len(ordered)
    count = min(count, size)
    return [ordered[(2 * index + 1) * size // (2 * count)] for index in range(count)]
