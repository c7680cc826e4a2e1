"""Draft and target models made from the packaged one, and real prompts with their references, for the benches of speculation."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from bench.fetch_models import MODELS, fetched
from bench.traces import data_folder
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.gguf import derived

__all__ = ["DRAFTS", "TARGET", "TASKS", "Question", "load_questions", "model_file", "rouge", "score"]

TARGET = "Q8_0"
DRAFTS = ("Q2_K", "pruned")
PRUNED_LAYERS = (24, 25, 26)  # of 30; about half of such a draft is accepted
_LONGEST_ARTICLE = 1000  # characters: a prompt is read by both models on one thread each
_SENTIMENT = "Is this film review positive or negative? Answer with one word.\n\n"


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and what a person says should come of it."""

    id: str
    task: str
    text: str
    reference: str
    most_tokens: int


def model_file(kind: str, quantisation: str | None = None) -> Path:
    """The packaged model in another quantisation, ``pruned`` (Q8_0 without three of its layers), or 0.5B or 1.5B of the fetched pair.

    Args:
        kind: which.
        quantisation: one of the fetched pair's models is derived in; None: as it is.

    Raises:
        SystemExit: it was not fetched.
    """
    if kind in MODELS:
        path = fetched(kind)
        if path is None:
            raise SystemExit(f"{kind}: expected the file {MODELS[kind].file} in the cache, got none: run make models")
        return path if quantisation is None else derived(path, quantisation)
    layers = PRUNED_LAYERS if kind == "pruned" else ()
    return derived(packaged_model(), TARGET if kind == "pruned" else kind, layers)


def load_questions(task: str, count: int, seed: int, most_tokens: int = 64) -> list[Question]:
    """So many of a task's, drawn from a seed.

    Raises:
        SystemExit: the recorded data isn't there.
    """
    name, read = TASKS[task]
    with gzip.open(data_folder() / "prompts" / name, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    found = [Question(row["id"], task, *text, most_tokens) for row in rows if (text := read(row)) is not None]
    return Random(seed).sample(found, min(count, len(found)))


def score(task: str, answers: Sequence[str], references: Sequence[str]) -> float:
    """Mean Rouge-1 F of the answers, or for ``sst2`` the share that names the right label and not the other; 0..1."""
    if task == "sst2":
        words = [[word for word in ("positive", "negative") if word in answer.lower()] for answer in answers]
        return sum(named == [label] for named, label in zip(words, references, strict=True)) / len(answers)
    return rouge(answers, references)


def rouge(answers: Sequence[str], references: Sequence[str]) -> float:
    """Mean Rouge-1 F, with stemming as the papers use it; equal texts are 1 even where they have no word of Latin letters."""
    from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]

    scorer = RougeScorer(["rouge1"], use_stemmer=True)
    scores = (
        1.0 if answer == reference else float(scorer.score(reference, answer)["rouge1"].fmeasure)
        for answer, reference in zip(answers, references, strict=True)
    )
    return sum(scores) / len(answers)


def _alpaca(row: dict[str, Any]) -> tuple[str, str] | None:
    text = f"{row['instruction']}\n\n{row['input']}".strip()
    return (text, row["output"]) if len(row["output"]) > 80 and len(text) < _LONGEST_ARTICLE else None


def _xsum(row: dict[str, Any]) -> tuple[str, str] | None:
    article = row["prompt"].split("Article:", 1)[1].split("\n\nSummarize", 1)[0].strip()
    return (f"Summarize in one sentence:\n\n{article}", row["summary"]) if len(article) < _LONGEST_ARTICLE else None


def _sst2(row: dict[str, Any]) -> tuple[str, str] | None:
    return _SENTIMENT + row["sentence"], "positive" if row["label"] else "negative"


TASKS: dict[str, tuple[str, Callable[[dict[str, Any]], tuple[str, str] | None]]] = {
    "alpaca": ("alpaca_5000.jsonl.gz", _alpaca),
    "xsum": ("xsum.jsonl.gz", _xsum),
    "sst2": ("sst2_dev.jsonl.gz", _sst2),
}
