"""The speculation machine's tally of an answer, and its ratios."""

from __future__ import annotations

import pytest

from streamco.core.speculation.report import SpeculationReport


def test_ratios_of_nothing_are_not_known() -> None:
    tally = SpeculationReport()
    assert (tally.acceptance, tally.hit_rate, tally.ahead_rate, tally.offloaded_share) == (None, None, None, None)
    assert tally.wasted == 0


def test_each_ratio_has_its_own_whole() -> None:
    tally = SpeculationReport(verified=8, accepted=6, rounds=4, hits=3, ahead=1, chunks=20, offloaded=5)
    assert (tally.acceptance, tally.hit_rate, tally.ahead_rate) == pytest.approx((0.75, 0.75, 0.25))
    assert tally.offloaded_share == pytest.approx(0.25)


def test_what_was_drafted_and_neither_accepted_nor_committed_is_wasted() -> None:
    assert SpeculationReport(drafted=50, accepted=8, device=24).wasted == 18
