"""The short tables of quality by budget."""

from __future__ import annotations

from experiments.synera.quality import qualities
from experiments.synera.results import Result, read_package
from experiments.synera.summary import score_lines, summary_lines, token_lines
from tests.support.words import page_words

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


def test_the_pages_answer_is_of_the_packaged_scores() -> None:
    page = page_words("docs/research/synera.md")
    ratios, right = [], {}
    for task, questions in read_package().items():
        device, chunks = (each.score.value for each in qualities([*questions.values()], ["device", "confidence 0.2"]))
        if task == "gsm8k":
            right = {"device": device * len(questions), "chunks": chunks * len(questions), "all": len(questions)}
        else:
            ratios.append(chunks / device)
    assert f"{min(ratios):.2f} to {max(ratios):.2f} times the device's score on five tasks" in page
    assert f"solves {right['device']:.0f} of {right['all']}, with that budget {right['chunks']:.0f}" in page
