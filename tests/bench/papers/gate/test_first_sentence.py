"""What two first sentences have in common."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.papers.gate.first_sentence import FirstSentences, agreement, read_sentences, sentence_table
from bench.papers.gate.recording import read_answers


@pytest.mark.parametrize(
    ("first", "second", "common"),
    [
        ([], [], 1.0),
        ([1, 2], [], 0.0),
        ([1, 2, 3], [3, 2, 1], 1.0),
        ([1, 1, 2], [1, 3, 4, 5], 0.25),
        ([1, 2], [1, 2, 3, 4], 0.5),
    ],
)
def test_agreement_is_the_share_of_the_longer_ones_tokens(first: list[int], second: list[int], common: float) -> None:
    assert agreement(first, second) == agreement(second, first) == common


def test_the_table_is_of_the_questions_that_are_there(tmp_path: Path) -> None:
    answers, file = read_answers()[::9], tmp_path / "first.jsonl"
    lines = [FirstSentences(each.task, each.question, float(each.device >= each.server)) for each in answers]
    file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    assert read_sentences(file) == lines
    table = list(sentence_table(lines))
    assert f"APGR, all ({len(answers)})" in table[0]
    assert len(table) == 5
