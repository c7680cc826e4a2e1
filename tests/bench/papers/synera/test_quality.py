"""Figures of quality by budget, from recorded answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.papers.synera.__main__ import main
from bench.papers.synera.answers import Chunk, WrittenAnswer
from bench.papers.synera.quality import qualities, with_whole_answers
from bench.papers.synera.results import Result, add_to_package, read_package


def result(score: float, *, beginning: list[float] | None = None, chunks: list[Chunk] | None = None) -> Result:
    return Result.of_answer(score, 10, WrittenAnswer(chunks=chunks or [], beginning=beginning or []))


SENT = [Chunk(0.5, 0.1, 4, 2), Chunk(0.9, 0.1, 4), Chunk(0.9, 0.1, 2)]
QUESTIONS = [
    {
        "device": result(float(number % 2), beginning=[0.9 if number % 4 else 0.1] * 16),
        "server": result(1.0),
        "combined 0.2": result(float(number % 4 > 0), chunks=SENT),
        "confidence 0.2": result(float(number % 2), chunks=SENT),
    }
    for number in range(40)
]


def test_scores_stand_beside_the_devices_and_confidences_with_intervals() -> None:
    device, server, combined, confidence = qualities(QUESTIONS, ["device", "server", "combined 0.2", "confidence 0.2"])
    assert (device.score.value, server.score.value, combined.score.value) == (0.5, 1.0, 0.75)
    assert combined.gain.value == pytest.approx(0.25)
    assert 0.0 < combined.gain.low < 0.25 < combined.gain.high
    assert device.ratio == (1.0, 1.0, 1.0)
    assert server.ratio is not None
    assert server.ratio.value == 2.0
    assert combined.over_confidence is not None
    assert combined.over_confidence.value == pytest.approx(0.25)
    assert confidence.over_confidence is server.over_confidence is None
    assert confidence.gain == (0.0, 0.0, 0.0)


def test_tokens_of_the_server_are_counted_for_each_of_the_answers() -> None:
    device, server, combined = qualities(QUESTIONS, ["device", "server", "combined 0.2"])
    assert (device.server_share, server.server_share, combined.server_share) == (0.0, 1.0, 0.5)
    assert (device.sent_share, server.sent_share, combined.sent_share) == (0.0, 1.0, 0.4)


def test_whole_answers_are_the_servers_where_the_draft_model_is_perplexed() -> None:
    [answers] = qualities(with_whole_answers(QUESTIONS, [0.25]), ["answers 0.25"])
    assert answers.score.value == pytest.approx(0.75)  # every fourth question is perplexing, and the device has it wrong
    assert answers.sent_share == answers.server_share == 0.25
    assert answers.over_confidence is None


def test_times_nothing_is_no_number() -> None:
    questions = [{"device": result(0.0), "server": result(1.0)}] * 3
    assert qualities(questions, ["server"])[0].ratio is None


def recorded(question: str, cells: dict[str, dict[str, Any]]) -> str:
    return json.dumps({"question": question, "prompt_tokens": 3, "max_tokens": 8, "cells": cells})


def test_the_page_has_the_tables_of_the_packaged_scores(tmp_path: Path) -> None:
    page, copy = Path("docs/research/synera.md").read_text(encoding="utf-8"), tmp_path / "synera.md"
    copy.write_text(page, encoding="utf-8")
    main(["table", "--update", str(copy)])
    assert copy.read_text(encoding="utf-8") == page


def test_packaged_answers_are_put_into_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, path = tmp_path / "page.md", tmp_path / "recorded.jsonl"
    add_to_package("sst2", {f"q{number}": question for number, question in enumerate(QUESTIONS)}, path)
    monkeypatch.setattr("bench.papers.synera.__main__.read_package", lambda: read_package(path))
    marks = (f"<!-- {name}: begin -->\n<!-- {name}: end -->\n" for name in ("scores", "defaults", "table"))
    page.write_text("".join(marks), encoding="utf-8")
    main(["table", "--budgets", "0.2", "--update", str(page)])
    assert "**sst2**, 40 questions" in page.read_text(encoding="utf-8")
    assert "| SST-2 | 40 | 0.500 | 0.500 (1.00) | 1.000 (2.00) |" in page.read_text(encoding="utf-8")


def test_a_table_has_a_line_for_each_contender(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = {"score": 1.0, "tokens": 4, "text": "a", "beginning": [0.5], "chunks": [[0.5, 0.1, 4, 4, True]]}
    alone = {**cell, "score": 0.5, "chunks": [[0.5, 0.1, 4, None, True]]}
    cells = {"device": alone, "server": cell, "combined 0.2": cell, "confidence 0.2": alone}
    (tmp_path / "gsm8k.jsonl").write_text("".join(f"{recorded(name, cells)}\n" for name in "pqr"))
    main(["table", str(tmp_path), "--budgets", "0.2"])
    lines = capsys.readouterr().out.splitlines()
    assert "**gsm8k**, 3 questions" in lines
    assert any(line.startswith("| combined 0.2 | 1.000 (1.000 to 1.000) | +0.500 (+0.500 to +0.500) | 2.000") for line in lines)
    assert any(line.startswith("| answers 0.2 |") for line in lines)
    main(["table", str(tmp_path), "--budgets", "0.2", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["name"] for row in rows] == [*cells, "answers 0.2"]
    assert rows[2]["over_confidence"]["value"] == 0.5
