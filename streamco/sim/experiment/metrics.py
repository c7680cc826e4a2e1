"""Metrics of a simulation: a row for each request, and figures over all requests, whose memory use doesn't grow with the run.

Counts and sums are exact. Quantiles come from a histogram with bins one per cent wide (``Quantiles``), so they differ by at most half a
per cent from the exact ones. Rows are kept only if the experiment asks for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct

__all__ = ["STANDARD", "Metric", "Quantiles", "RequestRow", "Sink", "round_metric"]

SMALLEST, LARGEST = 1e-6, 1e6  # seconds; a value outside is counted as the nearer bound
WIDTH = 1.01  # ratio of a bin's upper bound to its lower one
DIGITS = 9  # significant digits of a metric in a file


class Metric(Struct, frozen=True):
    """The readable name and the unit of a metric.

    Args:
        text: its name, as an axis label.
        unit: "s", "requests/s", "share" and so on, or "" for a count.
        better: the direction that is better, or "" if neither is.
    """

    text: str
    unit: str = ""
    better: Literal["higher", "lower", ""] = ""


STANDARD: Mapping[str, Metric] = {
    "throughput": Metric("throughput", "requests/s", "higher"),
    "tokens_per_s": Metric("tokens of all answers", "tokens/s", "higher"),
    "ttft_mean": Metric("time to first token, mean", "s", "lower"),
    "ttft_p50": Metric("time to first token, median", "s", "lower"),
    "ttft_p99": Metric("time to first token, 99th percentile", "s", "lower"),
    "tpot_mean": Metric("time per token after the first, mean", "s", "lower"),
    "tpot_p50": Metric("time per token after the first, median", "s", "lower"),
    "tpot_p99": Metric("time per token after the first, 99th percentile", "s", "lower"),
    "seconds_mean": Metric("time to the whole answer, mean", "s", "lower"),
    "seconds_p99": Metric("time to the whole answer, 99th percentile", "s", "lower"),
    "acceptance": Metric("accepted share of judged draft tokens", "share", "higher"),
    "rounds_mean": Metric("rounds of drafting an answer", "", ""),
    "completed": Metric("answers that were finished"),
    "failed": Metric("answers that failed", "", "lower"),
    "span": Metric("simulated time from the first arrival to the last token", "s"),
}
"""The metrics that a ``Sink`` computes, for every kind of simulation."""


class RequestRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The row of one request. A kind may add fields in a subclass. Times are in virtual seconds.

    Args:
        number: number of the request, in the order of the workload.
        arrival: time at which the request was made.
        tokens: tokens of the answer.
        prompt_tokens: tokens of the prompt.
        seconds: time from arrival to the last token.
        ttft: time from arrival to the first token, or None if there was none.
        tpot: mean time between two tokens, or None if there were fewer than two.
        device, server: number of the device and of the server that worked on it, if any.
        judged: drafted tokens that were verified.
        accepted: drafted tokens that were accepted.
        rounds: number of verification rounds.
        windows: tokens of each draft, in order, with 0 for a part of the answer that came as a remote stream.
        mode: how the answer was made. The words depend on the kind of simulation.
        failed: why it wasn't finished, or None if it was.
    """

    number: int
    arrival: float
    tokens: int
    prompt_tokens: int
    seconds: float
    ttft: float | None
    tpot: float | None
    device: int | None = None
    server: int | None = None
    judged: int = 0
    accepted: int = 0
    rounds: int = 0
    windows: tuple[int, ...] = ()
    mode: str = ""
    failed: str | None = None


class Quantiles:
    """Quantiles of positive numbers from a histogram with logarithmic bins, with an error of at most half a per cent from 1 us to 10^6 s.

    Attributes:
        count: how many numbers were added.
        total: their sum.
    """

    _scale = 1.0 / math.log(WIDTH)
    _bins = math.ceil(math.log(LARGEST / SMALLEST) * _scale)

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._counts = [0] * (self._bins + 1)

    def add(self, value: float) -> None:
        """Add a number."""
        self.count += 1
        self.total += value
        index = int(math.log(value / SMALLEST) * self._scale) if value > SMALLEST else 0
        self._counts[min(index, self._bins)] += 1

    @property
    def mean(self) -> float:
        """Exact mean of all numbers. There must be at least one."""
        return self.total / self.count

    def quantile(self, share: float) -> float:
        """Return the quantile at ``share``, by nearest rank. There must be at least one number."""
        rank = max(1, math.ceil(share * self.count))
        for index, count in enumerate(self._counts):
            rank -= count
            if rank <= 0:
                return float(SMALLEST * WIDTH ** (index + 0.5))
        raise AssertionError("a rank is at most the count")


class Sink:
    """Collects the metrics of a run. It is called with the row of each request that ends.

    Args:
        keeps: True if rows are kept, with times rounded to microseconds.

    Attributes:
        rows: the rows that were kept, in the order in which the requests ended.
    """

    def __init__(self, *, keeps: bool = False) -> None:
        self.rows: list[RequestRow] = []
        self._keeps = keeps
        self._completed = self._failed = 0
        self._tokens = self._judged = self._accepted = self._rounds = 0
        self._ttft, self._tpot, self._seconds = Quantiles(), Quantiles(), Quantiles()
        self._first, self._last = math.inf, -math.inf

    def __call__(self, row: RequestRow) -> None:
        """Count a request that has ended. If it failed, its verified tokens are counted, but its times aren't."""
        if self._keeps:
            self.rows.append(_round_times(row))
        self._first = min(self._first, row.arrival)
        self._last = max(self._last, row.arrival + row.seconds)
        self._judged += row.judged
        self._accepted += row.accepted
        if row.failed is not None:
            self._failed += 1
            return
        self._completed += 1
        self._tokens += row.tokens
        self._rounds += row.rounds
        self._seconds.add(row.seconds)
        if row.ttft is not None:
            self._ttft.add(row.ttft)
        if row.tpot is not None:
            self._tpot.add(row.tpot)

    def metrics(self) -> dict[str, float]:
        """Return the ``STANDARD`` metrics, except metrics without measurements."""
        span = max(0.0, self._last - self._first)
        found = {"completed": float(self._completed), "failed": float(self._failed), "span": span}
        if span > 0.0:
            found |= {"throughput": self._completed / span, "tokens_per_s": self._tokens / span}
        for name, times, quantiles in (
            ("ttft", self._ttft, (0.5, 0.99)),
            ("tpot", self._tpot, (0.5, 0.99)),
            ("seconds", self._seconds, (0.99,)),
        ):
            if times.count:
                found[f"{name}_mean"] = times.mean
                found |= {f"{name}_p{100 * share:.0f}": times.quantile(share) for share in quantiles}
        if self._judged:
            found["acceptance"] = self._accepted / self._judged
        if self._completed and self._rounds:
            found["rounds_mean"] = self._rounds / self._completed
        return {name: round_metric(found[name]) for name in STANDARD if name in found}


def round_metric(value: float) -> float:
    """Return a metric rounded to nine significant digits, as in files."""
    return float(f"{value:.{DIGITS}g}")


def _round_times(row: RequestRow) -> RequestRow:
    return msgspec.structs.replace(
        row,
        arrival=round(row.arrival, 6),
        seconds=round(row.seconds, 6),
        ttft=None if row.ttft is None else round(row.ttft, 6),
        tpot=None if row.tpot is None else round(row.tpot, 6),
    )
