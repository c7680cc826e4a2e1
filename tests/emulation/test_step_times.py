"""Step times: what a batch costs on a large model."""

from __future__ import annotations

import csv
import gzip
from statistics import median

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.emulation.profiles import load_step_times, packaged_names
from streamco.emulation.step_times import StepTimes
from streamco.errors import ConfigError
from tests.support.data import data_path


def times(**changes: object) -> StepTimes:
    base: dict[str, object] = {"decode_ms": [[1, 40], [8, 54]], "prefill_ms": [[128, 60], [512, 120]]}
    return msgspec.convert({"name": "made", "source": "here", "license": "MIT", **base, **changes}, type=StepTimes)


def test_a_measured_row_count_gives_the_measured_time() -> None:
    assert times()(1, 0) == 0.040
    assert times()(8, 0) == 0.054


def test_between_measured_row_counts_the_time_is_linear() -> None:
    assert times()(4, 0) == pytest.approx(0.046)


def test_beyond_the_measured_counts_the_last_slope_goes_on() -> None:
    assert times()(15, 0) == pytest.approx(0.068)
    assert times()(0, 896) == pytest.approx(0.180)


def test_a_prompt_costs_what_its_tokens_cost() -> None:
    assert times()(0, 128) == 0.060
    assert times()(0, 320) == pytest.approx(0.090)


def test_a_few_prompt_tokens_cost_a_decode_step_since_all_weights_are_read() -> None:
    assert times()(0, 1) == 0.040
    assert 0.040 < times()(0, 5) < 0.041


def test_a_mixed_step_costs_its_slower_part() -> None:
    assert times()(1, 511) == 0.120
    assert times(prefill_ms=[[128, 41]])(8, 4) == 0.054


def test_without_prefill_points_a_prompt_chunk_costs_one_decode_step() -> None:
    assert times(prefill_ms=[])(0, 500) == 0.040


def test_an_idle_step_costs_nothing() -> None:
    assert times()(0, 0) == 0.0


def test_one_point_is_a_constant() -> None:
    one = times(decode_ms=[[1, 25]], prefill_ms=[])
    assert one(1, 0) == one(64, 0) == 0.025


@given(st.integers(0, 100), st.integers(0, 5000), st.integers(0, 50))
def test_more_work_never_costs_less(rows: int, tokens: int, more: int) -> None:
    for name in packaged_names("step_times"):
        step = load_step_times(name)
        assert step(rows, tokens) <= step(rows + more, tokens) + 1e-12
        assert step(rows, tokens) <= step(rows, tokens + more) + 1e-12


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"decode_ms": []}, "decode_ms"),
        ({"decode_ms": [[0, 1]]}, "decode_ms"),
        ({"prefill_ms": [[1, -1]]}, "prefill_ms"),
        ({"prefill_ms": [[5, 1], [5, 2]]}, "prefill_ms"),
        ({"decode_ms": [[2, 1], [1, 2]]}, "decode_ms"),
    ],
)
def test_impossible_points_are_refused_by_name(changes: dict[str, object], named: str) -> None:
    with pytest.raises((ConfigError, msgspec.ValidationError), match=named):
        times(**changes)


def test_packaged_times_are_the_recorded_medians() -> None:
    with gzip.open(data_path("gpu_profiles", "splitwise_prompt_token_times.csv.gz"), "rt", newline="") as lines:
        rows = [
            row
            for row in csv.DictReader(lines)
            if (row["model"], row["hardware"], row["tensor_parallel"]) == ("llama2-70b", "h100-80gb", "4") and row["token_size"] == "128"
        ]
    step = load_step_times("llama2-70b-h100x4")
    decode = median(float(row["token_time"]) for row in rows if row["batch_size"] == "32" and row["prompt_size"] == "512")
    assert step(32, 0) * 1000 == pytest.approx(decode, abs=0.01)
    prefill = median(float(row["prompt_time"]) for row in rows if row["batch_size"] == "1" and row["prompt_size"] == "2048")
    assert step(0, 2048) * 1000 == pytest.approx(prefill, abs=0.01)
