"""The draft layer's bench: rounds along a text that is written, and drafts compared with PyTorch's."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from bench.timed import draft_layer
from bench.timed.draft_answer import Answer
from bench.timed.draft_layer import Policy, Split, agreement_rows, prompts_of
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.errors import EngineError

PROMPT = [1, 2, 3]


class ScriptedDrafts:
    """Guesses a token from a table, and checks that it reads verified states where these are known.

    Args:
        answer: its states hold their own position.
        guesses: by the position of the token before, with a probability.
    """

    def __init__(self, answer: Answer, guesses: Sequence[tuple[int, float]]) -> None:
        self._answer, self._guesses = answer, guesses
        self.length = 0

    def extend(self, deep: Any, shallow: Any, position: int) -> None:
        known = self._answer.deep[position - 1 : position - 1 + len(deep)] if position else np.zeros_like(deep)
        assert np.array_equal(deep, known)
        assert np.array_equal(shallow, self._answer.shallow[position : position + len(shallow)])
        assert position <= self.length
        self.length = position + len(shallow)

    def step(self, deep: Any, shallow: Any, position: int) -> Any:
        assert shallow[0] == position
        assert position == self.length
        self.length += 1
        token, probability = self._guesses[position - len(PROMPT)]
        return SimpleNamespace(ids=(token,), probabilities=(probability,), deep=np.array([-1.0]))


def rounds(guesses: Sequence[tuple[int, float]], window: int, threshold: float = 0.0) -> int:
    """Rounds along an answer of the tokens 10, 11, 12 ... with these guesses."""
    ids = [*PROMPT, *range(10, 11 + len(guesses))]
    states = np.arange(len(ids) - 1, dtype=np.float32)[:, None]
    answer = Answer(ids, len(PROMPT), states, states + 0.5, 0)
    split = Split.__new__(Split)
    split.draft = cast("Any", ScriptedDrafts(answer, guesses))
    return split.rounds(answer, Policy(window, threshold))


def right(*places: int, count: int = 8, probability: float = 0.9) -> list[tuple[int, float]]:
    return [(11 + place if place in places else 0, probability) for place in range(count)]


def test_without_a_right_guess_each_token_is_a_round() -> None:
    assert rounds(right(), 4) == 8


def test_a_round_brings_its_right_guesses_and_the_correction() -> None:
    assert rounds(right(*range(8)), 3) == 2
    assert rounds(right(*range(8)), 4) == 2  # 5 tokens, then the 3 that are left
    assert rounds(right(0, 1, 3), 4) == 1 + 1 + 3  # places 0 to 2; then 3 and 4; then one each


def test_an_unsure_guess_ends_a_draft_and_is_its_last() -> None:
    assert rounds(right(*range(8), probability=0.2), 8, threshold=0.3) == 4
    assert rounds(right(*range(8), probability=0.4), 8, threshold=0.3) == 1


def test_a_repeated_answer_is_looked_up_and_the_layer_guesses_the_rest() -> None:
    ids = [*PROMPT, 7, 8, 9, 10, 11, 7, 8, 9, 10, 11, 7]
    states = np.arange(len(ids) - 1, dtype=np.float32)[:, None]
    answer = Answer(ids, len(PROMPT), states, states + 0.5, 0)
    split = Split.__new__(Split)
    split.draft = cast("Any", ScriptedDrafts(answer, [(8, 0.9)] + [(0, 0.9)] * 9))
    assert split.rounds(answer, Policy(4)) == 9, "the layer is right once"
    assert split.rounds(answer, Policy(4, lookup=True)) == 6  # 8 and 9; 10; 11; 7; 8; then 9, 10, 11, 7


@pytest.fixture
def numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files of prompts: 35 numbers, and questions of which two are numbers, too."""
    (tmp_path / "prompts").mkdir()
    files = {
        "some.jsonl.gz": [f"number {place}" for place in range(35)],
        "others.jsonl.gz": ["number 10\n", "number 20", *(f"question {place}" for place in range(18)), "number 11"],
    }
    for name, prompts in files.items():
        with gzip.open(tmp_path / "prompts" / name, "wt") as file:
            file.write("\n".join(json.dumps({"prompt": prompt}) for prompt in prompts))
    monkeypatch.setattr(draft_layer, "data_folder", lambda: tmp_path)
    monkeypatch.setattr(draft_layer, "TRAINED", {"some": "some.jsonl.gz", "others": "others.jsonl.gz"})


def test_only_prompts_that_were_held_out_are_asked(numbered: None) -> None:
    assert prompts_of("some.jsonl.gz", is_absent=False, count=2) == ["number 0", "number 10"]
    assert prompts_of("some.jsonl.gz", is_absent=True, count=3) == ["number 0", "number 1", "number 2"]


def test_a_prompt_that_was_learned_from_another_file_is_not_asked(numbered: None) -> None:
    assert prompts_of("some.jsonl.gz", is_absent=False, count=9) == ["number 0", "number 10", "number 30"]  # 20 is the second of the others
    assert prompts_of("others.jsonl.gz", is_absent=False, count=9) == ["number 10\n", "question 8"]  # 11 isn't held out of the numbers


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Split, Answer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        try:
            split = Split(None, Path(packaged_model()), str(tmp_path_factory.mktemp("parts")))
        except EngineError as exc:
            pytest.skip(str(exc))
    return split, split.write("What is the capital of France? Answer with a sentence about its history.", 40)


@pytest.mark.long
def test_drafting_again_along_a_text_takes_the_rounds_in_which_it_was_written(written: tuple[Split, Answer]) -> None:
    split, answer = written
    assert split.rounds(answer, Policy(4)) == answer.rounds
    assert answer.tokens > answer.rounds > 0


@pytest.mark.long
def test_pytorch_and_llamacpp_draft_the_same_tokens(written: tuple[Split, Answer]) -> None:
    pytest.importorskip("torch")
    assert import_module("bench.timed.draft_agreement")
    split, answer = written
    row = agreement_rows(split, split.weights, Path(packaged_model()), {"kind": [answer]}, 300)[0]
    assert row.median >= 0.95
