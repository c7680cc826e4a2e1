from __future__ import annotations

import numpy as np
import pytest

from bench.papers.disco_correlation import correlation_lines, correlation_rows, pearson
from tests.support.data import data_path


def test_a_line_has_a_coefficient_of_nearly_one_and_noise_one_around_zero() -> None:
    rng = np.random.default_rng(5)
    lengths = np.tile(np.arange(250.0, 4500.0, 250.0), 2)
    assert pearson([*lengths], [*(0.3 + lengths * 1e-3 + rng.normal(0, 1e-3, lengths.size))])[0] > 0.999
    noise = pearson([*lengths], [*rng.lognormal(-0.5, 0.5, lengths.size)])
    assert noise[1] < 0 < noise[2]


def test_an_interval_holds_the_true_coefficient_in_95_of_100_samples() -> None:
    rng, held = np.random.default_rng(6), 0
    for _ in range(400):
        drawn = rng.multivariate_normal([0, 0], [[1, 0.4], [0.4, 1]], 34)
        _, low, high = pearson([*drawn[:, 0]], [*drawn[:, 1]])
        held += low < 0.4 < high
    assert 0.92 < held / 400 < 0.98


def test_prompts_of_one_length_are_refused() -> None:
    with pytest.raises(ValueError, match="got 5 of 1 lengths"):
        pearson([550.0] * 5, [0.1, 0.2, 0.3, 0.4, 0.5])


def test_each_recorded_service_with_prompts_of_several_lengths_has_a_row() -> None:
    data_path("ttft", "latencylab_stream_gaps.jsonl.gz")
    rows = correlation_rows(1)
    assert sum(row["requests"] == 34 for row in rows) >= 5
    assert len([*correlation_lines({"rows": rows})]) == 2 + len(rows)
