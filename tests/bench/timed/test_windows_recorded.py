"""The bench of window policies with recorded drafts: what it says of each link and of all together."""

from __future__ import annotations

import pytest

from bench.timed.speculate import Tally
from bench.timed.windows_recorded import CHOSEN, FIXED, rows_of


def tallies(late: dict[str, int], **rates: float) -> dict[str, Tally]:
    """Each contender's answer of 100 tokens, 20 tokens a second if no rate is given, with a hundred rounds."""
    drafted = {}
    for name in (*FIXED, *CHOSEN):
        rate = rates.get(name.replace(" ", "_"), 20.0)
        drafted[name] = Tally(seconds=[100 / rate], tokens=[100], verdicts=100, late=late.get(name, 0))
    return {**drafted, "server alone": Tally(seconds=[10.0], tokens=[100])}


def test_a_contender_with_late_rounds_is_left_out_at_that_link_and_of_all_links_together() -> None:
    cells = [
        ("windows: near", tallies({"window 4": 3, "dynamic": 10}, window_4=40.0, window_3=25.0)),
        ("windows: far", tallies({"adaptive": 2}, window_4=40.0, confident=50.0)),
    ]
    rows = list(rows_of(cells))
    found = {(row.case, row.contender, row.metric): row.median for row in rows}
    late = "rounds that took longer than imposed"
    assert found["windows: near", "window 4", late] == pytest.approx(0.03)
    assert {row.metric for row in rows if row.case == "windows: near" and row.contender in {"window 4", "dynamic"}} == {late}
    near = "tokens/s relative to the best fixed one there, window 3"
    assert found["windows: near", "confident", near] == pytest.approx(0.8)
    far = "tokens/s relative to the best fixed one there, window 4"
    assert found["windows: far", "confident", far] == pytest.approx(1.25)
    assert found["windows: far", "adaptive", far] == pytest.approx(0.5), "two in a hundred may be late"
    together = {row.contender for row in rows if row.case == "windows: 2 links together"}
    assert together == {*FIXED, *CHOSEN} - {"window 4", "dynamic"}
    best = "tokens/s relative to the best single fixed one, window 3"
    assert found["windows: 2 links together", "confident", best] == pytest.approx((2.0 + 5.0) / (2.5 + 2.0))


def test_without_a_fixed_window_in_time_nothing_is_compared() -> None:
    cells = [(case, tallies(dict.fromkeys(FIXED, 50))) for case in ("windows: near", "windows: far")]
    rows = list(rows_of(cells))
    assert {row.contender for row in rows if row.metric == "tokens a second"} == {*CHOSEN, "server alone"}
    assert not any(row.metric.startswith("tokens/s relative to the best") for row in rows)


def test_one_link_alone_has_no_row_of_all_together() -> None:
    rows = list(rows_of([("windows: near", tallies({}))]))
    assert {row.case for row in rows} == {"windows: near"}
