"""``streamco simulate``: runs an experiment from a file in virtual time, and writes a table, plots and all figures."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from streamco.cli.options import option, whole_number
from streamco.cli.ui.control_characters import print_plain
from streamco.errors import ConfigError

if TYPE_CHECKING:
    from streamco.sim.experiment.experiment import Experiment
    from streamco.sim.experiment.tables import Table

__all__ = ["add_arguments", "run", "showing_progress"]

DESCRIPTION = """\
Runs an experiment in virtual time: devices that draft and servers that verify, or a race between a device and a service. A file says
what is simulated and what is varied (docs/simulate.md). A table is printed; a plot and all figures are kept in a folder. Finished
scenarios stay: the same command continues with the missing ones.
"""
LINE_EVERY = 10.0  # seconds between two progress lines without a terminal
MOST_ROWS = 100  # most rows of a table that are printed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``streamco simulate``."""
    parser.description = DESCRIPTION
    parser.add_argument("experiment", type=Path, metavar="FILE", help="the experiment, YAML")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where results go (results/ and the file's name)")
    parser.add_argument("--quick", action="store_true", help="a first look: one repeat, 50 requests, three values of each setting at most")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of all random draws, instead of the file's")
    parser.add_argument("--jobs", type=option(whole_number), metavar="N", help="processes (all cores)")
    parser.add_argument("--dask", metavar="ADDRESS", help="run on a Dask cluster: its scheduler, tcp://HOST:PORT")
    parser.add_argument("--resume", action="store_true", help="keep what another version of streamco has finished")


def run(args: argparse.Namespace) -> int:
    """Run the experiment; the exit code is 0.

    Raises:
        StreamcoError: the file or a scenario is invalid, or a process died.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # there is one process per core, and sums don't depend on the number of threads
    from streamco.engines.threads import available_cores
    from streamco.sim.experiment.experiment import read_experiment
    from streamco.sim.experiment.plots import check_matplotlib, draw_plots
    from streamco.sim.experiment.result_store import ResultStore, code_digest, name_of
    from streamco.sim.experiment.runner import run_sweep
    from streamco.sim.experiment.tables import summarise, table_of, write_results

    began = time.monotonic()
    experiment = read_experiment(args.experiment, seed=args.seed, is_quick=args.quick)
    if experiment.plots:
        check_matplotlib()
    folder = args.out or Path("results") / f"{args.experiment.stem}{'-quick' if args.quick else ''}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out: expected a folder to write to, got {error}") from error
    print_plain(_headline(experiment), sys.stderr)
    store = ResultStore(folder / "done.jsonl", code=code_digest(experiment.scenarios[0].kind_location), takes_any=args.resume)
    if known := sum(name_of(scenario) in store for scenario in experiment.scenarios):
        print_plain(f"{known} of them were finished before", sys.stderr)
    try:
        with showing_progress(sys.stderr) as progress:
            run_sweep(experiment.scenarios, store, jobs=args.jobs or available_cores(), dask=args.dask, progress=progress)
    except KeyboardInterrupt:
        print_plain(f"interrupted; finished scenarios are kept in {folder}: the same command continues from there", sys.stderr)
        raise
    write_results(folder / "results.json", experiment, store)
    points = summarise(experiment, store)
    if len(points) <= MOST_ROWS:
        _print_table(table_of(experiment, points), sys.stdout)
    else:
        print_plain(f"{len(points)} points are too many for a table: they are in results.json", sys.stderr)
    for path in [*draw_plots(experiment, points, folder), folder / "results.json"]:
        print_plain(path)
    print_plain(f"{len(experiment.scenarios)} scenarios in {time.monotonic() - began:.1f} s", sys.stderr)
    return 0


def _headline(experiment: Experiment) -> str:
    points, repeats = len(experiment.points), experiment.file.repeats
    many = f"{points} point{'s' if points > 1 else ''}"
    total = f", {repeats} repeats of each: {points * repeats} scenarios" if repeats > 1 else ""
    return f"{experiment.file.name}\n{experiment.describe()}\n{many}{total}"


@contextmanager
def showing_progress(err: TextIO) -> Iterator[Callable[[int, int], None]]:
    """Show progress inside the block, as a bar on a terminal with rich, or as a line now and then. Yields a function of (done, total)."""
    if err.isatty():
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        except ModuleNotFoundError:
            pass
        else:
            parts = (
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("scenarios,"),
                TimeElapsedColumn(),
                TextColumn("and"),
                TimeRemainingColumn(),
            )
            with Progress(*parts, TextColumn("to go"), console=Console(file=err), transient=True) as bar:
                task = bar.add_task("simulating", total=None)
                yield lambda done, total: bar.update(task, completed=done, total=total)
            return
    began = said = time.monotonic()

    def print_line(done: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        if done == total or now - said >= LINE_EVERY:
            said = now
            print_plain(f"{done} of {total} scenarios, {now - began:.0f} s", err)

    yield print_line


def _print_table(table: Table, out: TextIO) -> None:
    from streamco.sim.experiment.tables import format_table

    room = shutil.get_terminal_size().columns if out.isatty() else None
    print_plain(f"\n{format_table(table, room)}\n", out)
