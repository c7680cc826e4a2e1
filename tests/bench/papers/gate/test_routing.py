"""Measures of a score that chooses who answers: chance has half, the best order has most, ties are in no order."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.papers.gate.__main__ import main, table
from bench.papers.gate.recording import RECORDED, WORD_BINS, Answer, package, read_answers
from bench.papers.gate.routing import compare, cross_fitted, fit_ridge, left_out, measure, recovered
from bench.papers.gate.signals import SHORT, log_probability, worst_sentence
from bench.papers.gate.split import FOLDS, fold_of

GAINS = np.array([1.0, 0.0, 0.0, 1.0])


def answer(number: int, *, task: str = "a", sure: float = 0.9, device: float = 0.0, tokens: int = 4) -> Answer:
    return Answer(
        task=task,
        question=f"q{number}",
        prompt_tokens=10 + number,
        max_tokens=64,
        device=device,
        server=1.0,
        chosen=(sure,) * tokens,
        second=(1.0 - sure,) * tokens,
        entropy=(1.0 - sure,) * tokens,
        sentences=(2, tokens),
        agreement=sure,
    )


def test_what_is_recovered_follows_the_order_of_the_scores() -> None:
    once = np.ones((1, 4))
    assert recovered(np.array([0.0, 3.0, 2.0, 1.0]), GAINS, once)[1].tolist() == [[0.0, 0.5, 1.0, 1.0, 1.0]]
    assert recovered(np.array([3.0, 0.0, 1.0, 2.0]), GAINS, once)[1].tolist() == [[0.0, 0.0, 0.0, 0.5, 1.0]]
    assert recovered(np.array([0.0, 3.0, 2.0, 1.0]), GAINS, np.array([[3.0, 1.0, 0.0, 1.0]]))[0].tolist() == [[0.0, 0.6, 0.8, 0.8, 1.0]]


def test_equal_scores_are_worth_what_chance_is() -> None:
    found = measure(np.zeros(4), GAINS)
    assert (found.apgr.value, found.cpt_50.value, found.cpt_80.value) == (0.5, 0.5, 0.8)


def test_the_best_order_beats_chance_and_the_same_draws_are_compared() -> None:
    gains = np.array([1.0, 0.0] * 20)
    best, none = -gains, np.zeros(40)
    assert measure(best, gains).cpt_50.value == 0.25
    difference = compare(best, none, gains)
    assert difference.low > 0.1
    assert compare(best, best, gains) == (0.0, 0.0, 0.0)


def test_a_ridge_finds_a_line() -> None:
    rows = np.column_stack([np.ones(200), np.linspace(0.0, 1.0, 200)])
    predicted = fit_ridge(rows, 3.0 * rows[:, 1] + 1.0)(np.array([[1.0, 0.5]]))
    assert predicted == pytest.approx([2.5], abs=0.05)


def test_no_answer_is_scored_by_a_fit_that_has_seen_it() -> None:
    answers = [answer(number) for number in range(40)]
    rows = np.ones((40, 1))
    folds = np.array([fold_of(each.task, each.question) for each in answers])
    gains = (folds == 2).astype(float)
    assert {*folds.tolist()} == {*range(FOLDS)}
    scores = cross_fitted(answers, np.column_stack([rows, rows]), gains)
    assert np.all(scores[folds == 2] == 0.0)
    assert np.all(scores[folds != 2] < 0.0)
    other = [*answers, *(answer(number, task="b") for number in range(10))]
    scores = left_out(other, np.ones((50, 2)), np.array([0.0] * 40 + [1.0] * 10))
    assert np.all(scores[:40] == -1.0)
    assert np.all(scores[40:] == 0.0)


def test_a_sentence_that_is_unsure_is_seen_where_the_mean_is_not() -> None:
    chosen = (0.9, 0.9, 0.1, 0.1)
    found = Answer(**{**{name: getattr(answer(0), name) for name in Answer.__struct_fields__}, "chosen": chosen})
    assert worst_sentence(found) == pytest.approx(np.log(0.1))
    assert worst_sentence(found, 3) == pytest.approx(np.log(0.9))
    assert log_probability(found, 2) == pytest.approx(np.log(0.9))


def test_the_table_has_a_line_for_each_score_with_short_and_long_answers_apart() -> None:
    answers = [
        answer(number, task="ab"[number % 2], sure=0.2 + 0.01 * number, device=float(number > 20), tokens=4 if number % 3 else SHORT + 4)
        for number in range(40)
    ]
    lines = [*table(answers)]
    assert "all (40)" in lines[0]
    assert "short (26)" in lines[0]
    names = [line.split("|")[1].strip() for line in lines[2:]]
    assert {"perplexity, 16 tokens", "task known, then perplexity", "oracle", "learned on other tasks, 16 tokens"} <= {*names}
    assert next(line for line in lines if line.startswith("| perplexity, 16 tokens |")).split("|")[2].strip().startswith("0.7")


def test_what_is_packaged_keeps_the_words_of_its_prompts_and_no_text(tmp_path: Path) -> None:
    known = read_answers()[:3]
    if not known:
        pytest.skip(f"nothing is packaged in {RECORDED.name}")
    path = tmp_path / "some.jsonl.gz"
    assert package(known[:2], path) == 2
    assert package(known[1:], path) == 3
    found = read_answers(path)
    assert [each.question for each in found] == sorted(each.question for each in known)
    assert all(min(each.words) >= 0 and max(each.words) < WORD_BINS for each in found)
    assert msgspec.json.encode(found[0]).count(b" ") == found[0].question.count(" ")


@pytest.mark.long
def test_the_page_has_the_table_of_the_packaged_answers(tmp_path: Path) -> None:
    page, copy = Path("docs/research/quality.md").read_text(encoding="utf-8"), tmp_path / "quality.md"
    copy.write_text(page, encoding="utf-8")
    main(["table", "--update", str(copy)])
    assert copy.read_text(encoding="utf-8") == page
