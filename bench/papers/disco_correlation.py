"""Does a longer prompt make a service's first token later? DiSCo's Table 1, on the recordings whose prompts differ in length."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bench.tables import table_lines
from bench.traces import data_folder

__all__ = ["correlation_lines", "correlation_rows", "pearson"]

LEAST = 30  # requests of a service
NORMAL_95 = 1.96

Rows = Sequence[Mapping[str, Any]]


def correlation_rows(_: int) -> Rows:
    """Return the coefficient of each service, with its interval and without the slowest request.

    LLMPerf sent 550 tokens each time and thefastest.ai one prompt, so they can't say.
    """
    rows = []
    for name, (lengths, times) in sorted(requests_by_service().items()):
        coefficient, low, high = (round(value, 6) for value in pearson(lengths, times))
        without = round(pearson(*_without_slowest(lengths, times))[0], 6)
        rows.append({"service": name, "requests": len(times), "coefficient": coefficient, "low": low, "high": high, "without": without})
    return rows


def correlation_lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each service."""
    rows = (
        [row["service"], f"{row['requests']}", f"{row['coefficient']:.3f} ({row['low']:.3f} to {row['high']:.3f})", f"{row['without']:.3f}"]
        for row in results["rows"]
    )
    yield from table_lines(["service", "requests", "coefficient", "without the slowest request"], rows)


def requests_by_service() -> dict[str, tuple[list[float], list[float]]]:
    """Characters of the prompt and seconds to the first token by service, of those with enough requests."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    with gzip.open(data_folder() / "ttft" / "latencylab_stream_gaps.jsonl.gz", "rt") as file:
        for record in map(json.loads, file):
            if record["success"]:
                lengths, times = found.setdefault(f"{record['host']} {record['model']}", ([], []))
                lengths.append(record["input_chars"])
                times.append(record["ttft_s"])
    return {name: pair for name, pair in found.items() if len(pair[0]) >= LEAST}


def pearson(lengths: Sequence[float], times: Sequence[float]) -> tuple[float, float, float]:
    """Return the coefficient and its 95 % interval by Fisher's transformation.

    Raises:
        ValueError: fewer than four pairs, or all of one length or time.
    """
    if len(times) < 4 or len(set(lengths)) < 2 or len(set(times)) < 2:
        raise ValueError(f"expected at least four pairs of different lengths and times, got {len(times)} of {len(set(lengths))} lengths")
    coefficient = float(np.corrcoef(lengths, times)[0, 1])
    middle, width = math.atanh(coefficient), NORMAL_95 / math.sqrt(len(times) - 3)
    return coefficient, math.tanh(middle - width), math.tanh(middle + width)


def _without_slowest(lengths: Sequence[float], times: Sequence[float]) -> tuple[list[float], list[float]]:
    slowest = max(range(len(times)), key=times.__getitem__)
    return [*lengths[:slowest], *lengths[slowest + 1 :]], [*times[:slowest], *times[slowest + 1 :]]
