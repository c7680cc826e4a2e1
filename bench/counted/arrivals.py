"""What does credit bring where answers arrive while others are being made (``Race(burst=...)``)?

In virtual time: the default client and a client with ``burst=0`` meet the same 2,000 requests, beside a server with the times of OpenAI's
gpt-4-0125-preview. Both know nothing at first. There are two worlds:

- *phone*: DiSCo's Xiaomi 14 and Alpaca prompts, which is what the paper pairs with recorded request intervals, 30 answers a minute;
- *laptop*: a device that reads 160 and writes 40 tokens a second, with Azure's prompts of up to 800 tokens and answers of up to 150, 15 a
  minute.

Arrivals are a Poisson process, or those of Azure's conversations or of Mooncake's (Kimi), stretched to this rate. Mooncake's are rounded to
three seconds, so that its requests come in crowds. The paper's own intervals (ten users of DiffusionDB) are not among the recordings.

A row's *owed* is by how many prompt tokens the server has read more than the budget + 0.01 of all and one mean prompt, at most.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.report import Row, add_arguments, emit
from bench.tables import run_all
from bench.traces import data_folder
from streamco.policies.budget_control import BURST
from streamco.sim.experiment.scenario import KINDS, Outcome, Scenario, run_scenario

__all__ = ["main", "owed", "rows_of"]

BENCH = "arrivals"
SEED = 7
REQUESTS = 2000
BUDGET = 0.3
LONGEST_PROMPT = 800  # tokens, of the laptop's
CONTENDERS = {"streamco": BURST, "streamco, burst=0": 0}
FILES = {"Azure": "azure2023_conv.csv.gz", "Mooncake": "mooncake_conversation.csv.gz"}
KINDS_OF_ARRIVALS = ("Poisson", *FILES)
RATES = {"phone": 30, "laptop": 15}  # answers a minute


class Recording(NamedTuple):
    """A recorded service's arrivals: their file, and how many come a second."""

    file: Path
    rate: float


def read_recording(name: str) -> Recording:
    """Return the arrivals of this name."""
    file = data_folder() / "arrivals" / FILES[name]
    with gzip.open(file, "rt", newline="") as lines:
        rows = [*csv.DictReader(lines)]
    seconds = float(rows[-1]["arrival_s"]) if "arrival_s" in rows[-1] else float(rows[-1]["arrival_ms"]) / 1000.0
    return Recording(file, (len(rows) - 1) / seconds)


def write_lengths(folder: Path) -> Path:
    """Write the laptop's prompts and answers as a file of lengths, and return its path."""
    with gzip.open(data_folder() / "arrivals" / FILES["Azure"], "rt", newline="") as lines:
        found = [(row["context_tokens"], row["generated_tokens"]) for row in csv.DictReader(lines)]
    kept = folder / "lengths.csv"
    rows = [f"{prompt},{answer}" for prompt, answer in found if int(prompt) <= LONGEST_PROMPT]
    kept.write_text("\n".join(["context_tokens,generated_tokens", *rows]), encoding="utf-8")
    return kept


def make_scenario(world: str, arrivals: Mapping[str, Any], burst: int, *, lengths: Path, requests: int) -> Scenario:
    """Return the race of one client, with a row for each answer."""
    device: Any = "xiaomi14-qwen-0.5b" if world == "phone" else {"prefill_tokens_per_s": 160.0, "decode_tokens_per_s": 40.0}
    workload: dict[str, Any] = {} if world == "phone" else {"lengths": str(lengths), "max_tokens": 150}
    return Scenario(
        kind="race",
        kind_location=KINDS["race"],
        seed=SEED,
        requests=True,
        world={"device": device, "service": "openai-gpt-4-0125-preview"},
        workload={"requests": requests, "warm_up": 0, "arrivals": arrivals, **workload},
        policy={"budget": BUDGET, "burst": burst, "prior": False},
    )


def owed(outcome: Outcome) -> float:
    """Return the tokens that the server has read beyond the budget's first bound, at most, in the order of arrival."""
    tokens = np.array([row.prompt_tokens for row in outcome.requests], dtype=np.float64)
    spent = np.array([row.prompt_tokens * row.is_spent for row in outcome.requests], dtype=np.float64)
    seen, answers = tokens.cumsum(), np.arange(1, tokens.size + 1)
    return max(0.0, float((spent.cumsum() - (BUDGET + 0.01) * seen - seen / answers).max()))


def rows_of(case: str, contender: str, outcome: Outcome) -> list[Row]:
    """Return the rows of one client; the first words' maximum is the last of all."""
    first = np.array([row.ttft for row in outcome.requests])

    def row(metric: str, unit: str, value: float) -> Row:
        return Row(BENCH, case, contender, metric, unit, value, value, value)

    quantiles = {"median": 50, "95th percentile": 95, "last": 100}
    return [
        *(row(f"first word, {name}", "s", float(np.percentile(first, share))) for name, share in quantiles.items()),
        row("prompt tokens at the server", "share", outcome.system["budget_share"]),
        row("owed at most", "tokens", owed(outcome)),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    recordings = {name: read_recording(name) for name in FILES}
    cases, jobs = [], []
    with tempfile.TemporaryDirectory() as folder:
        lengths = write_lengths(Path(folder))
        for world, a_minute in RATES.items():
            for kind in KINDS_OF_ARRIVALS:
                rate, recorded = a_minute / 60.0, recordings.get(kind)
                stretched = (
                    {"poisson_per_s": rate} if recorded is None else {"azure": str(recorded.file), "rate_scale": rate / recorded.rate}
                )
                for contender, burst in CONTENDERS.items():
                    cases.append((f"{world}, {kind}", contender))
                    requests = 200 if options.quick else REQUESTS
                    jobs.append((make_scenario(world, stretched, burst, lengths=lengths, requests=requests),))
        outcomes = run_all(run_scenario, jobs, 2)
    emit([row for case, outcome in zip(cases, outcomes, strict=True) for row in rows_of(*case, outcome)], options.json, against="streamco")


if __name__ == "__main__":
    main()
