"""Advice on rows: what was measured, and Q4_0 only where it would help."""

from __future__ import annotations

from streamco.cli.row_advice import row_advice
from streamco.profiles.row_costs import padded_costs

TILES = padded_costs({
    1: 0.038, 2: 0.075, 3: 0.108, 4: 0.081, 5: 0.113, 6: 0.145, 7: 0.15, 8: 0.149, 9: 0.187, 12: 0.195, 16: 0.19, 17: 0.23
})  # fmt: skip
DEAR = padded_costs({1: 0.039, 2: 0.091, 3: 0.124, 4: 0.151, 5: 0.185, 6: 0.211, 8: 0.232, 12: 0.237, 16: 0.243})


def test_prices_and_cheap_drafts_are_said() -> None:
    first, second = row_advice(TILES, may_use_tiles=True)
    assert (
        first
        == "rows of a verification: 1 in 38 ms, 2 in 75 ms, 3 in 81 ms, 4 in 81 ms, 6 in 145 ms, 8 in 149 ms, 12 in 195 ms, 16 in 190 ms"
    )
    assert second.startswith("drafts of 3, 7, 15 tokens are cheapest here")


def test_another_format_is_advised_only_if_it_would_help() -> None:
    assert row_advice(DEAR, may_use_tiles=True)[-1].startswith("four rows cost 3.9 times one; weights in Q4_0 need 2.1 times")
    assert not any("Q4_0" in line for line in row_advice(DEAR, may_use_tiles=False))
    assert not any("Q4_0" in line for line in row_advice(TILES, may_use_tiles=True))


def test_quick_models_get_tenths_and_unmeasured_ones_nothing() -> None:
    assert "1 in 3.2 ms" in row_advice({1: 0.00324, 4: 0.006}, may_use_tiles=False)[0]
    assert row_advice({}, may_use_tiles=True) == []
