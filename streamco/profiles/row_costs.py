"""Row costs: how long a batch takes, by its number of rows. Windows, chunks and batches are planned with them.

On a GPU a few more rows cost almost nothing (docs/research/hardware.md). On a CPU the costs are a staircase: kernels work in tiles
of several rows, so four rows may cost less than three. A batch is then padded up to the next cheaper size (``padded_size``), and the
additional rows are free.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

from streamco.profiles.interpolation import interpolate

__all__ = ["PADDING_GAIN", "RowCosts", "padded_costs", "padded_size", "split_costs", "useful_sizes"]

PADDING_GAIN = 0.95
"""Pad a batch only if the padded batch costs at most this share of the original, so that padding pays despite measurement errors."""


class RowCosts:
    """The seconds that a server takes to compute a batch, by its number of rows, interpolated between measured sizes (g in equation 2).

    Args:
        measured: seconds by number of rows, for at least one size. A batch that was measured as cheaper than a smaller one is assumed to
            cost as much as the smaller one.

    Raises:
        ValueError: there is no size, a size is below 1, or a time isn't above 0.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        if not measured or min(measured) < 1 or not all(seconds > 0 for seconds in measured.values()):
            raise ValueError(f"row costs: expected seconds above 0 for 1 row and more, got {dict(measured)}")
        self.rows: list[int] = sorted(measured)
        self._points = list(zip(self.rows, accumulate((measured[rows] for rows in self.rows), max), strict=True))

    def seconds(self, rows: float) -> float:
        """Return how many seconds a batch takes.

        The result is at least the time of the smallest size, or 0 for 0 rows. Beyond the largest size, the last slope continues.
        """
        if rows <= 0:
            return 0.0
        if len(self._points) == 1:
            return self._points[0][1] * max(1.0, rows / self.rows[0])
        return interpolate(self._points, rows)

    def scaled(self, factor: float) -> RowCosts:
        """Return costs that are ``factor`` times as high."""
        return RowCosts({rows: factor * seconds for rows, seconds in self._points})

    def row_seconds(self, rows: int) -> float:
        """Return the seconds per row in a batch of this many rows."""
        return self.seconds(rows) / rows


def padded_size(measured: Mapping[int, float], rows: int) -> int:
    """Return the number of rows that a batch of ``rows`` should have: more if a larger measured size is cheaper, else ``rows``.

    Args:
        measured: seconds by number of rows, as measured; a smaller batch may cost more. Sizes in between are interpolated.
        rows: rows that are needed, at least 1.
    """
    points = sorted(measured.items())
    if not points or rows >= points[-1][0]:
        return rows
    larger = points[bisect_left(points, rows + 1, key=lambda point: point[0]) :]
    size, seconds = min(larger, key=lambda point: (point[1], point[0]))
    return size if seconds <= PADDING_GAIN * interpolate(points, rows) else rows


def padded_costs(measured: Mapping[int, float]) -> dict[int, float]:
    """Return how many seconds padded batches take, by number of rows, from 1 to the largest measured size."""
    points = sorted(measured.items())
    return {rows: interpolate(points, padded_size(measured, rows)) for rows in range(1, points[-1][0] + 1)} if points else {}


def split_costs(measured: Mapping[int, float], largest: int) -> dict[int, float]:
    """Return how many seconds rows take, by their number, if they are computed in batches of 2 to ``largest`` rows, as in exact mode.

    Args:
        measured: seconds by number of rows, as measured, at least one size.
        largest: number of rows in the largest batch, at least 1.
    """
    points = sorted(measured.items())
    last = points[-1][0]

    def seconds(rows: int) -> float:
        whole, rest = divmod(rows, largest)
        return whole * interpolate(points, max(2, largest)) + (interpolate(points, max(2, rest)) if rest else 0.0)

    return {rows: seconds(rows) for rows in range(1, last + 1)}


def useful_sizes(costs: Mapping[int, float], *, largest: int = 16) -> list[int]:
    """Return the sizes whose cost per row is lower than their neighbours', ascending. They are the ends of the stairs, if there are any.

    Args:
        costs: seconds by number of rows, for each size from 1 up.
        largest: the largest size to consider.
    """
    each = {rows: seconds / rows for rows, seconds in costs.items()}
    found = [rows for rows in range(2, largest + 1) if rows - 1 in each and rows + 1 in each]
    return [rows for rows in found if each[rows] < each[rows - 1] and each[rows] <= PADDING_GAIN * each[rows + 1]]
