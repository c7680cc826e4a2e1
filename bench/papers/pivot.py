"""One figure of an experiment's results as a table in Markdown.

    python -m bench.papers.pivot results/dsd_figure7 policy.routing throughput

Columns are the values of one swept setting, lines those of all others; a mean over the seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.runs import figure as show_figure
from bench.tables import means_of, show_table

__all__ = ["pivot"]


def pivot(scenarios: Sequence[Mapping[str, Any]], column: str, figure: str) -> tuple[list[str], list[list[str]]]:
    """The head and the lines, both in the order of the file.

    Raises:
        KeyError: there is no such setting or figure.
    """
    found = means_of(scenarios, column, figure)
    columns = dict.fromkeys(place for places in found.values() for place in places)
    names = [name for name in scenarios[0]["point"] if name != column]
    lines = [
        [*map(str, case), *(show_figure(places[place]) if place in places else "" for place in columns)] for case, places in found.items()
    ]
    return [*names, *map(str, columns)], lines


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="of the results")
    parser.add_argument("column", help="the swept setting whose values are columns")
    parser.add_argument("figure", nargs="+", help="as results.json names it: throughput, tpot_mean, ...")
    options = parser.parse_args()
    results = json.loads((options.folder / "results.json").read_bytes())
    for figure in options.figure:
        try:
            head, lines = pivot(results["scenarios"], options.column, figure)
        except KeyError as error:
            settings, figures = ", ".join(results["sweep"]), ", ".join(results["scenarios"][0]["system"])
            parser.error(f"expected one of the settings ({settings}) and figures ({figures}), got {error.args[0]}")
        unit = results["figures"].get(figure, {}).get("unit", "")
        show_table(f"{results['name']} {figure}{f' [{unit}]' if unit else ''}, {results['repeats']} seeds", head, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
