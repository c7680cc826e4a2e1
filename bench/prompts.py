"""Real prompts of several tasks, in turns: instructions, mathematics, code, and Spec-Bench's."""

from __future__ import annotations

import gzip
import json
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bench.traces import data_folder

__all__ = ["code_prompts", "real_prompts"]

LONGEST = 2400  # characters, some 600 tokens: prompt and answer fit a context of 1,024 tokens


def real_prompts(count: int) -> list[tuple[str, str]]:
    """(id, text) of so many prompts, the tasks in turns, each task's in the order of its file; longer than 2,400 characters are left out.

    Raises:
        SystemExit: the recorded data isn't there.
    """
    folder = data_folder() / "prompts"
    tasks = (
        [(row["id"], f"{row['instruction']}\n\n{row['input']}".strip()) for row in _rows(folder / "alpaca_5000.jsonl.gz")],
        [(row["id"], row["question"]) for row in _rows(folder / "gsm8k_test.jsonl.gz")],
        [(row["id"], f"Complete this function:\n\n{row['prompt']}") for row in _rows(folder / "humaneval_prompts.jsonl.gz")],
        [(row["id"], row["turns"][0]) for row in _rows(folder / "spec_bench.jsonl.gz")],
    )
    short = [[prompt for prompt in task if len(prompt[1]) <= LONGEST] for task in tasks]
    return list(islice(chain.from_iterable(zip(*short, strict=False)), count))


def code_prompts() -> list[str]:
    """All of HumanEval's functions that are short enough, as requests to complete them.

    Raises:
        SystemExit: the recorded data isn't there.
    """
    rows = _rows(data_folder() / "prompts" / "humaneval_prompts.jsonl.gz")
    return [text for row in rows if len(text := f"Complete this function:\n\n{row['prompt']}") <= LONGEST]


def _rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
