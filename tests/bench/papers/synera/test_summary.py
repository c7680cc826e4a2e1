"""The short tables of quality by budget."""

from __future__ import annotations

from bench.papers.synera.results import Result
from bench.papers.synera.summary import score_lines, summary_lines, token_lines

TASKS = {
    "gsm8k": [{"device": Result(0.0, 10), "server": Result(1.0, 10), "confidence 0.2": Result(0.5, 10, server_tokens=2)}] * 2,
    "xsum": [
        {
            "device": Result(0.2, 10),
            "server": Result(0.4, 10),
            "confidence 0.2": Result(0.3, 10, server_tokens=3),
            "hybrid 0.2": Result(0.3, 10, server_tokens=4),
        }
    ],
}


def test_scores_stand_beside_the_devices_where_it_has_one() -> None:
    lines = [*score_lines(TASKS, [0.2])]
    assert lines[0] == "|  | questions | device | budget 0.2 | server |"
    assert lines[2:] == ["| GSM8K | 2 | 0.000 | 0.500 | 1.000 |", "| XSum | 1 | 0.200 | 0.300 (1.50) | 0.400 (2.00) |"]


def test_tokens_have_the_range_over_tasks() -> None:
    assert [*token_lines(TASKS, [0.2])][2:] == ["| chunks | 0.20 to 0.30 |", "| Hybrid | 0.40 to 0.40 |"]


def test_a_summary_has_both() -> None:
    assert sum(line.startswith("|  |") for line in summary_lines(TASKS, [0.2])) == 2
