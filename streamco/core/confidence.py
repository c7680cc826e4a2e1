"""How sure a model was of what it wrote, from its own probability of each token.

Probabilities of 1 hide single doubtful places in their mean. So the lowest mean of a sentence is kept beside that of the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, log

from msgspec import Struct

from streamco.events import TokenConfidence

__all__ = ["BEGINNING", "Confidence", "ConfidenceMeter", "ends_sentence"]

BEGINNING = 16
"""Tokens of an answer's beginning (EdgeFM-LLM takes as many)."""
_LEAST = 1e-6  # a probability that was rounded to 0
_ENDS = (".", "!", "?", "\u3002", "\uff01", "\uff1f")


class Confidence(Struct, frozen=True, kw_only=True):
    """How sure a model was of its answer. Means are geometric: 1 over the perplexity.

    Args:
        tokens: number of tokens whose probability is known.
        beginning: mean probability of the first 16 tokens, or of as many as there are, 0..1.
        worst_sentence: lowest mean probability of a sentence or line that has ended, 0..1; None: none has.
    """

    tokens: int
    beginning: float
    worst_sentence: float | None = None


class ConfidenceMeter:
    """Takes the tokens of one answer in their order."""

    def __init__(self) -> None:
        self.first: list[float] = []
        """Probabilities of the first 16 tokens."""
        self._tokens = 0
        self._beginning = 0.0  # sums of logarithms
        self._sentence = 0.0
        self._sentence_tokens = 0
        self._worst: float | None = None

    def record(self, tokens: Iterable[TokenConfidence]) -> None:
        """Take further tokens."""
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
        """What is known so far; None: nothing."""
        if not self._tokens:
            return None
        return Confidence(
            tokens=self._tokens,
            beginning=exp(self._beginning / min(self._tokens, BEGINNING)),
            worst_sentence=None if self._worst is None else exp(self._worst),
        )


def ends_sentence(text: str) -> bool:
    """Return True if a sentence or a line ends with a token of this text."""
    return "\n" in text or text.rstrip().endswith(_ENDS)
