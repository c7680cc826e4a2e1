"""What an answer still has: learned from answers that were seen to their end and from those that were cut off."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.data.make_answer_lengths import generated_tokens, table
from streamco.core.race.answer_lengths import QUANTILES, TYPICAL, AnswerLengths
from streamco.errors import UsageError
from streamco.profiles import RemainingLength
from tests.support.data import data_path

Samples = list[tuple[int, bool]]

seen = st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=40)
priors = st.lists(st.integers(1, 60), min_size=1, max_size=8).map(
    lambda lengths: RemainingLength(
        tuple(sorted({*lengths, 80})), tuple(sum(length >= step for length in lengths) / 16 + 0.25 for step in sorted({*lengths, 80}))
    )
)


def learned(samples: Samples, **options: object) -> AnswerLengths:
    lengths = AnswerLengths(**options)  # type: ignore[arg-type]
    for tokens, is_censored in samples:
        lengths.observe(tokens, is_censored=is_censored)
    return lengths


def survival_by_the_book(samples: Samples, prior: RemainingLength, worth: int, position: int) -> Fraction:
    """Kaplan and Meier's product, factor by factor, in fractions; the prior as answers that count in part."""
    steps = [Fraction(1), *map(Fraction, prior.survival)]
    weighted = [(tokens, is_censored, Fraction(1)) for tokens, is_censored in samples]
    weighted += [(tokens, False, worth * (before - after)) for tokens, before, after in zip(prior.lengths, steps, steps[1:], strict=False)]
    weighted.append((prior.lengths[-1], True, worth * steps[-1]))
    survival = Fraction(1)
    for moment in sorted({tokens for tokens, is_censored, weight in weighted if not is_censored and weight and tokens <= position}):
        at_risk = sum(weight for tokens, _, weight in weighted if tokens >= moment)
        ended = sum(weight for tokens, is_censored, weight in weighted if tokens == moment and not is_censored)
        survival *= 1 - Fraction(ended) / at_risk
    return survival


# The estimate


@given(seen, priors, st.integers(1, 40), st.integers(0, 79), st.none() | st.integers(1, 80))
def test_it_is_the_product_limit_summed_token_by_token(
    samples: Samples, prior: RemainingLength, worth: int, position: int, limit: int | None
) -> None:
    curve = [survival_by_the_book(samples, prior, worth, token) for token in range(80)]
    tail = 80 * survival_by_the_book(samples, prior, worth, 80) if limit is None else 0
    expected = (sum(curve[position : limit or 80]) + tail) / curve[position]
    lengths = learned(samples, prior=prior, prior_weight=worth)
    assert lengths.remaining(position, limit=limit) == pytest.approx(float(expected), rel=1e-9, abs=1e-9)


def test_without_a_prior_and_censoring_it_is_the_mean_of_those_that_go_on() -> None:
    lengths = learned([(tokens, False) for tokens in (10, 20, 20, 50)], prior_weight=0)
    assert [lengths.remaining(position) for position in (0, 9, 10, 20, 49)] == pytest.approx([25, 16, 20, 30, 1])
    assert lengths.remaining(15, limit=30) == pytest.approx((5 + 5 + 15) / 3)


@pytest.mark.parametrize("seed", range(3))
def test_the_truth_is_found_though_half_the_answers_are_cut_off(seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole, cut = rng.lognormal(5.0, 0.7, 4000).astype(int) + 1, rng.lognormal(5.3, 0.8, 4000).astype(int) + 1
    samples = [(int(min(length, at)), bool(at < length)) for length, at in zip(whole, cut, strict=True)]
    assert 0.3 < np.mean([is_censored for _, is_censored in samples]) < 0.6
    lengths, naive = learned(samples, window=4000), learned([(tokens, False) for tokens, _ in samples], window=4000)
    for position in (0, 50, 150, 300):
        truth = float((whole[whole > position] - position).mean())
        assert lengths.remaining(position) == pytest.approx(truth, rel=0.15)
        assert naive.remaining(position) < 0.85 * truth  # what taking them as they are would give


def test_censoring_leaves_no_bias_on_average() -> None:
    rng = np.random.default_rng(11)
    errors = []
    for _ in range(150):
        whole, cut = rng.geometric(1 / 100, 200), rng.geometric(1 / 150, 200)
        samples = [(int(min(length, at)), bool(at < length)) for length, at in zip(whole, cut, strict=True)]
        errors.append(learned(samples, prior_weight=0).remaining(40, limit=240) - 99.5 * (1 - 0.99**200))
    assert abs(np.mean(errors)) < 3 * np.std(errors) / np.sqrt(len(errors)) + 0.5


def test_what_max_tokens_always_cuts_is_known_to_go_on() -> None:
    lengths = learned([(600, True)] * 200)
    assert lengths.remaining(0) > 600
    assert 475 < lengths.remaining(100, limit=600) < 500  # 200 answers say 500, 20 say less
    assert learned([(600, True)] * 5, prior_weight=0).remaining(0) == pytest.approx(1200)  # no end was seen: a Pareto tail


@given(seen, st.integers(1, 100), st.integers(1, 100))
def test_a_longer_answer_never_makes_less_remain(samples: Samples, tokens: int, more: int) -> None:
    whole = [(length, False) for length, _ in samples]
    assert learned([*samples, (tokens, False)]).remaining(0) <= learned([*samples, (tokens, True)]).remaining(0) + 1e-9
    assert learned([*whole, (tokens, False)]).remaining(0) <= learned([*whole, (tokens + more, False)]).remaining(0) + 1e-9


@given(seen, st.integers(0, 10_000_000), st.none() | st.integers(0, 10_000_000))
def test_what_remains_is_finite_everywhere(samples: Samples, position: int, limit: int | None) -> None:
    for worth in (20, 0):
        remains = learned(samples, prior_weight=worth).remaining(position, limit=limit)
        assert 0 <= remains < 1e9
        assert limit is None or remains <= max(0, limit - position) * (1 + 1e-9)


def test_in_heavy_tails_who_has_come_far_goes_far() -> None:
    rng = np.random.default_rng(5)
    lengths = learned([(int(tokens), False) for tokens in 100 * (1 + rng.pareto(1.5, 1000))])
    remains = [lengths.remaining(position) for position in (200, 400, 800, 1600, 10**5, 10**7)]
    assert remains == sorted(remains)
    assert remains[-1] == pytest.approx(10**7)


# The prior


def test_before_the_first_answer_the_prior_stands() -> None:
    assert AnswerLengths().estimate() is TYPICAL
    own = RemainingLength((50,), (0.0,))
    assert AnswerLengths(prior=own).estimate() is own


def test_the_prior_is_worth_its_weight_in_answers() -> None:
    prior = RemainingLength((100,), (0.0,))
    assert learned([(300, False)] * 20, prior=prior).remaining(0) == pytest.approx(200)
    assert learned([(300, False)] * 60, prior=prior).remaining(0) == pytest.approx(250)
    assert learned([(300, False)] * 20, prior=prior, prior_weight=60).remaining(0) == pytest.approx(150)


def test_beyond_the_longest_answer_the_prior_decides_alone() -> None:
    lengths = learned([(tokens, False) for tokens in range(1, 200)])
    for position in (200, 300, 500, 2000):
        assert lengths.remaining(position) == pytest.approx(TYPICAL.expected(position))


def test_typical_answers_have_the_traces_quantiles_and_mean() -> None:
    for share, tokens in QUANTILES[1:-1]:
        above = TYPICAL.survival[sum(step <= tokens for step in TYPICAL.lengths) - 1]
        assert above == pytest.approx(1 - share, abs=0.01)
    assert TYPICAL.expected(0, 1000) == pytest.approx(200.9, rel=0.02)
    for position in (1000, 5000, 50_000, 500_000):
        assert TYPICAL.expected(position) == pytest.approx(position, rel=0.45)  # steps of half an octave


def test_the_table_is_the_recorded_traces() -> None:
    data = data_path("arrivals", "azure2023_conv.csv.gz").parents[1]
    lengths = generated_tokens(data)
    assert tuple(table(lengths)) == QUANTILES
    whole = np.array(lengths)
    for position in (0, 50, 100, 200, 300):
        assert TYPICAL.expected(position, 1000) == pytest.approx((whole[whole > position] - position).mean(), rel=0.05)


# The window


def test_old_answers_leave_the_window() -> None:
    lengths = learned([(900, False)] * 10 + [(900, True)] * 10 + [(30, False)] * 10, window=10, prior_weight=0)
    assert len(lengths) == 10
    assert lengths.remaining(0) == pytest.approx(30)


def test_the_curve_is_made_once_for_all_that_ask() -> None:
    lengths = learned([(30, False)])
    first = lengths.estimate()
    assert lengths.estimate() is first
    lengths.observe(40)
    assert lengths.estimate() is not first


def test_the_curve_survives_its_json() -> None:
    curve = learned([(30, False), (40, True), (700, False)]).estimate()
    again = msgspec.json.decode(msgspec.json.encode(curve), type=RemainingLength)
    assert again == curve
    assert again.expected(123, 500) == curve.expected(123, 500)


def test_a_length_below_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="expected tokens >= 0, got -1"):
        AnswerLengths().observe(-1)
