"""A contender that was given more time than the imposed server takes is not compared with any other."""

from __future__ import annotations

from collections.abc import Sequence

from bench.report import Row
from bench.timed.speculate import WAITING, Tally, brief_rows, full_rows, ratios_of

CASE = "headline: Q4_0 for Q8_0, llama2-70b-a100x2, RTT 10 ms"
SHORT, *_, LONG = WAITING


def tally(tokens: int, late: int, verdicts: int = 100) -> Tally:
    """Ten seconds."""
    return Tally(seconds=[10.0], tokens=[tokens], first=[0.1], gaps=[0.05], verdicts=verdicts, late=late)


TALLIES = {
    "streamco": tally(300, 2),
    "nothing sent ahead": tally(400, 3),
    "server alone": tally(200, 0, verdicts=0),
    SHORT: tally(250, 0),
    LONG: tally(500, 60),
}


def metrics(rows: Sequence[Row], contender: str) -> set[str]:
    return {row.metric for row in rows if row.contender == contender}


def test_a_late_contender_has_its_rounds_and_nothing_else() -> None:
    rows = list(full_rows(CASE, TALLIES))
    for late in ("nothing sent ahead", LONG):
        assert metrics(rows, late) == {"rounds", "rounds that took longer than imposed"}
    assert {"tokens a second", "rounds that took longer than imposed"} <= metrics(rows, "streamco")


def test_the_best_that_waits_is_sought_among_those_in_time() -> None:
    rows = {(row.contender, row.metric): row.median for row in full_rows(CASE, TALLIES)}
    assert rows["streamco", f"tokens/s relative to {SHORT}, all prompts"] == 1.2
    assert not any(LONG in metric for _, metric in rows)


def test_the_grid_leaves_late_contenders_out_too() -> None:
    rows = list(brief_rows(CASE, TALLIES))
    assert metrics(rows, "nothing sent ahead") == {"rounds", "rounds that took longer than imposed"}
    assert {ratio.contender for ratio in ratios_of(CASE, TALLIES)} == {"streamco", "server alone", SHORT}


def test_without_anyone_in_time_that_waits_there_is_no_comparison_with_it() -> None:
    rows = list(full_rows(CASE, {name: each for name, each in TALLIES.items() if name != SHORT}))
    assert not any("draft, then wait" in row.metric for row in rows)
