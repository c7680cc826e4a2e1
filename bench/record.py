"""Keep a run of benches: ``python -m bench.record [--quick] [--as NAME] [name ...] [-- option ...]``, or ``--page``.

A run is kept as bench/results/NAME.jsonl and takes the place of the one before; git shows what changed. ``python -m bench.page`` then makes
docs/benchmarks.md of all kept runs. Options after ``--`` are the bench's own, and the file names them. ``--as`` keeps one bench's run
with other options beside its usual one.

``--page`` runs each bench of docs/benchmarks.md with the options of its kept run, so that the whole page is of one state of the code and
one kind of machine: hours on a machine that does nothing else. A run stays if it was kept on such a machine, and if neither streamco nor
its benches have changed since its commit. So the command may be stopped and started again, and results may be committed in between.

Results must be of a commit that others can check out, so it records none of a tree with changes, and none of a commit that the branch
upstream doesn't have.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.__main__ import BENCHES, module_of
from bench.checkout import commit, is_same_code, machine
from bench.page import QUESTIONS
from bench.report import Row
from bench.runs import RUNS, load, save

__all__ = ["keep", "main", "run", "split_options", "wanted_for_page"]

HERE = Path(__file__).resolve().parent


def run(name: str, *options: str) -> list[Row]:
    """One bench's rows."""
    command = [sys.executable, "-m", module_of(name), "--json", *options]
    done = subprocess.run(command, cwd=HERE.parent, check=True, stdout=subprocess.PIPE, text=True)
    return [Row(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]


def keep(name: str, rows: Sequence[Row], *, options: Sequence[str] = (), at: str, bench: str | None = None, folder: Path = RUNS) -> None:
    """Write the file of a run.

    Args:
        name: the file's name.
        rows: the rows.
        options: the bench's own options.
        at: the commit that the run is of.
        bench: the bench's name; None: the file's.
        folder: where runs are kept.
    """
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    save(name, rows, {"bench": bench or name, "machine": machine(), "date": today, "commit": at, "options": list(options)}, folder)


def wanted_for_page(at: str, folder: Path = RUNS) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return the runs that the page shows and that are not of this code and kind of machine: file, bench, options.

    Args:
        at: the commit.
        folder: where runs are kept.
    """
    shown = dict.fromkeys(name for question in QUESTIONS for name in question().runs)
    heads = {name: load(name, folder).head for name in shown}
    here = machine()
    return [
        (name, head["bench"], tuple(head["options"]))
        for name, head in heads.items()
        if head["machine"] != here or not is_same_code(head["commit"], at)
    ]


def split_options(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the words before ``--``, which are this command's, and those after it, which are the bench's."""
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end + 1 :]


def main() -> None:
    """Run the benches, and keep each run as soon as it is whole."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="these benches (default: all)")
    parser.add_argument("--quick", action="store_true", help="pass --quick to each bench")
    parser.add_argument("--page", action="store_true", help="run what docs/benchmarks.md shows, as it was run before")
    parser.add_argument("--as", dest="kept_as", metavar="NAME", help="keep the run of one bench under another name")
    words, options = split_options(sys.argv[1:])
    args = parser.parse_args(words)
    if args.kept_as and len(args.names) != 1:
        parser.error(f"--as: expected one bench beside it, got {len(args.names)}")
    if args.page and (args.names or options or args.quick):
        parser.error("--page: expected no bench and no option beside it")
    options = (*(["--quick"] if args.quick else []), *options)
    at = commit()
    asked = [(args.kept_as or name, name, options) for name in args.names or BENCHES]
    for kept_as, name, chosen in wanted_for_page(at) if args.page else asked:
        print(f"== {name} {' '.join(chosen)}", file=sys.stderr)
        rows = run(name, *chosen)
        if not is_same_code(at, commit()):
            raise SystemExit(f"{name}: expected the code of {at} to stay while the bench ran, got {commit()}")
        keep(kept_as, rows, options=chosen, at=at, bench=name)


if __name__ == "__main__":
    main()
