"""Row costs as they are sent: how long a server takes for batches of different numbers of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from streamco.profiles.row_costs import RowCosts

__all__ = ["COSTS_BYTES", "RowCost", "RowCostTable", "costs_of_table", "table_of_costs"]

_MICROSECONDS = 1e6
_MAX_NUMBER = (1 << 32) - 1
_MAX_SIZES = 64

Positive = Annotated[int, Meta(ge=1, le=_MAX_NUMBER)]


class RowCost(Struct, frozen=True, array_like=True):
    """How long a server takes for a batch of ``rows`` rows, in microseconds."""

    rows: Positive
    microseconds: Positive


RowCostTable = Annotated[tuple[RowCost, ...], Meta(max_length=_MAX_SIZES)]
"""The ``RowCost`` of each measured batch size."""

COSTS_BYTES = 3 + _MAX_SIZES * 11
"""Maximum size of a ``RowCostTable`` in bytes."""


def table_of_costs(costs: Mapping[int, float]) -> tuple[RowCost, ...]:
    """Convert a mapping from rows to seconds to a table. Only the 64 smallest batch sizes are kept."""
    return tuple(RowCost(rows, min(max(1, round(costs[rows] * _MICROSECONDS)), _MAX_NUMBER)) for rows in sorted(costs)[:_MAX_SIZES])


def costs_of_table(table: tuple[RowCost, ...]) -> RowCosts | None:
    """Return the costs listed in a table, or None if it is empty."""
    return RowCosts({cost.rows: cost.microseconds / _MICROSECONDS for cost in table}) if table else None
