"""DiSCo's evaluation again: which side has the first token sooner, and what that rests on.

    python -m bench.papers.disco plot          # Figure 6, docs/research/disco_ttft.png, from the kept results (needs matplotlib)
    python -m bench.papers.disco planning      # Figure 9: time to make a plan
    python -m bench.papers.disco speed         # of the simulator itself
    python -m bench.papers.disco lengths       # the table in streamco.sim.race.lengths; needs the recorded data ($STREAMCO_DATA)

``--quick`` takes fewer of everything. ``bench.papers.kept`` has the tables of docs/research/disco.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.counted.dispatch import bench_planning
from bench.counted.worlds import recorded_lengths
from bench.papers.disco_planned import plot_planned
from bench.papers.kept import load
from bench.report import emit
from bench.tables import show_table
from streamco.sim.experiment.scenario import KINDS, Scenario
from streamco.sim.race.kind import RaceRun
from streamco.sim.race.lengths import SHARES
from streamco.sim.race.options import RaceOptions, RacePolicy

__all__ = ["main"]

SEED = 7
FIGURE = Path("docs/research/disco_ttft.png")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts: Mapping[str, Callable[[argparse.Namespace], None]] = {
        "plot": lambda options: plot_planned(options.to, load("disco_planned")),
        "planning": lambda options: emit(bench_planning(5 if options.quick else 15), json_lines=False),
        "speed": show_speed,
        "lengths": show_lengths,
    }
    parser.add_argument("part", choices=parts)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and requests")
    parser.add_argument("--to", type=Path, default=FIGURE, help="plot: the picture's file (default: %(default)s)")
    options = parser.parse_args(arguments)
    parts[options.part](options)
    return 0


# The simulator


def show_speed(options: argparse.Namespace) -> None:
    requests = 300 if options.quick else 2000
    rows = []
    for name, policy in (
        ("disco, device-constrained", RacePolicy(constrained="device", dispatch="disco")),
        ("disco, server-constrained", RacePolicy(constrained="server", dispatch="disco")),
        ("stochastic, device-constrained", RacePolicy(constrained="device", dispatch="stochastic")),
        ("optimal, device-constrained", RacePolicy(constrained="device", dispatch="optimal")),
        ("with migration, device-constrained", RacePolicy(constrained="device", migration="pre-copy", budget=1.0)),
        ("with pace", RacePolicy(constrained="device", pace="reading")),
    ):
        one = RaceRun(RaceOptions(policy=policy), Scenario(kind="race", kind_location=KINDS["race"], seed=SEED))
        draws = [one.draw(f"request {number}") for number in range(requests)]
        events, began = 0, time.perf_counter()
        for draw in draws:
            events += next(one.client.run(draw).session._env._eid)  # how many were scheduled
        seconds = time.perf_counter() - began
        rows.append([name, f"{1000.0 * seconds / requests:.3f}", f"{events / requests:.1f}", f"{events / seconds:,.0f}"])
    show_table("One process", ("policy", "ms a request", "events a request", "events/s"), rows)


def show_lengths(_: argparse.Namespace) -> None:
    pairs = [pair for half in recorded_lengths() for pair in half]
    for name, lengths in zip(("prompts", "answers"), zip(*pairs, strict=True), strict=True):
        print(name, tuple(round(value) for value in np.quantile(lengths, SHARES).tolist()))


if __name__ == "__main__":
    sys.exit(main())
