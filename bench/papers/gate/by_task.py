"""What do signals tell within one task, and would it pay to move an answer when the device doubts two of its sentences in a row?

What was recorded of the device's own answers says when the rule would move one. The gain is the server's score less the device's, as if the
server could have written all of the answer: a bound that a move in mid-answer can't exceed. A rule that tells anything moves answers with a
higher gain than the others have. ``python -m bench.papers.gate.by_task --update PAGE`` puts the tables between the marks of a page.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.papers.gate.recording import Answer, read_answers
from bench.papers.gate.routing import measure
from bench.papers.gate.signals import PLAIN
from bench.tables import show_tables

__all__ = ["apgr_table", "doubted_at", "main", "moves_table"]

SIGNALS = ("perplexity, 16 tokens", "worst sentence, whole answer", "prompt length")
TASKS = ("gsm8k", "humaneval", "cnndm", "xsum")
THRESHOLDS = (0.7, 0.8, 0.9)
_LEAST = 1e-4  # a probability that was rounded to 0


def doubted_at(answer: Answer, threshold: float) -> int | None:
    """Return after how many tokens two sentences in a row had a lower mean probability (geometric) than the threshold; None: none had."""
    logs = np.log(np.maximum(answer.chosen, _LEAST))
    doubtful = 0
    for start, end in zip((0, *answer.sentences), answer.sentences, strict=False):
        if end == start:
            continue
        doubtful = doubtful + 1 if np.exp(np.mean(logs[start:end])) < threshold else 0
        if doubtful == 2:
            return end
    return None


def apgr_table(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield the lines of the table of APGR within each task, in Markdown, and of its mean over them."""
    tasks = sorted({each.task for each in answers})
    chosen = {task: [each for each in answers if each.task == task] for task in tasks}
    yield f"| | {' | '.join(f'{task} ({len(chosen[task])})' for task in tasks)} | mean |"
    yield f"|---|{'---|' * len(tasks)}---|"
    for name in SIGNALS:
        found = []
        for task in tasks:
            gains = np.array([each.server - each.device for each in chosen[task]])
            found.append(measure(np.array([PLAIN[name](each) for each in chosen[task]]), gains).apgr)
        yield f"| {name} | {' | '.join(each.show(2) for each in found)} | {np.mean([each.value for each in found]):.2f} |"


def moves_table(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield the lines of the table of moves, in Markdown."""
    yield "| task (answers) | sentences below | moved | after so much of the answer | gain of those | of the others |"
    yield "|---|--:|--:|--:|--:|--:|"
    for task in TASKS:
        chosen = [each for each in answers if each.task == task]
        gains = np.array([each.server - each.device for each in chosen])
        for threshold in THRESHOLDS:
            ends = [doubted_at(each, threshold) for each in chosen]
            moved = np.array([end is not None for end in ends])
            where = [end / len(each.chosen) for end, each in zip(ends, chosen, strict=True) if end is not None]
            cells = [f"{moved.mean():.2f}", f"{np.median(where):.2f}" if where else "-"]
            cells += [f"{gains[part].mean():+.2f}" if part.any() else "-" for part in (moved, ~moved)]
            yield f"| {task} ({len(chosen)}) | {threshold} | {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or put it on a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", type=Path, metavar="PAGE", help="put the tables between the marks of this page")
    options = parser.parse_args(arguments)
    tables = {"gate by task": "\n".join(apgr_table(read_answers())), "gate doubts": "\n".join(moves_table(read_answers()))}
    show_tables(tables, options.update)


if __name__ == "__main__":
    main()
