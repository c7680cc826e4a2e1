"""Record which tokens of a target's answers a draft model would have proposed: real acceptance sequences for the simulator.

    python -m tools.record_acceptance DIR --tasks gsm8k:60 humaneval:60 cnn_dailymail:30 --drafts Q4_0 Q2_K pruned
    python -m tools.record_acceptance DIR --package

The target (SmolLM2-135M-Instruct in Q8_0) answers each prompt greedily, in its chat template, with up to 128 tokens, the end token counted.
Every draft model then reads prompt and answer in one prefill with logits on each of the answer's rows: its own choices after the target's
own text. That decides how much of a draft is accepted, wherever a round begins: the text in front of a round is the target's, and so is the
text in front of every token of a draft up to the first that is rejected. Accepted is where the draft model's likeliest is the target's.

Both engines run in their exact mode, so that a row's logits don't depend on what shares its batch. A device that drafts one row at a time
without it may differ in a token of fifty.

DIR gets a file for each task and draft model, a line a prompt, and no text: lengths, accepted (0 or 1), the draft model's confidence in its
own choice and in its second one in 255ths, and the rank of the target's token among its choices (3: fourth or later). A run that is broken
off goes on where it was. ``--package`` makes the simulator's traces of them, with a first line that says what they are.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gzip
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from random import Random
from typing import Any

from bench.pairs import TARGET, model_file
from bench.selective import GREEDY, Waiting
from bench.traces import data_folder
from streamco.engines.base import EngineOptions, Prediction
from streamco.engines.llama import LlamaEngine

__all__ = ["TASKS", "main"]

TRACES = Path(__file__).resolve().parents[1] / "streamco" / "sim" / "traces"
MODEL = "SmolLM2-135M-Instruct"
SEED = 5  # in what order the prompts are taken: more of them begin with the same
CONTEXT = 1024  # tokens
LONGEST_ARTICLE = 600  # tokens
SIDE_BY_SIDE = 8  # answers
LAST_RANK = 3
PLAIN = 50_000  # bytes; a larger trace is compressed


@dataclass(frozen=True, slots=True)
class Task:
    """Where its prompts are, and how they are asked."""

    file: str
    about: str
    ask: Callable[[dict[str, Any], Callable[[str], str]], str]  # a row and what cuts a text to the longest


TASKS = {
    "gsm8k": Task("gsm8k_test.jsonl.gz", "GSM8K test questions", lambda row, cut: row["question"]),
    "humaneval": Task(
        "humaneval_prompts.jsonl.gz", "HumanEval prompts", lambda row, cut: f"Complete this function:\n\n{cut(row['prompt'])}"
    ),
    "cnn_dailymail": Task(
        "cnn_dailymail.jsonl.gz",
        f"CNN/DailyMail articles, cut to {LONGEST_ARTICLE} tokens, to be summarized",
        lambda row, cut: f"Summarize this article in a few sentences:\n\n{cut(row['article'])}",
    ),
}


class Recording:
    """A file of one task and one draft model; what a broken run left half written is dropped."""

    def __init__(self, folder: Path, task: str, draft: str) -> None:
        self.path = folder / f"{task}.{draft}.jsonl"
        whole = self.path.read_bytes().rpartition(b"\n")[0] if self.path.exists() else b""
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
        self.sources = {row["source"] for row in self.rows}
        self.path.write_bytes(whole + b"\n" if whole else b"")

    def add(self, row: dict[str, Any]) -> None:
        """Write it down."""
        with self.path.open("a", encoding="ascii") as file:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
        self.sources.add(row["source"])


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked; ``source`` is its name where it comes from."""

    task: str
    source: str
    ids: list[int]


def load_engine(kind: str) -> LlamaEngine:
    """Exact, on one thread."""
    options = EngineOptions(threads=1, context_tokens=CONTEXT, max_sequences=1, held_sequences=SIDE_BY_SIDE, exact=True)
    return LlamaEngine(model_file(kind), options)


def prompts_of(task: str, count: int, engine: LlamaEngine) -> Iterator[Prompt]:
    """The first so many in the order that the seed gives."""
    with gzip.open(data_folder() / "prompts" / TASKS[task].file, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    Random(SEED).shuffle(rows)

    def cut(text: str) -> str:
        return engine.detokenize(engine.tokenize(text)[:LONGEST_ARTICLE]).decode("utf-8", "ignore")

    for row in rows[:count]:
        text = engine.apply_template([{"role": "user", "content": TASKS[task].ask(row, cut)}])
        yield Prompt(task, row["id"], engine.tokenize(text, special=True))


def write_answers(engine: LlamaEngine, prompts: Sequence[Prompt], most: int) -> list[list[int]]:
    """The target's own, greedily, side by side."""
    waiting = Waiting()
    held = [engine.hold() for _ in prompts]
    waiting.gather([each.extend(prompt.ids, waiting.wake) for each, prompt in zip(held, prompts, strict=True)])
    with engine.together():
        tasks = [each.draft(most, waiting.wake, sampling=GREEDY) for each in held]
    answers = [[prediction.greedy for prediction in predictions] for predictions in waiting.gather(tasks)]
    for each in held:
        each.close()
    return answers


def compare(engine: LlamaEngine, prompt: Prompt, answer: Sequence[int]) -> dict[str, Any]:
    """A row: what this draft model says in place of each of the answer's tokens."""
    waiting = Waiting()
    held = engine.hold()
    predictions = waiting.gather([held.verify(answer, waiting.wake, given=prompt.ids, top=LAST_RANK, sampling=GREEDY)])[0]
    held.close()
    ranks = [rank_of(token, prediction) for token, prediction in zip(answer, predictions, strict=False)]
    return {
        "source": prompt.source,
        "prompt_length": len(prompt.ids),
        "output_length": len(answer),
        "acceptance_seq": [int(rank == 0) for rank in ranks],
        "confidences": [round(255 * prediction.confidence) for prediction in predictions[: len(answer)]],
        "runners_up": [round(255 * prediction.likeliest[1][1]) for prediction in predictions[: len(answer)]],
        "ranks": "".join(map(str, ranks)),
    }


def rank_of(token: int, prediction: Prediction) -> int:
    """Of the target's token among the draft model's choices, at most ``LAST_RANK``."""
    choices = [choice for choice, _ in prediction.likeliest]
    return choices.index(token) if token in choices else LAST_RANK


def record(folder: Path, counts: dict[str, int], drafts: Sequence[str], most: int, minutes: float) -> None:
    """Everything that isn't there yet, the tasks in turns, until so many minutes are over."""
    ends = time.monotonic() + 60.0 * minutes
    folder.mkdir(parents=True, exist_ok=True)
    recordings = {(task, draft): Recording(folder, task, draft) for task in counts for draft in drafts}
    with closing(load_engine(TARGET)) as target:
        columns = [list(prompts_of(task, count, target)) for task, count in counts.items()]
        asked = [prompt for row in zip_longest(*columns) for prompt in row if prompt is not None]
        missing = [p for p in asked if any(p.source not in recordings[p.task, draft].sources for draft in drafts)]
        engines = {draft: load_engine(draft) for draft in drafts}
        done, left = len(asked) - len(missing), iter(missing)
        while group := list(islice(left, SIDE_BY_SIDE)):
            if time.monotonic() >= ends:
                break
            for prompt, answer in zip(group, write_answers(target, group, most), strict=True):
                for draft, engine in engines.items():
                    if prompt.source not in recordings[prompt.task, draft].sources:
                        recordings[prompt.task, draft].add(compare(engine, prompt, answer))
                done += 1
                sys.stderr.write(f"\r{done} of {len(asked)} prompts, {prompt.task} {prompt.source}   ")
                sys.stderr.flush()
        sys.stderr.write("\n")
        for engine in engines.values():
            engine.close()


def package(folder: Path, most: int) -> None:
    """A trace of each recording: of a task's first draft model under the task's name, of the others with theirs behind it."""
    for path in sorted(folder.glob("*.jsonl")):
        task, _, draft = path.stem.partition(".")
        rows = path.read_text(encoding="ascii")
        if not rows:
            continue
        recorded = dt.datetime.fromtimestamp(path.stat().st_mtime, tz=dt.UTC).date()
        what = f"what a draft model says behind the target's greedy answers of up to {most} tokens"
        about = {
            "about": f"{rows.count(chr(10))} {TASKS[task].about}: {what}",
            "target": f"{MODEL} {TARGET}",
            "draft": f"{MODEL} {draft if draft != 'pruned' else f'{TARGET}, layers 24 to 26 of 30 left out'}",
            "recorded": str(recorded),
            "how": "tools/record_acceptance.py: llama.cpp, exact mode; no prompt and no text is in here",
        }
        name = task if draft == "Q4_0" else f"{task}_{draft.lower()}"
        data = (json.dumps(about) + "\n" + rows).encode("ascii")
        TRACES.mkdir(exist_ok=True)
        for old in (TRACES / f"{name}.jsonl", TRACES / f"{name}.jsonl.gz"):
            old.unlink(missing_ok=True)
        if len(data) > PLAIN:
            (TRACES / f"{name}.jsonl.gz").write_bytes(gzip.compress(data, 9, mtime=0))
        else:
            (TRACES / f"{name}.jsonl").write_bytes(data)
        sys.stderr.write(f"{name}: {rows.count(chr(10))} prompts\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Record, or package what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the recordings")
    parser.add_argument("--tasks", nargs="*", default=["gsm8k:60", "humaneval:60", "cnn_dailymail:30"], help="and how many prompts of each")
    parser.add_argument("--drafts", nargs="*", default=["Q4_0"], help="quantisations, or pruned (default: Q4_0)")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer at most (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing more behind so many (default: any number)")
    parser.add_argument("--package", action="store_true", help="make the simulator's traces of what is in the folder")
    options = parser.parse_args(arguments)
    if options.package:
        package(options.folder, options.tokens)
    else:
        counts = {task: int(count) for task, _, count in (each.partition(":") for each in options.tasks)}
        record(options.folder, counts, options.drafts, options.tokens, options.minutes)


if __name__ == "__main__":
    main()
