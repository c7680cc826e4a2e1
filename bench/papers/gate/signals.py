"""Signals of an answer: numbers that are known while the device writes, the higher the better the device's answer seems.

Each takes what the device's model knew of its own tokens (``recording.Answer``), at most the first ``tokens`` of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from bench.papers.gate.recording import Answer

__all__ = ["PLAIN", "SHORT", "features", "log_probability", "worst_sentence"]

SHORT = 16  # tokens of a short answer at most
_LEAST = 1e-4  # a probability that was rounded to 0
Signal = Callable[[Answer], float]


def log_probability(answer: Answer, tokens: int | None = None) -> float:
    """Return the mean logarithm of the tokens' probabilities: less the logarithm of the perplexity."""
    return float(np.mean(np.log(np.maximum(answer.chosen[:tokens], _LEAST))))


def _quantile(answer: Answer, tokens: int | None, share: float) -> float:
    return float(np.quantile(np.log(np.maximum(answer.chosen[:tokens], _LEAST)), share))


def _margin(answer: Answer, tokens: int | None, share: float) -> float:
    chosen, second = np.array(answer.chosen[:tokens]), np.array(answer.second[:tokens])
    return float(np.quantile(chosen - second, share))


def worst_sentence(answer: Answer, tokens: int | None = None) -> float:
    """Return the lowest mean log-probability of a sentence that has ended, of the whole if none has."""
    ends = [each for each in answer.sentences if tokens is None or each <= tokens]
    starts = [0, *ends]
    logs = np.log(np.maximum(answer.chosen, _LEAST))
    means = [float(np.mean(logs[start:end])) for start, end in zip(starts, ends, strict=False) if end > start]
    return min(means, default=log_probability(answer, tokens))


def _after(tokens: int) -> Iterator[tuple[str, Signal]]:
    """Yield the signals of the first tokens."""
    yield f"perplexity, {tokens} tokens", lambda answer: log_probability(answer, tokens)
    yield f"tenth quantile, {tokens} tokens", lambda answer: _quantile(answer, tokens, 0.1)
    yield f"median margin, {tokens} tokens", lambda answer: _margin(answer, tokens, 0.5)
    yield f"tenth quantile of margins, {tokens} tokens", lambda answer: _margin(answer, tokens, 0.1)


PLAIN: Mapping[str, Signal] = {
    "prompt length": lambda answer: -float(answer.prompt_tokens),
    "entropy of the first row": lambda answer: -answer.entropy[0],
    "two samples' agreement": lambda answer: answer.agreement,
    **dict(chain.from_iterable(map(_after, (4, 16, 32, 64)))),
    "worst sentence, 64 tokens": lambda answer: worst_sentence(answer, 64),
    "perplexity, whole answer": log_probability,
    "worst sentence, whole answer": worst_sentence,
}
"""Signals that need no fit, by name."""


def features(answer: Answer, tokens: int, tasks: Sequence[str] = ()) -> list[float]:
    """Return what a fitted score is made of, after so many tokens; with ``tasks`` also which of them it is."""
    chosen = answer.chosen[:tokens]
    return [
        1.0,
        log_probability(answer, tokens),
        _quantile(answer, tokens, 0.1),
        _quantile(answer, tokens, 0.5),
        _margin(answer, tokens, 0.1),
        _margin(answer, tokens, 0.5),
        -float(np.mean(answer.entropy[:tokens])),
        -answer.entropy[0],
        answer.agreement,
        math.log(answer.prompt_tokens),
        float(len(answer.chosen) <= tokens),
        math.log(len(chosen)),
        *(float(answer.task == task) for task in tasks),
    ]
