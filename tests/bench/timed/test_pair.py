"""The real pair's bench: its bound by arithmetic, and the rows that it makes of what was measured."""

from __future__ import annotations

import pytest

from bench.timed.pair import DEFAULT, DRAFTS, STREAM, Tally, bound, differing_texts, record_stats
from streamco.policies.acceptance import expected_tokens
from streamco.profiles.row_costs import RowCosts, padded_costs

STAIRS = RowCosts(
    padded_costs({1: 0.038, 2: 0.075, 3: 0.108, 4: 0.081, 5: 0.113, 6: 0.145, 8: 0.149, 9: 0.187, 12: 0.195, 16: 0.19, 17: 0.23})
)


def test_the_bound_fills_the_first_stair_unless_drafts_are_nearly_always_right() -> None:
    window, rate = bound(STAIRS, 0.8, 0.018, 0.0)
    assert window == 3
    assert rate == pytest.approx(expected_tokens(0.8, 3) / 0.081)
    assert bound(STAIRS, 0.97, 0.01, 0.0)[0] > 3


def test_a_link_makes_the_best_window_longer_and_a_slow_device_bounds_it() -> None:
    assert bound(STAIRS, 0.9, 0.018, 0.06)[0] >= bound(STAIRS, 0.9, 0.018, 0.0)[0]
    window, rate = bound(STAIRS, 0.9, 0.1, 0.0)
    assert window == 1
    assert rate == pytest.approx(expected_tokens(0.9, 1) / 0.19), "the guess of the verifier's own token takes a step, too"


def test_what_the_verifier_says_is_added_and_texts_are_compared() -> None:
    tallies = {name: Tally(seconds=2.0, tokens=50, texts=["a", "b"]) for name in (STREAM, DEFAULT, DRAFTS)}
    tallies[DRAFTS].texts = ["a", "c"]
    record_stats([tallies[DRAFTS]], {"compute_s": 1.0, "queued_s": 0.5}, {"compute_s": 1.75, "queued_s": 0.5})
    assert (tallies[DRAFTS].computed, tallies[DRAFTS].queued, tallies[DRAFTS].rate) == (0.75, 0.0, 25.0)
    assert [differing_texts(tallies, name) for name in (DEFAULT, DRAFTS)] == [0, 1]
