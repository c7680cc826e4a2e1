"""Learns from a mode's own answers how soon they begin and how fast they are written."""

from __future__ import annotations

from collections import deque
from statistics import median

from streamco.core.race.estimators import DeviceFit
from streamco.core.report import Report

__all__ = ["AnswerTimes"]

_WINDOW = 64  # answers
_FEW = 8  # answers; fewer are too few for a line
_PRIOR_TOKENS = 64.0  # how many tokens a predicted rate counts as


class AnswerTimes:
    """Learns the times of a mode whose parts can't be measured separately, and how many tokens each kind of endpoint computed for it."""

    def __init__(self) -> None:
        self._line = DeviceFit(_WINDOW)
        self._first: deque[float] = deque(maxlen=_WINDOW)
        self._spans: deque[tuple[int, float]] = deque(maxlen=_WINDOW)  # tokens after the first one, and their seconds
        self._computed: dict[str, deque[tuple[int, int]]] = {kind: deque(maxlen=_WINDOW) for kind in ("device", "server")}

    def record(self, report: Report, *, is_paced: bool) -> None:
        """Record an answer that has ended, unless it failed. ``is_paced`` says whether its text was delivered at the reader's pace."""
        if report.ending != "complete" or report.ttft is None or not report.tokens:
            return
        rate = report.tokens_per_second
        span = (report.tokens - 1) / rate if rate else 0.0
        self.observe(report.usage.prompt_tokens, 1 if is_paced else report.tokens, first=report.ttft, span=0.0 if is_paced else span)
        for kind, counts in self._computed.items():
            counts.append((sum(each.completion_tokens for each in report.endpoints if each.kind == kind), report.tokens))

    def observe(self, prompt_tokens: int, tokens: int, *, first: float, span: float) -> None:
        """Record the times of an answer.

        Args:
            prompt_tokens, tokens: lengths of the prompt and the answer.
            first: seconds from the request to the first token.
            span: seconds from the first token to the last one.
        """
        self._line.observe(prompt_tokens, first)
        self._first.append(first)
        self._spans.append((tokens - 1, span))

    def first_word(self, prompt_tokens: int) -> float | None:
        """Return the expected time to the first token for a prompt of this length, in seconds, or None if there was no answer yet."""
        if len(self._first) < _FEW or not self._line.is_spread:
            return median(self._first) if self._first else None
        line = self._line.estimate()
        assert line is not None, "it has samples"
        return line.ttft(max(1, prompt_tokens)) * sum(line.jitter) / len(line.jitter)

    def rate(self, predicted: float | None = None) -> float | None:
        """Return the rate after the first token in tokens per second, or None if not known. ``predicted`` is a model's forecast of it."""
        tokens, seconds = (sum(values) for values in zip((0, 0.0), *self._spans, strict=True))
        if predicted is not None:
            tokens, seconds = tokens + _PRIOR_TOKENS, seconds + _PRIOR_TOKENS / predicted
        return tokens / seconds if tokens and seconds else None

    def computed(self, kind: str) -> float:
        """Return how many tokens this kind of endpoint computed for each token of the answer; 1 before the first answer."""
        made, given = (sum(values) for values in zip((0, 0), *self._computed[kind], strict=True))
        return made / given if given else 1.0
