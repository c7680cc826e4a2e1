"""Inputs and losses of the network that chooses the window, compared in worlds that it has not seen (DSD sections 4.1 and 4.3).

    pip install ".[train]"
    python -m bench.papers.kept run window_inputs       # makes the worlds that are missing, then trains; an hour on two cores

Each choice of inputs and each loss has three networks that began differently. A sixth of the worlds is used for comparing; another sixth is
left for ``bench.papers.window_regret``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.data.window_data import make
from bench.data.window_rows import CHOICES
from bench.tables import table_lines
from streamco.sim.experiment.result_store import code_digest

__all__ = ["input_lines", "input_rows", "make_worlds"]

WORLDS, FLEETS, SEED, NETWORKS = 2000, 48, 1, 3
LOSSES = {"l1": "distance (the paper's)", "regret": "cost"}
SPREAD = 0.002  # of a regret, half the range over the networks, above which the table shows it
DATA = Path(__file__).resolve().parents[2] / "results" / "windows"


def make_worlds(workers: int, *, every: int = 1, is_fleet: bool = False) -> Path:
    """Return the file of today's worlds, after making those that it lacks.

    Args:
        workers: processes.
        every: only worlds whose number this divides.
        is_fleet: worlds of many devices each.
    """
    module, worlds = ("bench.data.window_fleets", FLEETS) if is_fleet else ("bench.data.window_worlds", WORLDS)
    path = DATA / f"{module.rpartition('.')[2]}-{code_digest(module)}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in make(path, seed=SEED, worlds=worlds, every=every, is_fleet=is_fleet, workers=workers):
        print(f"{path.name}: world {number} of {worlds}", file=sys.stderr)
    return path


def input_rows(workers: int) -> Iterable[Mapping[str, Any]]:
    """Return, for each choice of inputs and each loss, the errors of its networks; needs PyTorch."""
    compare = import_module("bench.data.train_window").compare
    files = [make_worlds(workers), make_worlds(workers, is_fleet=True)]
    return [*compare(files, networks=NETWORKS)]


def input_lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each choice of inputs and each loss."""
    lines = []
    for row in results["rows"]:
        shown = [f"{100 * row[name]:.1f} %" + _spread(row[f"{name}_spread"]) for name in ("regret", "without_fused")]
        name = f"{row['inputs']}: {len(CHOICES[row['inputs']])}"
        lines.append([name, LOSSES[row["loss"]], f"{row['error']:.1f}", f"{100 * row['wrong']:.0f} %", *shown])
    head = ["inputs and their number", "loss", "error [tokens]", "wrong preferences", "regret", "without fused mode"]
    yield from table_lines(head, lines)


def _spread(half_range: float) -> str:
    return f" ± {100 * half_range:.1f}" if half_range > SPREAD else ""
