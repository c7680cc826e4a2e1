"""Which signals of a device's answer tell that the server's would be better? Record, then print tables.

After ``make models``, ``python -m bench.papers.gate run FILE`` records what is missing; it may be stopped at any time, and goes on.
``package FILE`` adds it to bench/papers/gate/recorded.jsonl.gz, and ``table`` prints the figures of what is packaged. With
``--device 135M`` the device is the packaged model, and the server's scores are those of the first recording.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from bench.counted.selective import Pair
from bench.pairs import model_file
from bench.papers.gate.ratings import rated_lines
from bench.papers.gate.recording import BY_DEVICE, WORD_BINS, Answer, package, read_answers, record
from bench.papers.gate.routing import USUAL, Floats, compare_lines, cross_fitted, gains_of, left_out
from bench.papers.gate.signals import PLAIN, features
from bench.papers.synera.results import read_package
from bench.tables import replace_table
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model

__all__ = ["main", "scores_of", "table"]

SHOWN = (
    "prompt length",
    "the prompt's words",
    "entropy of the first row",
    "two samples' agreement",
    "perplexity, 4 tokens",
    "perplexity, 16 tokens",
    "tenth quantile, 16 tokens",
    "median margin, 16 tokens",
    "perplexity, 64 tokens",
    "worst sentence, 64 tokens",
    "perplexity, whole answer",
    "worst sentence, whole answer",
    "task known",
    "task known, then perplexity",
    "learned, 16 tokens",
    "learned, 16 tokens and task",
    "learned, 64 tokens and task",
    "learned on other tasks, 16 tokens",
    "oracle",
)
"""Scores of the page; ``table`` prints all."""


FEW = (
    "prompt length",
    "the prompt's words",
    "perplexity, 16 tokens",
    "worst sentence, whole answer",
    "perplexity, whole answer",
    "task known",
    "task known, then perplexity",
    "learned, 16 tokens and task",
    "learned on other tasks, 16 tokens",
    "oracle",
)
"""Scores of the page for the second pair."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Record, or print what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "package", "table"])
    parser.add_argument("file", type=Path, nargs="?", help="of the recordings; table: what is packaged")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="put the table between the marks of this page")
    parser.add_argument("--device", choices=sorted(BY_DEVICE), default="0.5B", help="the device's model (0.5B)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no question after so many (default: any number)")
    options = parser.parse_args(arguments)
    if options.file is None and options.action != "table":
        parser.error("expected a file, got none")
    if options.action == "package":
        print(f"{package(read_answers(options.file), BY_DEVICE[options.device])} answers")
    elif options.action == "run":
        places = EngineOptions(threads=1, context_tokens=2048, max_sequences=1, held_sequences=5)
        files = (packaged_model() if options.device == "135M" else model_file("0.5B", "Q4_0"), model_file("1.5B", "Q4_0"))
        with closing(Pair(*(LlamaEngine(file, places) for file in files))) as models:
            known = _server_scores(options.device)
            for count, answer in enumerate(record(options.file, models, known, ends=time.monotonic() + 60.0 * options.minutes), 1):
                sys.stderr.write(f"{count}: {answer.task}\n")
                sys.stderr.flush()
    elif options.update:
        page, answers = options.update.read_text(encoding="utf-8"), read_answers(BY_DEVICE[options.device])
        tables = [("gate", table(answers, SHOWN)), ("ratings", learned_table(answers))]
        if options.device == "135M":
            tables = [("gate 135m", table(answers, FEW))]
        for name, lines in tables:
            page = replace_table(page, name, "\n".join(lines))
        options.update.write_text(page, encoding="utf-8")
    else:
        answers = read_answers(options.file or BY_DEVICE[options.device])
        print("\n".join((*table(answers), *learned_table(answers))))


def _server_scores(device: str) -> Mapping[str, Mapping[str, float]]:
    """Return the server's scores that are known, by task and question."""
    found: dict[str, dict[str, float]] = {}
    if device == "135M":
        for answer in read_answers():
            found.setdefault(answer.task, {})[answer.question] = answer.server
        return found
    return {task: {name: cells["server"].score for name, cells in cells_of.items()} for task, cells_of in read_package().items()}


def scores_of(answers: Sequence[Answer]) -> dict[str, Floats]:
    """Return every contender's scores of these answers, by its name."""
    gains = gains_of(answers)
    tasks = sorted({each.task for each in answers})
    found = {name: np.array([signal(each) for each in answers]) for name, signal in PLAIN.items()}

    def rows(make: Callable[[Answer], list[float]]) -> Floats:
        return np.array([make(each) for each in answers])

    def kind(answer: Answer) -> list[float]:
        return [1.0, *(float(answer.task == task) for task in tasks)]

    def kind_and_perplexity(answer: Answer) -> list[float]:
        return [*kind(answer), PLAIN["perplexity, 16 tokens"](answer)]

    def words(answer: Answer) -> list[float]:
        return [1.0, *(float(each in answer.words) for each in range(WORD_BINS))]

    if all(each.words for each in answers):
        found["the prompt's words"] = cross_fitted(answers, rows(words), gains, penalty=10.0 * WORD_BINS)
    found["task known"] = cross_fitted(answers, rows(kind), gains)
    found["task known, then perplexity"] = cross_fitted(answers, rows(kind_and_perplexity), gains)
    for tokens in (4, 16, 32, 64):
        found[f"learned, {tokens} tokens"] = cross_fitted(answers, rows(partial(features, tokens=tokens)), gains)
        found[f"learned, {tokens} tokens and task"] = cross_fitted(answers, rows(partial(features, tokens=tokens, tasks=tasks)), gains)
        found[f"learned on other tasks, {tokens} tokens"] = left_out(answers, rows(partial(features, tokens=tokens)), gains)
    return found | {"oracle": -gains}


def table(answers: Sequence[Answer], shown: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines of the table, in Markdown: pooled, short and long answers apart. ``shown``: only these scores; empty: all."""
    scores = scores_of(answers)
    wanted = {name: each for name, each in scores.items() if name in shown or not shown}
    yield from compare_lines(answers, wanted, {"less perplexity's": scores[USUAL]})


def learned_table(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield the lines of the tables about the score that is learned from ratings, in Markdown."""
    scores = scores_of(answers)
    yield from rated_lines(answers, {name: scores[name] for name in (USUAL, "task known, then perplexity")})


if __name__ == "__main__":
    main()
