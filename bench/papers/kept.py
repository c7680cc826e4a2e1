"""Keep the results of experiments, most of them simulated, and make the tables of the pages of them.

    python -m bench.papers.kept run dsd_table2 window_regret     # and keeps the figures as bench/results/papers/NAME.json
    python -m bench.papers.kept pages [--check]                  # makes the marked tables of docs/research

A run goes on where it was broken off, and simulates nothing twice. As with benches, it keeps none of a tree with changes. A table that is
computed without a simulation is made with the pages. A table of a page stands between ``<!-- NAME: begin -->`` and
``<!-- NAME: end -->``. A test runs ``pages --check``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.checkout import commit, is_same_code, machine
from bench.papers.disco_correlation import correlation_lines, correlation_rows
from bench.papers.disco_live import FIGURES as TTFT_FIGURES
from bench.papers.disco_live import cost_lines, cost_rows, move_lines, move_rows, ttft_lines
from bench.papers.disco_loading import loading_lines, loading_rows
from bench.papers.disco_planned import PLANNED_TABLES, Planned, planned_rows
from bench.papers.dsd import drafting
from bench.papers.dsd import tables as paper_tables
from bench.papers.hat import FIGURES as SPLIT_FIGURES
from bench.papers.hat import batches
from bench.papers.hat import lines_of as split_lines
from bench.papers.hat import tables_of as split_tables
from bench.papers.prediction import choice_lines, prediction_lines, prediction_rows
from bench.papers.synera.costs import FIGURES as COST_FIGURES
from bench.papers.synera.costs import HEAD as COST_HEAD
from bench.papers.synera.costs import tables_of as costs_of
from bench.papers.window_inputs import input_lines, input_rows, make_worlds
from bench.papers.window_regret import PARTS, compare
from bench.tables import means_of, replace_table, table_lines
from streamco.cli.main import main as streamco

__all__ = ["COMPUTED", "KEPT", "ROWS", "RUNS", "TABLES", "Cell", "Results", "Table", "about", "compact", "load", "main"]

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "bench" / "results" / "papers"
REGRET = "window_regret"  # policies in worlds that the learned window hasn't seen
CODE = (  # what a run depends on
    "streamco",
    *(f"bench/{name}" for name in ("papers", "tasks", "data", "counted/dispatch.py")),
    *(f"bench/{name}.py" for name in ("checkout", "tables", "traces", "fetch_models")),
)
DIGITS = 6  # significant ones that are kept

Results = Mapping[str, Any]
"""The content of a ``results.json`` or of a kept file: both have ``scenarios`` with ``point``, ``seed`` and ``system``."""


class Cell(NamedTuple):
    """A figure in a table's cells: its name in the results, what it is called, factor to the table's unit, and digits after the point."""

    name: str
    label: str
    factor: float = 1.0
    digits: int = 1

    def show(self, value: float) -> str:
        """Return the figure as text, with three significant digits from 100 on."""
        value *= self.factor
        return f"{value:,.{self.digits}f}" if abs(value) < 100 else f"{float(f'{value:.3g}'):,.0f}"


class Table(NamedTuple):
    """A marked table of a page.

    Args:
        page: name of the page in docs/research, without its ending.
        figures: names of the figures that are kept of its runs.
        lines: makes its lines of the results.
        cells: a sentence on what stands in its cells; "": its head says it.
        kept: name of the kept file, if an earlier table shows the same file and names its source; "": the table's own name.
    """

    page: str
    figures: Sequence[str]
    lines: Callable[[Results], Iterable[str]]
    cells: str = ""
    kept: str = ""


def crossed(results: Results, column: str, cells: Sequence[Cell], *, corner: str = "") -> Iterator[str]:
    """Yield a table in which columns are the values of one setting and lines those of the others; a cell has all figures."""
    found = [means_of(results["scenarios"], column, cell.name) for cell in cells]
    places = [*dict.fromkeys(place for line in found[0].values() for place in line)]

    def text(case: tuple[Any, ...], place: Any) -> str:
        return " / ".join(cell.show(by[case][place]) for cell, by in zip(cells, found, strict=True) if place in by[case])

    rows = ([", ".join(map(str, case)), *(text(case, place) for place in places)] for case in found[0])
    yield from table_lines([corner, *map(str, places)], rows)


def costs(results: Results) -> Iterator[str]:
    """Yield Synera's table of contenders, in each cell a figure for each trace."""
    by_trace = costs_of(results["scenarios"])
    traces = " / ".join(name.removesuffix("_qwen") for name in by_trace)
    rows = (
        [contender[0][0], *map(" / ".join, zip(*(line[1:] for line in contender), strict=True))]
        for contender in zip(*by_trace.values(), strict=True)
    )
    yield from table_lines([f"contender ({traces})", *COST_HEAD[1:]], rows)


def regrets(results: Results) -> Iterator[str]:
    """Yield the table of window policies: mean, median and 5th percentile, with windows alone and with the mode switch."""
    figures = ("mean", "median", "5th")
    rows = results["rows"]
    modes, groups, policies = (dict.fromkeys(row[name] for row in rows) for name in ("mode", "among", "policy"))
    by = {(row["mode"], row["among"], row["policy"]): row for row in rows}
    yield from table_lines(
        ["", *(f"{mode}: {figure}" for mode in modes for figure in figures)],
        (
            line
            for among in groups
            for line in (
                [f"*{among}*", *[""] * len(figures) * len(modes)],
                *([policy, *(f"{by[mode, among, policy][figure]:.3f}" for mode in modes for figure in figures)] for policy in policies),
            )
        ),
    )


def windows_by_costs(results: Results) -> Iterator[str]:
    """Yield milliseconds a token of each window, and the rate over the best fixed one's, by the target's row costs and trace."""
    found = means_of(results["scenarios"], "window", "tpot_mean")
    best = {case: min(seconds for window, seconds in each.items() if window.startswith("fixed")) for case, each in found.items()}
    yield from table_lines(
        ["window", *(": ".join(case) for case in found)],
        (
            [window, *(f"{1000 * each[window]:.1f} ({best[case] / each[window]:.2f})" for case, each in found.items())]
            for window in next(iter(found.values()))
        ),
    )


def of_split(name: str) -> Table:
    """Return HAT's tables of an experiment, or those of a live split."""
    return Table("hat", SPLIT_FIGURES[name], lambda results: split_lines(split_tables(name, results["scenarios"])))


def of_plans(name: str) -> Table:
    """Return a table of DiSCo's plans; all are of one run."""
    kept = "" if name == "disco_planned" else "disco_planned"
    return Table("disco", (), lambda results: PLANNED_TABLES[name](Planned.of(results)), kept=kept)


def crossing(page: str, column: str, corner: str, *cells: Cell) -> Table:
    """Return a table by ``crossed``."""
    sentence = f"In each cell: {' / '.join(cell.label for cell in cells)}."
    return Table(page, [cell.name for cell in cells], lambda results: crossed(results, column, cells, corner=corner), sentence)


RATE, PACE = Cell("throughput", "requests answered a second"), Cell("tpot_mean", "milliseconds a token", 1000.0)
FIRST, VERDICT = (
    Cell("ttft_mean", "milliseconds to the first token", 1000.0, 0),
    Cell("verdict_mean", "milliseconds until a verdict", 1000.0, 0),
)
ALONE = Cell("by_server_alone", "share of the tokens by the server's stream", 1.0, 2)
TABLES: Mapping[str, Table] = {
    "dsd_table2": Table(
        "dsd",
        ("finished", "ttft_mean", "tpot_mean", "window_mean", "acceptance", "by_server_alone", "device_wait"),
        lambda results: [*paper_tables(results), *drafting(results)],
    ),
    "dsd_table2_warm": crossing("dsd", "window", "", PACE, FIRST, Cell("finished", "answers a second"), ALONE),
    "dsd_figure5": crossing("dsd", "workload.trace", "routing, batching, window", RATE, PACE, FIRST),
    "dsd_figure6": crossing("dsd", "who writes", "round trip [ms]", PACE),
    "dsd_figure7": crossing("dsd", "policy.routing", "drafters", RATE, PACE),
    "dsd_figure9": crossing("dsd", "policy.batching", "trace, drafters", RATE, PACE),
    "synera_table4": Table("synera", COST_FIGURES, costs),
    "synera_figure13": crossing("synera", "what is sent", "Mbit/s", PACE),
    "synera_figure14": Table("synera", COST_FIGURES, costs),
    "synera_figure15": crossing("synera", "policy.budget", "requests that arrive a second; by budget", VERDICT, RATE),
    "row_costs": Table(
        "windows", ("tpot_mean",), windows_by_costs, "In each cell: milliseconds a token, and the best fixed window's over it."
    ),
    REGRET: Table("windows", (), regrets),
    "window_inputs": Table("windows", (), input_lines),
    "disco_correlation": Table("disco", (), correlation_lines),
    "disco_loading": Table("disco", (), loading_lines),
    "disco_ttft": Table("disco", TTFT_FIGURES, ttft_lines),
    "disco_cost": Table("disco", (), cost_lines),
    "disco_moves": Table("disco", (), move_lines),
    "disco_prediction": Table("disco", (), prediction_lines),
    "disco_prediction_choices": Table("disco", (), choice_lines, kept="disco_prediction"),
    **{name: of_plans(name) for name in PLANNED_TABLES},
    **{name: of_split(name) for name in SPLIT_FIGURES},
}
"""The tables of kept results, by the name of their marks."""
RUNS = tuple(name for name, table in TABLES.items() if not table.kept)
"""The experiments whose results are kept, by the name of their file."""
COMPUTED: Mapping[str, tuple[str, str, Callable[[], Iterable[str]]]] = {
    "hat_batches": ("hat", "python -m bench.papers.hat batches", lambda: split_lines(batches())),
}
"""Tables without results: page, command and lines, by the name of their marks."""


def compact(results: Results, figures: Sequence[str], head: Mapping[str, Any]) -> str:
    """Return the kept file's text: a head, and a line for each scenario."""
    about = {**head, **{name: results[name] for name in ("name", "seed", "repeats", "settings", "sweep")}}
    lines = (
        json.dumps(
            {
                "point": each["point"],
                "seed": each["seed"],
                "system": {name: float(f"{each['system'][name]:.{DIGITS}g}") for name in figures if name in each["system"]},
            }
        )
        for each in results["scenarios"]
    )
    opening = json.dumps(about, indent=1).removesuffix("\n}")
    return f'{opening},\n "scenarios": [\n' + ",\n".join(lines) + "\n]}\n"


def load(name: str, folder: Path = KEPT) -> Results:
    """Return the kept results of this experiment."""
    found: Results = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return found


def about(name: str, results: Results) -> str:
    """Return what a table is made of, in a sentence."""
    if "rows" in results:
        where = f"{results['machine']}; " if "machine" in results else ""
        return f"`python -m bench.papers.kept run {name}`; {where}{results['date']}, commit {results['commit']}."
    seeds = f"{results['repeats']} seeds" if results["repeats"] > 1 else "one seed"
    source = f"{results['date']}, commit {results['commit']}"
    return f"`python -m bench.papers.kept run {name}`: {len(results['scenarios']):,} runs, {seeds}; {source}."


def run(name: str, jobs: int) -> None:
    """Run an experiment and keep its figures."""
    at = commit()
    head = {"commit": at, "date": dt.datetime.now(tz=dt.UTC).date().isoformat(), **({"machine": machine()} if name in TIMED else {})}
    text = _rows_text(head, ROWS[name](jobs)) if name in ROWS else _scenarios_text(name, head, jobs)
    if not is_same_code(at, commit(), code=CODE):
        raise SystemExit(f"{name}: expected the code of {at} to stay while it ran, got {commit()}")
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{name}.json").write_text(text, encoding="utf-8")


def _scenarios_text(name: str, head: Mapping[str, Any], jobs: int) -> str:
    folder = ROOT / "results" / name
    if streamco(["simulate", str(ROOT / "bench" / "papers" / f"{name}.yaml"), "--out", str(folder), "--jobs", str(jobs)]):
        raise SystemExit(f"{name}: expected a whole run, got a part of it: run it again, and it goes on")
    return compact(json.loads((folder / "results.json").read_bytes()), TABLES[name].figures, head)


def _rows_text(head: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> str:
    opening = json.dumps(head, indent=1).removesuffix("\n}")
    return f'{opening},\n "rows": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]}\n"


def _regret_rows(jobs: int) -> Iterable[Mapping[str, Any]]:
    return compare(make_worlds(jobs, every=PARTS), jobs)


ROWS: Mapping[str, Callable[[int], Iterable[Mapping[str, Any]]]] = {
    REGRET: _regret_rows,
    "disco_correlation": correlation_rows,
    "disco_cost": cost_rows,
    "disco_loading": loading_rows,
    "disco_moves": move_rows,
    "disco_planned": planned_rows,
    "disco_prediction": prediction_rows,
    "window_inputs": input_rows,
}
"""Functions from a number of processes to the rows of those kept results that are no scenarios of a file."""
TIMED = frozenset({"disco_loading"})
"""Results that depend on the machine, which must do nothing else."""
APART = TIMED | {"disco_prediction", "window_inputs"}
"""Results that are kept only by name: timed ones, and those that need scikit-learn and XGBoost, or PyTorch."""


def pages() -> Mapping[Path, str]:
    """Return the pages with the tables of the kept results."""
    found: dict[Path, str] = {}
    for page, name, text in _texts():
        path = ROOT / "docs" / "research" / f"{page}.md"
        found[path] = replace_table(found.get(path) or path.read_text(encoding="utf-8"), name, text)
    return found


def _texts() -> Iterator[tuple[str, str, str]]:
    """Yield each table's page, the name of its marks, and what stands between them."""
    for name, table in TABLES.items():
        kept = table.kept or name
        if (KEPT / f"{kept}.json").exists():
            results = load(kept)
            source = " ".join(filter(None, (table.cells, "" if table.kept else about(kept, results))))
            yield table.page, name, "\n".join((source, "", *table.lines(results)))
    for name, (page, command, lines) in COMPUTED.items():
        yield page, name, "\n".join((f"`{command}`.", "", *lines()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Keep runs, or make or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="what", required=True)
    runs = parts.add_parser("run", help="run experiments and keep the figures")
    runs.add_argument(
        "names", nargs="*", choices=[[], *RUNS], metavar="NAME", help=f"of {', '.join(RUNS)} (default: all but {', '.join(sorted(APART))})"
    )
    runs.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default: %(default)s)")
    made = parts.add_parser("pages", help="make the marked tables of docs/research")
    made.add_argument("--check", action="store_true", help="write nothing, and fail if a page is not of the kept results")
    options = parser.parse_args(arguments)
    if options.what == "run":
        for name in options.names or [each for each in RUNS if each not in APART]:
            run(name, options.jobs)
        return 0
    old = [path for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    if options.check:
        print(*(f"{path.relative_to(ROOT)}: expected the tables of the kept results" for path in old), sep="\n", end="\n" if old else "")
        return 1 if old else 0
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
