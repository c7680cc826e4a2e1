"""Tables of other pages that are made of kept runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.page_tables import TABLES, PageTable, early_exit, importance, render, split_texts
from bench.report import Row
from bench.runs import Run
from bench.tables import table_lines


def run_of(*rows: tuple[str, str, str, float]) -> Run:
    return Run({}, {(case, metric, who): Row("bench", case, who, metric, "", value, value, value) for case, metric, who, value in rows})


def test_a_table_stands_between_its_marks_below_its_source(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        "a\n<!-- bench one: begin -->\nold\n<!-- bench one: end -->\nb <!-- bench two: begin --><!-- bench two: end -->\n"
    )
    first = PageTable("page.md", "topk", lambda run: table_lines(["rows"], [[str(len(run.rows))]]))
    pages = render({"one": first, "two": PageTable("page.md", "topk", first.lines, is_first=False)}, tmp_path)
    text = pages[tmp_path / "page.md"]
    assert text.startswith("a\n<!-- bench one: begin -->\n\n`python -m bench.page topk` prints all rows; ")
    assert "<!-- bench two: begin -->\n\n| rows |\n|---|\n| " in text, "without its source"
    assert "old" not in text


@pytest.mark.parametrize("name", TABLES)
def test_all_lines_of_a_table_have_as_many_cells(name: str) -> None:
    lines = [line for line in TABLES[name].text.splitlines() if line.startswith("|")]
    assert len(lines) >= 3
    assert len({line.count("|") for line in lines}) == 1, lines


def test_the_first_table_of_a_run_on_a_page_has_its_source() -> None:
    seen: set[tuple[str, str]] = set()
    for table in TABLES.values():
        assert table.is_first == ((table.page, table.run) not in seen)
        seen.add((table.page, table.run))


def test_rules_of_early_exit_are_times_of_a_token() -> None:
    cases = ("SmolLM2 Q4_0, 30 layers", "Qwen2.5-Coder 0.5B, 24 layers")
    saved = {
        "the paper's rule, margin 0.7": -0.5,
        "after layer 3 only, margin 0.7": -0.1,
        "after layer 4 only, margin 0.7": 0.1,
        "oracle": 0.07,
    }
    rows = [(case, "time saved [share]", who, share) for case in cases for who, share in saved.items()]
    rows += [(case, "of those, as the last layer [share]", "the paper's rule, margin 0.7", 0.5) for case in cases]
    lines = [*early_exit(run_of(*rows))]
    assert lines[2] == "| the paper's (margin 0.7) | 1.50 times as long | 1.50 times as long |"
    assert lines[3] == "| leaving at one layer only, whichever it is |" + " 0.90 to 1.10 times as long |" * 2
    assert lines[4].endswith("| 7 % saved | 7 % saved |")


def test_importance_is_the_least_and_the_most_of_all_cases() -> None:
    metrics = ("rank correlation with the loss [share]", "the same among wrong chunks [share]")
    rows = [
        (case, metric, who, share)
        for case, share in (("a, 6 chunks", 0.1), ("b, 6 chunks", 0.2))
        for metric in metrics
        for who in ("last 4 layers, the chunk's rows", "confidence")
    ]
    rules = ("random", "importance", "combined", "confidence")
    rows += [(case, "loss left at 0.2, by rule [share]", rule, 0.8) for case in ("a, 6 chunks", "b, 6 chunks") for rule in rules]
    lines = [*importance(run_of(*rows))]
    assert lines[2] == "| chance | 0.80 |  |  |"
    assert lines[5] == "| confidence | 0.80 | 0.10 to 0.20 | 0.10 to 0.20 |"


def test_equal_texts_are_counted_by_what_is_sent() -> None:
    counts = {"exact": 200.0, "f32": 108.0, "f16": 67.0, "i8": 54.0}
    lines = [*split_texts(run_of(*(("200 prompts", "equal texts", name, count) for name, count in counts.items())))]
    assert lines[0] == "| exact mode, 32 bits | 32 bits | 16 bits | 8 bits |"
    assert lines[2] == "| 200 | 108 | 67 | 54 |"
