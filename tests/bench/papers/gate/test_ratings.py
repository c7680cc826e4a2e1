"""Ratings of recorded answers: what counts as good, no score by a fit that has seen the answer, and tables with all of them."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from bench.papers.gate.ratings import good_answers, held_out, online, perplexity, rated_lines, ratings_of, tf_idf
from bench.papers.gate.recording import Answer
from bench.papers.gate.split import fold_of
from streamco.policies.quality import MIN_LABELS
from tests.bench.papers.gate.test_routing import answer


def stream(count: int = 240) -> list[Answer]:
    """Answers that are right when the model is sure; the server is always right."""
    found = []
    for number in range(count):
        sure = 0.1 + 0.8 * ((number * 37) % count) / count
        words = (1, 2) if sure > 0.5 else (2, 3)
        tokens = 20 if number % 3 else 4
        found.append(replace(answer(number, task="ab"[number % 2], sure=sure, device=float(sure > 0.5), tokens=tokens), words=words))
    return found


def test_an_answer_is_good_by_itself_or_beside_the_servers() -> None:
    right, wrong = (answer(0, device=score) for score in (1.0, 0.0))
    summaries = [
        replace(answer(number, task="s", device=device), server=server)
        for number, device, server in ((1, 0.3, 0.2), (2, 0.1, 0.3), (3, 0.2, 0.1))
    ]
    found = good_answers([right, wrong, *summaries])
    assert found == {
        "rated": [True, False, True, False, True],
        "rated leniently": [True, False, True, True, True],
        "compared": [True, False, True, False, True],
        "compared leniently": [True, False, True, True, True],
    }


def test_no_answer_is_scored_by_a_score_that_has_seen_it() -> None:
    answers = stream()
    folds = np.array([fold_of(each.task, each.question) for each in answers])
    ratings = ratings_of(answers)["rated, task known"]
    before = held_out(answers, ratings)
    other = ratings_of([replace(each, device=1.0 - each.device) if fold == 2 else each for each, fold in zip(answers, folds, strict=True)])
    after = held_out(answers, other["rated, task known"])
    assert np.all(before[folds == 2] == after[folds == 2])
    assert np.all(before[folds != 2] != after[folds != 2])


def test_fewer_ratings_are_drawn_by_the_seed() -> None:
    answers = stream()
    ratings = ratings_of(answers)["rated"]
    first, again, other = (held_out(answers, ratings, labels=25, seed=seed) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()


def test_a_stream_is_scored_by_the_perplexity_until_there_are_enough_ratings() -> None:
    answers = stream()
    order = [*range(len(answers) - 1, -1, -1)]
    found, plain = online(ratings_of(answers)["rated"], order), perplexity(answers)
    early, late = order[:MIN_LABELS], order[MIN_LABELS:]
    assert found[early] == pytest.approx(plain[early])
    assert np.all(np.abs(found[late] - plain[late]) > 1e-6)
    good = np.array([each.device for each in answers])
    assert found[late][good[late] == 1.0].mean() > found[late][good[late] == 0.0].mean() + 0.5


def test_words_that_only_good_answers_prompts_have_tell_them() -> None:
    answers = stream()
    good = good_answers(answers)["rated"]
    found = tf_idf(answers, good)
    assert found[good].min() > found[[not each for each in good]].max()


def test_the_tables_have_a_line_for_each_kind_of_rating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.papers.gate.ratings._DRAWS", 2)
    monkeypatch.setattr("bench.papers.gate.ratings._LABELS", (25,))
    answers = stream()
    lines = "\n".join(rated_lines(answers, {"plain": perplexity(answers)})).splitlines()
    names = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    assert {"plain", "learned, rated", "the prompt's words, compared leniently", "perplexity, rated leniently"} <= {*names}
    assert names.count("compared, task known") == 2
    assert "less plain" in lines[0]
