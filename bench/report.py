"""What every bench shares: rows, a readable table, JSON lines, and contenders that take turns.

One bench is one question. Its contenders run alternately in one process, because a noisy machine shifts whole minutes, not single rounds:
ratios taken in one run hold where figures don't.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

__all__ = ["Row", "add_arguments", "emit", "interleave", "per_call", "rows_from", "summarise"]


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure: ``metric`` of ``contender`` in ``case``, in ``unit``, over all rounds."""

    bench: str
    case: str
    contender: str
    metric: str
    unit: str
    median: float
    min: float
    max: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--json`` (one object a line) and ``--quick`` (under 40 s), the same in every bench."""
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and cases, under 40 s")


def interleave(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Run the contenders alternately; each call returns its own figure.

    The order turns by one each round, so that nobody always runs behind the same neighbour.
    """
    names = list(contenders)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        cut = turn % len(names) if names else 0
        for name in names[cut:] + names[:cut]:
            samples[name].append(contenders[name]())
    return samples


def per_call(function: Callable[[], object], repeats: int, *, scale: float = 1.0) -> Callable[[], float]:
    """A contender for ``interleave``: seconds a call of ``function``, averaged over ``repeats`` calls and multiplied by ``scale``."""

    def measure() -> float:
        times = range(repeats)
        start = time.perf_counter()
        for _ in times:
            function()
        return (time.perf_counter() - start) / repeats * scale

    return measure


def summarise(samples: Sequence[float], *, bench: str, case: str, contender: str, metric: str, unit: str) -> Row:
    """One row from the samples of all rounds (at least one)."""
    return Row(bench, case, contender, metric, unit, statistics.median(samples), min(samples), max(samples))


def rows_from(bench: str, case: str, metric: str, unit: str, samples: Mapping[str, Sequence[float]]) -> list[Row]:
    """One row a contender, from what ``interleave`` returned."""
    return [summarise(values, bench=bench, case=case, contender=name, metric=metric, unit=unit) for name, values in samples.items()]


def emit(rows: Iterable[Row], json_lines: bool, *, against: str = "streamco") -> None:
    """Print JSON lines, or a table grouped by case whose ratio column is each median divided by that of ``against``."""
    if json_lines:
        for row in rows:
            print(json.dumps(asdict(row)))
        sys.stdout.flush()
        return
    groups: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.bench, row.case, row.metric, row.unit), []).append(row)
    for (bench, case, metric, unit), group in groups.items():
        print(f"\n{bench} · {case} · {metric} [{unit}]")
        _print_group(group, against)


def _print_group(group: Sequence[Row], against: str) -> None:
    reference = next((row.median for row in group if row.contender == against), None)
    width = max(24, *(len(row.contender) for row in group))
    print(f"  {'contender':<{width}}  {'x ' + against:>12}  {'median':>12}  {'min':>12}  {'max':>12}")
    for row in group:
        ratio = f"{row.median / reference:.2f}" if reference else "-"
        print(f"  {row.contender:<{width}}  {ratio:>12}  {_figure(row.median):>12}  {_figure(row.min):>12}  {_figure(row.max):>12}")


def _figure(value: float) -> str:
    """Four significant digits, whole numbers whole, never an exponent."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 0.001 else f"{value:.6f}"
