"""Answers on disk: nothing is lost or written twice, wherever a run stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from bench.tasks.records import LENGTH, Answer, AnswerFile, read_answers

OWN = Answer(task="gsm8k", item="q1", first="0.5B", cut=3, text="a\nb", ids=(1, 2, 3), is_finished=True, score=1.0)
MOVED = Answer(task="gsm8k", item="q1", first="0.5B", second="1.5B", cut=2, text="ac", is_finished=False, score=0.0, likelihood=-1.5)


def test_what_was_written_is_found_by_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "new" / "gsm8k.jsonl"
    with AnswerFile(path) as file:
        assert file.find("q1", OWN.key) is None
        file.add(OWN)
        file.add(MOVED)
        assert file.find("q1", ("0.5B", None, LENGTH)) == OWN
    with AnswerFile(path) as file:
        assert file.find("q1", ("0.5B", "1.5B", 2)) == MOVED
        assert file.find("q1", ("0.5B", "1.5B", 4)) is None
        assert file.find("q2", OWN.key) is None
    assert list(read_answers(path.parent)) == [OWN, MOVED]


@pytest.mark.parametrize("left", range(1, 40, 6))
def test_half_a_line_of_a_killed_process_is_written_again(tmp_path: Path, left: int) -> None:
    path = tmp_path / "gsm8k.jsonl"
    with AnswerFile(path) as file:
        file.add(OWN)
        file.add(MOVED)
    path.write_bytes(path.read_bytes()[:-left])
    assert list(read_answers(tmp_path)) == [OWN]
    with AnswerFile(path) as file:
        assert file.find("q1", MOVED.key) is None
        file.add(MOVED)
    assert list(read_answers(tmp_path)) == [OWN, MOVED]


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    with AnswerFile(tmp_path / "a.jsonl"), pytest.raises(SystemExit, match="expected no other process"):
        AnswerFile(tmp_path / "a.jsonl")
    with AnswerFile(tmp_path / "a.jsonl") as file:
        file.add(replace(OWN, item="q9"))


def test_a_folder_without_answers_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="expected answers of"):
        next(read_answers(tmp_path))
