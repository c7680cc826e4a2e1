"""Ends of drafts, verdicts on them, and what was drafted before a verdict."""

from __future__ import annotations

from random import Random

import pytest

from streamco.sim.split.draft_laws import DraftSpan, draft_length, draw_tree, predrafted, tree_probability, verify_draft
from tests.sim.split.worlds import request

SURE = (0.9, 0.9, 0.5, 0.9, 0.9, 0.1, 0.9, 0.9)


def test_the_first_token_below_the_threshold_is_the_last_one_of_its_draft() -> None:
    answer = request(tokens=8, confidences=SURE)
    assert [draft_length(answer, start, threshold=0.6, max_draft=8) for start in range(8)] == [3, 2, 1, 3, 2, 1, 1, 0]
    assert draft_length(answer, 0, threshold=0.6, max_draft=2) == 2
    assert draft_length(answer, 0, threshold=0.0, max_draft=31) == 7  # the last token comes with the round


def test_a_draft_is_accepted_up_to_its_first_wrong_token() -> None:
    answer = request(tokens=8, accepted="11011111")
    assert [verify_draft(answer, DraftSpan(0, tokens)) for tokens in range(4)] == [0, 1, 2, 2]
    assert verify_draft(answer, DraftSpan(3, 4)) == 4


def test_a_correction_among_the_candidates_keeps_all_steps_of_its_branch() -> None:
    answer = request(tokens=8, accepted="110", ranks="002")
    draft = DraftSpan(0, 3)
    assert predrafted(answer, draft, 2, steps=4, branches=3) == 4
    assert predrafted(answer, draft, 2, steps=4, branches=2) == 0, "it was the third candidate"
    assert predrafted(request(tokens=8, accepted="010", ranks="102"), draft, 0, steps=4, branches=3) == 0, "an earlier token was corrected"


def test_if_all_are_accepted_the_first_branch_must_have_guessed_the_token_after_them() -> None:
    draft = DraftSpan(0, 3)
    assert predrafted(request(tokens=8), draft, 3, steps=4, branches=3) == 3
    assert predrafted(request(tokens=8), draft, 3, steps=0, branches=3) == 0
    assert predrafted(request(tokens=8, accepted="1110"), draft, 3, steps=4, branches=3) == 0
    assert predrafted(request(tokens=3), draft, 3, steps=4, branches=3) == 0
    assert predrafted(request(tokens=8), DraftSpan(0, 0), 0, steps=4, branches=3) == 0


@pytest.mark.parametrize("accept", [1.0, 1.75, 1.89, 4.0])
def test_a_trees_rounds_have_the_wanted_mean(accept: float) -> None:
    probability, rng = tree_probability(accept, 4), Random(1)
    drawn = [1 + draw_tree(probability, 4, rng) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(accept, abs=0.02)
    assert max(drawn) <= 5
