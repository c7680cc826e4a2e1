"""Where a draft will be rejected: Synera 4.4 by hand, and branches counted out against simulated verdicts."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.policies.rejection import (
    Branch,
    PreDraft,
    RejectionForecast,
    chain_rejection,
    forecast_rejection,
    rank_branches,
    sample_branch,
    schedule_branches,
)

shares = st.floats(0.0, 1.0)
drafts = st.lists(shares, max_size=12)


def outcomes(forecast: RejectionForecast) -> list[float]:
    return [*forecast.rejections, forecast.accept_all]


# The forecast


def test_accepting_all_is_an_outcome_of_its_own() -> None:
    """The paper's base gives 0.24 = 0.7**4 to a rejection at the last position, which has 0.3 * 0.7**3 = 0.10."""
    forecast = forecast_rejection(0.7, [0.7] * 4)
    assert forecast.rejections == pytest.approx((0.3, 0.21, 0.147, 0.1029))
    assert forecast.accept_all == pytest.approx(0.2401)


def test_confidence_lowers_the_weight_of_its_position() -> None:
    forecast = forecast_rejection(0.7, [0.9, 0.2, 0.7, 0.5])
    weights = [0.3 * 0.1, 0.21 * 0.8, 0.147 * 0.3, 0.1029 * 0.5, 0.2401 * 0.3]
    assert outcomes(forecast) == pytest.approx([weight / sum(weights) for weight in weights])
    assert forecast.likeliest == 1


def test_a_draft_as_sure_as_drafts_are_in_general_has_the_base_distribution() -> None:
    plain = forecast_rejection(0.8, [0.8] * 5)
    underconfident = forecast_rejection(0.8, [0.4] * 5, mean_confidence=0.4)
    assert outcomes(underconfident) == pytest.approx(outcomes(plain))
    assert outcomes(plain) == pytest.approx([0.2 * 0.8**position for position in range(5)] + [0.8**5])


@given(shares, drafts, st.one_of(st.none(), shares))
def test_the_outcomes_are_probabilities(acceptance: float, confidences: list[float], mean: float | None) -> None:
    forecast = forecast_rejection(acceptance, confidences, mean)
    assert sum(outcomes(forecast)) == pytest.approx(1.0)
    assert all(0.0 <= probability <= 1.0 for probability in outcomes(forecast))
    assert forecast.window == len(confidences)
    assert outcomes(forecast)[forecast.likeliest] == max(outcomes(forecast))


@given(st.floats(0.05, 0.95), st.lists(st.floats(0.0, 0.9), min_size=1, max_size=8), st.integers(0, 7), st.floats(0.01, 1.0))
def test_a_surer_token_makes_its_rejection_less_likely_and_all_else_more(
    acceptance: float, confidences: list[float], at: int, part: float
) -> None:
    at %= len(confidences)
    surer = [sure + part * (1.0 - sure) if position == at else sure for position, sure in enumerate(confidences)]
    before, after = outcomes(forecast_rejection(acceptance, confidences)), outcomes(forecast_rejection(acceptance, surer))
    assert after[at] <= before[at] + 1e-12
    assert all(after[other] >= before[other] - 1e-12 for other in range(len(before)) if other != at)


def test_certainty_decides() -> None:
    assert forecast_rejection(0.5, [1.0, 1.0]).accept_all == 1.0
    assert outcomes(forecast_rejection(1.0, [0.5, 0.5])) == [0.0, 0.0, 1.0]
    assert outcomes(forecast_rejection(0.0, [0.5, 0.5])) == [1.0, 0.0, 0.0]
    assert outcomes(forecast_rejection(0.0, [1.0, 0.5])) == [1.0, 0.0, 0.0]  # nothing left to adjust by
    assert outcomes(forecast_rejection(0.7, [])) == [1.0]


def test_a_drawn_position_comes_as_often_as_its_probability_says() -> None:
    forecast, rng = forecast_rejection(0.7, [0.9, 0.2, 0.7, 0.5]), Random(1)
    drawn = [forecast.draw(rng) for _ in range(20_000)]
    assert [drawn.count(position) / 20_000 for position in range(5)] == pytest.approx(outcomes(forecast), abs=0.012)


def test_the_likeliest_position_is_right_more_often_than_a_drawn_one() -> None:
    dice, rng = Random(2), Random(3)
    likeliest = drawn = 0
    for _ in range(4000):
        forecast = forecast_rejection(0.75, [rng.betavariate(3, 1) for _ in range(4)])
        verdict = forecast.draw(dice)
        likeliest += forecast.likeliest == verdict
        drawn += forecast.draw(rng) == verdict
    assert likeliest > 1.1 * drawn


def test_shares_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="acceptance: expected a share"):
        forecast_rejection(1.1, [0.5])
    with pytest.raises(ConfigError, match="mean confidence: expected a share"):
        forecast_rejection(0.5, [0.5], mean_confidence=-1.0)


# Branches

ROWS = [[(1, 0.6), (11, 0.3), (12, 0.05)], [(2, 0.5), (21, 0.2), (22, 0.2), (23, 0.1)]]


def test_a_correction_is_another_candidate_in_its_share_of_what_the_model_leaves() -> None:
    forecast = RejectionForecast((0.4, 0.1), 0.5)
    branches = rank_branches(forecast, [1, 2], ROWS, 0.7, alternatives=2)
    assert [(branch.position, branch.token) for branch in branches] == [(2, None), (0, 11), (0, 12), (1, 21), (1, 22)]
    assert [branch.probability for branch in branches] == pytest.approx([0.35, 0.4 * 0.75, 0.4 * 0.125, 0.1 * 0.4, 0.1 * 0.4])


def test_behind_an_accepted_draft_the_bonus_is_guessed_where_its_row_is_known() -> None:
    forecast = RejectionForecast((0.1, 0.1), 0.8)
    branches = rank_branches(forecast, [1, 2], [*ROWS, [(3, 0.8), (31, 0.1), (32, 0.06), (33, 0.04)]], 0.75)
    behind = {branch.token: branch.probability for branch in branches if branch.position == 2}
    assert behind == {3: pytest.approx(0.6), 31: pytest.approx(0.8 * 0.25 * 0.5), 32: pytest.approx(0.8 * 0.25 * 0.3)}


def test_a_sampled_draft_token_is_not_its_own_correction() -> None:
    branches = rank_branches(RejectionForecast((1.0,), 0.0), [11], [ROWS[0]], 0.5)
    assert {branch.token: branch.probability for branch in branches} == {1: pytest.approx(0.6 / 0.7), 12: pytest.approx(0.05 / 0.7)}


@given(
    st.lists(st.tuples(st.floats(0.01, 1.0), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6)), min_size=1, max_size=6),
    shares,
    st.integers(0, 5),
    st.booleans(),
)
def test_branches_are_different_verdicts_whose_probabilities_fit_into_1(
    rows: list[tuple[float, list[float]]], acceptance: float, alternatives: int, has_bonus_row: bool
) -> None:
    candidates = [
        sorted(((choice, weight / max(1.0, sum(weights))) for choice, weight in enumerate(weights)), key=lambda pair: -pair[1])
        for _, weights in rows
    ]
    draft = [row[0][0] for row in candidates]
    forecast = forecast_rejection(acceptance, [sure for sure, _ in rows])
    branches = rank_branches(forecast, draft, candidates + candidates[:1] * has_bonus_row, acceptance, alternatives)
    assert sum(branch.probability for branch in branches) <= 1.0 + 1e-9
    assert len({(branch.position, branch.token) for branch in branches}) == len(branches)
    assert [branch.probability for branch in branches] == sorted((branch.probability for branch in branches), reverse=True)
    assert all(branch.position == len(draft) or branch.token != draft[branch.position] for branch in branches)


def test_predicted_hit_rates_come_true_where_the_forecast_does() -> None:
    """Verdicts drawn from the very model the branches are ranked by: rounds of one, two and four branches hit as often as predicted."""
    rng = Random(5)
    hits, expected, rounds = [0, 0, 0], [0.0, 0.0, 0.0], 4000
    row = [(1, 0.5), (2, 0.25), (3, 0.125), (4, 0.125)]
    for _ in range(rounds):
        forecast = forecast_rejection(0.75, [rng.betavariate(3, 1) for _ in range(4)])
        branches = rank_branches(forecast, [1] * 4, [row] * 5, 0.75)
        accepted = forecast.draw(rng)
        token = 1 if accepted == 4 and rng.random() < 0.75 else rng.choices([2, 3, 4], [0.5, 0.25, 0.25])[0]
        for place, count in enumerate((1, 2, 4)):
            hits[place] += (accepted, token) in {(branch.position, branch.token) for branch in branches[:count]}
            expected[place] += PreDraft(tuple(branches[:count]), 4).hit_rate
    assert [hit / rounds for hit in hits] == pytest.approx([share / rounds for share in expected], abs=0.02)
    assert hits[0] < hits[1] < hits[2]


def test_a_sampled_branch_has_a_drawn_position_and_a_correction_drawn_from_the_likeliest() -> None:
    forecast, rng = RejectionForecast((0.5, 0.2), 0.3), Random(5)
    rows = [[(1, 0.6), (7, 0.2), (8, 0.1), (9, 0.1), (10, 0.05)], [(2, 0.5), (6, 0.5)]]
    drawn = [sample_branch(forecast, [1, 2], rows, rng) for _ in range(20_000)]
    places = [(branch.position, branch.token) for branch in drawn]
    expected = {(0, 7): 0.25, (0, 8): 0.125, (0, 9): 0.125, (1, 6): 0.2, (2, None): 0.3}
    assert set(places) == set(expected), "the fourth alternative is not among the top 3"
    for place, share in expected.items():
        assert places.count(place) / 20_000 == pytest.approx(share, abs=0.012)
    assert all(0.0 < branch.probability <= forecast.rejections[0] for branch in drawn)


def test_where_the_draft_model_sees_no_other_token_all_is_assumed_to_be_accepted() -> None:
    branch = sample_branch(RejectionForecast((0.9,), 0.1), [1], [[(1, 1.0)]], Random(0))
    assert (branch.position, branch.token) == (1, None)


def test_rows_that_do_not_fit_the_draft_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected 2 draft tokens, as many rows or one more"):
        rank_branches(RejectionForecast((0.5, 0.2), 0.3), [1, 2], ROWS[:1], 0.7)


# Chances that are known


@given(st.lists(st.floats(0.0, 1.0), max_size=12))
def test_each_token_is_the_first_rejected_if_all_before_it_are_accepted_and_it_is_not(acceptance_by_token: list[float]) -> None:
    forecast = chain_rejection(acceptance_by_token)
    assert sum(forecast.rejections) + forecast.accept_all == pytest.approx(1.0)
    for place, rejected in enumerate(forecast.rejections):
        assert rejected == pytest.approx(math.prod(acceptance_by_token[:place]) * (1.0 - acceptance_by_token[place]))


def test_a_chance_is_a_share() -> None:
    with pytest.raises(ConfigError, match="acceptance: expected"):
        chain_rejection([0.5, 1.1])


# The allowance

BRANCHES = [Branch(4, None, 0.4), Branch(0, 11, 0.2), Branch(1, 21, 0.1), Branch(2, 31, 0.05)]


def test_with_rows_for_nothing_every_branch_is_drafted() -> None:
    plan = schedule_branches(BRANCHES, seconds=0.1, step_times=[0.02] * 4, window=4)
    assert plan == PreDraft(tuple(BRANCHES), 4, width=4)
    assert plan.hit_rate == pytest.approx(0.75)
    assert plan.tokens == 16


def test_where_rows_cost_their_full_time_the_likeliest_branch_gets_it() -> None:
    assert schedule_branches(BRANCHES, seconds=0.08, step_times=[0.02, 0.04, 0.06], window=4) == PreDraft((BRANCHES[0],), 4)


def test_more_time_than_the_next_draft_needs_goes_to_more_branches() -> None:
    assert schedule_branches(BRANCHES, seconds=0.16, step_times=[0.02, 0.04, 0.06], window=4) == PreDraft(tuple(BRANCHES[:2]), 4)


def test_where_drafts_are_sent_ahead_the_likeliest_branch_may_come_first() -> None:
    branches = [Branch(4, None, 0.4), *(Branch(0, token, 0.15) for token in (11, 12, 13))]
    times = [0.02, 0.03, 0.04, 0.05]
    assert schedule_branches(branches, seconds=0.2, step_times=times, window=4, max_ahead=3) == schedule_branches(
        branches, seconds=0.2, step_times=times, window=4
    )
    plan = schedule_branches(branches, seconds=0.2, step_times=times, window=4, rtt=0.15, max_ahead=3)
    assert plan == PreDraft(tuple(branches), 4, width=3, first_width=1)


def test_a_branch_is_drafted_if_its_chance_is_worth_its_energy() -> None:
    def plan(energy: float, chance: float = 0.4) -> PreDraft:
        branches = [Branch(4, None, chance), *BRANCHES[1:]]
        return schedule_branches(branches, seconds=0.1, step_times=[0.02] * 4, window=4, energy=energy)

    assert [len(plan(energy).branches) for energy in (0.0, 0.002, 0.004, 0.01, 0.02)] == [4, 3, 2, 1, 0]
    assert plan(0.02, chance=0.95) == PreDraft((Branch(4, None, 0.95),), 4), "an adopted token would be drafted in any case"
    first = schedule_branches(BRANCHES, seconds=0.2, step_times=[0.02] * 4, window=4, energy=0.02, rtt=0.1, max_ahead=1)
    assert first.branches[:1] == (BRANCHES[0],), "sent ahead, it saves part of a round trip"


def test_without_time_for_a_step_nothing_is_drafted() -> None:
    assert schedule_branches(BRANCHES, seconds=0.019, step_times=[0.02], window=4) == PreDraft()
    assert schedule_branches(BRANCHES, seconds=-1.0, step_times=[0.02], window=4) == PreDraft()
    assert schedule_branches([], seconds=1.0, step_times=[0.02], window=4) == PreDraft()


@given(
    st.lists(st.floats(0.001, 0.2), min_size=1, max_size=5), st.floats(0.0, 1.0), st.lists(st.floats(0.005, 0.1), min_size=1, max_size=5),
    st.integers(1, 12),
)  # fmt: skip
def test_no_other_allotment_saves_more(probabilities: list[float], seconds: float, step_times: list[float], window: int) -> None:
    branches = [Branch(0, place, share) for place, share in enumerate(sorted(probabilities, reverse=True))]
    plan, allowance = schedule_branches(branches, seconds=seconds, step_times=step_times, window=window), seconds
    assert plan.steps <= window
    saved = 0.0
    for start in range(0, len(plan.branches), plan.width):
        group = plan.branches[start : start + plan.width]
        steps = min(plan.steps, int(seconds / step_times[len(group) - 1] + 1e-9))
        assert steps >= 1, "there is time for all of them"
        seconds -= steps * step_times[len(group) - 1]
        saved += sum(branch.probability for branch in group) * steps
    assert seconds >= -1e-6
    for count in range(1, min(len(branches), len(step_times)) + 1):
        steps = min(window, int(allowance / step_times[count - 1]))
        assert saved >= sum(branch.probability for branch in branches[:count]) * steps - 1e-9


def test_where_two_together_are_slower_than_one_after_the_other_the_likelier_goes_first() -> None:
    plan = schedule_branches(BRANCHES, seconds=0.2, step_times=[0.02, 0.045, 0.06, 0.08], window=4)
    assert (plan.width, plan.steps, len(plan.branches)) == (1, 4, 3), "the last one for two steps"


def test_a_step_takes_time() -> None:
    with pytest.raises(ConfigError, match="step times above 0 s"):
        schedule_branches(BRANCHES, seconds=1.0, step_times=[0.02, 0.0], window=4)
