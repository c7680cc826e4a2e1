"""Measures how sure a model was of its text, from the probability that it gave each token.

A few doubtful tokens disappear in the mean of a long answer, where most probabilities are 1. So the lowest mean of any sentence is kept
too, not only the beginning's.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, log

from msgspec import Struct

from streamco.events import TokenConfidence

__all__ = ["BEGINNING", "Confidence", "ConfidenceMeter", "ends_sentence"]

BEGINNING = 16
"""How many tokens count as an answer's beginning (the number that EdgeFM-LLM uses)."""
_LEAST = 1e-6  # a probability that was rounded to 0
_ENDS = (".", "!", "?", "\u3002", "\uff01", "\uff1f")


class Confidence(Struct, frozen=True, kw_only=True):
    """How sure a model was of its answer. Means are geometric, so they equal 1 over the perplexity.

    Args:
        tokens: number of tokens whose probability is known.
        beginning: mean probability of the first 16 tokens, or of all tokens if there are fewer, 0..1.
        worst_sentence: lowest mean probability of any sentence or line that has ended, 0..1; None if none has ended.
    """

    tokens: int
    beginning: float
    worst_sentence: float | None = None


class ConfidenceMeter:
    """Measures the confidence of one answer from its tokens, which must be recorded in order."""

    def __init__(self) -> None:
        self.first: list[float] = []
        """Probabilities of the first 16 tokens."""
        self._tokens = 0
        self._beginning = 0.0  # sums of logarithms
        self._sentence = 0.0
        self._sentence_tokens = 0
        self._worst: float | None = None

    def record(self, tokens: Iterable[TokenConfidence]) -> None:
        """Add the probabilities of the next tokens."""
        for probability, is_end in tokens:
            logarithm = log(max(_LEAST, probability))
            if self._tokens < BEGINNING:
                self._beginning += logarithm
                self.first.append(probability)
            self._tokens += 1
            self._sentence += logarithm
            self._sentence_tokens += 1
            if is_end:
                mean = self._sentence / self._sentence_tokens
                self._worst = mean if self._worst is None else min(self._worst, mean)
                self._sentence, self._sentence_tokens = 0.0, 0

    @property
    def confidence(self) -> Confidence | None:
        """The confidence so far, or None if no token has been recorded."""
        if not self._tokens:
            return None
        return Confidence(
            tokens=self._tokens,
            beginning=exp(self._beginning / min(self._tokens, BEGINNING)),
            worst_sentence=None if self._worst is None else exp(self._worst),
        )


def ends_sentence(text: str) -> bool:
    """Return True if a token with this text ends a sentence or a line."""
    return "\n" in text or text.rstrip().endswith(_ENDS)
