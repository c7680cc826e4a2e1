"""The score that ships, learned from ratings of the recorded answers: how good, after how many ratings, and whether it is a probability.

A rating says whether the device's answer is good. Four rules stand for people and programs that rate:

- *rated*: the answer's own score is at least the server's mean on its task. Where answers are right or wrong, the right ones are good. A
  summary is good if it has as much of its reference as the server's summaries usually have.
- *rated leniently*: at least half of that mean. It is the same where answers are right or wrong, and most summaries are good.
- *compared*: the server's answer to the same question has no higher score.
- *compared leniently*: a score that is higher by less than a half is a tie, and the answer is good. The server's answer is better where it
  is right and the device's is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from bench.papers.gate.recording import WORD_BINS, Answer
from bench.papers.gate.routing import Floats, apgr, compare_lines, gains_of
from bench.papers.gate.split import FOLDS, fold_of
from bench.tables import format_table
from streamco.policies.quality import MAX_TOKENS, MIN_LABELS, AnswerFacts, LearnedScore, Perplexity, fit_logistic

__all__ = ["Ratings", "good_answers", "held_out", "online", "perplexity", "rated_lines", "ratings_of", "tf_idf"]

_LABELS = (25, 50, 100, 200, 400)
_DRAWS = 20  # of ratings, and orders of a stream
_COLD = 200  # answers at the beginning of a stream
_FIFTHS = 5
_ANY = 2  # labels: a score is learned from however few there are

_Table = tuple[str, list[str], list[list[str]]]  # title, head and rows


class Ratings:
    """Ratings of one kind.

    Args:
        answers: the answers.
        good: whether each is good.
        knows_task: the score knows an answer's task.
    """

    def __init__(self, answers: Sequence[Answer], good: Sequence[bool], *, knows_task: bool) -> None:
        self.good = good
        self.facts = [_facts(each, knows_task) for each in answers]
        learned = LearnedScore()
        for facts, is_good in zip(self.facts, good, strict=True):
            learned.observe(facts, is_good)
        self.examples = learned.examples


def good_answers(answers: Sequence[Answer]) -> dict[str, list[bool]]:
    """Return whether the device's answers are good, by the name of the rule."""
    usual = {task: fmean(each.server for each in answers if each.task == task) for task in {each.task for each in answers}}
    return {
        "rated": [each.device >= usual[each.task] for each in answers],
        "rated leniently": [each.device >= usual[each.task] / 2.0 for each in answers],
        "compared": [each.device >= each.server for each in answers],
        "compared leniently": [each.server - each.device < 0.5 for each in answers],
    }


def ratings_of(answers: Sequence[Answer]) -> dict[str, Ratings]:
    """Return the ratings of each rule, without and with the task, by the name of a line."""
    return {
        f"{name}{', task known' * knows_task}": Ratings(answers, good, knows_task=knows_task)
        for name, good in good_answers(answers).items()
        for knows_task in (False, True)
    }


def _facts(answer: Answer, knows_task: bool) -> AnswerFacts:
    return AnswerFacts(
        probabilities=answer.told[:MAX_TOKENS],
        is_complete=len(answer.told) <= MAX_TOKENS,
        prompt_tokens=answer.prompt_tokens,
        task=answer.task if knows_task else None,
    )


def perplexity(answers: Sequence[Answer]) -> Floats:
    """Return the plain scores."""
    plain = Perplexity()
    return np.array([plain.score(_facts(each, knows_task=False)) for each in answers])


def _folds(answers: Sequence[Answer]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the places of the answers that may be learned from, and of those that are scored."""
    folds = np.array([fold_of(each.task, each.question) for each in answers])
    for fold in range(FOLDS):
        yield np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)


def held_out(answers: Sequence[Answer], ratings: Ratings, *, labels: int | None = None, seed: int = 0) -> Floats:
    """Return scores of which each was learned from the other folds.

    Args:
        answers: the answers.
        ratings: their ratings.
        labels: number of ratings that are drawn from the other folds; None: all.
        seed: of the draw.
    """
    rng, found = np.random.default_rng(seed), np.zeros(len(answers))
    for known, held in _folds(answers):
        drawn = known if labels is None else rng.choice(known, labels, replace=False)
        learned = LearnedScore([ratings.examples[place] for place in drawn], min_labels=_ANY)
        found[held] = [learned.score(ratings.facts[place]) for place in held]
    return found


def online(ratings: Ratings, order: Sequence[int]) -> Floats:
    """Return scores that answers get in this order, each learned from those before it; the perplexity's until there are enough."""
    learned, found = LearnedScore(), np.zeros(len(order))
    for place in order:
        found[place] = learned.score(ratings.facts[place])
        learned.observe(ratings.facts[place], ratings.good[place])
    return found


def tf_idf(answers: Sequence[Answer], good: Sequence[bool]) -> Floats:
    """Return scores by the prompts' words alone: TF-IDF and a logistic regression, learned from the other folds.

    The recordings have each word of a prompt once and 512 bins for all words, so the frequency of a term is 0 or 1.
    """
    words, labels, found = np.zeros((len(answers), WORD_BINS)), np.array(good, dtype=float), np.zeros(len(answers))
    for row, each in enumerate(answers):
        words[row, list(each.words)] = 1.0
    for known, held in _folds(answers):
        rows = words * (np.log((1.0 + len(known)) / (1.0 + words[known].sum(axis=0))) + 1.0)
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
        rows = np.column_stack([np.ones(len(answers)), rows])
        found[held] = rows[held] @ fit_logistic(rows[known], labels[known], np.array([1e-3, *[1.0] * WORD_BINS]))
    return found


def rated_lines(answers: Sequence[Answer], others: Mapping[str, Floats]) -> Iterator[str]:
    """Yield the lines of the tables, in Markdown.

    Args:
        answers: the answers.
        others: scores to compare with, by their names.
    """
    ratings = ratings_of(answers)
    learned = {name: held_out(answers, each) for name, each in ratings.items()}
    words = {f"the prompt's words, {name}": tf_idf(answers, good) for name, good in good_answers(answers).items()}
    others = {"perplexity without the end": perplexity(answers), **others}
    scores = {**others, **words, **{f"learned, {name}": each for name, each in learned.items()}}
    yield from compare_lines(answers, scores, {f"less {name}": each for name, each in others.items()})
    for table in (_curve(answers, ratings), _streams(answers, ratings), _calibration(answers, ratings, learned)):
        yield format_table(*table)


def _curve(answers: Sequence[Answer], ratings: Mapping[str, Ratings]) -> _Table:
    gains = gains_of(answers)
    usual = apgr(perplexity(answers), gains)

    def cell(each: Ratings, labels: int) -> str:
        found = [apgr(held_out(answers, each, labels=labels, seed=seed), gains) for seed in range(_DRAWS)]
        return f"{fmean(found):.2f} ({sum(value > usual for value in found)})"

    def row(name: str, each: Ratings) -> list[str]:
        return [name, *(cell(each, labels) for labels in _LABELS), f"{apgr(held_out(answers, each), gains):.2f}"]

    title = f"APGR by number of ratings: means of {_DRAWS} draws, and how many of them are above the perplexity's {usual:.2f}."
    return title, ["", *map(str, _LABELS), "four of five folds"], [row(*each) for each in ratings.items()]


def _streams(answers: Sequence[Answer], ratings: Mapping[str, Ratings]) -> _Table:
    gains, plain = gains_of(answers), perplexity(answers)
    orders = [np.random.default_rng(seed).permutation(len(answers)) for seed in range(_DRAWS)]

    def row(name: str, each: Ratings) -> list[str]:
        streams, cells = [online(each, order.tolist()) for order in orders], [name]
        for part in (slice(None, _COLD), slice(_COLD, None)):
            places = [order[part] for order in orders]
            found = [apgr(stream[at], gains[at]) for stream, at in zip(streams, places, strict=True)]
            usual = [apgr(plain[at], gains[at]) for at in places]
            cells += [f"{fmean(found):.2f}", f"{fmean(usual):.2f}", str(sum(one > other for one, other in zip(found, usual, strict=True)))]
        return cells

    heads = [(part, "perplexity's", "above") for part in (f"the first {_COLD}", f"the next {len(answers) - _COLD}")]
    title = (
        f"APGR in a stream: means of {_DRAWS} orders, and how many are above the perplexity's, which gives the first {MIN_LABELS} scores."
    )
    return title, ["", *(each for part in heads for each in part)], [row(*each) for each in ratings.items()]


def _calibration(answers: Sequence[Answer], ratings: Mapping[str, Ratings], learned: Mapping[str, Floats]) -> _Table:
    def row(name: str, good: Sequence[bool], scores: Floats) -> list[str]:
        labels, order = np.array(good, dtype=float), np.argsort(scores, kind="stable")
        pairs = [f"{scores[each].mean():.2f} / {labels[each].mean():.2f}" for each in np.array_split(order, _FIFTHS)]
        return [name, f"{np.mean((scores - labels) ** 2):.3f}", f"{labels.mean() * (1.0 - labels.mean()):.3f}", *pairs]

    rows = [row(f"learned, {name}", each.good, learned[name]) for name, each in ratings.items()]
    rows += [row(f"perplexity, {name}", good, perplexity(answers)) for name, good in good_answers(answers).items()]
    title = "Brier scores, and mean score / share of good answers in each fifth of the answers, from the lowest scores to the highest."
    return title, ["", "Brier score", "the base rate's", "lowest", "second", "third", "fourth", "highest"], rows
