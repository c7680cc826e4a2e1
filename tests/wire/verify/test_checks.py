"""What fields must be beyond their types, and the hash that compares two contexts."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.policies.acceptance import Rule, RuleKind
from streamco.wire.verify.checks import check_answer, check_draft, check_rule, check_verdict, prefix_hash
from streamco.wire.verify.errors import FrameSizeError, MalformedFrameError
from streamco.wire.verify.frames import VerdictFrame, VerifyLimits
from streamco.wire.verify.topk import TopK
from tests.support.verify_frames import make_draft, make_verdict

LIMITS = VerifyLimits(draft_tokens=4, paths=3)
DRAFT = make_draft(7, 3, 10, (1, 2, 3, 4), 1)  # 2, 3 and 4 are to be verified
ROW = TopK((5, 6), (2, 1))


@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=20))
def test_the_hash_of_a_prefix_is_that_of_its_ids_in_four_bytes(ids: list[int]) -> None:
    expected = sha256(b"".join(token.to_bytes(4, "little") for token in ids)).digest()
    assert prefix_hash(ids) == prefix_hash(tuple(ids)) == expected[:16]


def test_rules_without_numbers_or_warmth_are_refused() -> None:
    check_rule(Rule())
    check_rule(Rule(RuleKind.SAMPLE, 0.1))
    for rule in (Rule(top_p=float("nan")), Rule(threshold=float("inf")), Rule(RuleKind.SAMPLE)):
        with pytest.raises(MalformedFrameError, match="rule: expected"):
            check_rule(rule)


def test_all_given_is_a_draft_that_asks_for_the_next_token() -> None:
    check_draft(make_draft(1, 1, 0, (1, 2), 2), LIMITS)
    assert make_draft(1, 1, 0, (1, 2), 2).pending == ()


def test_given_ids_count_for_nothing_against_the_limit_of_a_round() -> None:
    check_draft(make_draft(1, 1, 0, (1,) * 100, 96), LIMITS)
    with pytest.raises(FrameSizeError, match="at most 4 ids to verify, got 5"):
        check_draft(make_draft(1, 1, 0, (1,) * 100, 95), LIMITS)


def test_a_verdict_accepts_no_more_than_can_be_drafted_and_names_a_token() -> None:
    check_verdict(make_verdict(1, 1, 4, 9), LIMITS, 10)
    check_verdict(make_verdict(1, 1, 4, None), LIMITS, 10)
    for verdict in (make_verdict(1, 1, 5, 9), make_verdict(1, 1, 4, 10), make_verdict(1, 1, 4, -1)):
        with pytest.raises(MalformedFrameError, match="verdict: expected"):
            check_verdict(verdict, LIMITS, 10)


@pytest.mark.parametrize(("accepted", "token"), [(0, 9), (1, 2), (2, 3), (3, 4), (3, None)])
def test_corrections_and_bonus_tokens_are_answers(accepted: int, token: int | None) -> None:
    check_answer(make_verdict(7, 3, accepted, token), DRAFT, 0)


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (make_verdict(7, 3, 4, 9), "at most 3 accepted tokens, got 4"),
        (make_verdict(7, 3, 1, 3), "a correction of 3 at position 1, got 3"),
        (make_verdict(7, 3, 2, None), "a correction of 4 at position 2, got None"),
        (make_verdict(7, 3, 3, 9, rows=(ROW,)), "0 rows"),
    ],
)
def test_what_cannot_be_a_verdict_on_the_draft_is_malformed(verdict: VerdictFrame, expected: str) -> None:
    with pytest.raises(MalformedFrameError, match=expected):
        check_answer(verdict, DRAFT, 0)


def test_rows_are_there_for_every_place_where_they_were_asked_for() -> None:
    check_answer(make_verdict(7, 3, 0, 9, rows=(ROW,) * 4), DRAFT, 2)
    for rows in ((), (ROW,) * 3, (ROW,) * 5, (ROW, ROW, ROW, TopK((1, 2, 3), (3, 2, 1)))):
        with pytest.raises(MalformedFrameError, match="expected 4 rows of at most 2 ids"):
            check_answer(make_verdict(7, 3, 0, 9, rows=rows), DRAFT, 2)


# Trees


TREE = make_draft(7, 3, 10, (1, 2, 3, 4), 1, parents=(0, 1, 0))  # 3 after 2, and 4 beside 2


def test_a_tree_has_different_siblings_after_earlier_parents_and_no_more_paths_than_the_limit() -> None:
    check_draft(TREE, LIMITS)
    check_draft(make_draft(7, 3, 10, (1, 2, 3, 4), parents=(0, 1, 0, 0)), LIMITS)
    with pytest.raises(FrameSizeError, match="draft: expected at most 3 paths to verify, got 4"):
        check_draft(make_draft(7, 3, 10, (1, 2, 3, 4), parents=(0,) * 4), LIMITS)
    with pytest.raises(MalformedFrameError, match="draft, tree: expected different tokens after node 0, got 4 twice"):
        check_draft(make_draft(7, 3, 10, (4, 4), parents=(0, 0)), LIMITS)


def test_a_client_that_may_send_chains_alone_is_told_so() -> None:
    limits = VerifyLimits(draft_tokens=8)
    check_draft(DRAFT, limits)
    with pytest.raises(FrameSizeError, match="draft: expected at most 1 paths to verify, got 2"):
        check_draft(TREE, limits)


@pytest.mark.parametrize(("accepted", "token"), [(0, 9), (1, 9), (2, 9), (2, None), (3, 9), (3, None), (1, 4), (0, 3)])
def test_a_verdict_on_a_tree_names_its_last_accepted_id(accepted: int, token: int | None) -> None:
    check_answer(make_verdict(7, 3, accepted, token), TREE, 0)


@pytest.mark.parametrize(
    ("accepted", "token", "error"),
    [
        (0, 2, "expected a correction of 2 or 4 at position 0, got 2"),
        (0, 4, "expected a correction of 2 or 4 at position 0, got 4"),
        (0, None, "expected a correction of 2 or 4 at position 0, got None"),
        (1, 3, "expected a correction of 3 at position 1, got 3"),
        (4, 9, "expected at most 3 accepted tokens, got 4"),
    ],
)
def test_a_correction_in_a_tree_differs_from_all_siblings(accepted: int, token: int | None, error: str) -> None:
    with pytest.raises(MalformedFrameError, match=error):
        check_answer(make_verdict(7, 3, accepted, token), TREE, 0)
