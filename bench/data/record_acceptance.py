"""Record which tokens of a target's answers a draft model would have proposed: real acceptance sequences for the simulator.

    python -m bench.data.record_acceptance DIR --target 1.5B --drafts 0.5B --tasks gsm8k:100 humaneval:100 cnn_dailymail:100 xsum:100
    python -m bench.data.record_acceptance DIR --package
    python -m bench.data.record_acceptance DIR --package-ranks --target 1.5B --drafts 0.5B --tasks humaneval:50 alpaca:50
    python -m bench.data.record_acceptance DIR --target 1.5B --drafts 0.5B --answers FOLDER

The target answers each prompt greedily, in its chat template, with up to 128 tokens, the end token counted. Every draft model then reads
prompt and answer with logits on each of the answer's rows: its own choices after the target's own text. That decides how much of a draft is
accepted, wherever a round begins: the text before a round is the target's, and so is the text before every token of a draft up to the first
that is rejected. Accepted is where the draft model's likeliest is the target's.

The models are quantisations of SmolLM2-135M-Instruct (Q8_0, Q4_0, Q2_K, ``pruned``), or the pair that ``make models`` fetches (1.5B, 0.5B).
The target runs in its exact mode, so that a row's logits don't depend on what shares its batch. A draft model reads an answer in one batch;
a device that drafts one row at a time may differ from it in a token of fifty.

With ``--answers`` nothing is asked again: the draft model reads the answers of the 1.5B that ``python -m bench.papers.quality run FOLDER``
wrote, whole, and both models are in Q4_0, as there.

DIR gets a file for each task and draft model, a line a prompt, and no text: the fields of docs/workloads.md, and ``likeliest``, the
probabilities of the draft model's eight likeliest tokens at each position, two hexadecimal digits each, in 255ths. A run that is broken off
goes on where it was. ``--package`` makes the simulator's traces of them, with a first line that says what they are. ``--package-ranks``
makes ``bench/data/pair_ranks.jsonl``, which trees of drafts are simulated with: ranks and ``likeliest`` of one draft model.
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
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.contexts import prefill
from bench.counted.selective import GREEDY, Waiting
from bench.counted.trees import CHOICES, RANKS
from bench.fetch_models import MODELS
from bench.pairs import PRUNED_LAYERS, TARGET, model_file
from bench.tasks import load_questions
from bench.tasks.records import LENGTH, read_answers
from bench.traces import data_folder
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.prompt_ids import chat_ids
from streamco.policies.importance import LAYERS

__all__ = ["TASKS", "DraftReader", "describe_model", "Recording", "main", "masses_of", "ranks_row", "read_row"]

TRACES = Path(__file__).resolve().parents[2] / "streamco" / "sim" / "traces"
SMALL = "SmolLM2-135M-Instruct"
SUFFIXES = {"Q4_0": "", "0.5B": "_qwen"}  # of a trace's name, by draft model; others have their own
SEED = 5  # in what order the prompts are taken: more of them begin with the same
CONTEXT = 1024  # tokens
CONTEXT_OF_ANSWERS = 2048  # tokens; some prompts of bench.papers.quality are longer than those here
FORMAT_OF_ANSWERS = "Q4_0"  # of both models with --answers
LONGEST_ARTICLE = 600  # tokens
SIDE_BY_SIDE = 8  # answers
LAST_RANK = 9
LIKELIEST = CHOICES  # tokens of a position
DEPTH = 8  # tokens before a token's own row, itself included, to which its attention is recorded
PLAIN = 50_000  # bytes; a larger trace is compressed

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Task:
    """Where its prompts are, and how they are asked."""

    file: str
    about: str
    ask: Callable[[dict[str, Any], Callable[[str], str]], str]  # a row and what cuts a text to the longest
    name: str  # in bench.papers.quality


def _ask_xsum(row: dict[str, Any], cut: Callable[[str], str]) -> str:
    article = row["prompt"].split("Article:", 1)[1].split("\n\nSummarize", 1)[0].strip()
    return f"Summarize this article in one sentence:\n\n{cut(article)}"


TASKS = {
    "gsm8k": Task("gsm8k_test.jsonl.gz", "GSM8K test questions", lambda row, cut: row["question"], "gsm8k"),
    "humaneval": Task(
        "humaneval_prompts.jsonl.gz",
        "HumanEval prompts",
        lambda row, cut: f"Complete this function:\n\n{cut(row['prompt'])}",
        "humaneval",
    ),
    "cnn_dailymail": Task(
        "cnn_dailymail.jsonl.gz",
        f"CNN/DailyMail articles, cut to {LONGEST_ARTICLE} tokens, to be summarized",
        lambda row, cut: f"Summarize this article in a few sentences:\n\n{cut(row['article'])}",
        "cnndm",
    ),
    "xsum": Task("xsum.jsonl.gz", f"XSum articles, cut to {LONGEST_ARTICLE} tokens, to be summarized in a sentence", _ask_xsum, "xsum"),
    "alpaca": Task(
        "alpaca_5000.jsonl.gz", "Alpaca instructions", lambda row, cut: cut(f"{row['instruction']}\n\n{row['input']}".strip()), "alpaca"
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


def describe_model(kind: str, quantisation: str | None = None) -> str:
    """Return a model's name and quantisation; None: as it was fetched."""
    if kind in MODELS:
        name, fetched, _ = MODELS[kind].file.rsplit(".", 2)
        return f"{name} {quantisation or fetched}"
    if kind == "pruned":
        return f"{SMALL} {TARGET}, layers {PRUNED_LAYERS[0]} to {PRUNED_LAYERS[-1]} of 30 left out"
    return f"{SMALL} {kind}"


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


class DraftReader:
    """Reads answers with a draft model, on one thread.

    Args:
        path: the model's file.
        longest: tokens of an answer at most.
        context: tokens of prompt and answer at most.
    """

    def __init__(self, path: Path, longest: int, context: int = CONTEXT) -> None:
        self._model = LlamaModel(path)
        layers = [self._model.info.layers + layer for layer in LAYERS]
        self._context = LlamaContext(self._model, cells=context, sequences=1, rows=longest + 1, threads=1, attention_layers=layers)

    def read(self, prompt: Sequence[int], answer: Sequence[int]) -> dict[str, Any]:
        """Return what the draft model says in place of each of the answer's tokens, in the fields of a trace."""
        context = self._context
        context.clear()
        prefill(context, prompt[:-1], 0)
        context.add_run([prompt[-1], *answer], len(prompt) - 1, 0, wants_logits=len(answer) + 1)
        context.reads_attention = True
        if context.decode():
            raise RuntimeError("llama_decode failed")
        rows = [read_row(context.logits(place), token) for place, token in enumerate(answer)]
        ranks = [rank for rank, _ in rows]
        shares = [likeliest for _, likeliest in rows]
        masses = [masses_of(context.attention(place + 1)) for place in range(len(answer))]
        return {
            "prompt_length": len(prompt),
            "output_length": len(answer),
            "acceptance_seq": [int(rank == 0) for rank in ranks],
            "confidences": [likeliest[0] for likeliest in shares],
            "runners_up": [likeliest[1] for likeliest in shares],
            "ranks": "".join(map(str, ranks)),
            "attention": bytes(value for each in masses for value in each).hex(),
            "likeliest": bytes(value for each in shares for value in each).hex(),
        }

    def close(self) -> None:
        """Free the model."""
        self._context.close()
        self._model.close()


def read_row(logits: Floats, token: int) -> tuple[int, list[int]]:
    """Return the rank of a token, at most ``LAST_RANK``, and the probabilities of the likeliest tokens in 255ths, best first."""
    largest = float(logits.max())
    total = float(np.exp(logits - largest).sum(dtype=np.float64))
    best = np.sort(np.partition(logits, -LIKELIEST)[-LIKELIEST:])[::-1]
    rank = 0 if int(logits.argmax()) == token else max(1, int((logits > logits[token]).sum()))
    return min(rank, LAST_RANK), [round(255 * math.exp(float(value) - largest) / total) for value in best]


def masses_of(attention: Floats) -> list[int]:
    """Return the share of a row's attention that goes to its own token and the 0, 1, 2, ... tokens before it, in 255ths.

    Args:
        attention: shape (layers, tokens), up to the row's own token.
    """
    own = attention.mean(axis=0)[::-1][:DEPTH]
    shares = np.minimum(np.cumsum(own, dtype=np.float64), 1.0)
    return [round(255 * float(share)) for share in np.pad(shares, (0, DEPTH - len(shares)), mode="edge")]


def record(
    folder: Path, counts: dict[str, int], *, target: str, drafts: Sequence[str], most: int, minutes: float, quantisation: str | None = None
) -> None:
    """Everything that isn't there yet, the tasks in turns, until so many minutes are over; ``quantisation`` as in ``model_file``."""
    ends = time.monotonic() + 60.0 * minutes
    folder.mkdir(parents=True, exist_ok=True)
    recordings = {(task, draft): Recording(folder, task, draft) for task in counts for draft in drafts}
    options = EngineOptions(threads=1, context_tokens=CONTEXT, max_sequences=1, held_sequences=SIDE_BY_SIDE, exact=True)
    with closing(LlamaEngine(model_file(target, quantisation), options)) as engine:
        columns = [list(prompts_of(task, count, engine)) for task, count in counts.items()]
        asked = [prompt for row in zip_longest(*columns) for prompt in row if prompt is not None]
        missing = [p for p in asked if any(p.source not in recordings[p.task, draft].sources for draft in drafts)]
        readers = {draft: DraftReader(model_file(draft, quantisation), most) for draft in drafts}
        done, left = len(asked) - len(missing), iter(missing)
        while group := list(islice(left, SIDE_BY_SIDE)):
            if time.monotonic() >= ends:
                break
            for prompt, answer in zip(group, write_answers(engine, group, most), strict=True):
                for draft, reader in readers.items():
                    if prompt.source not in recordings[prompt.task, draft].sources:
                        recordings[prompt.task, draft].add({"source": prompt.source, **reader.read(prompt.ids, answer)})
                done += 1
            sys.stderr.write(f"{done} of {len(asked)} prompts\n")
            sys.stderr.flush()
        for reader in readers.values():
            reader.close()


def read_written(folder: Path, written: Path, counts: dict[str, int], *, target: str, drafts: Sequence[str], minutes: float) -> None:
    """Record what each draft model says to the answers in the folder ``written``, the tasks in turns, until so many minutes are over.

    Raises:
        SystemExit: there are no answers, or no such model.
    """
    ends = time.monotonic() + 60.0 * minutes
    folder.mkdir(parents=True, exist_ok=True)
    found = {(answer.task, answer.item): answer.ids for answer in read_answers(written) if answer.key == (target, None, LENGTH)}
    with ExitStack() as stack:
        options = EngineOptions(threads=1, context_tokens=CONTEXT_OF_ANSWERS)
        engine = stack.enter_context(closing(LlamaEngine(model_file(drafts[0], FORMAT_OF_ANSWERS), options)))  # for its vocabulary
        for draft in drafts:
            reader = stack.enter_context(closing(DraftReader(model_file(draft, FORMAT_OF_ANSWERS), LENGTH, CONTEXT_OF_ANSWERS)))
            recordings = {task: Recording(folder, task, draft) for task in counts}
            columns = [[(task, question) for question in load_questions(TASKS[task].name, count)] for task, count in counts.items()]
            for task, question in (each for row in zip_longest(*columns) for each in row if each is not None):
                ids = found.get((question.task, question.id), ())
                if time.monotonic() >= ends or not ids or question.id in recordings[task].sources:
                    continue
                row = reader.read(chat_ids(engine, question.messages), ids)
                recordings[task].add({"source": question.id, **row})
                sys.stderr.write(f"{task}, {draft}: {len(recordings[task].sources)} answers\n")
                sys.stderr.flush()


def package(folder: Path, target: str, most: int, quantisation: str | None = None, *, reads_answers: bool = False) -> None:
    """A trace of each recording: under the task's name and the draft model's suffix; ``reads_answers``: of bench.papers.quality."""
    for path in sorted(folder.glob("*.jsonl")):
        task, _, draft = path.name.removesuffix(".jsonl").partition(".")
        rows = read_rows(path)
        if not rows:
            continue
        recorded = dt.datetime.fromtimestamp(path.stat().st_mtime, tz=dt.UTC).date()
        asked = f"questions of {TASKS[task].name}, as bench/tasks asks them" if reads_answers else TASKS[task].about
        about = {
            "about": f"{len(rows)} {asked}: what a draft model says after the target's greedy answers of up to {most} tokens",
            "target": describe_model(target, quantisation),
            "draft": describe_model(draft, quantisation),
            "recorded": str(recorded),
            "how": f"bench/data/record_acceptance.py: llama.cpp{'' if reads_answers else ', exact mode'}; no prompt and no text is in here",
        }
        kept = [{name: value for name, value in row.items() if name != "likeliest"} for row in rows]
        data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (about, *kept)).encode("ascii")
        name = task + SUFFIXES.get(draft, f"_{draft.lower()}")
        TRACES.mkdir(exist_ok=True)
        for old in (TRACES / f"{name}.jsonl", TRACES / f"{name}.jsonl.gz"):
            old.unlink(missing_ok=True)
        if len(data) > PLAIN:
            (TRACES / f"{name}.jsonl.gz").write_bytes(gzip.compress(data, 9, mtime=0))
        else:
            (TRACES / f"{name}.jsonl").write_bytes(data)
        sys.stderr.write(f"{name}: {len(rows)} prompts\n")


def package_ranks(folder: Path, path: Path, counts: dict[str, int], *, target: str, draft: str, quantisation: str | None = None) -> None:
    """Write the ranks and probabilities of one draft model's first recordings of these tasks in one file, for ``bench.counted.trees``."""
    about = {
        "about": "ranks of a target's tokens among a draft model's choices, without text",
        "target": describe_model(target, quantisation),
        "draft": describe_model(draft, quantisation),
        "how": "bench/data/record_acceptance.py --package-ranks",
    }
    rows = [ranks_row(task, row) for task, count in counts.items() for row in read_rows(folder / f"{task}.{draft}.jsonl")[:count]]
    if not rows:
        raise SystemExit(f"{folder}: expected recordings of {draft}, got none")
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (about, *rows)), encoding="ascii")
    sys.stderr.write(f"{path.name}: {len(rows)} prompts\n")


def ranks_row(task: str, row: dict[str, Any]) -> dict[str, str]:
    """Return a line of ``bench.counted.trees``: ranks from 0 to ``CHOICES``, which is none of them, and these tokens' probabilities."""
    ranks = "".join(str(min(int(rank), CHOICES)) for rank in row["ranks"])
    return {"task": task, "source": row["source"], "ranks": ranks, "shares": row["likeliest"]}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a recording; []: there is none."""
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()] if path.exists() else []


def main(arguments: Sequence[str] | None = None) -> None:
    """Record, or package what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the recordings")
    parser.add_argument("--tasks", nargs="*", default=["gsm8k:60", "humaneval:60", "cnn_dailymail:30"], help="and how many prompts of each")
    parser.add_argument("--target", default=TARGET, help="the model that answers (default: %(default)s)")
    parser.add_argument("--drafts", nargs="*", default=["Q4_0"], help="quantisations, pruned or 0.5B (default: Q4_0)")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer at most (default: %(default)s)")
    parser.add_argument("--format", metavar="NAME", help="derive the fetched pair in it, as Q4_0 (default: as they were fetched)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing more after so many (default: any number)")
    parser.add_argument(
        "--answers", type=Path, metavar="FOLDER", help="read these answers of bench.papers.quality in place of asking for new ones"
    )
    parser.add_argument("--package", action="store_true", help="make the simulator's traces of what is in the folder")
    parser.add_argument(
        "--package-ranks", action="store_true", help="make bench/data/pair_ranks.jsonl of the first draft model's recordings"
    )
    options = parser.parse_args(arguments)
    counts = {task: int(count) for task, _, count in (each.partition(":") for each in options.tasks)}
    quantisation = FORMAT_OF_ANSWERS if options.answers else options.format
    if options.package:
        reads_answers = options.answers is not None
        package(options.folder, options.target, LENGTH if reads_answers else options.tokens, quantisation, reads_answers=reads_answers)
    elif options.package_ranks:
        package_ranks(options.folder, RANKS, counts, target=options.target, draft=options.drafts[0], quantisation=quantisation)
    elif options.answers:
        read_written(
            folder=options.folder,
            written=options.answers,
            counts=counts,
            target=options.target,
            drafts=options.drafts,
            minutes=options.minutes,
        )
    else:
        record(
            folder=options.folder,
            counts=counts,
            target=options.target,
            drafts=options.drafts,
            most=options.tokens,
            minutes=options.minutes,
            quantisation=quantisation,
        )


if __name__ == "__main__":
    main()
