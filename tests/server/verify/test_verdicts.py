"""Verdicts made from whole rows: each rule, its rows, and what is refused of a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from streamco.core.verifier.events import DraftVerdict
from streamco.errors import EngineError
from streamco.policies.acceptance import Rule, RuleKind
from streamco.server.verify.verdicts import TargetRowCollector
from streamco.wire.verify.topk import TopK, quantise
from tests.support.verify_frames import make_draft

TARGET = (0.5, 0.3, 0.15, 0.05)


def logits(*shares: float) -> np.typing.NDArray[np.float32]:
    return np.log(np.array(shares, dtype=np.float64)).astype(np.float32)


def ask(rows: Sequence[np.typing.NDArray[np.float32]], draft: tuple[int, ...], **options: Any) -> DraftVerdict:
    drafted_from = options.pop("drafted_from", ())
    frame = make_draft(0, 0, 0, draft, rows=drafted_from)
    settings: dict[str, Any] = {"rule": Rule(), "rng": Random(1)} | options
    reader = TargetRowCollector("a", frame, **settings)
    for place, row in enumerate(rows):
        token = draft[place] if place < len(draft) else None
        prediction = reader.read_row(row, 10 + place, token)
        assert (prediction.position, prediction.token, prediction.greedy) == (10 + place, token, int(row.argmax()))
    return reader.verdict()


def told(ruling: DraftVerdict) -> list[TopK]:
    return [row for row in ruling.rows if isinstance(row, TopK)]


def test_the_greedy_rule_keeps_what_the_target_would_write() -> None:
    rows = [logits(0.1, 0.9), logits(0.8, 0.2), logits(0.4, 0.6)]
    assert ask(rows, (1, 0)) == DraftVerdict("a", 2, 1)
    assert ask(rows, (1, 1)) == DraftVerdict("a", 1, 0)
    assert ask(rows[:1], ()) == DraftVerdict("a", 0, 1)


def test_of_equal_tokens_the_lower_id_counts() -> None:
    assert ask([logits(0.4, 0.4, 0.2), logits(0.2, 0.4, 0.4)], (1,)) == DraftVerdict("a", 0, 0)


def test_told_rows_are_the_targets_own_best_first() -> None:
    ruling = ask([logits(*TARGET)] * 2, (3,), top_k=2)
    assert [row.ids for row in told(ruling)] == [(0, 1), (0, 1)]
    first = told(ruling)[0]
    assert sum(first.weights) + first.rest == pytest.approx(65535, abs=2)
    assert first.weights[0] / 65535 == pytest.approx(0.5, abs=1e-4)


def test_told_rows_of_a_sampled_session_have_its_temperature_and_not_its_filters() -> None:
    ruling = ask([logits(*TARGET)], (), rule=Rule(RuleKind.SAMPLE, temperature=0.5, top_k=1), top_k=4)
    squares = [share * share for share in TARGET]
    for weight, square in zip(told(ruling)[0].weights, squares, strict=True):
        assert weight / 65535 == pytest.approx(square / sum(squares), abs=1e-4)


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({}, TARGET),
        ({"top_k": 2}, (0.625, 0.375, 0, 0)),
        ({"top_p": 0.9}, (0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0)),
        ({"min_p": 0.2}, (0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0)),
        ({"top_p": 0.0}, (1, 0, 0, 0)),
    ],
)
def test_what_is_sampled_has_the_targets_distribution_whatever_its_filters(filters: dict[str, Any], wanted: tuple[float, ...]) -> None:
    rule, rng, count = Rule(RuleKind.SAMPLE, temperature=1.0, **filters), Random(7), 4000
    drawn_from: TopK = quantise([(2, 0.4), (0, 0.3), (3, 0.3)], is_whole=True)
    rows, tally = [logits(*TARGET)] * 2, [0] * 4
    for _ in range(count):
        token = drawn_from.distribution().draw(rng)
        ruling = ask(rows, (token,), rule=rule, drafted_from=(drawn_from,), rng=rng)
        first = token if ruling.accepted else ruling.token
        assert first is not None
        tally[first] += 1
    for seen, share in zip(tally, wanted, strict=True):
        assert abs(seen - count * share) <= 4 * math.sqrt(count * share * (1 - share)), (tally, wanted)


def test_an_unfiltered_row_is_whole() -> None:
    reader = TargetRowCollector("a", make_draft(0, 0, 0, ()), rule=Rule(RuleKind.SAMPLE, temperature=2.0), rng=Random(1))
    reader.read_row(logits(*TARGET), 0, None)
    kept = reader._read[0].compared
    assert kept is not None
    assert kept.is_whole
    assert kept.ids.tolist() == [0, 1, 2, 3]
    assert kept.probabilities == pytest.approx(np.sqrt(TARGET) / np.sqrt(TARGET).sum(), rel=1e-5)


@pytest.mark.parametrize(("threshold", "accepted"), [(0.0, 3), (0.2, 2), (0.7, 1), (1.0, 1)])
def test_the_threshold_rule_takes_what_is_so_likely(threshold: float, accepted: int) -> None:
    rule = Rule(RuleKind.THRESHOLD, threshold=threshold)
    assert ask([logits(*TARGET)] * 4, (0, 1, 3), rule=rule) == DraftVerdict("a", accepted, 0)


@pytest.mark.parametrize("kind", RuleKind)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_an_error(kind: RuleKind, value: float) -> None:
    row = np.array([0.0, value, 1.0], dtype=np.float32)
    with pytest.raises(EngineError, match="logits: expected finite numbers"):
        ask([row], (), rule=Rule(kind, temperature=1.0), top_k=2)


@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}])
@pytest.mark.parametrize("temperature", [5e-324, 1e-50, 1e-30, 100.0])
def test_extreme_temperatures_are_taken(temperature: float, filters: dict[str, Any]) -> None:
    ruling = ask([logits(*TARGET)], (), rule=Rule(RuleKind.SAMPLE, temperature=temperature, **filters), top_k=3)
    assert ruling.token in range(4)
    assert told(ruling)[0].ids[0] == 0
    assert temperature > 1 or ruling.token == 0


def test_rows_that_are_missing_are_an_error() -> None:
    with pytest.raises(EngineError, match="verdict: expected 3 rows, got 1"):
        ask([logits(*TARGET)], (0, 1))


def test_a_tree_has_a_verdict_on_its_path() -> None:
    rows = [logits(0.1, 0.7, 0.2), logits(0.8, 0.1, 0.1), logits(0.2, 0.2, 0.6)]
    reader = TargetRowCollector("a", make_draft(0, 0, 0, (0, 1), parents=(0, 0)), rule=Rule(), rng=Random(1))
    for place, row in enumerate(rows):
        reader.read_row(row, 10 + place, None)
    assert reader.verdict() == DraftVerdict("a", 2, 2)
    sampled = Rule(RuleKind.SAMPLE, temperature=1.0)
    drafted_from = (TopK((0,), (1,)), TopK((1,), (1,)))
    frame = make_draft(0, 0, 0, (0, 1), rows=drafted_from, parents=(0, 0))
    reader = TargetRowCollector("a", frame, rule=sampled, rng=Random(4))
    for place, row in enumerate(rows):
        reader.read_row(row, 10 + place, None)
    assert reader.verdict().accepted in {0, 1, 2}
