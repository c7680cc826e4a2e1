"""How good a score is at choosing the answers that the server should give (RouteLLM's measures), with intervals.

The answers with the lowest scores go to the server first. The *gap* is the server's mean score less the device's. *APGR* is the mean share
of the gap that is recovered as ever more answers go to the server; chance has 0.5. *CPT 50* is the share of answers that go to the server
when half of the gap is recovered for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.papers.gate.recording import Answer
from bench.papers.gate.signals import SHORT
from bench.papers.gate.split import fold_of
from bench.tables import table_lines
from bench.tasks.intervals import Interval, draw_weights, interval_of

__all__ = [
    "USUAL",
    "Floats",
    "Measures",
    "apgr",
    "compare",
    "compare_lines",
    "cross_fitted",
    "fit_ridge",
    "gains_of",
    "left_out",
    "measure",
    "recovered",
]

USUAL = "perplexity, 16 tokens"
"""The score that others are compared with."""

Floats = NDArray[np.float64]
_RIDGE = 10.0


class Measures(NamedTuple):
    """One score's measures.

    Args:
        apgr: mean share of the gap that is recovered.
        cpt_50, cpt_80: share of answers at the server for half and for 80 % of the gap.
    """

    apgr: Interval
    cpt_50: Interval
    cpt_80: Interval


def recovered(scores: Floats, gains: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Return shares of answers at the server, and the shares of the gap that they recover, from none to all, in each draw.

    Answers with equal scores go together, so between two of the shares the gap is recovered evenly.

    Args:
        scores: of the answers; the lowest go first, shape (answers,).
        gains: the server's score less the device's, shape (answers,).
        weights: how often each answer is in a draw, shape (draws, answers); a draw's gains add up to more than 0.

    Returns:
        Two arrays of shape (draws, different scores + 1).
    """
    order = np.argsort(scores, kind="stable")
    first = np.flatnonzero(np.diff(scores[order], prepend=-np.inf))
    found = [np.cumsum(np.add.reduceat(each[:, order], first, axis=1), axis=1) for each in (weights, weights * gains)]
    shares, gap = (np.pad(each / each[:, -1:], ((0, 0), (1, 0))) for each in found)
    return shares, gap


def _apgr(shares: Floats, gap: Floats) -> Floats:
    return np.asarray(np.trapezoid(gap, shares, axis=1))


def _cpt(shares: Floats, gap: Floats, aim: float) -> Floats:
    """Return the share of answers at which so much of the gap is recovered for the first time."""
    rows, at = np.arange(len(gap)), np.argmax(gap >= aim - 1e-12, axis=1)
    low, high = gap[rows, at - 1], gap[rows, at]
    part = (aim - low) / np.maximum(high - low, 1e-12)
    return np.asarray(shares[rows, at - 1] + part * (shares[rows, at] - shares[rows, at - 1]))


def _draws(gains: Floats) -> Floats:
    """Return how often each answer is in each draw, once in the first; draws without a gap are left out."""
    weights = draw_weights(len(gains), np.random.default_rng(1))
    return np.asarray(weights[weights @ gains > 0.0])


def apgr(scores: Floats, gains: Floats) -> float:
    """Return a score's APGR on these answers, without an interval."""
    return float(_apgr(*recovered(scores, gains, np.ones((1, len(gains)))))[0])


def measure(scores: Floats, gains: Floats) -> Measures:
    """Return a score's measures on these answers, with intervals of 95 %."""
    shares, gap = recovered(scores, gains, _draws(gains))
    return Measures(*map(interval_of, (_apgr(shares, gap), _cpt(shares, gap, 0.5), _cpt(shares, gap, 0.8))))


def compare(first: Floats, second: Floats, gains: Floats) -> Interval:
    """Return the APGR of a score less that of another, of the same draws of answers."""
    weights = _draws(gains)
    return interval_of(_apgr(*recovered(first, gains, weights)) - _apgr(*recovered(second, gains, weights)))


def gains_of(answers: Sequence[Answer]) -> Floats:
    """Return the server's score of each answer less the device's."""
    return np.array([each.server - each.device for each in answers])


def compare_lines(answers: Sequence[Answer], scores: Mapping[str, Floats], against: Mapping[str, Floats]) -> Iterator[str]:
    """Yield the lines of a table of scores, in Markdown: all answers, and short and longer ones apart.

    Args:
        answers: the answers.
        scores: by their names, in the order of the lines.
        against: a score that all are compared with, by the heading of its column.
    """
    gains, short = gains_of(answers), np.array([len(each.chosen) <= SHORT for each in answers])
    parts = {"all": np.ones(len(answers), dtype=bool), "short": short, "longer": ~short}

    def row(name: str) -> list[str]:
        cells = [measure(scores[name][part], gains[part]) for part in parts.values()]
        values = [*(cell.apgr for cell in cells), cells[0].cpt_50, cells[0].cpt_80]
        over = [compare(scores[name], other, gains).show(2, sign="+") for other in against.values()]
        return [name, *(value.show(2) for value in values), *over]

    head = ["", *(f"APGR, {name} ({part.sum()})" for name, part in parts.items()), "CPT 50", "CPT 80", *against]
    yield from table_lines(head, map(row, scores))


def fit_ridge(rows: Floats, aims: Floats, penalty: float = _RIDGE) -> Callable[[Floats], Floats]:
    """Return the ridge regression of ``aims`` on standardised ``rows``, whose first column is 1."""
    mean, deviation = rows[:, 1:].mean(axis=0), rows[:, 1:].std(axis=0) + 1e-9

    def scaled(given: Floats) -> Floats:
        return np.column_stack([given[:, :1], (given[:, 1:] - mean) / deviation])

    inputs = scaled(rows)
    penalties = penalty * np.eye(inputs.shape[1])
    penalties[0, 0] = 0.0
    weights = np.linalg.solve(inputs.T @ inputs + penalties, inputs.T @ aims)
    return lambda given: scaled(given) @ weights


def cross_fitted(answers: Sequence[Answer], rows: Floats, gains: Floats, penalty: float = _RIDGE) -> Floats:
    """Return scores of which each was fitted on the other folds: the gain that is expected of the server, with its sign turned."""
    return _held_out([fold_of(each.task, each.question) for each in answers], rows, gains, penalty)


def left_out(answers: Sequence[Answer], rows: Floats, gains: Floats, penalty: float = _RIDGE) -> Floats:
    """Return scores of which each was fitted on the other tasks."""
    return _held_out([each.task for each in answers], rows, gains, penalty)


def _held_out(groups: Sequence[int] | Sequence[str], rows: Floats, gains: Floats, penalty: float) -> Floats:
    labels, scores = np.array(groups), np.zeros(len(groups))
    for group in np.unique(labels):
        held = labels == group
        scores[held] = -fit_ridge(rows[~held], gains[~held], penalty)(rows[held])
    return scores
