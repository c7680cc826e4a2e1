"""Where both sides have begun, does the agreement of their first sentences tell whether the server's answer would be better?

After ``make models``, ``python -m bench.papers.gate.first_sentence run FILE`` writes both models' first sentences (32 tokens at most), and
keeps what share of the tokens they have in common; it may be stopped at any time, and goes on. ``table FILE`` prints the figures of the
questions that are there.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from bench.counted.selective import GREEDY, Pair, Waiting
from bench.pairs import model_file
from bench.papers.gate.recording import read_answers
from bench.papers.gate.routing import compare_lines
from bench.papers.gate.signals import PLAIN
from bench.papers.gate.split import MIX
from bench.tables import show_tables
from bench.tasks import Question, questions_in_turns
from streamco.core.confidence import ends_sentence
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine

__all__ = ["FirstSentences", "agreement", "main", "read_sentences", "sentence_table"]

_LONGEST, _STEP = 32, 8  # tokens


class FirstSentences(Struct, frozen=True):
    """What both models' first sentences of an answer have in common: a share of the longer one's tokens, 0..1."""

    task: str
    question: str
    common: float


def agreement(first: Sequence[int], second: Sequence[int]) -> float:
    """Return the share of the longer sentence's tokens that both have, each as often as the other; 1.0: both are empty."""
    left, common = list(second), 0
    for token in first:
        if token in left:
            left.remove(token)
            common += 1
    return common / max(len(first), len(second)) if first or second else 1.0


def read_sentences(file: Path) -> list[FirstSentences]:
    """Return what was recorded."""
    decoder = msgspec.json.Decoder(FirstSentences)
    return [decoder.decode(line) for line in file.read_bytes().splitlines()] if file.exists() else []


def run(file: Path, models: Pair, *, ends: float) -> Iterator[FirstSentences]:
    """Record the questions that aren't there yet, the tasks in turns; yield each. ``ends``: time after which none is begun."""
    done = {(each.task, each.question) for each in read_sentences(file)}
    with file.open("ab") as lines:
        for question in questions_in_turns(MIX):
            if (question.task, question.id) in done:
                continue
            if time.monotonic() >= ends:
                return
            common = agreement(*(_first_sentence(engine, question) for engine in (models.draft, models.target)))
            found = FirstSentences(question.task, question.id, round(common, 4))
            lines.write(msgspec.json.encode(found) + b"\n")
            lines.flush()
            yield found


def _first_sentence(engine: LlamaEngine, question: Question) -> list[int]:
    waiting, held = Waiting(), engine.hold()
    prompt = engine.tokenize(engine.apply_template(question.messages), special=True)
    waiting.gather([held.extend(prompt, waiting.wake)])
    ids: list[int] = []
    while len(ids) < min(_LONGEST, question.max_tokens):
        made = [each.token for each in waiting.gather([held.draft(_STEP, waiting.wake, sampling=GREEDY)])[0]]
        for token in made:
            if token is None:
                break
            ids.append(token)
            if ends_sentence(engine.detokenize([token]).decode("utf-8", "replace")):
                break
        if len(made) < _STEP or None in made or len(ids) % _STEP:
            break
    held.close()
    return ids


def sentence_table(sentences: Sequence[FirstSentences]) -> Iterator[str]:
    """Yield the lines of the table, in Markdown, beside the perplexity of the same answers."""
    common = {(each.task, each.question): each.common for each in sentences}
    answers = [each for each in read_answers() if (each.task, each.question) in common]
    shared = np.array([common[each.task, each.question] for each in answers])
    perplexity = np.array([PLAIN["perplexity, 16 tokens"](each) for each in answers])
    scores = {
        "perplexity, 16 tokens": perplexity,
        "agreement with the server's first sentence": shared,
        "the same, then perplexity": shared + 1e-3 * perplexity,
    }
    yield from compare_lines(answers, scores, {"less perplexity's": perplexity})


def main(arguments: Sequence[str] | None = None) -> None:
    """Record, or print what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("file", type=Path, help="of the recordings")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="put the table between the marks of this page")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no question after so many (default: any number)")
    options = parser.parse_args(arguments)
    if options.action == "table":
        show_tables({"gate first sentence": "\n".join(sentence_table(read_sentences(options.file)))}, options.update)
        return
    places = EngineOptions(threads=2, context_tokens=2048, max_sequences=1, held_sequences=2)
    with closing(Pair(*(LlamaEngine(model_file(name, "Q4_0"), places) for name in ("0.5B", "1.5B")))) as models:
        for count, found in enumerate(run(options.file, models, ends=time.monotonic() + 60.0 * options.minutes), 1):
            sys.stderr.write(f"{count}: {found.task} {found.common}\n")
            sys.stderr.flush()


if __name__ == "__main__":
    main()
