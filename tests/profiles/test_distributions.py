"""Distributions hold what they are made of: time to first token, prompt lengths, answer lengths."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.profiles import (
    LengthDistribution,
    RemainingLength,
    TTFTDistribution,
)

samples = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=50)

# Time to first token


@given(samples, st.floats(0.0, 100.0))
def test_samples_are_counted_exactly(values: list[float], time: float) -> None:
    distribution = TTFTDistribution.from_samples(values)
    assert distribution.survival_at(time) == pytest.approx(sum(value > time for value in values) / len(values))
    assert distribution.cdf(time) == pytest.approx(sum(value <= time for value in values) / len(values))


@given(samples, st.floats(0.001, 1.0))
def test_a_quantile_is_the_least_time_that_covers_its_share(values: list[float], share: float) -> None:
    distribution = TTFTDistribution.from_samples(values)
    time = distribution.quantile(share)
    assert sum(value <= time for value in values) / len(values) >= share - 1e-9
    assert sum(value < time for value in values) / len(values) < share + 1e-9


@given(samples, st.floats(0.0, 150.0))
def test_mean_within_a_limit_is_the_mean_of_the_cut_samples(values: list[float], limit: float) -> None:
    distribution = TTFTDistribution.from_samples(values)
    assert float(distribution.mean_within(limit)) == pytest.approx(np.minimum(values, limit).mean(), abs=1e-9)
    assert distribution.mean == pytest.approx(np.mean(values), abs=1e-9)


def test_mean_within_takes_arrays_of_any_shape() -> None:
    distribution = TTFTDistribution.from_samples([1.0, 3.0])
    assert distribution.mean_within(np.array([[0.0, 1.0], [2.0, math.inf]])).tolist() == [[0.0, 1.0], [1.5, 2.0]]


@pytest.mark.parametrize("size", [4095, 4096, 20_000])
def test_selection_and_sorting_give_the_same_answers(size: int) -> None:
    values = np.random.default_rng(3).lognormal(0, 1, size)
    ordered = np.sort(values)
    for share in (0.001, 0.25, 0.5, 0.95, 1.0):
        selected, by_sorting = TTFTDistribution.from_samples(values), TTFTDistribution.from_samples(values)
        assert by_sorting.times.size == size
        assert selected.quantile(share) == by_sorting.quantile(share) == ordered[math.ceil(share * size - 1e-9) - 1]
        assert selected.survival_at(1.0) == pytest.approx(by_sorting.survival_at(1.0))
        assert selected == by_sorting


@pytest.mark.parametrize("values", [[0.5] * 5000, [0.0, -0.0] * 3000, [0.0] * 4000 + [1e-300, 1e300] * 1000, np.linspace(1.0, 1.01, 6000)])
def test_selection_bears_ties_zeros_and_extremes(values: list[float]) -> None:
    ordered = np.sort(values)
    for share in (1e-6, 0.3, 0.5, 0.9, 1.0):
        rank = math.ceil(share * len(values) - 1e-9) - 1
        assert TTFTDistribution.from_samples(values).quantile(share) == ordered[rank]


def test_the_callers_samples_are_left_alone() -> None:
    values = np.array([3.0, 1.0, 2.0] * 3000)
    distribution = TTFTDistribution.from_samples(values)
    distribution.quantile(0.5)
    assert distribution.times[0] == 1.0
    assert values[:3].tolist() == [3.0, 1.0, 2.0]


def test_a_curve_that_ends_above_zero_never_answers_that_share() -> None:
    distribution = TTFTDistribution([1.0, 2.0], [0.5, 0.25])
    assert distribution.mean == math.inf
    assert distribution.quantile(0.75) == 2.0
    assert distribution.quantile(0.76) == math.inf
    assert distribution.survival_at(1e9) == 0.25
    assert float(distribution.mean_within(10.0)) == pytest.approx(1 + 0.5 + 0.25 * 8)


def test_no_share_needs_no_time() -> None:
    assert TTFTDistribution.from_samples([1.0]).quantile(0.0) == 0.0


def test_compressing_keeps_the_mean_and_exact_probabilities() -> None:
    distribution = TTFTDistribution.from_samples(np.random.default_rng(5).lognormal(0, 1, 5000))
    small = distribution.compress(100)
    assert small.times.size == 100
    assert small.mean == pytest.approx(distribution.mean)
    assert set(small.survival.tolist()) <= set(distribution.survival.tolist())
    assert small.quantile(0.5) == pytest.approx(distribution.quantile(0.5), rel=0.03)
    assert small.compress(100) is small


def test_compressing_bears_flat_stretches_and_an_end_above_zero() -> None:
    distribution = TTFTDistribution(np.arange(1.0, 301.0), np.repeat([0.8, 0.8, 0.3], 100))
    small = distribution.compress(30)
    assert small.times.size == 30
    assert small.survival[-1] == 0.3
    assert small.survival_at(150.0) == 0.8


@pytest.mark.parametrize("values", [[], [1.0, -0.1], [math.nan, 1.0], [1.0, math.nan], [math.inf], [[1.0]]])
def test_samples_that_are_no_times_are_refused(values: list[float]) -> None:
    with pytest.raises(ConfigError, match="time to first token: expected one or more finite samples >= 0 s, got"):
        TTFTDistribution.from_samples(values)


@pytest.mark.parametrize(
    ("times", "survival"),
    [
        ([], []),
        ([2.0, 1.0], [0.5, 0.0]),
        ([-1.0], [0.0]),
        ([math.inf], [0.0]),
        ([1.0], [1.5]),
        ([1.0, 2.0], [0.2, 0.3]),
        ([1.0, 2.0], [0.5]),
        ([1.0], [-0.1]),
        ([1.0], [math.nan]),
    ],
)
def test_what_is_no_survival_curve_is_refused(times: list[float], survival: list[float]) -> None:
    with pytest.raises(ConfigError, match="time to first token: expected"):
        TTFTDistribution(times, survival)


def test_distributions_compare_by_value_and_describe_themselves() -> None:
    one, same, other = (TTFTDistribution.from_samples(values) for values in ([1.0, 2.0], [2.0, 1.0], [1.0, 3.0]))
    assert one == same
    assert one != other
    assert one != 3
    assert repr(one) == "TTFTDistribution(2 steps, median 1 s, p99 2 s)"
    with pytest.raises(TypeError):
        hash(one)


# Lengths


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=100))
def test_lengths_are_counted_exactly(values: list[int]) -> None:
    distribution = LengthDistribution.from_samples(values)
    assert dict(zip(distribution.lengths.tolist(), distribution.counts.tolist(), strict=True)) == {v: values.count(v) for v in values}
    assert distribution.mean == pytest.approx(np.mean(values))
    assert distribution.probabilities.sum() == pytest.approx(1)
    shares = distribution.probabilities * distribution.lengths / distribution.mean
    assert distribution.token_shares == pytest.approx(shares)


def test_very_long_prompts_need_no_very_long_table() -> None:
    distribution = LengthDistribution.from_samples([5, 1 << 40, 5])
    assert distribution.lengths.tolist() == [5, 1 << 40]
    assert distribution.counts.tolist() == [2, 1]


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=100), st.integers(1, 20))
def test_grouping_keeps_the_counts_and_never_shortens_a_prompt(values: list[int], groups: int) -> None:
    distribution = LengthDistribution.from_samples(values)
    grouped = distribution.group(groups)
    assert grouped.lengths.size <= max(groups, 1)
    assert grouped.counts.sum() == distribution.counts.sum()
    assert grouped.lengths[-1] == distribution.lengths[-1]
    assert grouped.mean >= distribution.mean - 1e-9


@pytest.mark.parametrize("values", [[], [0], [-3, 4]])
def test_prompts_without_a_token_are_refused(values: list[int]) -> None:
    with pytest.raises(ConfigError, match="prompt lengths: expected one or more whole numbers >= 1"):
        LengthDistribution.from_samples(values)


@pytest.mark.parametrize(
    ("lengths", "counts"), [([], []), ([2, 1], [1, 1]), ([1, 1], [1, 1]), ([0], [1]), ([1], [0]), ([1], [1, 2]), ([1], [math.inf])]
)
def test_what_is_no_table_of_lengths_is_refused(lengths: list[int], counts: list[float]) -> None:
    with pytest.raises(ConfigError, match="prompt length"):
        LengthDistribution(lengths, counts)


def test_length_distributions_compare_by_value_and_describe_themselves() -> None:
    assert LengthDistribution([1, 2], [1, 3]) == LengthDistribution.from_samples([2, 1, 2, 2])
    assert LengthDistribution([1, 2], [1, 3]) != LengthDistribution([1, 2], [1, 2])
    assert LengthDistribution([1], [1]) != "x"
    assert repr(LengthDistribution([1, 2], [1, 3])) == "LengthDistribution(2 lengths, mean 1.8 tokens, longest 2)"


# Answers

answers = st.lists(st.integers(1, 300), min_size=1, max_size=40)


def curve_of(lengths: list[int]) -> RemainingLength:
    steps = sorted(set(lengths))
    return RemainingLength(tuple(steps), tuple(sum(length > step for length in lengths) / len(lengths) for step in steps))


@given(answers, st.integers(0, 299), st.none() | st.integers(0, 400))
def test_what_remains_is_the_mean_of_the_answers_that_go_on(lengths: list[int], position: int, limit: int | None) -> None:
    going_on = [length for length in lengths if length > position]
    if going_on:
        cut = [max(0, min(length, limit or length) - position) if limit != 0 else 0 for length in going_on]
        assert curve_of(lengths).expected(position, limit) == pytest.approx(sum(cut) / len(cut), abs=1e-9)


def test_between_two_steps_an_answer_comes_closer_to_its_end_token_by_token() -> None:
    curve = RemainingLength((10, 100), (0.5, 0.0))
    assert [curve.expected(position) for position in (0, 5, 9.5, 10, 99)] == pytest.approx([55, 50, 45.5, 90, 1])


@pytest.mark.parametrize("left", [0.2, 0.0])
def test_an_answer_that_has_outlasted_all_others_is_expected_to_become_twice_as_long(left: float) -> None:
    curve = RemainingLength((10, 100), (0.5, left))
    assert curve.expected(100) == 100
    assert curve.expected(5000) == 5000
    assert curve.expected(100, 200) == pytest.approx(50)  # the area below (100 / x)^2 from 100 to 200
    assert curve.expected(100, 1e15) == pytest.approx(100)


def test_the_tail_beyond_the_last_step_counts_before_it() -> None:
    curve = RemainingLength((100,), (0.2,))
    assert curve.expected(0) == pytest.approx(100 + 0.2 * 100)
    assert curve.expected(0, 200) == pytest.approx(100 + 0.2 * 50)
    assert curve.expected(60) == pytest.approx(40 + 0.2 * 100)


@given(answers, st.floats(0, 0.9), st.tuples(*[st.floats(0, 1000)] * 2), st.tuples(*[st.floats(0, 2000)] * 2))
def test_what_must_not_fall_does_not_fall(
    lengths: list[int], left: float, positions: tuple[float, float], limits: tuple[float, float]
) -> None:
    plain = curve_of(lengths)
    curve = RemainingLength(plain.lengths, tuple(share * (1 - left) + left for share in plain.survival))
    (one, other), (limit, later) = sorted(positions), sorted(limits)
    slack = 1e-5
    assert one + curve.expected(one) <= other + curve.expected(other) + slack  # an answer that is longer ends later
    assert 0 <= curve.expected(one, limit) <= curve.expected(one, later) + slack <= curve.expected(one) + 2 * slack
    assert curve.expected(one, limit) <= max(0.0, limit - one) + slack


@given(answers, st.integers(2, 20))
def test_compressing_answers_keeps_the_mean_of_all(lengths: list[int], points: int) -> None:
    curve = curve_of(lengths)
    small = curve.compress(points)
    assert len(small.lengths) <= max(points, 1)
    assert small.expected(0) == pytest.approx(curve.expected(0))
    for position in small.lengths[:-1]:  # there the areas are the same, the share of those that go on is a mean of neighbours
        share, other = (one.survival[one.lengths.index(position)] for one in (small, curve))
        assert share * small.expected(position) == pytest.approx(other * curve.expected(position))
    assert small.expected(500) == curve.expected(500) == 500


@pytest.mark.parametrize(
    ("lengths", "survival"),
    [
        ((), ()),
        ((-1,), (0.5,)),
        ((5, 5), (0.5, 0.2)),
        ((5, 3), (0.5, 0.2)),
        ((3, 5), (0.5,)),
        ((3, 5), (0.2, 0.5)),
        ((3, 5), (0.0, 0.0)),
        ((3,), (1.5,)),
        ((3,), (-0.1,)),
        ((3,), (math.nan,)),
    ],
)
def test_what_is_no_curve_of_answer_lengths_is_refused(lengths: tuple[int, ...], survival: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="answer lengths: expected"):
        RemainingLength(lengths, survival)
