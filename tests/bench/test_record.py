"""Runs are kept with machine, date, commit and options, and those of the page are run again as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

import bench.record
from bench.record import keep, split_options, wanted_for_page
from bench.report import Row
from bench.runs import RUNS, load


def test_a_run_is_kept_with_machine_date_commit_and_options(tmp_path: Path) -> None:
    rows = [Row("topk", "a case", name, "time", "us", value, value / 2, value * 2) for name, value in (("streamco", 2.0), ("numpy", 3.0))]
    keep("topk_quick", rows, options=["--quick"], at="1dc1f62", bench="topk", folder=tmp_path)
    run = load("topk_quick", tmp_path)
    assert run.head["bench"] == "topk"
    assert run.about.endswith("; commit 1dc1f62; --quick")
    assert run.value("a case", "time [us]", "numpy") == 3.0


def test_a_benchs_own_options_come_after_two_dashes() -> None:
    assert split_options(["pair", "--", "--prompts", "8"]) == (["pair"], ["--prompts", "8"])
    assert split_options(["--quick", "topk"]) == (["--quick", "topk"], [])


def test_what_the_page_shows_is_run_again_as_it_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {name: (bench_name, options) for name, bench_name, options in wanted_for_page("another commit")}
    assert wanted["stream"] == ("stream", ())
    assert wanted["pair"] == ("pair", tuple(load("pair").head["options"]))
    assert wanted.keys() <= {path.stem for path in RUNS.glob("*.jsonl")}
    kept = load("stream").head
    monkeypatch.setattr(bench.record, "machine", lambda: kept["machine"])
    assert "stream" not in {name for name, _, _ in wanted_for_page(kept["commit"])}
