"""The figures of the live bench of a split model."""

from __future__ import annotations

import pytest

from bench.timed.draft_layer import ABSENT
from bench.timed.split_live import CASES, DEFAULT, KINDS, Answer, figures, rows_of


def answer(tokens: int, seconds: float, trips: int) -> Answer:
    return Answer("text", tokens, seconds, trips, 0.5)


def test_a_long_answer_counts_for_more_than_a_short_one() -> None:
    base = [answer(90, 9.0, 90), answer(10, 1.0, 10)]
    found = [answer(90, 4.5, 40), answer(10, 1.2, 10)]
    time, ratio, middle, tokens = figures(found, base)
    assert time[:2] == ("time between tokens", "ms")
    assert time[2:] == pytest.approx((57.0, 50.0, 120.0))
    assert ratio[2:] == pytest.approx((0.57, 0.5, 1.2))
    assert middle[2:] == pytest.approx((0.85, 0.5, 1.2))
    assert tokens[2:] == pytest.approx((2.0, 1.0, 2.25))


def test_all_kinds_are_shown_together_and_each_alone() -> None:
    answers = {
        "easy": {"U-shape": [answer(50, 5.0, 50)], "confident": [answer(50, 2.0, 20)]},
        "hard": {"U-shape": [answer(50, 5.0, 50)], "confident": [answer(50, 4.0, 40)]},
    }
    rows = rows_of("a link", answers)
    ratios = {row.contender: row.median for row in rows if row.metric == "time between tokens" and row.unit != "ms"}
    assert ratios == pytest.approx({"U-shape": 1.0, "confident": 0.6, "confident, easy": 0.4, "confident, hard": 0.8})


def test_the_bench_asks_the_kinds_that_the_draft_layer_learned_from_and_one_that_it_did_not() -> None:
    assert len(KINDS) == 3
    assert len(KINDS.keys() & ABSENT.keys()) == 1


def test_every_link_compares_the_default_with_the_first_contender() -> None:
    assert {(case.step, case.rtt) for case in CASES} == {(step, rtt) for step in ("7B", "own") for rtt in (0.01, 0.03, 0.08)}
    assert all(case.contenders[:2] == ("U-shape", DEFAULT) for case in CASES)
