"""Equation 7 of DiSCo, asked of the answers: min(Q_A, Q_B) <= Q_M <= max(Q_A, Q_B), with intervals.

Q_A is the mean score of the first model's own answers, Q_B of the second one's, and Q_M of the answers that moved between them, all over
the same questions. An answer that has ended before the cut is the first model's own in Q_M, as it is in use. All three are drawn again
together, so the distance of Q_M to either bound has an interval of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bench.papers.quality.measured import Measured, Questions
from bench.tasks.intervals import Interval, interval_of, resample
from bench.tasks.records import CUTS, LENGTH, PAIRS, Key

__all__ = ["MEASURES", "Cell", "Verdict", "cells_of"]

Verdict = Literal["holds", "open", "fails below", "fails above"]
Answers = Mapping[str, Mapping[Key, Measured]]
Scores = Mapping[str, Mapping[Key, float]]
"""Both by question, then by answer."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One measure of one task, for one pair and cut.

    Args:
        questions: number of questions.
        moved: share of the answers that moved; the others had ended before the cut.
        first, second: mean of the models' own answers.
        mean: mean of the moved answers.
        above_lower: its distance to the lower bound; below 0: it is worse than both models.
        below_upper: its distance to the upper bound; below 0: it is better than both.
    """

    task: str
    measure: str
    pair: tuple[str, str]
    cut: int
    questions: int
    moved: float
    first: Interval
    second: Interval
    mean: Interval
    above_lower: Interval
    below_upper: Interval

    @property
    def verdict(self) -> Verdict:
        """Whether the equation is true here: it fails if a whole interval is on the wrong side, and is open if only the value is."""
        if self.above_lower.high < 0:
            return "fails below"
        if self.below_upper.high < 0:
            return "fails above"
        return "holds" if min(self.above_lower.value, self.below_upper.value) >= -1e-12 else "open"


def _score(items: Answers) -> Scores:
    return {item: {key: answer.score for key, answer in known.items()} for item, known in items.items()}


def _likelihood(items: Answers) -> Scores:
    """Return the mean log-likelihood, of the questions for which all answers have one: an empty answer has none."""
    return _of_whole(items, lambda answer: answer.likelihood)


def _agreement(items: Answers) -> Scores:
    """Return Rouge-1 against the answer of the 1.5B model itself."""
    return _of_whole(items, lambda answer: answer.agreement)


def _of_whole(items: Answers, value_of: Callable[[Measured], float | None]) -> Scores:
    found: dict[str, dict[Key, float]] = {}
    for item, known in items.items():
        values = {key: value for key, answer in known.items() if (value := value_of(answer)) is not None}
        if len(values) == len(known):
            found[item] = values
    return found


MEASURES: Mapping[str, Mapping[str, Callable[[Answers], Scores]]] = {
    "gsm8k": {"right answers": _score},
    "humaneval": {"pass@1": _score},
    "cnndm": {"Rouge-1": _score},
    "xsum": {"Rouge-1": _score},
    "alpaca": {"Rouge-1": _score, "Rouge-1 to the 1.5B's": _agreement, "log-likelihood": _likelihood},
}
"""By task: the measures' names and functions."""


def cells_of(questions: Questions) -> list[Cell]:
    """Return all cells that there are questions for."""
    cells = []
    for task, items in questions.items():
        for measure, function in MEASURES[task].items():
            scores = function(items)
            if scores:
                cells += [_cell(task, measure, pair, cut, scores) for pair in PAIRS for cut in CUTS]
    return cells


def _cell(task: str, measure: str, pair: tuple[str, str], cut: int, scores: Scores) -> Cell:
    first, second = pair
    rows: Sequence[list[float]] = ([], [], [])
    moved = 0
    for known in scores.values():
        own = known[first, None, LENGTH]
        is_moved = (first, second, cut) in known
        moved += is_moved
        for row, value in zip(rows, (own, known[second, None, LENGTH], known[first, second, cut] if is_moved else own), strict=True):
            row.append(value)
    drawn = resample(rows)
    of_first, of_second, of_moved = drawn
    return Cell(
        task=task,
        measure=measure,
        pair=pair,
        cut=cut,
        questions=len(scores),
        moved=moved / len(scores),
        first=interval_of(of_first),
        second=interval_of(of_second),
        mean=interval_of(of_moved),
        above_lower=interval_of(of_moved - np.minimum(of_first, of_second)),
        below_upper=interval_of(np.maximum(of_first, of_second) - of_moved),
    )
