"""Synera's quality by budget with a real pair of models (Table 4): record answers, then print tables.

    make models
    python -m bench.papers.synera run DIR --tasks gsm8k humaneval csqa sst2 cnndm xsum --items 100
    python -m bench.papers.synera package DIR      # adds the scores to bench/papers/synera/recorded.jsonl, without texts
    python -m bench.papers.synera table            # of what is packaged, or with DIR of a run

A run takes the tasks in turns and answers one question at a time with every contender, so that a run that is broken off is balanced; it
goes on where it was. Packaged questions are not asked again (``--again`` asks them). The pair is in Q4_0, and not in exact mode: the
contenders' rows share batches, which cost less together. What the contenders do is in ``rules.py``; the simulated times and costs are in
``bench/papers/synera_table4.yaml``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from bench.fetch_models import MODELS
from bench.pairs import model_file
from bench.papers.quality.tables import update_page
from bench.papers.synera.answers import load_models
from bench.papers.synera.defaults import default_lines
from bench.papers.synera.quality import Quality, qualities, with_whole_answers
from bench.papers.synera.recording import read_results, record
from bench.papers.synera.results import Result, add_to_package, read_package
from bench.papers.synera.rules import OURS, RULES, Cell, cells_of
from bench.papers.synera.summary import summary_lines
from bench.tables import format_table, replace_table
from bench.tasks.intervals import Interval

__all__ = ["main"]

TASKS = ("gsm8k", "humaneval", "csqa", "sst2", "cnndm", "xsum")
BUDGETS = (0.2, 0.5)
WRITTEN = tuple(rule for rule in RULES if rule != "answers")  # these are derived from the device's and the server's

CONTEXT = 2048  # tokens


def main(arguments: Sequence[str] | None = None) -> None:
    """Record, or print what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "package", "table"])
    parser.add_argument("folder", type=Path, nargs="?", help="of the recordings")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="put the tables between the marks of this page, and short ones")
    parser.add_argument("--again", action="store_true", help="ask the packaged questions, too")
    parser.add_argument("--exact", action="store_true", help="run the target in exact mode, as a server for lossless answers does")
    parser.add_argument("--format", default="Q4_0", help="of both models (default: %(default)s)")
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--budgets", nargs="*", type=float, default=BUDGETS, help="between 0 and 1, which are always there")
    parser.add_argument("--rules", nargs="*", choices=(*WRITTEN, OURS), default=WRITTEN)
    parser.add_argument("--no-ends", action="store_true", help="not the device and the server alone, which are packaged")
    parser.add_argument("--items", type=int, default=100, help="questions of each task")
    parser.add_argument("--tokens", type=int, default=256, help="of an answer at most (default: %(default)s)")
    parser.add_argument("--draft", default="0.5B", help="model (default: %(default)s)")
    parser.add_argument("--target", default="1.5B", help="model (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no question after so many (default: any number)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line in place of tables")
    options = parser.parse_args(arguments)
    if options.action != "table" and options.folder is None:
        parser.error("expected a folder, got none")
    match options.action:
        case "run":
            _run(options)
        case "package":
            for task in _recorded(options):
                print(f"{task}: {add_to_package(task, read_results(options.folder, task))} questions")
        case "table":
            _show(options)


def _recorded(options: argparse.Namespace) -> list[str]:
    return [task for task in options.tasks if (options.folder / f"{task}.jsonl").exists()]


def _run(options: argparse.Namespace) -> None:
    ends = time.monotonic() + 60.0 * options.minutes
    cells = cells_of(tuple(options.rules), tuple(options.budgets), has_ends=not options.no_ends)
    draft, target = (model_file(kind, options.format if kind in MODELS else None) for kind in (options.draft, options.target))
    models = load_models(draft, target, cells=len(cells), context_tokens=CONTEXT, exact=options.exact)
    packaged = {} if options.again else read_package()
    with closing(models):
        tasks = dict.fromkeys(options.tasks, options.items)
        for task, count in record(options.folder, tasks, cells, models, max_tokens=options.tokens, ends=ends, packaged=packaged):
            sys.stderr.write(f"{task}: {count}\n")
            sys.stderr.flush()


def _show(options: argparse.Namespace) -> None:
    if options.folder is None:
        found = {task: [*questions.values()] for task, questions in read_package().items() if task in options.tasks}
    else:
        found = {task: [*read_results(options.folder, task).values()] for task in _recorded(options)}
    text = "\n".join(_format_task(task, recorded, options) for task, recorded in found.items())
    if options.update:
        page = options.update.read_text(encoding="utf-8")
        page = replace_table(update_page(page, text.strip()), "scores", "\n".join(summary_lines(found, options.budgets)))
        page = replace_table(page, "defaults", "\n".join(default_lines(found, options.budgets)))
        options.update.write_text(page, encoding="utf-8")
    elif text:
        print(text)


def _format_task(task: str, recorded: Sequence[Mapping[str, Result]], options: argparse.Namespace) -> str:
    results = with_whole_answers(recorded, options.budgets)
    answers = [Cell("answers", budget).name for budget in options.budgets]
    found = qualities(results, [*recorded[0], *answers])
    if options.json:
        return "\n".join(json.dumps({"task": task, "questions": len(results), **quality.row()}) for quality in found)
    head = ["", "score", "less the device's", "times the device's", "less confidence's", "server's tokens", "sent"]
    return format_table(f"**{task}**, {len(results)} questions", head, map(_line, found))


def _line(quality: Quality) -> list[str]:
    intervals = [_text(quality.score), _text(quality.gain, "+"), _text(quality.ratio), _text(quality.over_confidence, "+")]
    return [quality.name, *intervals, f"{quality.server_share:.2f}", f"{quality.sent_share:.2f}"]


def _text(interval: Interval | None, sign: str = "") -> str:
    return "" if interval is None else interval.show(sign=sign)


if __name__ == "__main__":
    main()
