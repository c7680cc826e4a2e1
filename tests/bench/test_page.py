"""docs/benchmarks.md is what the kept runs say, and short."""

from __future__ import annotations

import pytest

from bench.page import PAGE, QUESTIONS, Question, main, render


def test_the_page_is_made_of_the_kept_runs() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "python -m bench.page"
    assert main(["--check"]) == 0


def test_it_answers_fifteen_questions_in_at_most_165_lines() -> None:
    assert len({question().title for question in QUESTIONS}) == 15
    assert len(render().splitlines()) <= 165


def test_a_section_has_question_answer_sources_and_table() -> None:
    text = str(Question("Is it?", "It is.", ("topk",), ("", "ours"), [["a row", "1"]]))
    assert text.startswith("## Is it?\n\nIt is. *`topk`: ")
    assert text.endswith("*\n\n|  | ours |\n|---|--:|\n| a row | 1 |\n")


def test_all_rows_of_a_run_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topk"]) == 0
    assert capsys.readouterr().out.startswith("topk: ")
