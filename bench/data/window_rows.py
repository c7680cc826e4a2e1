"""What a network of windows may be shown, what is right there, and how well it does: rows of what was seen, with what each window costs.

The paper's five inputs are two shares, two times and the window before. Times say nothing by themselves: a world in which all of them are
twice as long has the same best window. So they are tried as logarithms of what they are in steps of the target, too.

The objective is a mean of seconds: half what a token takes with everything counted (throughput), half what it takes from one to the next
(TPOT). It is smoothed over windows, by the quadratic that fits a window and the two on either side best, for a run of some hundred tokens
is still a draw. Right is the smallest window within 0.5 % of the best; and fused mode, if it is within 0.5 % of that too: because it needs
no work of the device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.data.window_data import FIELDS, FUSED, WINDOWS
from streamco.policies.learned_window import INPUTS

__all__ = ["CHOICES", "Columns", "Floats", "Rows", "score", "smooth", "table_of"]

Floats = NDArray[np.float64]
Columns = Mapping[str, Floats]  # of what was seen, by field
NEAR = 0.005  # of an objective, within which two are the same
LEAST = 1e-3  # steps of the target; a link can't be felt below


def _steps(seconds: Floats, columns: Columns) -> Floats:
    return np.log(np.maximum(seconds / columns["tpot"], LEAST))


CANDIDATES: Mapping[str, Callable[[Columns], Floats]] = {
    "queue_depth": lambda seen: seen["queue_depth"],
    "acceptance": lambda seen: seen["acceptance"],
    "previous": lambda seen: seen["previous"],
    "rtt": lambda seen: np.log(np.maximum(seen["rtt"], 1e-4)),
    "tpot": lambda seen: np.log(seen["tpot"]),
    "rtt_steps": lambda seen: _steps(seen["rtt"], seen),
    "wait_steps": lambda seen: _steps(seen["wait"], seen),
    "draft_steps": lambda seen: _steps(seen["draft_step"], seen),
    "hit_rate": lambda seen: seen["hit_rate"],
    "slowdown": lambda seen: np.log(seen["slowdown"]),
}
SHARES = ("queue_depth", "acceptance")
CHOICES: Mapping[str, tuple[str, ...]] = {
    "the paper's five": (*SHARES, "rtt", "tpot", "previous"),
    "its times in steps": (*SHARES, "rtt_steps", "previous"),
    "and the draft step": (*SHARES, "rtt_steps", "draft_steps", "previous"),
    "and the hit rate": (*SHARES, "rtt_steps", "draft_steps", "hit_rate", "previous"),
    "the wait instead of the RTT": (*SHARES, "wait_steps", "draft_steps", "hit_rate", "previous"),
    "the wait and the RTT": (*SHARES, "rtt_steps", "wait_steps", "draft_steps", "hit_rate", "previous"),
    "all of them, and the slowdown": (*SHARES, "rtt_steps", "wait_steps", "draft_steps", "hit_rate", "slowdown", "previous"),
    "these without the RTT": INPUTS,
}


@dataclass(frozen=True, slots=True)
class Rows:
    """What was seen, and what would have been right.

    Args:
        seen: by field, shape (rows,).
        verdicts: what is right, 0 where that is fused mode; shape (rows,).
        windows: what is right where nobody can go on alone; shape (rows,).
        costs: of fused mode and of each window, as times of the best; shape (rows, 12).
        worlds: each row's world, by number; shape (rows,).
    """

    seen: Columns
    verdicts: Floats
    windows: Floats
    costs: Floats
    worlds: Floats

    def where(self, chosen: NDArray[np.bool_]) -> Rows:
        """Some of them."""
        seen = {name: each[chosen] for name, each in self.seen.items()}
        return Rows(seen, self.verdicts[chosen], self.windows[chosen], self.costs[chosen], self.worlds[chosen])

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Rows:
        """From what ``bench.data.window_data`` has made."""
        rows, right, costs, numbers = [], [], [], []
        for path in paths:
            for world in sorted(map(json.loads, path.read_bytes().splitlines()), key=lambda each: int(each["number"])):
                fused, *windows = (0.5 / rate + 0.5 * tpot for rate, tpot in world["paces"])
                smoothed = smooth(np.array(windows))
                whole = np.array([fused, *smoothed])
                count = len(world["rows"])
                rows += [row[1:] for row in world["rows"]]
                right += [best_of(smoothed, fused)] * count
                costs += [whole / whole.min()] * count
                numbers += [world["number"]] * count
        verdicts, best = np.array(right).T
        return cls(dict(zip(FIELDS, np.array(rows).T, strict=True)), verdicts, best, np.array(costs), np.array(numbers))


def smooth(costs: Floats) -> Floats:
    """Each as the quadratic says that fits the five nearest windows best; near the ends those are the outermost five."""
    smoothed = np.empty_like(costs)
    for row in range(len(costs)):
        first = min(max(0, row - 2), len(costs) - 5)
        near = np.arange(first, first + 5)
        smoothed[row] = np.polyval(np.polyfit(near - row, costs[near], 2), 0.0)
    return smoothed


def best_of(costs: Floats, fused: float) -> tuple[float, float]:
    """What is right, 0 where that is fused mode; and the best window."""
    best = float(costs.min()) * (1.0 + NEAR)
    window = float(WINDOWS[int(np.argmax(costs <= best))])
    return FUSED if fused <= best else window, window


def table_of(inputs: Sequence[str], rows: Rows) -> Floats:
    """Of shape (rows, inputs)."""
    return np.stack([CANDIDATES[name](rows.seen) for name in inputs], axis=1)


def score(predicted: Floats, rows: Rows) -> tuple[float, float, float, float]:
    """How good what a network says is: a verdict and a window each, shape (rows, 2).

    Returns:
        mean error of the window; share of wrong verdicts; mean regret of both together, and of the window alone where nobody can go on
        alone: by how much what is said costs more than what is best.
    """
    every = np.arange(len(predicted))
    places = (np.clip(np.floor(predicted[:, 1] + 0.5), WINDOWS[0], WINDOWS[-1]) - 1).astype(int)
    is_fused = predicted[:, 0] <= 1.0
    regrets = rows.costs[every, np.where(is_fused, 0, places)] - 1.0
    alone = rows.costs[every, places] / rows.costs[:, 1:].min(axis=1) - 1.0
    error = np.abs(np.clip(predicted[:, 1], WINDOWS[0], WINDOWS[-1]) - rows.windows)
    return float(error.mean()), float((is_fused != (rows.verdicts == FUSED)).mean()), float(regrets.mean()), float(alone.mean())
