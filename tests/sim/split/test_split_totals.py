"""Totals of a split model: limits, stages, parts of a prompt."""

from __future__ import annotations

import pytest

from streamco.sim.split.options import SplitPolicyOptions
from streamco.sim.split.split_answer import SplitAnswerOutcome
from streamco.sim.split.split_totals import SplitTotals
from tests.sim.split.worlds import request


def outcome(*, first: float, ended: float, prompt: int = 256, tokens: int = 11) -> SplitAnswerOutcome:
    return SplitAnswerOutcome(
        request=request(prompt=prompt, tokens=tokens),
        first=first,
        ended=ended,
        tokens=tokens,
        rounds=5,
        hits=1,
        chunks=[prompt],
        bytes_up=100,
    )


def test_limits_are_for_128_tokens_of_a_prompt_and_10_of_an_answer() -> None:
    totals = SplitTotals(SplitPolicyOptions(prefill_sla_ms=300, decode_sla_ms=500), stages=1)
    totals.record(outcome(first=0.5, ended=0.9))  # 250 ms and 400 ms
    totals.record(outcome(first=0.7, ended=1.3))  # 350 ms and 600 ms
    totals.record(outcome(first=0.2, ended=0.4, prompt=20))  # a short prompt has the limit of 128 tokens
    found = totals.metrics(0)
    assert found["prefill_in_time"] == pytest.approx(2 / 3)
    assert found["decode_in_time"] == pytest.approx(2 / 3)
    assert found["prefill_sla_p50"] == pytest.approx(0.25, rel=0.01)
    assert found["decode_sla_p90"] == pytest.approx(0.6, rel=0.01)


def test_a_stage_takes_its_part_of_each_batch() -> None:
    totals = SplitTotals(SplitPolicyOptions(), stages=4)
    totals.record_batch(10, 0.02)
    totals.record_batch(30, 0.04)
    found = totals.metrics(40)
    assert found["stage_mean"] == pytest.approx(0.0075)
    assert found["stage_deviation"] == pytest.approx(0.0025)
    assert found["batch_rows"] == 20


def test_rounds_rows_and_bytes_are_by_answer_or_token() -> None:
    totals = SplitTotals(SplitPolicyOptions(), stages=1)
    totals.record(outcome(first=0.5, ended=0.9))
    found = totals.metrics(256 + 22)
    assert found["round_tokens"] == 2.0
    assert found["hit_rate"] == 0.2
    assert found["server_rows"] == 2.0
    assert found["bytes_up"] == 100


def test_nothing_was_measured_without_answers() -> None:
    assert SplitTotals(SplitPolicyOptions(), stages=1).metrics(0) == {}
