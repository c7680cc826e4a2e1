"""Tables, the page and the picture."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest

from bench.papers.quality.__main__ import main
from bench.papers.quality.equation import cells_of
from bench.papers.quality.measured import measured, read_package
from bench.papers.quality.tables import format_cells, update_page
from bench.tasks.records import AnswerFile
from tests.bench.papers.quality.answers import make_answers

OWN = {"SmolLM2": 0.1, "0.5B": 0.3, "1.5B": 0.7}
ANSWERS = list(chain.from_iterable(make_answers("xsum", f"q{number}", OWN, 0.2) for number in range(5)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with AnswerFile(tmp_path / "xsum.jsonl") as file:
        for answer in ANSWERS:
            file.add(answer)
    return tmp_path


def test_a_table_has_all_intervals_and_marks_what_fails() -> None:
    text = format_cells(cells_of(measured(ANSWERS)))
    assert text.startswith("Of 12 cells: 6 hold, 0 are open (outside the bounds by less than the noise), 6 fail below")
    assert "**xsum, Rouge-1** (5 questions)" in text
    row = "| 0.5B → 1.5B | 0.300 (0.300 to 0.300) | 0.700 (0.700 to 0.700) | 4 | 100% | 0.200 (0.200 to 0.200) |"
    assert f"{row} -0.100 (-0.100 to -0.100) | 0.500 (0.500 to 0.500) | **fails below** |" in text


def test_the_page_has_the_tables_of_the_packaged_scores() -> None:
    page = Path("docs/research/quality.md").read_text(encoding="utf-8")
    assert update_page(page, format_cells(cells_of(read_package()))) == page


def test_the_page_is_updated_between_its_marks(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: begin -->\nformer\n<!-- table: end -->\nafter\n", encoding="utf-8")
    assert main(["table", "--folder", str(folder), "--update", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- table: begin -->\nOf 12 cells")
    assert text.endswith("<!-- table: end -->\nafter\n")
    assert "former" not in text
    assert update_page(text, format_cells(cells_of(measured(ANSWERS)))) == text
    with pytest.raises(ValueError, match="expected the marks"):
        update_page("no marks", "")


def test_json_has_one_object_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["table", "--folder", str(folder), "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 12
    assert {line["verdict"] for line in lines} == {"holds", "fails below"}


def test_a_profile_has_each_models_mean(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["profile", "--folder", str(folder)])
    assert capsys.readouterr().out == '[migration.quality]\n"0.5B" = 0.300\n"1.5B" = 0.700\n"SmolLM2" = 0.100\n'


def test_the_picture_is_a_png(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    main(["plot", "--folder", str(folder), str(tmp_path / "quality.png")])
    assert (tmp_path / "quality.png").read_bytes().startswith(b"\x89PNG")
