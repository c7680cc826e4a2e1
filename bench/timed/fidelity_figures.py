"""What was seen of a run, live or simulated, and the figures of it: one definition for both sides of ``bench.timed.fidelity``."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from msgspec import Struct

from streamco.reports import SpeculationFigures

__all__ = ["BEARABLE", "FIGURES", "Deviation", "MeasuredAnswer", "Run", "Verdict", "figures_of"]

BEARABLE = 0.1
"""Share of the live value by which the simulator may be off."""
FIGURES = {
    "TTFT": "ms",
    "TBT, mean": "ms",
    "TBT, p99": "ms",
    "throughput": "tokens/s",
    "acceptance": "share",
    "hit rate": "share",
    "verdict, mean": "ms",
    "tokens of a draft": "tokens",
}
"""Figures and their units. The last four are of answers that were drafted."""


class Deviation(NamedTuple):
    """By how much the simulator says too much, and the live runs differ among themselves: shares of the live median."""

    off: float
    spread: float

    @property
    def is_right(self) -> bool:
        """True if it is off by no more than is bearable, or than the live runs differ."""
        return abs(self.off) <= max(BEARABLE, self.spread)

    def __str__(self) -> str:
        """Return both in per cent, bold if it is wrong."""
        text = f"{_per_cent(self.off)} ({100 * self.spread:.0f})"
        return text if self.is_right else f"**{text}**"


class MeasuredAnswer(Struct, kw_only=True):
    """An answer as its reader saw it.

    Args:
        began: when it was asked for, seconds.
        deliveries: (when, tokens) of all that came at one time.
        judged, accepted, rounds, hits: as the speculator counts them; ``figures``: all that it says, live.
        is_as_recorded: it is the answer that was recorded.
    """

    began: float
    deliveries: list[tuple[float, int]] = []
    judged: int = 0
    accepted: int = 0
    rounds: int = 0
    hits: int = 0
    figures: SpeculationFigures | None = None
    is_as_recorded: bool = True

    @property
    def tokens(self) -> int:
        """All of them."""
        return sum(count for _, count in self.deliveries)

    @property
    def first(self) -> float:
        """When the first came."""
        return self.deliveries[0][0]

    @property
    def last(self) -> float:
        """When the last did."""
        return self.deliveries[-1][0]

    @property
    def gaps(self) -> list[float]:
        """Seconds before each token but the first: 0 where it came with another."""
        found: list[float] = []
        before: float | None = None
        for when, count in self.deliveries:
            found += ([] if before is None else [when - before]) + [0.0] * (count - 1)
            before = when
        return found


class Verdict(Struct, frozen=True):
    """Seconds of a round: from sending the draft to its verdict; of that, waiting at the server, and in its batches."""

    wait: float
    queued: float
    computed: float


class Run(Struct, kw_only=True):
    """All clients of one load, until each has had its answers.

    Args:
        answers: of all clients. verdicts: but for each answer's first, for which the prompt is read.
        late: share of the rounds whose batch took longer than imposed. refusals: of sessions and drafts.
    """

    answers: list[MeasuredAnswer] = []
    verdicts: list[Verdict] = []
    late: float = 0.0
    refusals: int = 0

    @property
    def others(self) -> int:
        """Answers that are not as they were recorded: behind a near tie."""
        return sum(not measured.is_as_recorded for measured in self.answers)


def figures_of(run: Run) -> dict[str, float]:
    """``FIGURES`` of a run, times in milliseconds."""
    answers = run.answers
    tokens = sum(measured.tokens for measured in answers)
    seconds = max(measured.last for measured in answers) - min(measured.began for measured in answers)
    gaps = sorted(gap for measured in answers for gap in measured.gaps)
    found = {
        "TTFT": 1000.0 * fmean(measured.first - measured.began for measured in answers),
        "TBT, mean": 1000.0 * fmean((measured.last - measured.first) / (measured.tokens - 1) for measured in answers),
        "TBT, p99": 1000.0 * _percentile(gaps, 0.99),
        "throughput": tokens / seconds,
    }
    rounds = sum(measured.rounds for measured in answers)
    if rounds:
        judged = sum(measured.judged for measured in answers)
        found["acceptance"] = sum(measured.accepted for measured in answers) / judged
        found["hit rate"] = sum(measured.hits for measured in answers) / rounds
        found["verdict, mean"] = 1000.0 * fmean(verdict.wait for verdict in run.verdicts)
        found["tokens of a draft"] = judged / rounds
    return found


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest."""
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def _per_cent(share: float) -> str:
    rounded = round(100 * share)
    return f"{rounded:+d}" if rounded else "0"
