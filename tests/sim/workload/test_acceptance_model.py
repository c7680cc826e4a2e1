"""Acceptance sequences: what the chain promises, and that its settings are found again in what it makes."""

from __future__ import annotations

from itertools import groupby
from random import Random

import pytest

from streamco.errors import ConfigError
from streamco.sim.workload.acceptance_model import AcceptanceOptions, describe, draw_accepted, draw_answer, fit_acceptance
from streamco.sim.workload.trace_files import read_trace


def sequences(options: AcceptanceOptions, count: int = 400, tokens: int = 128) -> list[bytes]:
    rng = Random(1)
    return [draw_accepted(options, tokens, rng) for _ in range(count)]


def test_sequences_are_as_long_as_asked_and_of_ones_and_zeros() -> None:
    rng = Random(1)
    for tokens in (1, 2, 7, 300):
        made = draw_accepted(AcceptanceOptions(), tokens, rng)
        assert len(made) == tokens
        assert set(made) <= {0, 1}


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_a_mean_at_the_end_of_its_range_leaves_nothing_to_chance(mean: float) -> None:
    assert draw_accepted(AcceptanceOptions(mean=mean, persistence=0.5), 50, Random(1)) == bytes([int(mean)]) * 50


@pytest.mark.parametrize("mean", [0.3, 0.75, 0.95])
@pytest.mark.parametrize("persistence", [0.0, 0.4])
def test_persistence_makes_runs_longer_and_leaves_the_mean(mean: float, persistence: float) -> None:
    metrics = describe(sequences(AcceptanceOptions(mean=mean, concentration=None, persistence=persistence), tokens=512))
    assert metrics.mean == pytest.approx(mean, abs=0.01)
    assert metrics.accepted_runs == pytest.approx(1.0 / ((1.0 - mean) * (1.0 - persistence)), rel=0.08)
    assert metrics.rejected_runs == pytest.approx(1.0 / (mean * (1.0 - persistence)), rel=0.05)
    assert metrics.autocorrelation == pytest.approx([persistence**distance for distance in (1, 2, 3, 4)], abs=0.03)


def test_what_requests_have_of_their_own_does_not_fade_with_the_distance() -> None:
    metrics = describe(sequences(AcceptanceOptions(mean=0.7, concentration=4.0, persistence=0.3), 1500), distances=6)
    assert metrics.autocorrelation == pytest.approx([0.2 + 0.8 * 0.3**distance for distance in range(1, 7)], abs=0.03)


@pytest.mark.parametrize(
    "options",
    [
        AcceptanceOptions(mean=0.8, concentration=25.0, persistence=0.0),
        AcceptanceOptions(mean=0.55, concentration=8.0, persistence=0.3),
        AcceptanceOptions(mean=0.93, concentration=60.0, persistence=0.15),
    ],
)
def test_a_fit_finds_the_settings_again(options: AcceptanceOptions) -> None:
    found = fit_acceptance(sequences(options, 600))
    assert found.mean == pytest.approx(options.mean, abs=0.025)
    assert found.persistence == pytest.approx(options.persistence, abs=0.02)
    assert found.concentration is not None
    assert options.concentration is not None
    assert found.concentration == pytest.approx(options.concentration, rel=0.3)


def test_rounds_are_those_of_drafting_and_correcting() -> None:
    sequence = bytes([1, 1, 1, 0, 1, 1, 1, 1, 0, 0])
    metrics = describe([sequence], windows=(1, 2, 4))
    # window 4: 1 1 1 0 | 1 1 1 1 0 | 0; window 2: 1 1 1 | 0 | 1 1 1 | 1 0 | 0, the token behind a whole draft being the target's
    assert metrics.round_tokens == {1: 10 / 6, 2: 10 / 5, 4: 10 / 3}


def test_the_runs_that_are_counted_are_whole() -> None:
    metrics = describe([bytes([1, 1, 0, 1, 1, 1, 0, 0, 1])])
    assert (metrics.accepted_runs, metrics.rejected_runs) == (3.0, 1.5)


def test_an_answer_has_ranks_and_confidences_that_agree_with_it() -> None:
    options = AcceptanceOptions(mean=0.6, second=0.5, third=0.2)
    accepted, confidences, ranks = draw_answer(options, 20_000, Random(1))
    assert bytes([rank == 0 for rank in ranks]) == accepted
    missed = [rank for rank in ranks if rank]
    assert [missed.count(rank) / len(missed) for rank in (1, 2, 3)] == pytest.approx([0.5, 0.2, 0.3], abs=0.02)
    of_accepted = [confidence for confidence, good in zip(confidences, accepted, strict=True) if good]
    of_rejected = [confidence for confidence, good in zip(confidences, accepted, strict=True) if not good]
    assert sum(of_accepted) / len(of_accepted) > 1.7 * sum(of_rejected) / len(of_rejected)


def test_a_blind_model_is_as_sure_of_what_is_rejected() -> None:
    accepted, confidences, _ = draw_answer(AcceptanceOptions(mean=0.6, is_blind=True), 20_000, Random(1))
    means = {
        kind: [sure for _, sure in pairs] for kind, pairs in groupby(sorted(zip(accepted, confidences, strict=True)), lambda one: one[0])
    }
    assert sum(means[0]) / len(means[0]) == pytest.approx(sum(means[1]) / len(means[1]), rel=0.03)


def test_the_chain_gives_rounds_like_those_that_were_recorded() -> None:
    for trace in ("gsm8k", "humaneval"):
        recorded = [row.accepted for row in read_trace(trace)]
        metrics = describe(recorded)
        made = describe(sequences(fit_acceptance(recorded), 1000))
        for window, tokens in metrics.round_tokens.items():
            assert made.round_tokens[window] == pytest.approx(tokens, rel=0.1), (trace, window)


def test_what_can_not_be_fitted_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected at least two sequences of two tokens or more, got 1"):
        fit_acceptance([b"\1\0", b"\1"])
    with pytest.raises(ConfigError, match="expected sequences with tokens"):
        describe([b""])
    with pytest.raises(ConfigError, match="at most 1 together"):
        AcceptanceOptions(second=0.7, third=0.4)
