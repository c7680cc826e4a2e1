"""Picks a few numbers that represent many others."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["equally_likely"]


def equally_likely(ordered: Sequence[float], count: int) -> list[float]:
    """Split the numbers into ``count`` equal parts and return the middle one of each, or all numbers if there are fewer.

    Args:
        ordered: the numbers, ascending.
        count: how many to return, 0 or more.
    """
    size = len(ordered)
    count = min(count, size)
    return [ordered[(2 * index + 1) * size // (2 * count)] for index in range(count)]
