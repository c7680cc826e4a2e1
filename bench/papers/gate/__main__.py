"""Which signals of a device's answer tell that the server's would be better? Record, then print tables.

After ``make models``, ``python -m bench.papers.gate run FILE`` records what is missing; it may be stopped at any time, and goes on.
``package FILE`` adds it to bench/papers/gate/recorded.jsonl.gz, and ``table`` prints the figures of what is packaged.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from bench.counted.selective import Pair
from bench.pairs import model_file
from bench.papers.gate.recording import RECORDED, WORD_BINS, Answer, package, read_answers, record
from bench.papers.gate.routing import Floats, compare, cross_fitted, left_out, measure
from bench.papers.gate.signals import PLAIN, SHORT, features
from bench.papers.synera.results import read_package
from bench.tables import replace_table
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine

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


def main(arguments: Sequence[str] | None = None) -> None:
    """Record, or print what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "package", "table"])
    parser.add_argument("file", type=Path, nargs="?", help="of the recordings; table: what is packaged")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="put the table between the marks of this page")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no question after so many (default: any number)")
    options = parser.parse_args(arguments)
    if options.file is None and options.action != "table":
        parser.error("expected a file, got none")
    if options.action == "package":
        print(f"{package(read_answers(options.file))} answers")
    elif options.action == "run":
        places = EngineOptions(threads=1, context_tokens=2048, max_sequences=1, held_sequences=5)
        with closing(Pair(*(LlamaEngine(model_file(name, "Q4_0"), places) for name in ("0.5B", "1.5B")))) as models:
            known = {task: {name: cells["server"].score for name, cells in found.items()} for task, found in read_package().items()}
            for count, answer in enumerate(record(options.file, models, known, ends=time.monotonic() + 60.0 * options.minutes), 1):
                sys.stderr.write(f"{count}: {answer.task}\n")
                sys.stderr.flush()
    elif options.update:
        page = options.update.read_text(encoding="utf-8")
        options.update.write_text(replace_table(page, "gate", "\n".join(table(read_answers(), SHOWN))), encoding="utf-8")
    else:
        print("\n".join(table(read_answers(options.file or RECORDED))))


def scores_of(answers: Sequence[Answer]) -> dict[str, Floats]:
    """Return every contender's scores of these answers, by its name."""
    gains = np.array([each.server - each.device for each in answers])
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
    gains = np.array([each.server - each.device for each in answers])
    short = np.array([len(each.chosen) <= SHORT for each in answers])
    scores = scores_of(answers)
    parts = {"all": np.ones(len(answers), dtype=bool), "short": short, "longer": ~short}
    yield f"| | {' | '.join(f'APGR, {name} ({part.sum()})' for name, part in parts.items())} | CPT 50 | CPT 80 | less perplexity's |"
    yield "|---|---|---|---|---|---|---|"
    usual = scores["perplexity, 16 tokens"]
    for name, each in scores.items():
        if shown and name not in shown:
            continue
        cells = [measure(each[part], gains[part]) for part in parts.values()]
        over = compare(each, usual, gains).show(2, sign="+")
        values = [*(cell.apgr for cell in cells), cells[0].cpt_50, cells[0].cpt_80]
        yield f"| {name} | {' | '.join(value.show(2) for value in values)} | {over} |"


if __name__ == "__main__":
    main()
