"""What is sent to the verifier: the filters of Synera 4.2 by hand, budgets that are met in the plan and in what really comes."""

from __future__ import annotations

import math
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.policies.offload import Offload, OffloadRule, OffloadSteering, confidence_probability, importance_probability, is_past_exit
from tests.support.examples import examples

RULES: list[OffloadRule] = ["combined", "confidence", "importance", "random"]
budgets = st.floats(0.0, 1.0)
confidences = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 0.8, 1.0]))
importances = st.one_of(st.floats(0.0, 10.0), st.sampled_from([0.0, 0.1]))
chunks = st.lists(st.tuples(confidences, importances, st.integers(1, 12)), min_size=1, max_size=60)


def measured(seed: int, size: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Chunks like the paper's: few are sure (figure 4 b), importance has a long tail (figure 5 b), sure ones are less important."""
    dice = np.random.default_rng(seed)
    sure = dice.beta(2.0, 2.5, size)
    return sure, dice.lognormal(-2.0, 1.0, size) * (1.3 - sure)


def mean_probability(plan: Offload, sure: np.ndarray, important: np.ndarray | None, weights: np.ndarray | None = None) -> float:
    each = [plan.probability(float(c), None if important is None else float(important[at])) for at, c in enumerate(sure)]
    return float(np.average(each, weights=weights))


# P_conf


def test_a_chunk_up_to_the_threshold_is_always_unsure() -> None:
    assert confidence_probability([0.0, 0.5, 0.8], 0.8).tolist() == [1.0, 1.0, 1.0]


def test_above_the_threshold_the_sigmoid_falls_from_nearly_1_to_nearly_0() -> None:
    just_above, half_way, sure = confidence_probability([np.nextafter(0.8, 1.0), 0.9, 1.0], 0.8).tolist()
    assert just_above == pytest.approx(1 / (1 + math.exp(-5)), abs=1e-9)  # 0.9933
    assert half_way == pytest.approx(0.5)
    assert sure == pytest.approx(1 / (1 + math.exp(5)))  # 0.0067
    assert confidence_probability(0.85, 0.8) == pytest.approx(1 / (1 + math.exp(10 * (0.25 - 0.5))))


def test_the_steepness_is_the_papers_k() -> None:
    assert confidence_probability(0.95, 0.8, steepness=2.0) == pytest.approx(1 / (1 + math.exp(2 * 0.25)))
    assert confidence_probability(0.81, 0.8, steepness=1e6) == pytest.approx(1.0)
    assert confidence_probability(1.0, 0.8, steepness=1e6) == pytest.approx(0.0)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_surer_chunk_is_never_likelier_sent_and_a_higher_threshold_sends_no_less(one: float, other: float, threshold: float) -> None:
    low, high = sorted((one, other))
    assert confidence_probability(low, threshold) >= confidence_probability(high, threshold)
    assert confidence_probability(threshold, low) <= confidence_probability(threshold, high)


# P_imp


def test_importance_has_three_tiers() -> None:
    tiers = importance_probability([0.0, 1.0, np.nextafter(1.0, 2.0), 1.5, 2.0, np.nextafter(2.0, 3.0), 9.0], 2.0).tolist()
    assert tiers[:2] == [0.0, 0.0]
    assert tiers[2] == pytest.approx(1 / (1 + math.exp(5)))
    assert tiers[3] == pytest.approx(0.5)
    assert tiers[4] == pytest.approx(1 / (1 + math.exp(-5)))
    assert tiers[5:] == [1.0, 1.0]
    assert importance_probability(1.25, 2.0) == pytest.approx(1 / (1 + math.exp(-10 * (0.25 - 0.5))))


def test_a_threshold_of_0_lets_through_whatever_is_attended_to() -> None:
    assert importance_probability([0.0, 1e-9, 5.0], 0.0).tolist() == [0.0, 1.0, 1.0]
    assert importance_probability([0.0, 1e9], math.inf).tolist() == [0.0, 0.0]


@given(st.floats(0.0, 10.0), st.floats(0.0, 10.0), st.floats(0.0, 10.0))
def test_a_more_important_chunk_is_never_less_likely_sent_and_a_higher_threshold_sends_no_more(
    a: float, b: float, threshold: float
) -> None:
    low, high = sorted((a, b))
    assert importance_probability(low, threshold) <= importance_probability(high, threshold)
    assert importance_probability(threshold, low) >= importance_probability(threshold, high)


# The plan


def test_both_filters_have_to_say_so() -> None:
    plan = Offload(0.5, confidence_threshold=0.8, importance_threshold=2.0)
    assert plan.probability(0.5, 3.0) == 1.0
    assert plan.probability(0.9, 3.0) == pytest.approx(0.5)
    assert plan.probability(0.5, 1.5) == pytest.approx(0.5)
    assert plan.probability(0.9, 1.5) == pytest.approx(0.25)
    assert plan.probability(0.5, 1.0) == 0.0


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("budget", [0.02, 0.1, 0.2, 0.5, 0.8, 0.97])
def test_a_plan_sends_its_budget_of_the_chunks_it_was_made_on(rule: OffloadRule, budget: float) -> None:
    sure, important = measured(1)
    plan = Offload.plan(sure, important, budget, rule=rule)
    assert mean_probability(plan, sure, important) == pytest.approx(budget, abs=1e-9)
    assert plan.planned_share == budget


@settings(max_examples=examples(66, thorough=200))
@given(chunks, budgets, st.sampled_from(RULES), st.floats(0.0, 1.0))
def test_the_budget_is_met_for_any_chunks_ties_and_steps_included(
    seen: list[tuple[float, float, int]], budget: float, rule: OffloadRule, threshold: float
) -> None:
    sure, important, tokens = (np.array(column, dtype=float) for column in zip(*seen, strict=True))
    plan = Offload.plan(sure, important, budget, rule=rule, confidence_threshold=threshold, weights=tokens)
    assert mean_probability(plan, sure, important, tokens) == pytest.approx(budget, abs=1e-9)


def test_the_percentile_of_the_paper_misses_the_budget_that_the_solved_threshold_meets() -> None:
    sure, important = measured(2)
    percentile = Offload(0.2, importance_threshold=float(np.quantile(important, 0.8)))
    assert abs(mean_probability(percentile, sure, important) - 0.2) > 0.02
    solved = Offload.plan(sure, important, 0.2)
    assert mean_probability(solved, sure, important) == pytest.approx(0.2)
    assert solved.spill == pytest.approx(0.0, abs=1e-3)


@given(st.integers(0, 100), budgets, budgets)
def test_a_larger_budget_has_lower_thresholds(seed: int, one: float, other: float) -> None:
    sure, important = measured(seed, 100)
    small, large = (Offload.plan(sure, important, budget) for budget in sorted((max(one, 0.01), max(other, 0.01))))
    if large.budget < 1.0:
        assert large.importance_threshold <= small.importance_threshold
        assert large.confidence_threshold >= small.confidence_threshold


def test_where_the_confidence_filter_keeps_too_much_the_least_sure_go_first() -> None:
    sure, important = np.linspace(0.81, 1.0, 200), np.ones(200)
    plan = Offload.plan(sure, important, 0.9)
    assert plan.importance_threshold == 0.0
    assert plan.confidence_threshold > 0.9
    assert mean_probability(plan, sure, important) == pytest.approx(0.9)
    assert plan.probability(0.82, 1.0) > plan.probability(0.99, 1.0)


def test_without_importances_confidence_decides_alone() -> None:
    sure, _ = measured(3)
    plan = Offload.plan(sure, None, 0.2)
    assert plan.rule == "confidence"
    assert mean_probability(plan, sure, None) == pytest.approx(0.2)
    assert plan.probability(0.1, None) > 0.9
    assert plan.probability(0.9, None) < 0.1


def test_without_any_measurement_chance_decides() -> None:
    plan = Offload.plan([], [], 0.3, rule="combined")
    assert plan.probability(0.5, 0.1) <= 1.0
    assert Offload.plan([], None, 0.3, rule="random").probability(0.5, None) == 0.3


def test_a_plan_goes_through_json() -> None:
    sure, important = measured(4, 50)
    for budget in (0.0, 0.3, 1.0):
        plan = Offload.plan(sure, important, budget)
        assert msgspec.json.decode(msgspec.json.encode(plan), type=Offload) == plan


@pytest.mark.parametrize("rule", RULES)
def test_budget_1_sends_everything_and_budget_0_nothing_without_dice(rule: OffloadRule) -> None:
    sure, important = measured(5, 100)
    rng = Random(1)
    before = rng.getstate()
    everything, nothing = (Offload.plan(sure, important, budget, rule=rule) for budget in (1.0, 0.0))
    assert all(everything.decide(c, i, rng).is_offloaded for c, i in zip(sure, important, strict=True))
    assert not any(nothing.decide(c, i, rng).is_offloaded for c, i in zip(sure, important, strict=True))
    assert everything.decide(1.0, 0.0, rng).reason == "budget 1"
    assert rng.getstate() == before


def test_decisions_come_as_often_as_their_probability_says() -> None:
    plan, rng = Offload(0.5, confidence_threshold=0.8, importance_threshold=2.0, spill=0.02), Random(7)
    decisions = [plan.decide(0.9, 1.75, rng) for _ in range(20_000)]
    expected = plan.probability(0.9, 1.75)
    assert decisions[0].probability == expected
    assert sum(decision.is_offloaded for decision in decisions) / 20_000 == pytest.approx(expected, abs=0.015)
    assert {decision.reason for decision in decisions} == {"unsure and important", "confident", "unimportant", "chance"}
    assert all(decision.is_offloaded for decision in decisions if decision.reason in {"unsure and important", "chance"})


def test_even_certain_chunks_fit_into_a_small_budget() -> None:
    sure = np.ones(10)
    assert mean_probability(Offload.plan(sure, None, 0.001), sure, None) == pytest.approx(0.001)


def test_a_confidence_threshold_moved_down_falls_as_fast_as_the_profiled_one() -> None:
    sure, _ = measured(3)
    plan = Offload.plan(sure, None, 0.2)
    middle = (1.0 + plan.confidence_threshold) / 2.0
    assert plan.probability(middle, None) == pytest.approx(0.5)
    assert plan.probability(middle + 0.05, None) == pytest.approx(float(confidence_probability(0.95, 0.8)))


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="budget: expected a share"):
        Offload.plan([0.5], [0.1], 1.2)
    with pytest.raises(ConfigError, match="c_th <= 1, k > 0 and theta < 0"):
        Offload.plan([0.5], [0.1], 0.5, slope=10.0)
    with pytest.raises(ConfigError, match="as many importances and weights as confidences"):
        Offload.plan([0.5, 0.6], [0.1], 0.5)


# The early exit


def test_nothing_is_offloaded_behind_four_fifths_of_the_longest_answer_but_at_budget_1() -> None:
    assert not is_past_exit(80, 100, 0.5)
    assert is_past_exit(81, 100, 0.5)
    assert not is_past_exit(99, 100, 1.0)
    assert not is_past_exit(10_000, None, 0.5)
    assert is_past_exit(51, 100, 0.5, share=0.5)


# Steering


def stream(seed: int, size: int, *, surer: float = 0.0) -> list[tuple[float, float, int]]:
    sure, important = measured(seed, size)
    dice = np.random.default_rng(seed)
    return [(min(1.0, c + surer), i, int(n)) for c, i, n in zip(sure.tolist(), important.tolist(), dice.integers(1, 5, size), strict=True)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("budget", [0.05, 0.2, 0.5, 0.9])
def test_the_realised_share_is_the_budget(rule: OffloadRule, budget: float) -> None:
    steering, rng = OffloadSteering(budget, rule=rule), Random(3)
    for sure, important, tokens in stream(6, 1500):
        steering.decide(sure, important, tokens, rng)
    assert steering.share == pytest.approx(budget, abs=0.01)


def test_the_share_holds_when_the_text_turns_sure() -> None:
    sure, important = measured(7)
    steering, rng = OffloadSteering(0.4, chunks=zip(sure.tolist(), important.tolist(), strict=True)), Random(4)
    shares = []
    for chunk in [*stream(8, 500), *stream(9, 500, surer=0.5), *stream(10, 500)]:
        steering.decide(*chunk, rng)
        shares.append(steering.share)
    assert max(abs(share - 0.4) for share in shares[300:]) < 0.03


@settings(max_examples=examples(13, thorough=40))
@given(
    st.lists(st.tuples(confidences, st.one_of(st.none(), importances), st.integers(1, 8)), min_size=1, max_size=30),
    st.floats(0.0, 1.0),
    st.randoms(use_true_random=False),
)
def test_the_debt_never_exceeds_eight_chunks(pattern: list[tuple[float, float | None, int]], budget: float, rng: Random) -> None:
    steering = OffloadSteering(budget)
    longest = max(tokens for _, _, tokens in pattern)
    for _ in range(120):
        sure, important, tokens = rng.choice(pattern)
        if rng.random() < 0.2:
            steering.keep(tokens)
        else:
            steering.decide(sure, important, tokens, rng)
        assert abs(steering.debt) <= (8 * longest if 0.0 < budget < 1.0 else steering.tokens) + 1e-6
        assert 0 <= steering.offloaded_tokens <= steering.tokens


def test_what_had_to_stay_is_made_up_for_and_beyond_eight_chunks_forgiven() -> None:
    steering, rng = OffloadSteering(0.5), Random(5)
    for _ in range(8):
        steering.keep(4)
    assert steering.debt == 16.0
    for _ in range(40):
        steering.keep(4)
    assert steering.debt == 32.0
    assert steering.forgiven_tokens == 0.5 * 48 * 4 - 32
    for chunk in stream(11, 1500):
        steering.decide(*chunk, rng)
    assert abs(steering.debt) <= 32.0


def test_a_chunk_that_was_to_be_sent_and_was_not_is_made_up_for() -> None:
    steering, rng = OffloadSteering(0.5, rule="random"), Random(5)
    while not steering.decide(0.5, 0.1, 4, rng).is_offloaded:
        pass
    before = steering.debt
    steering.withdraw(4)
    assert steering.offloaded_tokens == 0
    assert steering.debt == before + 4
    for _ in range(100):
        steering.decide(0.5, 0.1, 4, rng)
        steering.withdraw(steering.offloaded_tokens)
    assert steering.debt == 32.0, "beyond eight chunks it is forgiven"
    assert steering.forgiven_tokens > 0.0


def test_the_share_is_spent_on_what_matters() -> None:
    """Of equal shares, the combined rule's chunks are less sure and more important than chance's."""
    sent: dict[str, list[tuple[float, float]]] = {"combined": [], "random": []}
    for rule in ("combined", "random"):
        steering, rng = OffloadSteering(0.2, rule="combined" if rule == "combined" else "random"), Random(6)
        for sure, important, _ in stream(12, 1500):
            if steering.decide(sure, important, 4, rng).is_offloaded:
                sent[rule].append((sure, important))
    chosen, drawn = (np.mean(sent[rule], axis=0) for rule in ("combined", "random"))
    assert chosen[0] < drawn[0]
    assert chosen[1] > 2 * drawn[1]


def test_the_same_dice_decide_the_same() -> None:
    runs = []
    for _ in range(2):
        steering, rng = OffloadSteering(0.3), Random(8)
        runs.append([steering.decide(*chunk, rng) for chunk in stream(13, 300)])
    assert runs[0] == runs[1]


def test_budget_1_and_0_are_held_to_the_letter() -> None:
    for budget in (0.0, 1.0):
        steering, rng = OffloadSteering(budget), Random(9)
        assert all(steering.decide(*chunk, rng).is_offloaded == bool(budget) for chunk in stream(14, 200))
        assert steering.share == budget


def test_steering_refuses_a_chunk_without_tokens() -> None:
    with pytest.raises(ConfigError, match="at least 1 token, got 0"):
        OffloadSteering(0.5).keep(0)
    with pytest.raises(ConfigError, match="budget: expected a share"):
        OffloadSteering(-0.5)
