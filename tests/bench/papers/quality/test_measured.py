"""The package: what is kept of answers, and what is added to it."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from msgspec.structs import replace

from bench.papers.quality import measured as module
from bench.papers.quality.__main__ import main
from bench.papers.quality.measured import add_to_package, is_packaged, measured, read_package
from bench.tasks.records import LENGTH, Answer, AnswerFile
from tests.bench.papers.quality.answers import make_answers

OWN = {"SmolLM2": 0.1, "0.5B": 0.3, "1.5B": 0.7}


def answers(*names: str, task: str = "xsum") -> list[Answer]:
    return list(chain.from_iterable(make_answers(task, name, OWN, 0.5) for name in names))


def test_a_package_has_the_scores_and_no_text(tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    found = measured(answers("q1", "q2"))
    assert add_to_package(found, path) == 2
    assert read_package(path) == found
    assert all(answer.text not in path.read_text() for answer in answers("q1") if answer.text)


def test_questions_are_added_and_no_half_ones(tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    add_to_package(measured(answers("q1")), path)
    assert add_to_package(measured(answers("q2") + answers("q3")[:-1]), path) == 2
    assert list(read_package(path)["xsum"]) == ["q1", "q2"]


def test_without_a_file_nothing_is_packaged(tmp_path: Path) -> None:
    assert read_package(tmp_path / "none.jsonl") == {}


def test_answers_to_alpaca_have_their_agreement_with_the_large_models() -> None:
    pytest.importorskip("rouge_score")
    found = measured([replace(answer, likelihood=-1.25) for answer in answers("q1", task="alpaca")])["alpaca"]["q1"]
    assert found["1.5B", None, LENGTH] == module.Measured(0.7, -1.25, 1.0)


def test_a_question_of_alpaca_is_asked_again_for_its_likelihoods() -> None:
    pytest.importorskip("rouge_score")
    bare, whole = answers("q1", task="alpaca"), [replace(answer, likelihood=-1.0) for answer in answers("q2", task="alpaca")]
    half = [replace(answer, likelihood=-1.0 if answer.second is None else None) for answer in answers("q3", task="alpaca")]
    found = {**measured([*bare, *whole, *half]), **measured(answers("q1"))}
    for item, has_all in (("q1", False), ("q2", True), ("q3", False)):
        assert is_packaged(found, "alpaca", item, measures=True) is has_all
        assert is_packaged(found, "alpaca", item, measures=False)
    assert is_packaged(found, "xsum", "q1", measures=True)
    assert not is_packaged(found, "xsum", "q2", measures=False)
    assert not is_packaged(found, "gsm8k", "q1", measures=False)


def test_the_command_packages_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("bench.papers.quality.__main__.add_to_package", lambda found: add_to_package(found, tmp_path / "recorded.jsonl"))
    with AnswerFile(tmp_path / "xsum.jsonl") as file:
        for answer in answers("q1"):
            file.add(answer)
    assert main(["package", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "1 questions\n"
