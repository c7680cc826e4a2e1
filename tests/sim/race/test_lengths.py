"""How long prompts and answers are."""

from __future__ import annotations

from pathlib import Path
from random import Random
from statistics import correlation, fmean, median

import pytest

from streamco.errors import ConfigError
from streamco.sim.race.lengths import ALPACA, QuantileLengths, RecordedLengths, read_request_lengths

ROWS = [(number, 10 * number) for number in range(1, 9)]


def test_alpacas_lengths_have_the_means_and_middles_of_the_records() -> None:
    lengths, rng = QuantileLengths(*ALPACA), Random(1)
    drawn = [lengths.draw(rng) for _ in range(20_000)]
    prompts, answers = [prompt for prompt, _ in drawn], [answer for _, answer in drawn]
    assert [fmean(prompts), fmean(answers)] == pytest.approx([17.3, 55.4], rel=0.04)
    assert [median(prompts), median(answers)] == pytest.approx([14, 40], abs=1)
    assert min(prompts) >= 4
    assert min(answers) >= 1
    assert abs(correlation(prompts, answers)) < 0.03


def test_a_client_knows_the_same_lengths() -> None:
    lengths = QuantileLengths(*ALPACA)
    assert lengths.prompts.mean == pytest.approx(17.3, rel=0.02)
    assert lengths.answers.expected(0) == pytest.approx(55.4, rel=0.04)


def test_of_recorded_lengths_the_first_half_is_known_and_the_second_happens() -> None:
    lengths = RecordedLengths.halves(ROWS)
    assert lengths.prompts.lengths.tolist() == [1, 2, 3, 4]
    assert lengths.answers.expected(0) == pytest.approx(25)
    assert {lengths.draw(Random(seed)) for seed in range(100)} == set(ROWS[4:])


def test_lengths_that_nobody_can_draw_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected 2 requests or more, got 1"):
        RecordedLengths.halves(ROWS[:1])
    with pytest.raises(ConfigError, match="expected prompts and answers of 1 token or more"):
        RecordedLengths.halves([(1, 1), (0, 5)])


def test_lengths_are_read_by_any_of_the_names_that_traces_have(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text("arrival_s,context_tokens,generated_tokens\n0.0,374,44\n0.1,0,3\n0.2,10,7\n")
    assert read_request_lengths(path) == [(374, 44), (10, 7)]
    path.write_text("prompt_tokens,target_tokens\n36,114\n")
    assert read_request_lengths(path) == [(36, 114)]
    path.write_text("prompt_tokens,text\n36,114\n")
    with pytest.raises(ConfigError, match=r"row 1: expected tokens of a prompt and of its answer, got \{'prompt_tokens': '36'"):
        read_request_lengths(path)
