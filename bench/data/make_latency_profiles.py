"""Make the packaged latency and step-time profiles from recorded measurements.

    python -m bench.data.make_latency_profiles [--data DIR] [--out DIR]

Reads ``$STREAMCO_DATA`` (by default ``../shared/data``) and writes small tables of derived figures, never the rows themselves:

* LatencyLab (MIT): time to first text, silence between bursts and burst sizes of OpenAI and Azure OpenAI deployments.
* llmperf-leaderboard (Apache-2.0): time to first token of hosts of Llama 2, and the mean gap of each request.
* splitwise-sim (MIT): milliseconds of a decode step by rows and of a prefill by tokens, on A100 and H100 machines.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BURST_GAP = 0.005  # s; below it two chunks came in one network read: LatencyLab's gaps are below 1 ms or above 10 ms, with little between
LATENCYLAB = "github.com/ScaleVoice/LatencyLab, prompt.csv, commit 01a24a3f, April 2024"
LLMPERF = "github.com/ray-project/llmperf-leaderboard, raw_data/individual, commit 27aa9b6a, December 2023"
SPLITWISE = "github.com/Mutinifni/splitwise-sim, data/perf_model.csv, commit 8f99e7dc"
MACHINES = (("llama2-70b", "a100-80gb", 2), ("llama2-70b", "a100-80gb", 4), ("llama2-70b", "a100-80gb", 8), ("llama2-70b", "h100-80gb", 4),
            ("llama2-70b", "h100-80gb", 8), ("bloom-176b", "a100-80gb", 8), ("bloom-176b", "h100-80gb", 8))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("STREAMCO_DATA") or ROOT.parent / "shared" / "data"))
    parser.add_argument("--out", type=Path, default=ROOT / "streamco" / "emulation" / "profiles")
    options = parser.parse_args()
    for profile in (*latencylab(options.data), *llmperf(options.data), *splitwise(options.data)):
        path = options.out / f"{profile['name']}.json"
        path.write_text(render(profile), encoding="utf-8")
        print(f"{path.name:44} {path.stat().st_size:6} bytes")


def render(profile: Mapping[str, Any]) -> str:
    """One field a line: a table of numbers stays on one."""
    lines = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in profile.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def quantiles(values: Sequence[float], digits: int = 5) -> list[float]:
    """Evenly spaced quantiles: 51 where there are enough values, fewer otherwise, the last one chosen so that the table keeps the mean.

    A table read linearly puts 2 % of all draws on its last stretch; with the raw maximum at its end one outlier would weigh too much.
    """
    ordered = sorted(values)
    points = 51 if len(ordered) >= 200 else 21
    table = [ordered[0]]
    for index in range(1, points):
        position = index / (points - 1) * (len(ordered) - 1)
        below = min(int(position), len(ordered) - 2)
        table.append(ordered[below] + (ordered[below + 1] - ordered[below]) * (position - below))
    wanted = 2 * (fmean(ordered) * (points - 1) - sum(table[1:-1])) - table[0]
    table[-1] = min(max(wanted, table[-2]), ordered[-1])
    return [round(value, digits) for value in table]


def latencylab(data: Path) -> Iterator[dict[str, Any]]:
    """One profile for each deployment of the trace that holds the gap before every chunk."""
    requests: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    with gzip.open(data / "ttft" / "latencylab_stream_gaps.jsonl.gz", "rt") as lines:
        for row in map(json.loads, lines):
            if row["success"]:
                requests[row["host"], row["model"]].append(row)
    for (host, model), rows in sorted(requests.items()):
        gaps: list[float] = []
        sizes: list[int] = []
        for row in rows:
            more_gaps, more_sizes = bursts(text_gaps(row))
            gaps += more_gaps
            sizes += more_sizes
        yield {
            "kind": "latency",
            "name": f"{host.lower()}-{model}",
            "source": LATENCYLAB,
            "license": "MIT",
            "note": f"{len(rows)} requests, {len(gaps)} gaps between bursts; gaps below {BURST_GAP * 1000:g} ms count as inside a burst",
            "ttft_s": quantiles([row["ttft_s"] for row in rows], 3),
            "gap_s": quantiles(gaps),
            "burst_chunks": quantiles(sizes, 2),
        }


def text_gaps(row: Mapping[str, Any]) -> list[float]:
    """Gaps after the first chunk with text: those before it (role, content-filter results) belong to the time to first token."""
    at = row["first_chunk_s"]
    for index, gap in enumerate(row["gaps_s"]):
        if at >= row["ttft_s"] - 0.002:
            return list(row["gaps_s"][index:])
        at += gap
    return []


def bursts(gaps: Sequence[float]) -> tuple[list[float], list[int]]:
    """Silences between bursts, and the bursts' sizes in chunks."""
    silences, sizes = [], [1]
    for gap in gaps:
        if gap < BURST_GAP:
            sizes[-1] += 1
        else:
            silences.append(gap)
            sizes.append(1)
    return silences, sizes


def llmperf(data: Path) -> Iterator[dict[str, Any]]:
    """One profile for each host of the 70b model with at least 90 valid requests; gaps are known only as each request's mean."""
    requests: dict[tuple[str, str], list[tuple[float, float | None]]] = defaultdict(list)
    with gzip.open(data / "ttft" / "llmperf_leaderboard.csv.gz", "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["error_code"] in {"", "-100"}:  # -100: fewer tokens than asked for, timings valid; 429 and -1 hold zeros
                requests[row["provider"], row["model"]].append((float(row["ttft_s"]), mean_gap(row)))
    for (provider, model), rows in sorted(requests.items()):
        gaps = [gap for _, gap in rows if gap is not None]
        if len(rows) >= 90 and gaps and "70b" in model:
            yield {
                "kind": "latency",
                "name": f"{provider}-{model}",
                "source": LLMPERF,
                "license": "Apache-2.0",
                "note": f"{len(rows)} requests of 550 prompt tokens, five in flight; the trace holds only the mean gap of a request",
                "ttft_s": quantiles([ttft for ttft, _ in rows], 3),
                "gap_s": quantiles(gaps),
                "gap_of": "request",
            }


def mean_gap(row: Mapping[str, str]) -> float | None:
    """Seconds between tokens of one request, the first token's time taken out; None for answers too short to tell."""
    tokens = int(float(row["output_tokens"]))
    return max(0.0, float(row["e2e_s"]) - float(row["ttft_s"])) / (tokens - 1) if tokens >= 10 else None


def splitwise(data: Path) -> Iterator[dict[str, Any]]:
    """One profile for each machine: medians over the five repeats."""
    decode: dict[tuple[str, str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    prefill: dict[tuple[str, str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with gzip.open(data / "gpu_profiles" / "splitwise_prompt_token_times.csv.gz", "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            machine = (row["model"], row["hardware"], int(row["tensor_parallel"]))
            if row["prompt_size"] == "512" and row["token_size"] == "128":
                decode[machine][int(row["batch_size"])].append(float(row["token_time"]))
            if row["batch_size"] == "1" and row["token_size"] == "128":
                prefill[machine][int(row["prompt_size"])].append(float(row["prompt_time"]))
    for machine in MACHINES:
        model, hardware, parallel = machine
        yield {
            "kind": "step_times",
            "name": f"{model}-{hardware.split('-')[0]}x{parallel}",
            "source": SPLITWISE,
            "license": "MIT",
            "note": f"{model} on {parallel} {hardware}, tensor parallel; medians of five; decode rows with 512 prompt tokens",
            "decode_ms": ascending(decode[machine]),
            "prefill_ms": ascending(prefill[machine]),
        }


def ascending(points: Mapping[int, Sequence[float]]) -> list[tuple[int, float]]:
    """Medians by count; a median below one of a smaller count is noise, and the larger of the two stands."""
    table: list[tuple[int, float]] = []
    for count in sorted(points):
        least = table[-1][1] if table else 0.0
        table.append((count, round(max(median(points[count]), least), 2)))
    return table


if __name__ == "__main__":
    main()
