"""Makes what the window network learns from: how fast every window is in many drawn worlds, and what a policy would have seen (DSD 4.2).

    python -m bench.data.window_data --out /tmp/windows.jsonl --worlds 2500
    python -m bench.data.window_data --out /tmp/fleets.jsonl --worlds 150 --fleets

Each world is run with each window of 2 to 12, never fused, and once fused throughout. There the server alone counts; for what is seen then,
a client runs with a policy that always proposes fused mode. ``bench.data.window_rows`` makes labels of it.

One JSON line a world, keyed by its number. What is there is kept: begun again, it goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import asdict, replace

from bench.data.window_fleets import draw_fleet, run_fleet, with_tpot
from bench.data.window_worlds import Pace, WindowWorld, draw_world, run_fused, run_policy
from streamco.errors import ConfigError
from streamco.policies.learned_window import MIN_DRAFT
from streamco.policies.window import DEFAULT, SMOOTHING, WindowState

__all__ = ["FIELDS", "FUSED", "WINDOWS", "Watching", "check_world", "examine", "examine_fleet", "make", "settings_of"]

FUSED = 0.0  # tokens: half-way to the smallest window is 1, below which a policy's proposal means fused mode
WINDOWS = tuple(range(2, 13))
FIELDS = ("previous", "acceptance", "queue_depth", "rtt", "tpot", "draft_step", "wait", "hit_rate", "slowdown")
ROWS = 8  # of each run
NICE = 19  # a long run gives way to everything else


class Watching:
    """A policy that always says the same, and keeps what it was shown.

    Args:
        proposal: tokens.
        first: of the first round.
    """

    name = "watching"

    def __init__(self, proposal: float, first: int) -> None:
        self.first = first
        self.seen: list[WindowState] = []
        self._proposal = proposal

    def propose(self, state: WindowState) -> float:
        """What it always says."""
        self.seen.append(state)
        return self._proposal


def examine(seed: int, number: int) -> dict[str, object]:
    """A world's line: how fast fused mode and each window are, and rows of what was seen, each behind the window it was seen under."""
    world, rng = draw_world(seed, number), Random(f"rows {seed}/{number}")
    paces, rows = [run_fused(world)], []
    for window in WINDOWS:
        policy = Watching(window, window)
        paces.append(run_policy(world, policy, is_adaptive=False)[0])
        rows += _rows(window, policy.seen, rng)
    policy = Watching(FUSED, DEFAULT)
    run_policy(world, policy, is_adaptive=True, smoothing=SMOOTHING, min_window=MIN_DRAFT)
    rows += _rows(0, policy.seen, rng)
    return {"seed": seed, "number": number, "world": settings_of(world), "paces": [_figures(pace) for pace in paces], "rows": rows}


def examine_fleet(seed: int, number: int) -> dict[str, object]:
    """The same of a world with many devices."""
    settings, rng = draw_fleet(seed, number), Random(f"rows {seed}/{number}")
    fused = run_fleet(settings, "fused", seed=number)
    paces, rows = [fused], []
    for window in WINDOWS:
        policy = Watching(window, window)
        paces.append(run_fleet(settings, "distributed", policy, seed=number))
        rows += _rows(window, with_tpot(policy.seen, fused.tpot), rng)
    policy = Watching(FUSED, DEFAULT)
    run_fleet(settings, "auto", policy, seed=number)
    rows += _rows(0, [replace(state, previous=max(MIN_DRAFT, state.previous)) for state in policy.seen], rng)
    return {"seed": seed, "number": number, "world": settings, "paces": [_figures(pace) for pace in paces], "rows": rows}


def _figures(pace: Pace) -> list[float]:
    return [float(f"{pace.rate:.5g}"), float(f"{pace.tpot:.5g}")]


def _rows(window: int, seen: Sequence[WindowState], rng: Random) -> list[list[float]]:
    chosen = sorted(rng.sample(range(len(seen)), min(ROWS, len(seen))))
    return [[window, *(float(f"{getattr(seen[place], name):.4g}") for name in FIELDS)] for place in chosen]


def settings_of(world: WindowWorld) -> dict[str, object]:
    """A world of one device, as its line has it."""
    return {name: value for name, value in asdict(world).items() if name != "seed"}


def _kept(out: Path, seed: int, *, is_fleet: bool) -> set[int]:
    """The worlds that are there; what was cut in the middle of a line is taken off.

    Raises:
        ConfigError: they are another seed's, or drawn by another version of this program.
    """
    if not out.exists():
        return set()
    text = out.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        out.write_bytes(whole)
    lines = [json.loads(line) for line in whole.splitlines()]
    others = {line["seed"] for line in lines} - {seed}
    if others:
        raise ConfigError(f"window data: {out}: expected worlds of seed {seed}, got seed {others.pop()}")
    if lines:
        number = lines[0]["number"]
        check_world(lines[0], draw_fleet(seed, number) if is_fleet else settings_of(draw_world(seed, number)), str(out))
    return {line["number"] for line in lines}


def check_world(line: Mapping[str, Any], settings: Mapping[str, Any], where: str) -> None:
    """Whether a line's world is the one that is drawn today, of these settings.

    Raises:
        ConfigError: it isn't.
    """
    if line["world"] != settings:
        raise ConfigError(f"window data: {where}: expected worlds as they are drawn now, got those of another version: make them again")


def make(
    out: Path, *, seed: int, worlds: int, every: int = 1, is_fleet: bool = False, workers: int, minutes: float = float("inf")
) -> Iterator[int]:
    """Append the lines that are missing, of the worlds whose number ``every`` divides; gives each world's number."""
    until = time.monotonic() + 60.0 * minutes
    kept, look = _kept(out, seed, is_fleet=is_fleet), examine_fleet if is_fleet else examine
    missing = (number for number in range(0, worlds, every) if number not in kept)
    with out.open("a") as file, ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=partial(os.nice, NICE)) as pool:
        running = {pool.submit(look, seed, number) for number in islice(missing, 2 * workers)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for each in done:
                line = each.result()
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
                yield int(str(line["number"]))
            file.flush()
            if time.monotonic() < until:
                running |= {pool.submit(look, seed, number) for number in islice(missing, len(done))}


def main() -> int:
    """Make the lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--worlds", type=int, default=2500)
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="only worlds whose number N divides; 6: those to compare policies in"
    )
    parser.add_argument("--fleets", action="store_true", help="of many devices each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no world is begun")
    options = parser.parse_args()
    made = make(
        options.out,
        seed=options.seed,
        worlds=options.worlds,
        every=options.every,
        is_fleet=options.fleets,
        workers=options.workers,
        minutes=options.minutes,
    )
    count = sum(1 for _ in made)
    print(f"{count} worlds added to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
