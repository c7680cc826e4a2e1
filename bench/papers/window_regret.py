"""What window policies lose against the best window, in worlds that the network has not seen (DSD section 5.2).

    python -m bench.data.window_data --out /tmp/windows.jsonl --worlds 2000 --every 6
    python -m bench.papers.window_regret /tmp/windows.jsonl

A policy's tokens a second, over those of the best window of the same world and text, found by trying all: an oracle that stays with one
window from the first token to the last. It is above 1 where a policy does better by changing. *Windows alone*: no client falls back to the
remote stream, and the best of 2 to 12 counts. *With the mode switch*: as the client runs, and fused mode throughout is one of the choices.
Worlds with a number divisible by 6 are used, which ``bench.data.train_window`` does not read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from bench.data.window_data import NICE, check_world, settings_of
from bench.data.window_worlds import draw_world, run_policy
from streamco.policies.learned_window import MIN_DRAFT, Adaptive
from streamco.policies.mode_switch import Predicted
from streamco.policies.window import SMOOTHING, Confident, Dynamic, Static, WindowPolicy

__all__ = ["CONTENDERS", "PARTS", "compare", "main"]

PARTS = 6
CONTENDERS: Mapping[str, Callable[[], WindowPolicy]] = {
    "static 4": Static,
    "dynamic": Dynamic,
    "predicted": Predicted,
    "confident": Confident,
    "adaptive": Adaptive,
    "adaptive, not smoothed": Adaptive,
    "adaptive, mode smoothed": Adaptive,
}
MODES = {"windows alone": False, "with the mode switch": True}


def share(line: str) -> tuple[bool, dict[str, float]]:
    """Of a world: whether fused mode is the best there, and each contender's rate over the best one's, by mode and name."""
    entry = json.loads(line)
    world = draw_world(entry["seed"], entry["number"])
    check_world(entry, settings_of(world), "the file that was given")
    fused, windows = entry["paces"][0][0], max(rate for rate, _ in entry["paces"][1:])
    found = {}
    for mode, is_adaptive in MODES.items():
        best = max(fused, windows) if is_adaptive else windows
        for name, make in CONTENDERS.items():
            policy = Adaptive(may_fuse=is_adaptive) if name.startswith("adaptive") else make()
            is_learned = isinstance(policy, Adaptive)
            smoothing = SMOOTHING if name in {"adaptive", "adaptive, mode smoothed"} else 1.0
            pace, _ = run_policy(
                world,
                policy,
                is_adaptive=is_adaptive,
                smoothing=smoothing,
                min_window=MIN_DRAFT if is_learned else 1,
                smooths_mode=name.endswith("mode smoothed"),
            )
            found[f"{mode}/{name}"] = pace.rate / best
    return fused > windows, found


def table(found: Sequence[tuple[bool, dict[str, float]]]) -> list[dict[str, object]]:
    """Mean, median and 5th percentile, over all worlds and over those where drafting is the best."""
    rows: list[dict[str, object]] = []
    for key in found[0][1]:
        mode, name = key.split("/")
        for among in ("all worlds", "worlds to draft in"):
            values = np.array([shares[key] for is_fused, shares in found if among == "all worlds" or not is_fused])
            median, low = np.percentile(values, [50, 5])
            rows.append(
                {
                    "mode": mode,
                    "among": f"{among} ({len(values)})",
                    "policy": name,
                    "mean": round(float(values.mean()), 4),
                    "median": round(float(median), 4),
                    "5th": round(float(low), 4),
                }
            )
    return sorted(rows, key=lambda row: (str(row["mode"]), str(row["among"])))


def compare(data: Path, workers: int, most: int | None = None) -> list[dict[str, object]]:
    """Return the table of the worlds in a file that are unseen, of at most so many."""
    lines = [line for line in data.read_text().splitlines() if json.loads(line)["number"] % PARTS == 0]
    lines = sorted(lines, key=lambda line: int(json.loads(line)["number"]))[:most]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=partial(os.nice, NICE)) as pool:
        return table(list(pool.map(share, lines, chunksize=2)))


def main() -> int:
    """Print the table, or with --json its rows as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path, help="what bench.data.window_data has made")
    parser.add_argument("--most", type=int, help="worlds; left out: all that are unseen")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for row in compare(options.data, options.workers, options.most):
        if options.json:
            print(json.dumps(row))
        else:
            figures = "  ".join(f"{name} {row[name]:.3f}" for name in ("mean", "median", "5th"))
            print(f"{row['mode']:22} {row['among']:26} {row['policy']:24} {figures}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
