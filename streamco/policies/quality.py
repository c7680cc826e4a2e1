"""Scores the first tokens of a device's answer from 0 to 1, to tell whether the answer is good enough.

A gate holds the beginning of an answer, asks for its score, and lets a server answer if the score is low. There are two scores:

- ``Perplexity`` needs no data to learn from. It says something about answers of a few tokens, but nothing about longer answers.
- ``LearnedScore`` is fitted on rated answers from the same app. The package has no weights for it, because a score that was fitted on other
  tasks is worse than chance. docs/research/quality.md shows the figures.

``SteeredThreshold`` finds the score below which the server answers, so that a budget is spent but not exceeded.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct

from streamco.config import check_share
from streamco.errors import ConfigError
from streamco.lazy_numpy import np
from streamco.profiles.rated_answer import RatedAnswer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = [
    "MAX_LABELS",
    "MAX_TOKENS",
    "MIN_LABELS",
    "MIN_RATED",
    "AnswerFacts",
    "Judge",
    "LearnedScore",
    "Perplexity",
    "Score",
    "ShadowPair",
    "SteeredThreshold",
    "fit_logistic",
]

MAX_TOKENS = 16
"""Number of an answer's first tokens that a score uses. More tokens add no information."""

MAX_LABELS = 1000
"""Number of rated answers that a learned score keeps. Older ones are dropped."""

MIN_LABELS = 100
"""A learned score needs at least this many rated answers to be better than the perplexity, if it ever is (docs/research/quality.md)."""

MIN_RATED = 20
"""With at least this many rated answers, the share of good answers is used as the device's quality."""

_MAX_TASKS = 16  # maximum number of tasks that have their own weight
_LEAST = 1e-6  # a probability that was rounded to 0
_PENALTY = 1.0
_FREE = 1e-3  # penalty of the first weight, so that it is finite whatever the labels are
_REFIT = 20  # refit when a twentieth of the labels is new
_MAX_STEPS, _CLOSE = 25, 1e-6  # of Newton's method
_HIGHEST_LOGIT = 30.0

_WINDOW = 256  # answers that a threshold is computed from
_MIN_SCORES = 20
_FIRST_THRESHOLD, _HIGHEST_THRESHOLD = 0.5, 0.9


class AnswerFacts(Struct, frozen=True, kw_only=True):
    """The facts about a device's answer that a score can use.

    Args:
        probabilities: the model's own probability of each of the answer's first tokens, 0..1, at least one. Probabilities after the 16th
            are ignored.
        is_complete: True if the answer has already ended.
        prompt_tokens: the prompt's length.
        task: the caller's name for the kind of task, or None if none was given.
    """

    probabilities: tuple[float, ...]
    is_complete: bool
    prompt_tokens: int
    task: str | None = None


class ShadowPair(Struct, frozen=True, kw_only=True):
    """Two answers to one request, for the caller's judge.

    Args:
        messages: the request's messages, or empty if it had a prompt.
        prompt: the request's prompt, or None if it had messages.
        device: the device's answer, which the reader got.
        server: the server's answer, which nobody reads.
    """

    messages: Sequence[Any]
    prompt: str | None
    device: str
    server: str


Judge = Callable[[ShadowPair], bool | Awaitable[bool | None] | None]
"""Returns whether a device's answer was as good as the server's, or None if it can't tell. It may be a coroutine function."""


class Score(Protocol):
    """A score of a device's answer."""

    def score(self, facts: AnswerFacts, /) -> float:
        """Return how good the answer seems, 0..1. The probability of at least one token must be known."""
        ...


class Perplexity:
    """The plain score: the geometric mean of the tokens' probabilities, which is 1 over the perplexity. Implements ``Score``.

    It isn't the probability that the answer is good, because an answer of which the model is sure may well be wrong.
    """

    def score(self, facts: AnswerFacts) -> float:
        """Return the geometric mean of the probabilities, 0..1. At least one probability must be known."""
        return _geometric_mean(_logarithms(facts))


class LearnedScore:
    """The probability that an answer is good, learned from an app's own ratings. Implements ``Score``.

    It is a logistic regression with an L2 penalty. Its inputs are how likely the tokens were, the lengths of prompt and answer, and the
    task. A rating may come from a user, or from a comparison with the server's answer. The latest 1,000 ratings count. Once a twentieth of
    them are new, the next request for a score fits the model again. The same calls give the same scores.

    Args:
        examples: answers that were rated before, as the attribute ``examples`` returns them, oldest first.
        min_labels: number of rated answers needed. At least a tenth of this number must be good answers, and a tenth bad ones.

    Raises:
        ConfigError: ``min_labels`` is below 2.
    """

    def __init__(self, examples: Iterable[RatedAnswer] = (), *, min_labels: int = MIN_LABELS) -> None:
        if min_labels < 2:
            raise ConfigError(f"learned score: expected min_labels of 2 or more, got {min_labels}")
        self._examples = deque(examples, MAX_LABELS)
        self._good = sum(each.good for each in self._examples)
        self._min_labels = min_labels
        self._fit: _Fit | None = None
        self._new = 0  # labels since the last fit

    def observe(self, facts: AnswerFacts, good: bool) -> None:
        """Learn from an answer.

        Args:
            facts: the facts that were known when the answer was scored.
            good: True if the device's answer was good enough. Count an answer as good if the server's would have been only slightly better:
                a stricter rule sends answers to the server that gain little by it, and then the perplexity is the better score.
        """
        if self.labels == MAX_LABELS:
            self._good -= self._examples[0].good
        self._examples.append(_rated(facts, good))
        self._good += good
        self._new += 1

    @property
    def labels(self) -> int:
        """Number of rated answers that count, 0 to 1,000."""
        return len(self._examples)

    @property
    def examples(self) -> list[RatedAnswer]:
        """The rated answers that count, oldest first."""
        return list(self._examples)

    @property
    def good_share(self) -> float | None:
        """Share of the rated answers that were good, or None if too few answers were rated."""
        return self._good / self.labels if self.labels >= MIN_RATED else None

    @property
    def is_ready(self) -> bool:
        """True if there are enough good and bad rated answers. Until then, the perplexity is used as the score."""
        return self.labels >= self._min_labels and min(self._good, self.labels - self._good) >= max(1, self._min_labels // 10)

    def score(self, facts: AnswerFacts) -> float:
        """Return the probability that the answer is good, 0..1. The probability of at least one token must be known.

        A task that has not been rated yet, or isn't one of the 16 tasks rated most often, counts as an average task. Until ``is_ready``,
        the result is ``Perplexity``'s score, which isn't a probability.
        """
        answer = _rated(facts, good=False)  # the label isn't read
        return self._fitted().score(answer) if self.is_ready else answer.mean

    @property
    def rated_scores(self) -> Sequence[float]:
        """The scores of the rated answers, or () until ``is_ready``."""
        return self._fitted().rated if self.is_ready else ()

    def _fitted(self) -> _Fit:
        if self._fit is None or self._new * _REFIT >= self.labels:
            self._fit, self._new = _Fit.of(self._examples), 0
        return self._fit


class SteeredThreshold:
    """Finds the score below which the server answers, so that a given share of the prompt tokens goes to the server.

    It is computed from the last 256 answers. Their scores must all be of one kind, so create a new object when the kind of score changes.
    """

    def __init__(self) -> None:
        self._answers: deque[tuple[float | None, int]] = deque(maxlen=_WINDOW)

    def record(self, score: float | None, tokens: int) -> None:
        """Record the next answer, whichever side gave it.

        Args:
            score: score of the device's first tokens, 0..1, or None if not known or if a server was started without waiting for it.
            tokens: the prompt's length.
        """
        self._answers.append((score, tokens))

    @property
    def scores(self) -> list[float]:
        """The known scores of the most recent answers."""
        return [score for score, _ in self._answers if score is not None]

    def threshold(self, budget: float) -> float:
        """Return the threshold, 0..0.9. The server should answer if the score is lower.

        Of the most recent answers, those with lower scores have at most the budget's share of all prompt tokens, and one answer more would
        exceed it. Answers with equal scores are treated alike. The threshold is 0.5 until 20 scores are known.

        Args:
            budget: share of all prompt tokens that servers may process because of low scores, 0..1.

        Raises:
            ConfigError: the budget is outside 0..1.
        """
        check_share("budget", budget)
        known = sorted((score, tokens) for score, tokens in self._answers if score is not None)
        if len(known) < _MIN_SCORES:
            return _FIRST_THRESHOLD
        left = budget * sum(tokens for _, tokens in self._answers) + 1e-6  # makes up for rounding
        for score, tokens in known:
            left -= tokens
            if left < 0.0:
                return min(score, _HIGHEST_THRESHOLD)
        return _HIGHEST_THRESHOLD


def fit_logistic(rows: Floats, is_good: Floats, penalties: Floats) -> Floats:
    """Fit a logistic regression with an L2 penalty by Newton's method, and return its weights, shape (columns,).

    The weights minimise the sum of -log p(label) and of penalty * weight^2 / 2. A step that would overshoot is halved.

    Args:
        rows: inputs, shape (labels, columns).
        is_good: labels, 0.0 or 1.0, shape (labels,).
        penalties: penalty of each column, above 0, shape (columns,).
    """

    def loss(weights: Floats) -> float:
        logits = rows @ weights
        return float(np.logaddexp(0.0, logits).sum() - is_good @ logits + 0.5 * penalties @ weights**2)

    weights = np.zeros(rows.shape[1])
    for _ in range(_MAX_STEPS):
        expected = 0.5 * (1.0 + np.tanh(0.5 * (rows @ weights)))
        slope = rows.T @ (expected - is_good) + penalties * weights
        curvature = (rows.T * (expected * (1.0 - expected))) @ rows + np.diag(penalties)
        step = np.linalg.solve(curvature, slope)
        before = loss(weights)
        while np.abs(step).max() > _CLOSE and loss(weights - step) > before:
            step = step / 2.0
        weights = weights - step
        if np.abs(step).max() <= _CLOSE:
            break
    return weights


class _Fit(NamedTuple):
    """The result of a fit. Inputs are clamped to the range seen in the fit, and the weights include their normalisation.

    Args:
        intercept: logit of an answer whose inputs are all 0.
        weights, low, high: weight and range of each input, shape (inputs,).
        tasks: the number that each task adds to the logit.
        rated: scores of the answers that were used for the fit.
    """

    intercept: float
    weights: Floats
    low: Floats
    high: Floats
    tasks: dict[str, float]
    rated: Sequence[float] = ()

    @classmethod
    def of(cls, answers: Sequence[RatedAnswer]) -> _Fit:
        tasks, inputs = _frequent_tasks(answers), _inputs(answers)
        mean, deviation = inputs.mean(axis=0), inputs.std(axis=0)
        deviation[deviation < 1e-9] = 1.0  # the same for all: its weight is 0
        rows = np.hstack([np.ones((len(answers), 1)), (inputs - mean) / deviation, _one_hot(answers, tasks)])
        penalties = np.array([_FREE, *[_PENALTY] * (rows.shape[1] - 1)])
        found = fit_logistic(rows, np.array([float(each.good) for each in answers]), penalties)
        weights, of_tasks = found[1 : 1 + mean.size] / deviation, found[1 + mean.size :]
        return cls(
            intercept=float(found[0] - weights @ mean),
            weights=weights,
            low=inputs.min(axis=0),
            high=inputs.max(axis=0),
            tasks=dict(zip(tasks, of_tasks.tolist(), strict=True)),
            rated=(0.5 * (1.0 + np.tanh(0.5 * (rows @ found)))).tolist(),
        )

    def score(self, answer: RatedAnswer) -> float:
        known = np.clip(_inputs([answer])[0], self.low, self.high)
        logit = self.intercept + float(self.weights @ known) + self.tasks.get(answer.task or "", 0.0)
        return 1.0 / (1.0 + math.exp(-min(_HIGHEST_LOGIT, max(-_HIGHEST_LOGIT, logit))))


def _rated(facts: AnswerFacts, good: bool) -> RatedAnswer:
    logs = sorted(_logarithms(facts))
    return RatedAnswer(
        mean=_geometric_mean(logs),
        tenth=math.exp(_quantile(logs, 0.1)),
        median=math.exp(_quantile(logs, 0.5)),
        tokens=len(logs),
        is_complete=facts.is_complete,
        prompt_tokens=facts.prompt_tokens,
        task=facts.task,
        good=good,
    )


def _inputs(answers: Sequence[RatedAnswer]) -> Floats:
    """Return the inputs of a fit, shape (answers, 6)."""
    rows = np.array([(each.mean, each.tenth, each.median, each.tokens, each.prompt_tokens, each.is_complete) for each in answers], float)
    rows[:, :5] = np.log(np.maximum(rows[:, :5], (_LEAST, _LEAST, _LEAST, 1.0, 1.0)))
    return rows


def _logarithms(facts: AnswerFacts) -> list[float]:
    assert facts.probabilities, "a score needs the probability of some token"
    return [math.log(min(1.0, max(_LEAST, each))) for each in facts.probabilities[:MAX_TOKENS]]


def _geometric_mean(logarithms: Sequence[float]) -> float:
    return math.exp(math.fsum(logarithms) / len(logarithms))


def _quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, interpolated linearly."""
    place = share * (len(values) - 1)
    below = int(place)
    return values[below] + (place - below) * (values[min(below + 1, len(values) - 1)] - values[below])


def _frequent_tasks(answers: Iterable[RatedAnswer]) -> list[str]:
    counts = Counter(each.task for each in answers if each.task)
    return sorted(counts, key=lambda task: (-counts[task], task))[:_MAX_TASKS]


def _one_hot(answers: Sequence[RatedAnswer], tasks: Sequence[str]) -> Floats:
    """Return 1.0 at each answer's task, shape (answers, tasks)."""
    columns, found = {task: column for column, task in enumerate(tasks)}, np.zeros((len(answers), len(tasks)))
    for row, each in enumerate(answers):
        if each.task in columns:
            found[row, columns[each.task]] = 1.0
    return found
