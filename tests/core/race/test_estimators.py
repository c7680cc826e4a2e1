"""What is learned: censored server times, a robust device line, prompt lengths, and which answers came in one piece."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.core.race.estimators import DeviceFit, LengthWindow, ProductLimit, RecentSpeed, RecentTimes, has_changed, is_burst
from streamco.profiles import DeviceSpeed, LengthDistribution, TTFTDistribution

times = st.lists(st.tuples(st.integers(1, 30).map(lambda tenths: tenths / 10), st.booleans()), min_size=1, max_size=60)


def product_limit_by_the_book(samples: list[tuple[float, bool]], time: float) -> float:
    """Kaplan and Meier's product, factor by factor."""
    survival = 1.0
    for moment in sorted({seconds for seconds, is_censored in samples if not is_censored and seconds <= time}):
        at_risk = sum(seconds >= moment for seconds, _ in samples)
        answered = sum(seconds == moment and not is_censored for seconds, is_censored in samples)
        survival *= 1 - answered / at_risk
    return survival


def observed(samples: list[tuple[float, bool]], **options: float) -> ProductLimit:
    learned = ProductLimit(**options)  # type: ignore[arg-type]
    for seconds, is_censored in samples:
        learned.observe(seconds, is_censored=is_censored)
    return learned


# Server times


@given(times)
def test_up_to_the_last_answer_it_is_the_product_limit(samples: list[tuple[float, bool]]) -> None:
    estimate = observed(samples).estimate()
    answers = [seconds for seconds, is_censored in samples if not is_censored]
    if not answers:
        assert estimate is None
        return
    assert estimate is not None
    for time in [tenths / 10 for tenths in range(1, round(max(answers) * 10) + 1)]:
        assert estimate.survival_at(time) == pytest.approx(product_limit_by_the_book(samples, time), abs=1e-12)


@given(times)
def test_whatever_was_seen_every_request_is_answered_in_the_end(samples: list[tuple[float, bool]]) -> None:
    estimate = observed(samples).estimate(TTFTDistribution.from_samples([0.5, 5.0]))
    assert estimate is not None
    assert estimate.survival[-1] == pytest.approx(0, abs=1e-12)
    assert (np.diff(estimate.times) >= 0).all()


def test_times_that_the_server_told_count_until_there_are_own_ones() -> None:
    learned = ProductLimit()
    assert learned.estimate() is None
    learned.tell([2.0, 1.0])
    estimate = learned.estimate()
    assert estimate is not None
    assert estimate.times.tolist() == [1.0, 2.0]
    assert learned.estimate(with_told=False) is None
    learned.tell([])
    assert learned.estimate() is None


def test_two_own_times_displace_one_of_ten_that_were_told() -> None:
    learned = ProductLimit()
    learned.tell([float(each) for each in range(10)])
    counts = [len(learned.told)]
    for _ in range(21):
        learned.observe(50.0)
        counts.append(len(learned.told))
    assert counts == [10, 10, 9, 9, 8, 8, 7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0]
    estimate = learned.estimate()
    assert estimate is not None
    assert estimate.times.tolist() == [50.0]


def test_lost_races_displace_nothing_that_was_told() -> None:
    learned = observed([(0.5, True)] * 30)
    learned.tell([1.0, 2.0])
    assert list(learned.told) == [1.0, 2.0]
    estimate = learned.estimate()
    assert estimate is not None
    assert estimate.survival_at(1.5) == pytest.approx(0.5)


@given(times, st.lists(st.floats(0.001, 60.0), max_size=10))
def test_whatever_was_told_every_request_is_answered_in_the_end(samples: list[tuple[float, bool]], told: list[float]) -> None:
    learned = observed(samples)
    learned.tell(told)
    for prior in (None, TTFTDistribution.from_samples([0.5, 5.0])):
        estimate = learned.estimate(prior)
        if estimate is not None:
            assert estimate.survival[-1] == pytest.approx(0, abs=1e-12)
            assert (np.diff(estimate.times) >= 0).all()


def test_without_censoring_it_is_the_sample() -> None:
    estimate = observed([(3.0, False), (1.0, False), (1.0, False), (2.0, False)]).estimate()
    assert estimate is not None
    assert estimate.times.tolist() == [1.0, 2.0, 3.0]
    assert estimate.survival.tolist() == pytest.approx([0.5, 0.25, 0.0])


def test_the_truth_is_found_though_half_the_samples_are_cut_off() -> None:
    rng = np.random.default_rng(3)
    server, device = rng.lognormal(-0.5, 0.8, 4000), rng.lognormal(-0.4, 0.6, 4000)
    learned = observed([(min(s, d), bool(d < s)) for s, d in zip(server, device, strict=True)], window=4000)
    estimate, naive = learned.estimate(), TTFTDistribution.from_samples(np.minimum(server, device))
    assert estimate is not None
    assert learned.events < 2500
    truth = TTFTDistribution.from_samples(server)
    for share in (0.25, 0.5, 0.75, 0.9):
        assert estimate.quantile(share) == pytest.approx(truth.quantile(share), rel=0.1)
        assert naive.quantile(share) < 0.9 * truth.quantile(share) or share < 0.5  # what taking them as they are would give


def test_beyond_the_last_answer_the_priors_tail_goes_on() -> None:
    prior = TTFTDistribution([0.5, 1.0, 2.0, 8.0], [0.8, 0.4, 0.1, 0.0])
    estimate = observed([(0.5, False), (1.0, False), (1.0, True), (1.0, True)], prior_weight=0).estimate(prior)
    assert estimate is not None
    assert estimate.survival_at(1.0) == pytest.approx(0.5)
    assert estimate.survival_at(2.0) == pytest.approx(0.5 * 0.1 / 0.4)
    assert estimate.survival_at(8.0) == 0.0


def test_without_a_prior_the_tail_is_paretos_from_the_longest_wait() -> None:
    estimate = observed([(0.5, False), (1.0, False), (4.0, True), (4.0, True)]).estimate()
    assert estimate is not None
    assert estimate.survival_at(4.0) == pytest.approx(0.5)
    for factor in (1.2, 1.5, 2.0):
        assert estimate.survival_at(4.0 * factor) == pytest.approx(0.5 / factor**2, abs=0.05)


def test_a_prior_is_worth_its_weight_in_samples() -> None:
    prior = TTFTDistribution.from_samples([4.0])
    few, many = observed([(1.0, False)] * 5), observed([(1.0, False)] * 980)
    assert few.estimate(prior).survival_at(2.0) == pytest.approx(20 / 25)  # type: ignore[union-attr]
    assert many.estimate(prior).survival_at(2.0) == pytest.approx(20 / 1000)  # type: ignore[union-attr]


def test_with_no_answer_seen_the_prior_stands() -> None:
    prior = TTFTDistribution.from_samples([4.0])
    assert ProductLimit().estimate(prior) is prior
    assert observed([(1.0, True)]).estimate(prior) is prior
    assert observed([(1.0, True)]).estimate() is None


def test_a_prior_that_never_ends_lends_no_tail() -> None:
    prior = TTFTDistribution([1.0], [0.5])
    estimate = observed([(0.5, False), (1.0, True)], prior_weight=0).estimate(prior)
    assert estimate is not None
    assert estimate.survival[-1] == 0.0


def test_old_samples_leave_the_window() -> None:
    learned = observed([(9.0, False)] * 5 + [(9.0, True)] * 5 + [(1.0, False)] * 10, window=10)
    estimate = learned.estimate()
    assert len(learned) == 10
    assert learned.events == 10
    assert estimate is not None
    assert estimate.quantile(1.0) == 1.0


@given(times, st.integers(1, 10))
def test_events_are_counted_as_the_window_slides(samples: list[tuple[float, bool]], window: int) -> None:
    learned = observed(samples, window=window)
    assert learned.events == sum(not is_censored for _, is_censored in samples[-window:])


# The device's line


def fitted(tokens: list[int], seconds: list[float], prior: DeviceSpeed | None = None) -> DeviceSpeed:
    fit = DeviceFit()
    for count, time in zip(tokens, seconds, strict=True):
        fit.observe(count, time)
    found = fit.estimate(prior)
    assert found is not None
    return found


@given(st.floats(0.0, 0.2), st.floats(0.0, 2.0), st.lists(st.integers(1, 500), min_size=8, max_size=40, unique=True))
def test_a_clean_line_is_found_exactly(slope: float, offset: float, tokens: list[int]) -> None:
    if max(tokens) < 1.5 * min(tokens):
        tokens = [*tokens, 1000]
    found = fitted(tokens, [slope * count + offset for count in tokens])
    assert found.seconds_per_token == pytest.approx(slope, abs=1e-9)
    assert found.overhead == pytest.approx(offset, abs=1e-6)


def test_a_fifth_of_wild_outliers_moves_it_little() -> None:
    rng = np.random.default_rng(4)
    tokens = rng.integers(5, 300, 100)
    seconds = (0.03 * tokens + 0.2) * rng.lognormal(0, 0.05, 100)
    seconds[:20] += rng.uniform(5, 60, 20)
    found = fitted(tokens.tolist(), seconds.tolist())
    assert found.seconds_per_token == pytest.approx(0.03, rel=0.1)
    assert found.ttft(100) == pytest.approx(3.2, rel=0.1)
    slope, _ = np.polyfit(tokens, seconds, 1)
    assert abs(slope - 0.03) > abs(found.seconds_per_token - 0.03)


def test_neither_number_falls_below_zero() -> None:
    falling = fitted([10, 20, 30, 40, 50, 60, 70, 80], [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    assert (falling.seconds_per_token, falling.overhead) == (0.0, 4.5)
    below = fitted([100, 120, 140, 160, 180, 200, 220, 240], [0.05 * count - 4 for count in range(100, 250, 20)])
    assert below.overhead == 0.0
    assert below.seconds_per_token > 0


def test_few_samples_scale_the_prior() -> None:
    prior = DeviceSpeed(seconds_per_token=0.02, overhead=0.1, decode_tokens_per_s=12.0)
    found = fitted([50, 100], [2.2, 4.2], prior)
    assert found.seconds_per_token == pytest.approx(0.04)
    assert found.overhead == pytest.approx(0.2)
    assert found.decode_tokens_per_s == 12.0


def test_samples_of_one_length_scale_the_prior_however_many() -> None:
    prior = DeviceSpeed(seconds_per_token=0.02, overhead=0.1)
    found = fitted([100] * 50, [4.2] * 50, prior)
    assert found.ttft(100) == pytest.approx(4.2)
    assert found.overhead == pytest.approx(0.2)


def test_few_samples_without_a_prior_go_through_the_origin() -> None:
    found = fitted([50, 100, 200], [1.0, 2.0, 4.0])
    assert found.seconds_per_token == pytest.approx(0.02)
    assert found.overhead == 0.0


def test_a_prior_of_no_time_at_all_can_not_be_scaled() -> None:
    found = fitted([50], [1.0], DeviceSpeed(seconds_per_token=0.0))
    assert found.ttft(50) == pytest.approx(1.0)


def test_without_samples_the_prior_stands() -> None:
    prior = DeviceSpeed(seconds_per_token=0.02)
    assert DeviceFit().estimate(prior) is prior
    assert DeviceFit().estimate() is None


def test_how_samples_stray_from_the_line_is_learned_too() -> None:
    rng = np.random.default_rng(5)
    tokens = rng.integers(5, 300, 128)
    found = fitted(tokens.tolist(), (0.03 * tokens * rng.lognormal(0, 0.2, 128)).tolist())
    assert len(found.jitter) == 9
    assert found.jitter[4] == pytest.approx(1.0, abs=0.1)
    assert found.jitter[0] == pytest.approx(np.exp(-0.2 * 1.6), abs=0.1)
    assert fitted([10, 20, 30], [1.0, 2.0, 3.0]).jitter == (1.0,)


def test_a_cached_prompt_still_counts_a_token() -> None:
    assert fitted([0], [0.05]).seconds_per_token == pytest.approx(0.05)


def test_old_device_samples_leave_the_window() -> None:
    fit = DeviceFit(window=10)
    for _ in range(10):
        fit.observe(10, 99.0)
    for count in range(10, 20):
        fit.observe(count, 0.1 * count)
    found = fit.estimate()
    assert len(fit) == 10
    assert found is not None
    assert found.seconds_per_token == pytest.approx(0.1)


# Prompt lengths


def test_lengths_are_counted_over_the_window() -> None:
    window = LengthWindow(window=4)
    for tokens in (100, 3, 3, 7, 0):
        window.observe(tokens)
    assert len(window) == 4
    assert window.estimate() == LengthDistribution([1, 3, 7], [1, 2, 1])


def test_a_prior_of_lengths_is_worth_its_weight() -> None:
    window = LengthWindow()
    for tokens in (3, 7):
        window.observe(tokens)
    prior = LengthDistribution([7, 20], [1, 3])
    assert window.estimate(prior, prior_weight=4) == LengthDistribution([3, 7, 20], [1, 2, 3])
    assert window.estimate(prior, prior_weight=0) == LengthDistribution([3, 7], [1, 1])
    assert LengthWindow().estimate(prior) is prior
    assert LengthWindow().estimate() is None


# Bursts


@pytest.mark.parametrize(
    ("tokens", "ttft", "spread", "expected"),
    [
        (200, 3.0, 0.005, True),  # a proxy held the whole answer
        (200, 0.3, 2.0, False),  # a stream
        (300, 0.2, 0.15, False),  # a very fast server: 2,000 tokens/s
        (5, 3.0, 0.0, False),  # a short answer in one read
        (16, 3.0, 0.0, True),
        (16, 0.0, 0.0, False),
    ],
)
def test_an_answer_in_one_piece_is_told_from_a_fast_one(tokens: int, ttft: float, spread: float, expected: bool) -> None:
    assert is_burst(tokens, ttft, spread) is expected


# What has changed


@pytest.mark.parametrize("draw", ["outliers", "lognormal", "constant"])
def test_times_that_stay_as_they_are_seldom_look_changed(draw: str) -> None:
    rng = Random(5)
    draws = {
        "outliers": lambda: 15.0 if rng.random() < 0.05 else 0.4 * rng.uniform(0.9, 1.1),
        "lognormal": lambda: rng.lognormvariate(0.0, 1.0),
        "constant": lambda: 0.3,
    }
    samples = [draws[draw]() for _ in range(4000)]
    assert sum(has_changed(samples[max(0, end - 64) : end]) for end in range(12, len(samples))) <= 4


@pytest.mark.parametrize(("before", "after"), [(0.4, 3.0), (3.0, 0.4)])
def test_a_server_that_has_changed_is_known_after_a_few_answers(before: float, after: float) -> None:
    rng, recent = Random(6), RecentTimes()
    for seconds in (before,) * 60:
        recent.observe(seconds * rng.uniform(0.8, 1.3))
    for seconds in (after,) * 5:
        recent.observe(seconds * rng.uniform(0.8, 1.3))
    found = recent.estimate(TTFTDistribution.from_samples([before]), ())
    assert found is not None
    assert found.mean_within(60.0) == pytest.approx(after, rel=0.5)


def test_a_device_that_has_changed_is_known_after_a_few_answers() -> None:
    rng, recent = Random(7), RecentSpeed()
    for _ in range(60):
        tokens = rng.randrange(20, 500)
        recent.observe(tokens, 0.01 * tokens * rng.uniform(0.9, 1.1))
    before = recent.estimate(None)
    for _ in range(5):
        tokens = rng.randrange(20, 500)
        recent.observe(tokens, 0.05 * tokens * rng.uniform(0.9, 1.1))
    after = recent.estimate(None)
    assert before is not None
    assert after is not None
    assert before.ttft(100) == pytest.approx(1.0, rel=0.15)
    assert after.ttft(100) == pytest.approx(5.0, rel=0.15)


def test_answers_that_were_held_back_count_if_there_are_no_others() -> None:
    recent = RecentTimes()
    for _ in range(3):
        recent.observe(2.0, is_burst=True)
    found = recent.estimate(None, ())
    assert found is not None
    assert found.mean == pytest.approx(2.0)
    recent.observe(0.5)
    later = recent.estimate(None, ())
    assert later is not None
    assert later.quantile(0.5) == pytest.approx(0.5)
