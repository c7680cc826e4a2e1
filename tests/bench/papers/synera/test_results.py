"""What is kept of answers: the figures of the tables, and no text."""

from __future__ import annotations

from pathlib import Path

from bench.papers.synera.answers import Chunk, WrittenAnswer
from bench.papers.synera.results import Result, add_to_package, read_package

ANSWER = WrittenAnswer(
    ids=[7] * 9, chunks=[Chunk(0.5, 0.1, 4, 2), Chunk(0.9, 0.1, 4), Chunk(0.9, None, 2, may_be_sent=False)], beginning=[0.5] * 4
)
QUESTIONS = [{"device": Result(0.0, 9), "combined 0.2": Result.of_answer(1.0, 9, ANSWER)}] * 3


def test_a_result_has_what_an_answer_took() -> None:
    assert Result.of_answer(0.33333, 9, ANSWER) == Result(0.3333, tokens=9, server_tokens=5, drafted=10, sent=4, perplexity=2.0)


def test_a_package_has_what_the_tables_need_and_grows(tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    assert read_package(path) == {}
    assert add_to_package("sst2", {"q1": QUESTIONS[0]}, path) == 1
    assert add_to_package("csqa", {"q1": QUESTIONS[1]}, path) == 1
    assert add_to_package("sst2", {"q2": QUESTIONS[2]}, path) == 2
    assert read_package(path) == {"csqa": {"q1": QUESTIONS[1]}, "sst2": {"q1": QUESTIONS[0], "q2": QUESTIONS[2]}}
