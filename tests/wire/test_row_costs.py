"""Row costs on the wire: what a table keeps of a price list."""

from __future__ import annotations

import msgspec
import pytest

from streamco.wire.row_costs import COSTS_BYTES, RowCost, RowCostTable, costs_of_table, table_of_costs


def test_a_table_has_microseconds_by_rows() -> None:
    table = table_of_costs({4: 0.081, 1: 0.038, 2: 1e-9})
    assert table == (RowCost(1, 38_000), RowCost(2, 1), RowCost(4, 81_000))
    costs = costs_of_table(table)
    assert costs is not None
    assert costs.seconds(4) == pytest.approx(0.081)


def test_nothing_measured_is_no_price_list() -> None:
    assert table_of_costs({}) == ()
    assert costs_of_table(()) is None


def test_a_table_has_at_most_64_sizes_and_a_bound_of_bytes() -> None:
    table = table_of_costs(dict.fromkeys(range(1, 100), 1000000000.0))
    assert len(table) == 64
    assert len(msgspec.msgpack.encode(table)) <= COSTS_BYTES
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode((*table, RowCost(99, 1))), type=RowCostTable)
