"""Kept runs are read as they were written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.__main__ import BENCHES, ON_REQUEST, SETTLED
from bench.report import Row
from bench.runs import RUNS, figure, load, names, save

HEAD = {"bench": "it", "machine": "a machine", "date": "2026-01-01", "commit": "1dc1f62", "options": []}


def test_rows_are_found_by_case_metric_with_unit_and_contender(tmp_path: Path) -> None:
    rows = [Row("it", "a case", "streamco", "time", "us", 2.0, 1.0, 3.0), Row("it", "a case", "streamco", "answers", "", 7, 7, 7)]
    save("it", rows, HEAD, tmp_path)
    run = load("it", tmp_path)
    assert run.row("a case", "time [us]") == rows[0]
    assert run.value("a case", "answers") == 7
    assert run.about == "a machine; 2026-01-01; commit 1dc1f62"
    assert list(names(tmp_path)) == ["it"]
    with pytest.raises(KeyError):
        run.value("a case", "time")


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (1234.5, "1,234"), (0.12345, "0.123"), (12.0, "12"), (0.0000123, "0.000012")])
def test_a_figure_has_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert figure(value) == text


@pytest.mark.parametrize("name", list(names()))
def test_every_kept_run_is_a_benchs_with_machine_date_and_commit(name: str) -> None:
    run = load(name)
    assert run.head["bench"] in {*BENCHES, *ON_REQUEST, *SETTLED}
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", run.head["date"])
    assert re.fullmatch(r"[0-9a-f]{7,}", run.head["commit"])
    assert run.rows
    assert (RUNS / f"{name}.jsonl").stat().st_size < 1_000_000
