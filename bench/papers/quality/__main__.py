"""Is an answer that changes models as good as the models (DiSCo 5.3, Figures 8, 10, 11, equation 7)?

    python -m bench.papers.quality run FOLDER [--tasks gsm8k ...] [--items 100]    # hours; may be stopped at any time, and goes on later
    python -m bench.papers.quality package FOLDER                                  # adds their scores to recorded.jsonl, without texts
    python -m bench.papers.quality table [--json] [--update docs/research/quality.md]       # the table, in Markdown
    python -m bench.papers.quality plot FILE.png                                   # the same as a picture
    python -m bench.papers.quality profile                                         # qualities by model, for MigrationOptions

``run`` needs the models of ``make models`` and the recorded data ($STREAMCO_DATA). It takes the questions in one order, all tasks in turns,
so whatever is there at a moment is balanced. Several processes may run on different tasks. A packaged question is not asked again, unless
likelihoods are to be measured and one is missing; an empty answer has none. ``table``, ``plot`` and ``profile`` read the package, or with
``--folder`` the answers themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.papers.quality.equation import MEASURES
from bench.papers.quality.measured import Questions, add_to_package, is_packaged, measured, read_package
from bench.papers.quality.tables import plot_cells, show_cells, show_profile
from bench.tasks import load_questions
from bench.tasks.records import AnswerFile, read_answers

__all__ = ["main"]

BLOCK = 20  # questions of each task that are answered together


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    run = parts.add_parser("run", help="write the answers that are missing")
    run.add_argument("folder", type=Path)
    run.add_argument("--tasks", nargs="+", choices=[*MEASURES], default=[*MEASURES])
    run.add_argument("--items", type=int, default=100, help="questions of each task")
    run.add_argument(
        "--block", type=int, default=BLOCK, metavar="N", help="questions of each task at a time; 4 for long prompts (default: %(default)s)"
    )
    run.add_argument("--own", action="store_true", help="write the models' own answers only; a later run adds the moved ones")
    run.add_argument("--likelihoods", type=int, default=100, metavar="N", help="measure the likelihood of answers to the first N of Alpaca")
    run.add_argument("--again", action="store_true", help="ask the packaged questions, too")
    package = parts.add_parser("package", help="add the scores to those that the repository has")
    package.add_argument("folder", type=Path)
    table = parts.add_parser("table", help="print the table")
    table.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    table.add_argument("--update", type=Path, help="replace the tables between the marks of this page")
    plot = parts.add_parser("plot", help="draw the table")
    plot.add_argument("picture", type=Path)
    profile = parts.add_parser("profile", help="print each model's quality as TOML")
    for part in (table, plot, profile):
        part.add_argument("--folder", type=Path, help="answers of `run` (default: what is packaged)")
    options = parser.parse_args(arguments)
    match options.part:
        case "run":
            asyncio.run(run_tasks(options, {} if options.again else read_package()))
        case "package":
            print(f"{add_to_package(measured(read_answers(options.folder)))} questions")
        case "table":
            show_cells(_questions(options.folder), json_lines=options.json, page=options.update)
        case "plot":
            plot_cells(_questions(options.folder), options.picture)
        case "profile":
            show_profile(_questions(options.folder))
    return 0


def _questions(folder: Path | None) -> Questions:
    return read_package() if folder is None else measured(read_answers(folder))


async def run_tasks(options: argparse.Namespace, packaged: Questions) -> None:
    """Write the missing answers to the first questions of the tasks, those left out that are packaged.

    Raises:
        SystemExit: the models or the data are missing, or another process writes one of the tasks.
    """
    from bench.papers.quality.writing import MODELS, Writer, write_block  # noqa: PLC0415  # the tables need no engine

    count, block = options.items, options.block
    questions = {task: load_questions(task, count) for task in options.tasks}
    with ExitStack() as stack:
        files = {task: stack.enter_context(AnswerFile(options.folder / f"{task}.jsonl")) for task in options.tasks}
        writers = {}
        for name in MODELS:
            writers[name] = Writer.load(name)
            stack.callback(writers[name].engine.close)
        began = time.monotonic()
        for start in range(0, count, block):
            measures = start < options.likelihoods
            together = [
                (question, files[task])
                for task in options.tasks
                for question in questions[task][start : start + block]
                if not is_packaged(packaged, task, question.id, measures=measures)
            ]
            written = await write_block(writers, together, measures=measures, moves=not options.own)
            seconds = time.monotonic() - began
            print(f"questions up to {min(start + block, count)} of {count}: {written} answers written, {seconds:.0f} s so far", flush=True)


if __name__ == "__main__":
    sys.exit(main())
