"""How soon the answers of one mode begin and how fast they are written, learned from those answers alone."""

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
    """The times of a mode whose parts can't be measured separately, and how much its answers took from each kind of endpoint."""

    def __init__(self) -> None:
        self._line = DeviceFit(_WINDOW)
        self._first: deque[float] = deque(maxlen=_WINDOW)
        self._spans: deque[tuple[int, float]] = deque(maxlen=_WINDOW)  # tokens after the first one, and their seconds
        self._computed: dict[str, deque[tuple[int, int]]] = {kind: deque(maxlen=_WINDOW) for kind in ("device", "server")}

    def record(self, report: Report, *, is_paced: bool) -> None:
        """Record an answer that has ended; failed ones are ignored. ``is_paced`` tells if its text came at the reader's pace."""
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
            prompt_tokens, tokens: lengths of prompt and answer.
            first: seconds to the first token.
            span: seconds from there to the last one.
        """
        self._line.observe(prompt_tokens, first)
        self._first.append(first)
        self._spans.append((tokens - 1, span))

    def first_word(self, prompt_tokens: int) -> float | None:
        """Return the seconds to the first token that are expected for a prompt of this length, or None if there was no answer."""
        if len(self._first) < _FEW or not self._line.is_spread:
            return median(self._first) if self._first else None
        line = self._line.estimate()
        assert line is not None, "it has samples"
        return line.ttft(max(1, prompt_tokens)) * sum(line.jitter) / len(line.jitter)

    def rate(self, predicted: float | None = None) -> float | None:
        """Return the tokens per second after the first one; None if not known. ``predicted`` is a model's prediction, if any."""
        tokens, seconds = (sum(values) for values in zip((0, 0.0), *self._spans, strict=True))
        if predicted is not None:
            tokens, seconds = tokens + _PRIOR_TOKENS, seconds + _PRIOR_TOKENS / predicted
        return tokens / seconds if tokens and seconds else None

    def computed(self, kind: str) -> float:
        """Return how many tokens this kind of endpoint computed for each token of the answer; 1 before the first answer."""
        made, given = (sum(values) for values in zip((0, 0), *self._computed[kind], strict=True))
        return made / given if given else 1.0
