"""Make the table of answer lengths that ``streamco.core.race.answer_lengths`` begins with from a recorded trace.

    python -m bench.data.make_answer_lengths [--data DIR]

Reads ``$STREAMCO_DATA`` (by default ``../shared/data``) and prints quantiles, never the rows themselves: tokens generated for the requests
of Azure's conversation service, cut off at 1000 there (AzurePublicDataset, CC-BY 4.0).
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections.abc import Sequence
from pathlib import Path

from bench.traces import data_folder

SHARES = (*(twentieth / 20 for twentieth in range(20)), 0.98, 0.99, 0.999)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the recorded data")
    options = parser.parse_args()
    for share, tokens in table(generated_tokens(options.data or data_folder())):
        print(f"    ({share:g}, {tokens}),")


def generated_tokens(data: Path) -> list[int]:
    """Of each answer, in the order they were asked for."""
    with gzip.open(data / "arrivals" / "azure2023_conv.csv.gz", "rt", newline="") as file:
        return [int(row["generated_tokens"]) for row in csv.DictReader(file)]


def table(lengths: Sequence[int]) -> list[tuple[float, int]]:
    """Quantiles beside their shares; the last one is where the service cut, and the share that was shorter."""
    ordered = sorted(lengths)
    quantiles = [(share, ordered[min(int(share * len(ordered)), len(ordered) - 1)]) for share in SHARES]
    longest = ordered[-1]
    return [*quantiles, (round(sum(length < longest for length in ordered) / len(ordered), 4), longest)]


if __name__ == "__main__":
    main()
