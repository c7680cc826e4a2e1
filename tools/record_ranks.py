"""Record where a target's tokens stand among a draft model's choices, for the real pair: what trees of drafts are simulated with.

    nice -n 19 python -m tools.record_ranks DIR --prompts 50
    python -m tools.record_ranks DIR --package

The target (Qwen2.5-Coder-1.5B-Instruct) answers each prompt greedily with up to 96 tokens. The draft model (the 0.5B) then reads prompt and
answer, token by token as the target wrote them, and its eight likeliest tokens are noted at each position. DIR gets a line a prompt, with
the eight likeliest tokens of both models. ``--package`` makes ``bench/data/pair_ranks.jsonl`` of it, which has no text and no tokens:
ranks, and probabilities in 255ths. A run that is broken off goes on where it was.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import Any

from bench.selective import GREEDY, Waiting
from bench.traces import data_folder
from streamco.engines.base import EngineOptions, Prediction
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.cache_dir import cache_folder

__all__ = ["CHOICES", "PACKAGED", "TASKS", "main", "packaged_row"]

PACKAGED = Path(__file__).resolve().parents[1] / "bench" / "data" / "pair_ranks.jsonl"
TARGET = "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf"
DRAFT = "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"
PROSE = {"writing", "roleplay", "humanities", "qa", "reasoning"}
TASKS = ("code", "prose")
CHOICES = 8  # of the draft model, at each position
MAX_TOKENS = 96
CONTEXT = 1024
LONGEST = 1600  # characters of a prompt
SEED = 5


def prompts_of(task: str, count: int) -> list[tuple[str, str]]:
    """(id, text) of the first prompts in the order that the seed gives: HumanEval's, or Spec-Bench's of prose."""
    name = "humaneval_prompts.jsonl.gz" if task == "code" else "spec_bench.jsonl.gz"
    with gzip.open(data_folder() / "prompts" / name, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    if task == "code":
        prompts = [(str(row["id"]), f"Complete this function:\n\n{row['prompt']}") for row in rows]
    else:
        prompts = [(str(row["id"]), row["turns"][0]) for row in rows if row["category"] in PROSE]
    prompts = [prompt for prompt in prompts if len(prompt[1]) <= LONGEST]
    Random(SEED).shuffle(prompts)
    return prompts[:count]


def record(target: LlamaEngine, draft: LlamaEngine, name: str, text: str) -> dict[str, Any]:
    """A line: both models' likeliest tokens at each position of the target's answer."""
    prompt = target.tokenize(target.apply_template([{"role": "user", "content": text}]), special=True)
    written = _write(target, prompt)
    answer = [prediction.greedy for prediction in written]
    waiting = Waiting()
    held = draft.hold()
    read = waiting.gather([held.verify(answer, waiting.wake, given=prompt, top=CHOICES, sampling=GREEDY)])[0]
    held.close()
    return {
        "source": name,
        "prompt_length": len(prompt),
        "answer": answer,
        "target": [prediction.likeliest[:CHOICES] for prediction in written],
        "draft": [prediction.likeliest[:CHOICES] for prediction in read[: len(answer)]],
    }


def _write(engine: LlamaEngine, prompt: list[int]) -> list[Prediction]:
    waiting = Waiting()
    held = engine.hold()
    waiting.gather([held.extend(prompt, waiting.wake)])
    written = waiting.gather([held.draft(MAX_TOKENS, waiting.wake, top=CHOICES, sampling=GREEDY)])[0]
    held.close()
    return written


def packaged_row(task: str, line: dict[str, Any]) -> dict[str, Any]:
    """What the repository keeps of a line.

    ``ranks``: rank of the target's token among the draft model's choices at each position, 0 to 7; 8: none of them. ``shares``: the draft
    model's probabilities of its eight choices; ``target_shares``: the target's of the same eight, 0 for those that aren't among its own
    eight. Both in 255ths, position after position.
    """
    ranks, shares, target_shares = [], [], []
    for token, choices, wanted in zip(line["answer"], line["draft"], line["target"], strict=True):
        ids = [choice for choice, _ in choices]
        ranks.append(ids.index(token) if token in ids else CHOICES)
        shares += [round(255 * share) for _, share in choices]
        of_target = dict(map(tuple, wanted))
        target_shares += [round(255 * of_target.get(choice, 0.0)) for choice in ids]
    ranks_text = "".join(map(str, ranks))
    return {"task": task, "source": line["source"], "ranks": ranks_text, "shares": _hex(shares), "target_shares": _hex(target_shares)}


def _hex(values: list[int]) -> str:
    return bytes(min(255, value) for value in values).hex()


def main() -> int:
    """Record, or package what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--package", action="store_true")
    options = parser.parse_args()
    if options.package:
        _package(options.folder)
        return 0
    done = {line["source"] for task in TASKS for line in _lines(options.folder / f"{task}.jsonl")}
    with ExitStack() as stack:
        target, draft = (stack.enter_context(closing(_load(name))) for name in (TARGET, DRAFT))
        for task, (name, text) in _in_turns(options.prompts):
            if name not in done:
                with (options.folder / f"{task}.jsonl").open("a", encoding="ascii") as file:
                    file.write(json.dumps(record(target, draft, name, text), separators=(",", ":")) + "\n")
                print(task, name, flush=True)
    return 0


def _in_turns(count: int) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield (task, prompt), the tasks in turns, so that a run that is broken off has as much of each."""
    for prompts in zip(*(prompts_of(task, count) for task in TASKS), strict=True):
        yield from zip(TASKS, prompts, strict=True)


def _load(name: str) -> LlamaEngine:
    options = EngineOptions(threads=1, context_tokens=CONTEXT, max_sequences=1, held_sequences=1)
    return LlamaEngine(cache_folder() / "models" / name, options)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with path.open(encoding="ascii") as file:
            yield from map(json.loads, file)


def _package(folder: Path) -> None:
    about = {
        "about": "ranks of a target's tokens among a draft model's choices, without text",
        "target": TARGET,
        "draft": DRAFT,
        "how": "tools/record_ranks.py; HumanEval prompts, and Spec-Bench's of prose",
    }
    PACKAGED.parent.mkdir(exist_ok=True)
    with PACKAGED.open("w", encoding="ascii") as file:
        file.write(json.dumps(about) + "\n")
        for task in TASKS:
            for line in _lines(folder / f"{task}.jsonl"):
                file.write(json.dumps(packaged_row(task, line), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    sys.exit(main())
