"""Which contender has the highest score for as many tokens of the server: what the live client's default is chosen by.

A contender's score between its budgets is on straight lines through (server's tokens for each of an answer, score): from the device alone,
which costs none, through its cells, to the server alone, which costs one. Questions are drawn again with replacement, the same for all
contenders, task by task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.papers.synera.results import Result
from bench.tasks.intervals import Interval, draw_weights, interval_of

__all__ = ["Comparison", "compare", "default_lines", "score_at"]

_SHARES = (0.3, 0.6)
_DEFAULT, _OTHERS = "hybrid", ("confidence", "combined", "tolerant")

Floats = NDArray[np.float64]
Results = Sequence[Mapping[str, Result]]


class Comparison(NamedTuple):
    """Two contenders at as many tokens of the server.

    Args:
        task: name of the task; "all": the mean over the tasks, each of which counts alike.
        share: tokens of the server for each of an answer.
        first, second: scores.
        gain: the first one's less the second one's.
    """

    task: str
    share: float
    first: Interval
    second: Interval
    gain: Interval


def score_at(share: float, costs: Sequence[Floats], scores: Sequence[Floats]) -> Floats:
    """Return a contender's score at so many tokens of the server, in each draw.

    Args:
        share: tokens of the server for each of an answer, not above the dearest cell's.
        costs: that of each cell, cheapest first, in each draw.
        scores: score of each cell.
    """
    curves = zip(np.column_stack(costs), np.column_stack(scores), strict=True)
    return np.array([np.interp(share, cost, score) for cost, score in curves])


def compare(tasks: Mapping[str, Results], first: Sequence[str], second: Sequence[str], shares: Sequence[float]) -> list[Comparison]:
    """Return the comparisons of two contenders at these costs, by task and for all of them.

    Args:
        tasks: results of each task's questions.
        first, second: the cells of each contender, cheapest first, such as ``["device", "hybrid 0.2", "hybrid 0.5", "server"]``.
        shares: tokens of the server for each of an answer.
    """
    rng = np.random.default_rng(1)
    found: list[Comparison] = []
    for share in shares:
        means: list[tuple[Floats, Floats]] = []
        for task, results in tasks.items():
            weights = draw_weights(len(results), rng)
            each = tuple(score_at(share, *_curve(results, names, weights)) for names in (first, second))
            means.append((each[0], each[1]))
            found.append(_comparison(task, share, *means[-1]))
        both = [np.mean([each[place] for each in means], axis=0) for place in (0, 1)]
        found.append(_comparison("all", share, both[0], both[1]))
    return found


def _comparison(task: str, share: float, first: Floats, second: Floats) -> Comparison:
    return Comparison(task, share, interval_of(first), interval_of(second), interval_of(first - second))


def _curve(results: Results, names: Sequence[str], weights: Floats) -> tuple[list[Floats], list[Floats]]:
    """Return the costs and the scores of a contender's cells in each draw."""
    costs, scores = [], []
    for name in names:
        tokens = weights @ np.array([each[name].tokens for each in results], dtype=np.float64)
        computed = [each[name].tokens if name == "server" else each[name].server_tokens for each in results]
        server = weights @ np.array(computed, dtype=np.float64)
        costs.append(server / tokens)
        scores.append(weights @ np.array([each[name].score for each in results]) / weights.sum(axis=1))
    return costs, scores


def default_lines(tasks: Mapping[str, Results], budgets: Sequence[float]) -> Iterator[str]:
    """Yield the lines of a table in Markdown: the default's gains over the others, as means over the tasks and of the questions of both."""
    yield f"| single tokens (`{_DEFAULT}`) less | questions | at {_SHARES[0]:g} of the server's tokens | at {_SHARES[1]:g} |"
    yield "|---|---|---|---|"
    for other in _OTHERS:
        first, second = (["device", *(f"{rule} {budget:g}" for budget in budgets), "server"] for rule in (_DEFAULT, other))
        both = {task: [each for each in results if {*first, *second} <= {*each}] for task, results in tasks.items()}
        both = {task: results for task, results in both.items() if results}
        if both:
            gains = [each.gain.show(sign="+") for each in compare(both, first, second, _SHARES) if each.task == "all"]
            yield f"| `{other}` | {sum(map(len, both.values()))} | {' | '.join(gains)} |"
