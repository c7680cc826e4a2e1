"""What does a router know before an answer has begun? RouteLLM's questions: GPT-4 beside Mixtral 8x7B on GSM8K and MMLU.

The file in the recorded data ($STREAMCO_DATA) has who was right, the subject and the prompt's length, and no text. RouteLLM's own routers
need texts, so they aren't run again here. ``--update PAGE`` puts the table between the marks of a page.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.papers.gate.routing import Floats, measure
from bench.tables import show_tables
from bench.traces import data_folder

__all__ = ["main", "table"]

FOLDS = 5


def table(rows: Sequence[dict[str, str]]) -> Iterator[str]:
    """Yield the lines of the table, in Markdown."""
    yield "| | APGR | CPT 50 | CPT 80 |"
    yield "|---|---|---|---|"
    for name, part in {"MMLU": [row for row in rows if row["task"] != "gsm8k"], "both": list(rows)}.items():
        gains = np.array([float(row["strong_correct_gpt4_1106"]) - float(row["weak_correct_mixtral8x7b"]) for row in part])
        scores = {"prompt length": -np.array([float(row["prompt_chars"]) for row in part]), "subject known": _by_subject(part, gains)}
        for score, values in scores.items():
            found = measure(values, gains)
            yield f"| {name} ({len(part)}), {score} | {' | '.join(each.show(2) for each in found)} |"


def _by_subject(rows: Sequence[dict[str, str]], gains: Floats) -> Floats:
    """Return the mean gain of the subject in the other folds, with its sign turned."""
    folds, subjects = np.arange(len(rows)) % FOLDS, np.array([row["task"] for row in rows])
    found = np.zeros(len(rows))
    for fold in range(FOLDS):
        for subject in np.unique(subjects):
            known = (folds != fold) & (subjects == subject)
            found[(folds == fold) & (subjects == subject)] = -gains[known].mean()
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or put it on a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", type=Path, metavar="PAGE", help="put the table between the marks of this page")
    options = parser.parse_args(arguments)
    with gzip.open(data_folder() / "routing_quality" / "routellm_correctness.csv.gz", "rt", encoding="utf-8") as file:
        show_tables({"routellm": "\n".join(table(list(csv.DictReader(file))))}, options.update)


if __name__ == "__main__":
    main()
