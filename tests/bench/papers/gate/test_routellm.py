"""What a router can know before an answer begins, on four questions."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bench.papers.gate.routellm import main, table


def question(task: str, *, chars: int, strong: int, weak: int) -> dict[str, str]:
    return {"task": task, "prompt_chars": str(chars), "strong_correct_gpt4_1106": str(strong), "weak_correct_mixtral8x7b": str(weak)}


# The longer a prompt, the more the strong model gains; both subjects gain as much.
QUESTIONS = [question(f"subject{n % 2}", chars=n, strong=1, weak=int(n < 10)) for n in range(20)]


def test_the_longest_prompts_and_the_subject_with_the_highest_gain_go_first() -> None:
    lines = list(table(QUESTIONS))
    assert lines[2].startswith("| MMLU (20), prompt length | 0.75 "), "half of the answers recover everything"
    with_gain = [question("law" if n < 10 else "art", chars=0, strong=int(n < 10), weak=0) for n in range(20)]
    assert list(table(with_gain))[3].startswith("| MMLU (20), subject known | 0.75 ")


def test_the_recorded_questions_are_read_and_those_of_arithmetic_counted_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "routing_quality"
    folder.mkdir()
    rows = [*QUESTIONS, *(question("gsm8k", chars=30 + n, strong=1, weak=0) for n in range(10))]
    with gzip.open(folder / "routellm_correctness.csv.gz", "wt", encoding="utf-8") as file:
        file.writelines(",".join(line) + "\n" for line in (rows[0], *(row.values() for row in rows)))
    monkeypatch.setenv("STREAMCO_DATA", str(tmp_path))
    main([])
    out = capsys.readouterr().out
    assert "| MMLU (20), " in out
    assert "| both (30), " in out
