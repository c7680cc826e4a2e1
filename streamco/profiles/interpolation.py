"""Interpolation of measured curves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["interpolate"]


def interpolate(points: Sequence[tuple[int, float]], count: float) -> float:
    """Interpolate linearly between points. Before the first one, its value applies; after the last one, the last slope continues.

    Args:
        points: (count, value) with ascending counts, at least one; a single value applies everywhere.
        count: where to read the curve.
    """
    index = bisect_left(points, count, key=lambda point: point[0])
    if index < len(points) and points[index][0] == count:
        return points[index][1]
    if index == 0 or len(points) == 1:
        return points[0][1]
    low, high = points[min(index, len(points) - 1) - 1], points[min(index, len(points) - 1)]
    return low[1] + (high[1] - low[1]) * (count - low[0]) / (high[0] - low[0])
