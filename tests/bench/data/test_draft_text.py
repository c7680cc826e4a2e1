"""Prompts and texts that the model writes for a draft layer's training."""

from __future__ import annotations

import json
from argparse import Namespace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tests.bench.data.small_teacher import small_teacher

text_module = import_module("bench.data.draft_text")
END = 7


class SmallChat:
    """A template of one token before the user's turn and one after it. A word is the token of its length."""

    before, after, ends = (40,), (41,), (END,)

    def beginning(self, words: str) -> list[int]:
        return [*self.before, *map(len, words.split())]

    def around(self, turn: str) -> list[int]:
        return [*self.beginning(turn), *self.after]


def prompts(*beginnings: str, count: int = 60, **options: float) -> list[list[int]]:
    found: list[list[int]] = text_module.write_prompts(small_teacher(), SmallChat(), count, 3, beginnings=beginnings, **options)
    return found


def test_turns_begin_with_the_words_asked_for_by_turns() -> None:
    found = prompts("Translate this:", "Who")
    assert {tuple(prompt[:3]) if prompt[1] != 3 else tuple(prompt[:2]) for prompt in found} == {(40, 9, 5), (40, 3)}
    assert all(prompt[-1] == 41 and END not in prompt for prompt in found)
    assert len({tuple(prompt) for prompt in found}) > len(found) / 2


def test_without_words_the_model_writes_the_whole_turn() -> None:
    assert len({prompt[1] for prompt in prompts()}) > 10


def test_turns_that_did_not_end_are_left_out() -> None:
    short = prompts(most=4)
    assert len(short) < len(prompts(most=64)) <= 60
    assert all(len(prompt) <= 1 + 3 + 1 for prompt in short)


def test_a_low_temperature_writes_fewer_different_turns() -> None:
    cold, warm = (len({tuple(prompt[:3]) for prompt in prompts(temperature=each)}) for each in (0.05, 1.0))
    assert cold < warm


def test_prompts_of_other_lengths_are_left_out_and_keep_their_numbers(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": "word " * length}) + "\n" for length in range(1, 25)))
    args = Namespace(out=tmp_path, kind="kind", prompts=file, texts=99, temperature=0.0, seed=0, share="0/1", prompt_tokens=(10, 20))
    args.answer_tokens, args.batches = 5, None
    text_module.write_batches(small_teacher(), SmallChat(), args)
    [path] = tmp_path.glob("kind.*.npz")
    with np.load(path) as found:
        assert set(found["prompts"].tolist()) <= set(range(10, 21))
        assert (found["numbers"] == found["prompts"] - 3).all()  # the first prompt has 3 tokens
        assert len(found["numbers"]) > 3


def test_beginnings_beside_a_file_of_prompts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["draft_text", "--model", "m", "--out", str(tmp_path), "--kind", "k", "--prompts", "p", "--begin", "Who"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit):
        text_module.main()
