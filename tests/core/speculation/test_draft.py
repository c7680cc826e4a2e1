"""Draft sequences, the verdicts that branches assume, and which branches are planned."""

from __future__ import annotations

import pytest

from streamco.core.speculation.draft import BranchKind, DraftSequence, Round, plan_branches
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import DraftToken
from streamco.core.speculation.prior import EstimatesPrior
from streamco.policies.rejection import Branch

BOTH: frozenset[BranchKind] = frozenset({"accept all", "reject"})


def tokens(*ids: int) -> list[DraftToken]:
    return [DraftToken(token, 0.5) for token in ids]


def drafted(*ids: int, confidence: float = 0.6) -> list[DraftToken]:
    return [DraftToken(token, confidence, ((token, confidence), (token + 50, 0.2), (token + 60, 0.1))) for token in ids]


def test_a_bet_on_a_correction_is_won_by_that_very_verdict_only() -> None:
    sequence = DraftSequence(1, 4, 0.0, Branch(2, 7, 0.1))
    assert sequence.matches(2, 7)
    assert not sequence.matches(1, 7)
    assert not sequence.matches(2, 8)
    assert not sequence.matches(2, None)


def test_a_bet_on_the_models_own_next_token_is_won_once_that_is_there() -> None:
    sequence = DraftSequence(1, 5, 0.0, Branch(4, None, 0.1))
    assert not sequence.matches(4, 7)
    sequence.record_tokens(tokens(7, 8), None, now=0.0, is_finished=False)
    assert sequence.matches(4, 7)
    assert not sequence.matches(4, 8)
    assert not sequence.matches(3, 7)
    assert sequence.matches(4, None), "nobody said what follows, and the model's own will do"


def test_a_trunk_bets_on_nothing() -> None:
    assert not DraftSequence(1, 4, 0.0, tokens=tokens(7)).matches(0, 7)


def test_the_models_own_next_token_is_settled_with_the_verdict_that_has_it() -> None:
    sequence = DraftSequence(1, 5, 0.0, Branch(4, None, 0.1), tokens(7, 8, 9))
    sequence.adopt(7)
    assert sequence.ids == [8, 9]
    assert sequence.requested == 4
    assert sequence.branch is None


@pytest.mark.parametrize(("branch", "token"), [(Branch(4, None, 0.1), None), (Branch(2, 7, 0.1), 7)])
def test_a_won_bet_keeps_the_tokens_that_no_verdict_has(branch: Branch, token: int | None) -> None:
    sequence = DraftSequence(1, 4, 0.0, branch, tokens(8, 9), is_timed=True)
    sequence.adopt(token)
    assert sequence.ids == [8, 9]
    assert sequence.drafting_time(now=1.0) is None, "it was drafted beside others, and goes on alone"


def test_a_line_that_got_less_than_was_asked_of_its_own_sequence_is_out_of_room() -> None:
    sequence = DraftSequence(1, 3, 0.0)
    sequence.record_tokens(tokens(1), None, now=0.0, is_finished=False)
    assert not sequence.is_context_full
    sequence.record_tokens(tokens(2), None, now=0.0, is_finished=True)
    assert sequence.is_context_full


def test_a_branch_that_found_no_room_leaves_the_question_to_the_devices_own_sequence() -> None:
    sequence = DraftSequence(1, 3, 0.0, is_finished=True, is_fork=True)
    assert not sequence.is_context_full


def test_a_line_goes_on_with_another_command() -> None:
    sequence = DraftSequence(1, 2, 0.0, tokens=tokens(1, 2), is_finished=True, is_fork=True)
    sequence.request_more(9, 3, now=5.0)
    assert (sequence.version, sequence.requested, sequence.written, sequence.is_finished, sequence.is_fork) == (9, 3, 0, False, False)
    sequence.record_tokens(tokens(3), None, now=0.0, is_finished=True)
    assert sequence.written == 1
    assert sequence.is_context_full


def test_the_importance_of_a_line_is_the_mean_over_its_commands() -> None:
    sequence = DraftSequence(1, 3, 0.0)
    sequence.record_tokens(tokens(1, 2, 3), 0.2, now=0.0, is_finished=True)
    assert sequence.importance == pytest.approx(0.2)
    sequence.request_more(2, 1, now=0.0)
    sequence.record_tokens(tokens(4), 0.6, now=0.0, is_finished=True)
    assert sequence.importance == pytest.approx((3 * 0.2 + 0.6) / 4)
    sequence.record_tokens((), None, now=0.0, is_finished=True)
    assert sequence.importance == pytest.approx(0.3)


def test_importance_that_was_measured_late_counts_for_its_own_tokens() -> None:
    sequence = DraftSequence(1, 1, 0.0)
    sequence.record_tokens(tokens(1), None, now=0.0, is_finished=True)
    sequence.request_more(2, 1, now=0.0)
    sequence.record_tokens(tokens(2), 0.4, now=0.0, is_finished=True)
    assert sequence.importance == pytest.approx(0.4)


def test_a_round_knows_its_ids_and_how_sure_the_device_was() -> None:
    waiting = Round(drafted(1, 2, confidence=0.7))
    assert waiting.ids == (1, 2)
    assert waiting.confidences == [0.7, 0.7]


def estimates(wait: float = 0.2) -> SpeculationEstimates:
    return SpeculationEstimates(prior=EstimatesPrior(acceptance=0.7, wait=wait, step_times=(0.02, 0.021, 0.022, 0.023)))


def test_bets_are_as_many_as_fit_into_the_wait() -> None:
    plan = plan_branches(drafted(1, 2, 3, 4), estimates(), window=4, max_branches=3, kinds=BOTH, end_ids=frozenset())
    assert len(plan.branches) == 3
    assert plan.steps == 4
    assert not plan_branches(drafted(1, 2), estimates(wait=0.01), window=4, max_branches=3, kinds=BOTH, end_ids=frozenset()).branches
    assert not plan_branches(drafted(1, 2), estimates(), window=4, max_branches=0, kinds=BOTH, end_ids=frozenset()).branches


@pytest.mark.parametrize("kind", ["accept all", "reject"])
def test_each_kind_of_bet_can_be_left_out(kind: BranchKind) -> None:
    plan = plan_branches(drafted(1, 2, 3, 4), estimates(), window=4, max_branches=4, kinds=frozenset({kind}), end_ids=frozenset())
    assert plan.branches
    assert {branch.position == 4 for branch in plan.branches} == {kind == "accept all"}


def test_nothing_is_drafted_behind_the_end_of_the_text() -> None:
    draft = [*drafted(1, 2), DraftToken(0, 0.5, ((0, 0.5), (52, 0.3)))]
    plan = plan_branches(draft, estimates(), window=4, max_branches=4, kinds=BOTH, end_ids=frozenset({0, 51}))
    assert plan.branches
    assert all(branch.position < 3 and branch.token not in {0, 51} for branch in plan.branches)


def test_fewer_alternatives_are_fewer_bets() -> None:
    one = plan_branches(
        drafted(1, 2), estimates(), window=4, max_branches=4, kinds=frozenset({"reject"}), end_ids=frozenset(), alternatives=1
    )
    assert {branch.token for branch in one.branches} == {51, 52}


def test_how_fast_the_device_is_shows_in_all_tokens_or_in_those_behind_what_had_to_be_read() -> None:
    sequence = DraftSequence(1, 4, 10.0)
    sequence.record_tokens(tokens(1, 2), None, now=15.0, is_finished=False)
    assert sequence.drafting_time(now=15.0) is None
    sequence.record_tokens(tokens(3, 4), None, now=15.5, is_finished=True)
    assert sequence.drafting_time(now=15.5) == (2, 0.5)
    sequence.request_more(2, 2, now=20.0)
    sequence.record_tokens(tokens(5, 6), None, now=21.0, is_finished=True)
    assert sequence.drafting_time(now=21.0) == (2, 1.0), "there was nothing to read"


def test_one_token_behind_several_that_came_late_says_nothing() -> None:
    sequence = DraftSequence(1, 4, 10.0)
    sequence.record_tokens(tokens(1, 2, 3), None, now=15.0, is_finished=False)
    sequence.record_tokens(tokens(4), None, now=15.001, is_finished=True)
    assert sequence.drafting_time(now=15.001) is None
