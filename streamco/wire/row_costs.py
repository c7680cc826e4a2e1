"""Row costs on the wire: a server's price list for batches, by their number of rows."""

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
    """The cost of a batch at a server."""

    rows: Positive
    microseconds: Positive


RowCostTable = Annotated[tuple[RowCost, ...], Meta(max_length=_MAX_SIZES)]
"""Costs of a server's batches, by number of rows."""

COSTS_BYTES = 3 + _MAX_SIZES * 11
"""Maximum size of a ``RowCostTable`` in bytes."""


def table_of_costs(costs: Mapping[int, float]) -> tuple[RowCost, ...]:
    """Return the table of seconds by number of rows, with the smallest 64 sizes."""
    return tuple(RowCost(rows, min(max(1, round(costs[rows] * _MICROSECONDS)), _MAX_NUMBER)) for rows in sorted(costs)[:_MAX_SIZES])


def costs_of_table(table: tuple[RowCost, ...]) -> RowCosts | None:
    """Return the costs in a table, or None if it is empty."""
    return RowCosts({cost.rows: cost.microseconds / _MICROSECONDS for cost in table}) if table else None
