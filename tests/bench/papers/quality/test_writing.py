"""Answers that move between models: with the packaged model as all three."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

pytest.importorskip("llama_cpp")

from bench.papers.quality import __main__ as program
from bench.papers.quality import writing
from bench.papers.quality.writing import MODELS, Writer, begins_with, begun, likelihood, write_block
from bench.tasks import Question
from bench.tasks.records import LENGTH, PAIRS, Answer, AnswerFile, read_answers
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.events import Partial

pytestmark = pytest.mark.model
TOKENS = 20


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    options = EngineOptions(threads=1, context_tokens=256, max_sequences=3, held_sequences=1, exact=True)
    loaded = LlamaEngine(packaged_model(), options)
    yield loaded
    loaded.close()


def question(name: str, text: str = "Name three rivers.", task: str = "xsum") -> Question:
    return Question(name, task, text, "reference", TOKENS, lambda answer: float(len(answer) > 3))


def write(engine: LlamaEngine, path: Path, questions: list[Question], *, moves: bool = True, measures: bool = True) -> int:
    async def run() -> int:
        writer = Writer(engine)
        with AnswerFile(path) as file:
            return await write_block(dict.fromkeys(MODELS, writer), [(each, file) for each in questions], measures=measures, moves=moves)

    return asyncio.run(run())


@pytest.mark.long
def test_own_answers_may_come_first_and_moved_ones_later(engine: LlamaEngine, tmp_path: Path) -> None:
    path, questions = tmp_path / "xsum.jsonl", [question("q1")]
    assert write(engine, path, questions, moves=False) == len(MODELS)
    assert write(engine, path, questions) == 2 * len(PAIRS)


@pytest.mark.long
def test_an_answer_that_moves_to_the_same_model_is_that_models_own(engine: LlamaEngine, tmp_path: Path) -> None:
    path = tmp_path / "xsum.jsonl"
    questions = [question("q1"), question("q2", "Was ist ein Fluß? Antworte mit Emojis wie 🌊.")]
    due = 2 * (len(MODELS) + 2 * len(PAIRS))  # cuts after 4 and 16 tokens; none after 64
    assert write(engine, path, questions) == due
    with AnswerFile(path) as file:
        for each in questions:
            own = file.find(each.id, ("1.5B", None, LENGTH))
            assert own is not None
            assert 16 < len(own.ids) <= TOKENS
            for first, second in PAIRS:
                for cut in (4, 16):
                    moved = file.find(each.id, (first, second, cut))
                    assert moved is not None
                    assert (moved.text, moved.score, moved.is_finished) == (own.text, own.score, own.is_finished)
                assert file.find(each.id, (first, second, 64)) is None


@pytest.mark.long
def test_a_later_run_writes_only_what_is_missing(engine: LlamaEngine, tmp_path: Path) -> None:
    path = tmp_path / "xsum.jsonl"
    write(engine, path, [question("q1")])
    assert write(engine, path, [question("q1")]) == 0
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]))
    assert write(engine, path, [question("q1")]) == 2
    assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(lines)


@pytest.mark.long
def test_a_hand_over_ends_with_a_whole_code_point(engine: LlamaEngine) -> None:
    ids = engine.tokenize("a 🦎 b")
    for cut in range(len(ids) + 1):
        partial = begun(engine, ids, cut)
        assert "\ufffd" not in partial.text
        assert engine.detokenize(partial.ids or ()).decode() == partial.text
        assert partial.tokens == len(partial.ids or ()) <= cut
        assert partial.vocabulary == engine.info.vocabulary


def test_a_models_own_words_are_likelier_than_others(engine: LlamaEngine) -> None:
    asked = question("q1", task="alpaca")
    own, _, _ = asyncio.run(Writer(engine).write(asked))
    likely, unlikely = likelihood(engine, asked, own), likelihood(engine, asked, "zebra quantum 17 ;; fog the the")
    assert unlikely < -4.0 < math.log(0.25) < likely < 0.0


@pytest.mark.long
def test_only_answers_to_alpaca_have_a_likelihood(engine: LlamaEngine, tmp_path: Path) -> None:
    write(engine, tmp_path / "alpaca.jsonl", [question("q1", task="alpaca")])
    write(engine, tmp_path / "xsum.jsonl", [question("q1")])
    for name, has_one in (("alpaca", True), ("xsum", False)):
        with AnswerFile(tmp_path / f"{name}.jsonl") as file:
            own = file.find("q1", ("0.5B", None, LENGTH))
            assert own is not None
            assert (own.likelihood is not None) == has_one


@pytest.mark.long
def test_a_likelihood_that_is_missing_is_added_to_the_answer(engine: LlamaEngine, tmp_path: Path) -> None:
    path, questions = tmp_path / "alpaca.jsonl", [question("q1", task="alpaca")]
    assert write(engine, path, questions, measures=False) == len(MODELS) + 2 * len(PAIRS)
    bare = {answer.key: answer for answer in read_answers(tmp_path)}
    assert all(answer.likelihood is None for answer in bare.values())
    assert write(engine, path, questions) == 0
    measured = {answer.key: answer for answer in read_answers(tmp_path)}
    assert all(answer.likelihood is not None for answer in measured.values())
    assert {key: replace(answer, likelihood=None) for key, answer in measured.items()} == bare


@pytest.mark.long
def test_a_run_answers_the_first_questions_of_all_tasks_and_then_the_next(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine, "close", lambda: None)  # the other tests need it
    monkeypatch.setattr(Writer, "load", lambda _: Writer(engine))
    monkeypatch.setattr(program, "load_questions", lambda task, count: [question(f"{task} {number}", task=task) for number in range(count)])
    monkeypatch.setattr(program, "BLOCK", 1)
    arguments = ["run", str(tmp_path), "--tasks", "xsum", "gsm8k", "--items", "2"]
    assert program.main(arguments) == 0
    written = 2 * (len(MODELS) + 2 * len(PAIRS))
    assert [line.split(", ")[0] for line in capsys.readouterr().out.splitlines()] == [
        f"questions up to {number} of 2: {written} answers written" for number in (1, 2)
    ]
    assert [answer.item for answer in read_answers(tmp_path)] == [
        f"{task} {number}" for task in ("gsm8k", "xsum") for number in (0, 1) for _ in range(written // 2)
    ]
    assert program.main(arguments) == 0
    assert capsys.readouterr().out.count(": 0 answers written") == 2


def test_the_models_of_a_run_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "fetched", lambda _: None)
    with pytest.raises(SystemExit, match=r"0\.5B: expected the models of `make models`"):
        writing.model_path("0.5B")


def test_an_answer_with_the_second_models_own_beginning_is_not_written_again(engine: LlamaEngine) -> None:
    ids = tuple(engine.tokenize("One two three four five"))
    own = Answer(task="xsum", item="q1", first="1.5B", cut=len(ids), text="One two three four five", ids=ids, is_finished=True, score=1.0)
    text = engine.detokenize(ids[:2]).decode()
    other = Partial(text=text, ids=(), vocabulary="another", tokens=3, is_counted=True)
    assert begins_with(engine, own, begun(engine, ids, 3))
    assert begins_with(engine, own, other)
    assert not begins_with(engine, own, replace(other, text=text + " t"))  # in the middle of a token
    assert not begins_with(engine, own, begun(engine, (ids[0], ids[0]), 2))
    assert not begins_with(engine, replace(own, is_finished=False), begun(engine, ids, 3))
