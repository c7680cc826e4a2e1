"""Drawing tokens: the right distribution, the same again for the same seed, and none from numbers that aren't."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamco import _native
from streamco.config import SamplingOptions
from streamco.engines.sampling import Sampler, candidates, top_probabilities
from streamco.errors import ConfigError, EngineError

rows = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=200).map(lambda values: np.array(values, dtype=np.float32))


def softmax(logits: NDArray[np.float32], temperature: float = 1.0) -> NDArray[np.float64]:
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    return np.asarray(weights / weights.sum())


def row(seed: int = 1, size: int = 5000) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32) * 3


@pytest.fixture(params=[True, False], ids=["native", "numpy"])
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param and not _native.HAS_NATIVE:
        pytest.skip("the compiled leaves are not built")
    monkeypatch.setattr(_native, "HAS_NATIVE", request.param)
    return bool(request.param)


def test_greedy_takes_the_first_of_the_largest() -> None:
    assert Sampler(SamplingOptions(temperature=0)).draw(np.array([1, 5, 2, 5], dtype=np.float32)) == 1
    assert Sampler(SamplingOptions(top_k=1)).draw(np.array([1, 5, 2, 5], dtype=np.float32)) == 1


@pytest.mark.usefixtures("native")
def test_the_same_seed_draws_the_same_tokens_and_another_seed_others() -> None:
    def drawn(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingOptions(seed=seed))
        return [sampler.draw(row(step)) for step in range(30)]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    assert drawn(None) != drawn(None)
    for any_seed in (-1, 0xFFFFFFFF):
        assert drawn(any_seed) != drawn(any_seed), "what other servers take for a random seed is one here too"
    assert drawn(-2) == drawn(-2)


@pytest.mark.usefixtures("native")
def test_frequencies_are_the_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    sampler = Sampler(SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=11))
    counts = np.bincount([sampler.draw(logits) for _ in range(20_000)], minlength=4)
    assert np.abs(counts / 20_000 - [0.5, 0.3, 0.15, 0.05]).max() < 0.012  # more than three deviations


def test_temperature_comes_before_the_cuts() -> None:
    logits = np.log(np.array([0.6, 0.3, 0.1], dtype=np.float32))
    ids, _ = candidates(logits, temperature=1.0, top_p=0.85)
    assert ids.tolist() == [0, 1]
    ids, weights = candidates(logits, temperature=10.0, top_p=0.85)  # nearly flat: two no longer reach 0.85
    assert ids.tolist() == [0, 1, 2]
    assert weights == pytest.approx(softmax(logits, 10.0))


@given(rows, st.integers(1, 220))
def test_top_k_keeps_the_k_largest_and_equal_ones_by_id(logits: NDArray[np.float32], count: int) -> None:
    ids, weights = candidates(logits, temperature=1.0, top_k=count)
    best = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:count]
    assert set(ids.tolist()) == set(best)
    if count < len(logits):
        assert ids.tolist() == best
    assert weights.sum() == pytest.approx(1.0)


@given(rows, st.floats(0.05, 0.99), st.floats(0.1, 3))
def test_top_p_keeps_the_smallest_set_that_reaches_it(logits: NDArray[np.float32], top_p: float, temperature: float) -> None:
    ids, weights = candidates(logits, temperature=temperature, top_p=top_p)
    everything = softmax(logits, temperature)
    assert everything[ids].sum() >= top_p - 1e-9
    assert everything[ids[:-1]].sum() < top_p + 1e-9
    assert everything[ids].min() >= np.delete(everything, ids).max(initial=0.0) - 1e-12
    assert weights == pytest.approx(everything[ids] / everything[ids].sum())


@given(rows, st.floats(0.001, 1.0), st.floats(0.1, 3))
def test_min_p_keeps_those_near_the_best(logits: NDArray[np.float32], min_p: float, temperature: float) -> None:
    ids, _ = candidates(logits, temperature=temperature, min_p=min_p)
    everything = softmax(logits, temperature)
    for token, share in enumerate(everything / everything.max()):
        if abs(share - min_p) > 1e-6:
            assert (token in ids) == (share > min_p)


def test_nothing_cut_off_is_the_whole_distribution() -> None:
    ids, weights = candidates(row(), temperature=0.7)
    assert sorted(ids.tolist()) == list(range(5000))
    assert weights == pytest.approx(softmax(row(), 0.7)[ids])
    assert (np.diff(weights) <= 0).all()


OPTIONS: list[dict[str, float | int]] = [
    {},
    {"top_k": 0},
    {"top_k": 0, "top_p": 1.0},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 5, "temperature": 1.7},
    {"top_p": 0.3},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_compiled_draws_are_numpys(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if not _native.HAS_NATIVE:
        pytest.skip("the compiled leaves are not built")
    samplers = [Sampler(SamplingOptions(seed=8, **options)) for _ in range(2)]
    drawn: list[list[int]] = []
    for is_native, sampler in zip((True, False), samplers, strict=True):
        monkeypatch.setattr(_native, "HAS_NATIVE", is_native)
        drawn.append([sampler.draw(row(step)) for step in range(100)])
    assert drawn[0] == drawn[1]


@pytest.mark.usefixtures("native")
def test_forbidden_tokens_are_never_drawn() -> None:
    logits = row(size=50)
    logits[::2] = -np.inf
    for options in ({}, {"top_k": 0}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}, {"temperature": 0.0}):
        sampler = Sampler(SamplingOptions(seed=5, **options))
        assert all(sampler.draw(logits) % 2 for _ in range(200))


@pytest.mark.parametrize("size", [1, 7, 200, 5000])
@pytest.mark.parametrize("count", [1, 5, 50])
@pytest.mark.usefixtures("native")
def test_the_likeliest_tokens_have_the_models_own_probabilities(size: int, count: int) -> None:
    for seed in range(20):
        logits = row(seed, size)
        top = top_probabilities(logits, count)
        everything = softmax(logits)
        assert [share for _, share in top] == pytest.approx(sorted(everything, reverse=True)[:count], rel=1e-4)
        assert [share for _, share in top] == pytest.approx([everything[token] for token, _ in top], rel=1e-4)


@pytest.mark.usefixtures("native")
def test_a_token_has_its_own_probability_beside_the_likeliest() -> None:
    logits = row(seed=3, size=200)
    everything = softmax(logits)
    likeliest = top_probabilities(logits, 5)
    for token in range(200):
        top = top_probabilities(logits, 5, token)
        assert top[:5] == likeliest
        assert dict(top)[token] == pytest.approx(everything[token], rel=1e-4)
        assert len(top) == 5 + (token not in dict(likeliest))


@pytest.mark.usefixtures("native")
def test_forbidden_tokens_are_never_among_the_likeliest() -> None:
    logits = row(size=10)
    logits[3:] = -np.inf
    assert len(top_probabilities(logits, 8)) == 3


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("options", [SamplingOptions(temperature=0), SamplingOptions(), SamplingOptions(top_k=0, top_p=1.0, min_p=0.0)])
def test_logits_that_are_not_numbers_are_an_error(bad: float, options: SamplingOptions) -> None:
    logits = np.full(100, bad, dtype=np.float32)
    with pytest.raises(EngineError, match="expected finite numbers"):
        Sampler(options).draw(logits)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("temperature", float("nan")),
        ("top_k", -2),
        ("frequency_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("max_tokens", -1),
    ],
)
def test_options_out_of_range_name_themselves(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected None or a number"):
        Sampler(SamplingOptions(**{name: value}))  # type: ignore[arg-type]


def test_a_cut_that_keeps_everything_keeps_ids_and_probabilities_together() -> None:
    logits = np.array([0.0, 0.2, 0.1], dtype=np.float32)
    ids, weights = candidates(logits, temperature=1.0, min_p=0.1)
    assert ids.tolist() == [1, 2, 0]
    assert weights == pytest.approx(softmax(logits)[ids])


# Penalties and biases


def flat(*ids: int, size: int = 8) -> NDArray[np.float32]:
    """Logits 3, 2.5, 2 ... for these ids, 0 for the others."""
    logits = np.zeros(size, dtype=np.float32)
    for rank, token in enumerate(ids):
        logits[token] = 3.0 - 0.5 * rank
    return logits


def test_a_presence_penalty_counts_once_and_a_frequency_penalty_each_time() -> None:
    presence = Sampler(SamplingOptions(temperature=0, presence_penalty=0.75))
    assert [presence.draw(flat(1, 2)) for _ in range(4)] == [1, 2, 1, 1]
    frequency = Sampler(SamplingOptions(temperature=0, frequency_penalty=0.75))
    assert [frequency.draw(flat(1, 2)) for _ in range(6)] == [1, 2, 1, 2, 1, 2]


def test_a_negative_penalty_repeats() -> None:
    sampler = Sampler(SamplingOptions(temperature=0, frequency_penalty=-2.0))
    assert [sampler.draw(flat(1, 2)), sampler.draw(flat(2, 1)), sampler.draw(flat(2, 1))] == [1, 1, 1]


@pytest.mark.usefixtures("native")
def test_a_bias_forbids_and_forces() -> None:
    forced = Sampler(SamplingOptions(logit_bias=((6, 100.0),), seed=1))
    assert {forced.draw(row(step)) for step in range(20)} == {6}
    forbidden = Sampler(SamplingOptions(temperature=0, logit_bias=((1, -100.0),)))
    assert forbidden.draw(flat(1, 2)) == 2


@pytest.mark.usefixtures("native")
def test_penalties_change_what_is_drawn_and_not_the_engines_row() -> None:
    logits = row()
    before = logits.copy()
    sampler = Sampler(SamplingOptions(frequency_penalty=2.0, presence_penalty=2.0, top_k=3, min_p=0.0, temperature=0.1, seed=3))
    drawn = [sampler.draw(logits) for _ in range(12)]
    assert len(set(drawn)) > 3, "without penalties only three tokens could be drawn"
    assert (logits == before).all()


def test_a_bias_for_a_token_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(EngineError, match="logit_bias: expected token ids below 8, got 9"):
        Sampler(SamplingOptions(logit_bias=((9, 1.0),))).draw(flat(1))


def test_no_distribution_is_given_where_penalties_would_be_lost() -> None:
    with pytest.raises(AssertionError, match="penalties"):
        Sampler(SamplingOptions(presence_penalty=1.0)).distribution(flat(1))


class Allowed:
    """A constraint that allows the same tokens each time, and counts what it is asked."""

    is_over = False

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = np.array(sorted(tokens), dtype=np.int64)
        self.accepted: list[int] = []
        self.whole_rows = 0

    def fits(self, ids: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        return np.isin(ids, self.tokens)

    def allowed(self) -> NDArray[np.integer[Any]]:
        self.whole_rows += 1
        return self.tokens

    def accept(self, token: int) -> None:
        assert token in self.tokens
        self.accepted.append(token)


CONSTRAINED = (
    {"temperature": 0.0},
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.0},
    {"temperature": 1.3, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 1.0, "top_k": 0, "top_p": 0.8, "min_p": 0.1},
    {"temperature": 1.0, "top_k": 3, "frequency_penalty": 1.0, "logit_bias": ((7, 3.0),)},
)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("options", CONSTRAINED)
@pytest.mark.parametrize("allowed", [[3], list(range(0, 300, 7)), list(range(290, 300)), list(range(300))])
def test_a_constrained_token_is_the_one_that_the_masked_row_gives(options: dict[str, Any], allowed: list[int]) -> None:
    rng = np.random.default_rng(5)
    constraint = Allowed(allowed)
    chosen = Sampler(SamplingOptions(seed=1, **options), constraint)
    expected = Sampler(SamplingOptions(seed=1, **options))
    for _ in range(40):
        logits = np.sort(rng.normal(0, 3, 300).astype(np.float32))[::-1].copy()
        logits[rng.integers(0, 300, 20)] = logits[0]  # equal ones too
        masked = np.full_like(logits, -np.inf)
        masked[allowed] = logits[allowed]
        assert chosen.draw(logits) == expected.draw(masked)
    assert len(constraint.accepted) == 40


@pytest.mark.usefixtures("native")
def test_constrained_tokens_have_the_distribution_of_the_masked_row() -> None:
    logits = np.log(np.arange(1, 201, dtype=np.float32))
    allowed = [199, 150, 100, 50, 3]
    masked = np.full_like(logits, -np.inf)
    masked[allowed] = logits[allowed]
    options = SamplingOptions(temperature=0.9, top_k=4, top_p=0.95, min_p=0.05, seed=3)
    ids, weights = candidates(masked, temperature=0.9, top_k=4, top_p=0.95, min_p=0.05)
    sampler, count = Sampler(options, Allowed(allowed)), 4000
    drawn = [sampler.draw(logits) for _ in range(count)]
    assert set(drawn) == set(ids.tolist())
    expected = weights * count
    seen = np.array([drawn.count(token) for token in ids.tolist()])
    assert ((seen - expected) ** 2 / expected).sum() < 20, "chi-squared, 3 degrees of freedom: one in 6,000"


def test_likely_tokens_that_fit_spare_the_whole_row() -> None:
    logits = (np.arange(1000, 0, -1) / 10).astype(np.float32)
    many, few = Allowed(list(range(0, 1000, 2))), Allowed([999])
    for options in (SamplingOptions(temperature=0), SamplingOptions(temperature=1.0, top_k=20)):
        Sampler(options, many).draw(logits)
        Sampler(options, few).draw(logits)
    assert (many.whole_rows, few.whole_rows) == (0, 2)


def test_a_row_without_a_token_that_fits_is_an_error() -> None:
    with pytest.raises(EngineError, match="expected a token that fits"):
        Sampler(SamplingOptions(temperature=0), Allowed([])).draw(np.zeros(10, np.float32))
    logits = np.zeros(100, np.float32)
    logits[5] = -np.inf
    with pytest.raises(EngineError, match="expected a token that fits"):
        Sampler(SamplingOptions(temperature=0), Allowed([5])).draw(logits)


@pytest.mark.usefixtures("native")
def test_a_masked_token_is_never_drawn_whatever_the_random_number() -> None:
    logits = np.full(50, -np.inf, np.float32)
    logits[20:23] = [1.0, 0.5, 0.1]
    sampler = Sampler(SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0))
    sampler._rng = Mock(random=lambda: 1 - 2**-53)
    assert sampler.draw(logits) == 22
