"""A load tool's report gives the figures that the tool itself prints, whole or trimmed, and the page has those of the kept run."""

from __future__ import annotations

import copy
import json
import stat
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.report import Row
from bench.runs import load, save
from bench.timed.load_tool import COLUMNS, LOADS, PAGE, REPORTS, case_of, figures, kept_version, main, page_with, section, trimmed

CASE = "10 streams at once"


@pytest.fixture
def report() -> dict[str, Any]:
    """Return a part of a report of guidellm 0.8.1: ten streams at once for five seconds."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("guidellm_report.json").read_text(encoding="utf-8"))
    return found


def test_the_figures_are_those_that_the_tool_prints(report: Mapping[str, Any]) -> None:
    assert {key[1:]: round(value, 1) for key, value in figures(report).items()} == {
        ("TTFT, median", "ms"): 138.0,
        ("TTFT, 95th percentile", "ms"): 149.5,
        ("ITL, median", "ms"): 20.9,
        ("ITL, 95th percentile", "ms"): 20.9,
        ("whole answer, median", "s"): 1.2,
        ("whole answers", "requests/s"): 8.0,
        ("whole answers", "requests"): 40.0,
        ("errors", "requests"): 0.0,
    }
    assert {case for case, _, _ in figures(report)} == {CASE}


def test_errors_are_counted(report: dict[str, Any]) -> None:
    report["benchmarks"][0]["metrics"]["request_totals"]["errored"] = 3
    assert figures(report)[CASE, "errors", "requests"] == 3


def test_a_trimmed_report_gives_the_same_figures_and_has_no_single_requests(report: dict[str, Any]) -> None:
    whole = copy.deepcopy(report)
    kept = trimmed(report)
    assert report == whole
    assert figures(kept) == figures(report)
    assert kept["metadata"]["guidellm_version"] == "0.8.1"
    text = json.dumps(kept)
    assert not [word for word in ("chatcmpl", "quick brown fox", "127.0.0.1", "prompts.jsonl", "request_id") if word in text]
    assert len(text) < len(json.dumps(report)) / 2


def test_the_loads_have_names() -> None:
    assert case_of({"type_": "concurrent", "streams": 1}) == "1 stream at once"
    assert case_of({"type_": "concurrent", "streams": 50}) == "50 streams at once"
    assert case_of({"type_": "poisson", "rate": 10.0}) == "10 requests a second"
    with pytest.raises(SystemExit, match="expected the strategy concurrent or poisson in its report, got throughput"):
        case_of({"type_": "throughput"})


def test_a_report_of_another_format_is_refused(report: dict[str, Any]) -> None:
    report["metadata"]["version"] = 3
    with pytest.raises(SystemExit, match=r"expected version 2 of its report \(guidellm 0.8\), got 3"):
        figures(report)


def test_without_the_tool_the_program_ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit):
        main(["--quick"])
    assert "--tool: expected GuideLLM's program (pip install guidellm), got guidellm, which is not there" in capsys.readouterr().err


def make_tool(folder: Path, body: str) -> Path:
    """Return a program that is called as the tool is."""
    path = folder / "guidellm"
    path.write_text(f"#!{sys.executable}\n{body}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.long
def test_direct_and_proxied_targets_are_asked_by_turns_and_the_reports_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], report: dict[str, Any]
) -> None:
    (tmp_path / "whole.json").write_text(json.dumps(report))
    tool = make_tool(
        tmp_path,
        f"""
import json, pathlib, sys, urllib.request
words = sys.argv[1:]
backend = json.loads(words[words.index("--backend") + 1])
with urllib.request.urlopen(backend["target"] + "/health") as answer:
    health = json.load(answer)
with open({str(tmp_path / "calls")!r}, "a") as file:
    print(json.dumps(["status" in health, json.loads(words[words.index("--profile") + 1])]), file=file)
assert len(pathlib.Path("prompts.jsonl").read_text().splitlines()) >= 4 * 40
pathlib.Path("report.json").write_text(pathlib.Path({str(tmp_path / "whole.json")!r}).read_text())
""",
    )
    main(["--tool", str(tool), "--json", "--seconds", "4", "--turns", "2", "--reports", str(tmp_path / "kept")])
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    kinds = [kind for kind in LOADS for _ in range(2)]
    assert [(is_proxied, profile["kind"]) for is_proxied, profile in calls] == [
        *zip([False, True] * len(LOADS), kinds, strict=True),
        *zip([True, False] * len(LOADS), kinds, strict=True),
    ]
    assert calls[0][1]["streams"] == [1, 10, 50]
    rows = [Row(**json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    assert {row.contender for row in rows} == {"upstream", "streamco"}
    assert {row.case for row in rows} == {CASE}
    kept = sorted(path.name for path in (tmp_path / "kept" / "guidellm-0.8.1").iterdir())
    assert kept == sorted(f"{name}-{kind}-{turn}.json" for name in ("streamco", "upstream") for kind in LOADS for turn in (1, 2))


def test_a_tool_that_fails_is_named_with_its_last_words(tmp_path: Path) -> None:
    tool = make_tool(tmp_path, "raise SystemExit('no such model')")
    with pytest.raises(SystemExit, match=r"guidellm: expected a report, got exit status 1: no such model"):
        main(["--tool", str(tool), "--quick"])


def test_a_section_has_source_table_and_the_version_of_the_kept_reports(tmp_path: Path) -> None:
    rows = [
        Row("load_tool", case, name, metric, unit, value, value, value)
        for case in ("1 stream at once", CASE)
        for metric, unit in COLUMNS
        for name, value in (("upstream", 123.456), ("streamco", 0.0))
    ]
    save("load_tool", rows, {"machine": "a machine", "date": "2026-11-27", "commit": "1dc1f62", "options": ["--turns", "1"]}, tmp_path)
    (tmp_path / "guidellm-0.8.1").mkdir()
    text = section(load("load_tool", tmp_path), kept_version(tmp_path))
    assert "*a machine; 2026-11-27; commit 1dc1f62; --turns 1.*" in text
    assert "](../bench/results/load_tool/guidellm-0.8.1)" in text
    assert "| direct / through the proxy | TTFT, median, ms |" in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert table[2:] == [f"| {case} |{' 123 / 0 |' * len(COLUMNS)}" for case in ("1 stream at once", CASE)]


def test_a_section_takes_the_place_of_the_one_with_its_heading() -> None:
    page = "# A page\n\n## One\n\nold\n\n## Two\n\nstays\n"
    assert page_with(page, "## One\n\nnew\n") == "# A page\n\n## One\n\nnew\n\n## Two\n\nstays\n"
    assert page_with(page, "## Two\n\nnew\n") == "# A page\n\n## One\n\nold\n\n## Two\n\nnew\n"
    with pytest.raises(SystemExit, match="expected one section '## Three' in the page, got 0"):
        page_with(page, "## Three\n")


# The kept run


def test_the_kept_rows_are_those_of_the_kept_reports() -> None:
    found: dict[tuple[str, str, str, str], list[float]] = {}
    for path in sorted(REPORTS.glob("guidellm-*/*.json")):
        name = path.stem.partition("-")[0]
        for key, value in figures(json.loads(path.read_text(encoding="utf-8"))).items():
            found.setdefault((*key, name), []).append(value)
    rows = load("load_tool").rows
    assert len(rows) == len(found) > 0
    for (case, metric, unit, name), values in found.items():
        assert rows[case, f"{metric} [{unit}]", name].median == pytest.approx(statistics.median(values))


def test_the_kept_reports_are_small() -> None:
    assert sum(path.stat().st_size for path in REPORTS.rglob("*.json")) < 100_000


def test_the_page_has_the_kept_run() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with(page, section(load("load_tool"), kept_version())), "python -m bench load_tool --page"
