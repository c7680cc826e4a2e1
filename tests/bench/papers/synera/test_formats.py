"""The table of the device's formats, of the questions that all of them have."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.papers.synera import formats
from bench.papers.synera.results import Result, add_to_package, read_package


def results(device: float, combined: float) -> dict[str, Result]:
    return {"device": Result(device, 10), "combined 0.2": Result(combined, 10, server_tokens=3, drafted=10, sent=2)}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "formats.jsonl"
    monkeypatch.setattr(formats, "PACKAGED", path)
    add_to_package("xsum Q8_0", {"a": results(0.2, 0.3), "b": results(0.2, 0.3), "c": results(0.9, 0.9)}, path)
    add_to_package("xsum Q2_K", {"a": results(0.1, 0.2), "b": results(0.1, 0.2)}, path)
    return path


def test_formats_are_compared_on_the_same_questions(package: Path) -> None:
    lines = [*formats.lines_of(read_package(package))]
    assert lines[0] == "| device's model, 2 questions | device alone | both filters, budget 0.2 | times the device's | server's tokens |"
    assert lines[2] == "| Q8_0 | 0.200 (0.200 to 0.200) | 0.300 (0.300 to 0.300) | 1.50 (1.50 to 1.50) | 0.30 |"
    assert lines[3] == "| Q2_K | 0.100 (0.100 to 0.100) | 0.200 (0.200 to 0.200) | 2.00 (2.00 to 2.00) | 0.30 |"
    assert lines[4].startswith("| *paper, 16 bits* | 13.81 |")


def test_a_page_gets_the_table(package: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- formats: begin -->\n<!-- formats: end -->\n")
    formats.main(["table", "--update", str(page)])
    assert "| Q2_K |" in page.read_text()


def test_a_run_needs_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        formats.main(["package"])
    assert "expected a folder, got none" in capsys.readouterr().err


def test_the_page_has_the_packaged_table() -> None:
    page = Path("docs/research/synera.md").read_text(encoding="utf-8")
    assert "\n".join(formats.lines_of(read_package(formats.PACKAGED))) in page
