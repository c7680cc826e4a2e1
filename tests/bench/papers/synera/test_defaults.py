"""Contenders at as many tokens of the server: straight lines between their cells, and paired draws."""

from __future__ import annotations

import numpy as np
import pytest

from bench.papers.synera.defaults import compare, default_lines, score_at
from bench.papers.synera.results import Result

DEVICE = Result(score=0.0, tokens=10)


def question(score: float, *, cheap: float = 0.5) -> dict[str, Result]:
    """Single tokens score this at 4 tokens of the server, chunks half of it at 6."""
    return {
        "device": DEVICE,
        "server": Result(score=score, tokens=10, server_tokens=20),
        "hybrid 0.2": Result(score=score * cheap, tokens=10, server_tokens=2),
        "hybrid 0.5": Result(score=score, tokens=10, server_tokens=8),
        "confidence 0.2": Result(score=score * cheap / 2, tokens=10, server_tokens=2),
        "confidence 0.5": Result(score=score / 2, tokens=10, server_tokens=8),
    }


def test_a_score_is_on_the_line_between_two_cells() -> None:
    costs, scores = [np.array([0.0, 0.0]), np.array([0.2, 0.4])], [np.array([0.1, 0.1]), np.array([0.5, 0.5])]
    assert score_at(0.1, costs, scores).tolist() == pytest.approx([0.3, 0.2])


def test_the_same_questions_are_drawn_for_both() -> None:
    tasks = {"a": [question(1.0), question(0.0), question(0.5)], "b": [question(1.0)] * 3}
    hybrid, chunks = (["device", f"{rule} 0.2", f"{rule} 0.5", "server"] for rule in ("hybrid", "confidence"))
    found = {each.task: each for each in compare(tasks, hybrid, chunks, [0.5])}
    assert found["a"].gain.value == pytest.approx(0.5 * 0.375)
    assert found["b"].gain == pytest.approx((0.375, 0.375, 0.375))
    assert found["all"].gain.value == pytest.approx((found["a"].gain.value + found["b"].gain.value) / 2)
    assert found["a"].gain.low < found["a"].gain.value < found["a"].gain.high
    assert found["a"].first.low == pytest.approx(2 * found["a"].second.low)


def test_a_contender_that_has_other_questions_is_compared_on_those_of_both() -> None:
    some = question(1.0) | {"tolerant 0.2": DEVICE, "tolerant 0.5": DEVICE}
    lines = [*default_lines({"a": [question(1.0), some], "b": [question(0.5)]}, (0.2, 0.5))]
    assert [line.split("|")[1:3] for line in lines[2:]] == [[" `confidence` ", " 3 "], [" `tolerant` ", " 1 "]]
