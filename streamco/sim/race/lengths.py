"""Length distributions of prompts and answers: Alpaca's, or recorded ones.

The Stanford Alpaca records are the paper's prompts (DiSCo section 5.1; Taori et al. 2023). This module has quantiles of their lengths. A
log-normal distribution with the same means and deviations would make one answer in a hundred twice as long as it is. Prompt and answer are
drawn independently, because the correlation of their logarithms is only -0.22 in the records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Protocol

from streamco.core.race.answer_lengths import AnswerLengths
from streamco.errors import ConfigError
from streamco.profiles import LengthDistribution, RemainingLength
from streamco.sim.race.services import read_rows

__all__ = ["ALPACA", "SHARES", "RequestLengths", "RecordedLengths", "QuantileLengths", "read_request_lengths"]

SHARES = (*(twentieth / 20 for twentieth in range(20)), 0.98, 0.99, 0.999, 1.0)
_POINTS = 1000  # samples of a table that a client knows
_PROMPT = ("prompt_tokens", "context_tokens", "input_tokens")
_ANSWER = ("answer_tokens", "output_tokens", "generated_tokens", "target_tokens")

ALPACA = (
    (4, 7, 8, 9, 10, 11, 11, 12, 12, 13, 14, 15, 16, 17, 18, 20, 22, 25, 28, 37, 52, 71, 118, 157),
    (1, 3, 7, 9, 11, 13, 16, 20, 25, 32, 40, 49, 57, 66, 74, 83, 92, 104, 120, 149, 203, 250, 469, 647),
)
"""Tokens (cl100k) of prompts and answers at the quantiles 0, 0.05 ... 0.95, 0.98, 0.99, 0.999 and 1 of 5,000 Alpaca records.

Source: github.com/gpt4life/alpagasus, data/random/random_9k.json, commit 95ad3e52: records of tatsu-lab/stanford_alpaca drawn at random.
``python -m bench.papers.disco lengths`` computes them.
"""


class RequestLengths(Protocol):
    """Distributions from which prompt and answer lengths can be drawn."""

    @property
    def prompts(self) -> LengthDistribution:
        """Prompt lengths that a client may know beforehand."""
        ...

    @property
    def answers(self) -> RemainingLength:
        """Answer lengths that a client may know beforehand."""
        ...

    def draw(self, rng: Random) -> tuple[int, int]:
        """Draw the lengths of one prompt and of its answer, in tokens."""
        ...


class QuantileLengths:
    """Lengths given by quantiles, with linear interpolation.

    Args:
        prompts, answers: tokens at the quantiles ``SHARES``.
    """

    def __init__(self, prompts: Sequence[int], answers: Sequence[int]) -> None:
        self._tables = prompts, answers

    @cached_property
    def prompts(self) -> LengthDistribution:
        """Prompt lengths from the table."""
        return LengthDistribution.from_samples(_samples(self._tables[0]))

    @cached_property
    def answers(self) -> RemainingLength:
        """Answer lengths from the table."""
        return _remaining(_samples(self._tables[1]))

    def draw(self, rng: Random) -> tuple[int, int]:
        """Draw the lengths of a prompt and of an answer independently."""
        prompts, answers = self._tables
        return _read(prompts, rng.random()), _read(answers, rng.random())


class RecordedLengths:
    """Recorded lengths of prompts and answers.

    Args:
        known: (prompt, answer) pairs in tokens that a client may know beforehand.
        rows: (prompt, answer) pairs in tokens from which requests are drawn.

    Raises:
        ConfigError: either is empty, or a length is below 1.
    """

    def __init__(self, known: Sequence[tuple[int, int]], rows: Sequence[tuple[int, int]]) -> None:
        if not known or not rows:
            raise ConfigError(f"recorded lengths: expected 2 requests or more, got {len(known) + len(rows)}")
        if any(tokens < 1 for row in (*known, *rows) for tokens in row):
            raise ConfigError("recorded lengths: expected prompts and answers of 1 token or more, got one of none")
        self.known, self.rows = known, rows

    @classmethod
    def halves(cls, rows: Sequence[tuple[int, int]]) -> RecordedLengths:
        """Split the rows: a client may know the first half beforehand, and requests are drawn from the second half."""
        return cls(rows[: len(rows) // 2], rows[len(rows) // 2 :])

    @property
    def prompts(self) -> LengthDistribution:
        """Prompt lengths in the known rows."""
        return LengthDistribution.from_samples([prompt for prompt, _ in self.known])

    @property
    def answers(self) -> RemainingLength:
        """Answer lengths in the known rows."""
        return _remaining([answer for _, answer in self.known])

    def draw(self, rng: Random) -> tuple[int, int]:
        """Draw the lengths of a recorded prompt and of its answer, in tokens."""
        return rng.choice(self.rows)


def read_request_lengths(path: Path) -> list[tuple[int, int]]:
    """Read recorded (prompt, answer) lengths in tokens from CSV or JSON lines. Rows in which either is 0 are left out.

    The prompt is in ``prompt_tokens``, ``context_tokens`` or ``input_tokens``. The answer is in ``answer_tokens``, ``output_tokens``,
    ``generated_tokens`` or ``target_tokens``.

    Raises:
        ConfigError: the file can't be read, or a row lacks a field.
    """
    found = []
    for number, row in enumerate(read_rows(path), 1):
        try:
            prompt, answer = (int(next(row[name] for name in names if name in row)) for names in (_PROMPT, _ANSWER))
        except (StopIteration, RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}: row {number}: expected tokens of a prompt and of its answer, got {dict(row)}") from error
        if prompt > 0 and answer > 0:
            found.append((prompt, answer))
    return found


def _samples(table: Sequence[int]) -> list[int]:
    """Return equally likely lengths from a table of quantiles."""
    return [_read(table, (index + 0.5) / _POINTS) for index in range(_POINTS)]


def _read(table: Sequence[int], share: float) -> int:
    below = min(bisect_right(SHARES, share) - 1, len(SHARES) - 2)
    along = (share - SHARES[below]) / (SHARES[below + 1] - SHARES[below])
    return max(1, round(table[below] + along * (table[below + 1] - table[below])))


def _remaining(answers: Sequence[int]) -> RemainingLength:
    lengths = AnswerLengths(len(answers), prior_weight=0.0)
    for tokens in answers:
        lengths.observe(tokens)
    return lengths.estimate()
