"""Drawn worlds in which many devices draft for shared servers, for learning which window is the best (DSD section 4.2).

What ``window_worlds`` can't show is that a window is everybody's: long drafts are read beside one another, so that a window which is good
for one device makes the verdicts of all others slower. Here the servers run the live scheduler over predicted hardware
(``streamco.sim.fleet.kind``), so many requests are always in flight, and all devices draft with the same window.

The pace of such a world is one request's: its rate is all tokens a second over the requests in flight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from bench.data.window_worlds import Pace
from streamco.policies.window import WindowPolicy, WindowState
from streamco.sim.experiment.metrics import Sink
from streamco.sim.experiment.scenario import KINDS, Scenario
from streamco.sim.fleet.kind import KIND, SpeculateOptions

__all__ = ["draw_fleet", "run_fleet", "with_tpot"]

TARGETS = (
    ("llama2-70b", "a100", 4),
    ("llama2-70b", "h100", 4),
    ("llama2-70b", "a6000", 4),
    ("qwen-72b", "h100", 4),
    ("llama2-7b", "a40", 1),
)
BATCHING = ("continuous", "alternating", "length-aware")
REQUESTS = (24, 48)  # least and most; of about a hundred tokens each
BRANCHES = (  # side by side while a verdict is out, and of them those sent ahead; what more of them do is seen in worlds of one device
    {"branches": 0},
    {"branches": 0},
    {"branches": 2},
    {"branches": 2, "ahead": 2},
)


def draw_fleet(seed: int, number: int) -> dict[str, Any]:
    """The nth world of a seed, as an experiment's file would say it."""
    rng = Random(f"crowd {seed}/{number}")

    def scaled(low: float, high: float) -> float:
        return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.3g}")

    model, gpu, share = rng.choice(TARGETS)
    in_flight, rtt_ms = round(scaled(1, 40)), scaled(1, 80)
    least, most = REQUESTS
    return {
        "world": {
            "devices": 2 * in_flight,
            "servers": 1,
            "device_pools": [{"draft_tokens_per_s": scaled(25, 600)}],
            "server_pools": [{"model": model, "gpu": gpu, "tensor_parallel": share}],
            "link": {"rtt_ms": rtt_ms, "jitter_ms": round(rng.uniform(0.0, 0.4) * rtt_ms, 3)},
        },
        "workload": {
            "requests": min(most, max(least, round(1.5 * in_flight))),
            "arrivals": {"closed": in_flight},
            "prompt": round(scaled(20, 1000)),
            "output": {"uniform": [64, 128]},
            "acceptance": {
                "mean": round(rng.uniform(0.4, 0.95), 3),
                "persistence": round(rng.uniform(0.0, 0.6), 3),
                "is_blind": rng.random() < 0.3,
            },
        },
        "policy": {"batching": rng.choice(BATCHING), **rng.choice(BRANCHES)},
    }


def run_fleet(settings: dict[str, Any], execution: str, policy: WindowPolicy | None = None, *, seed: int) -> Pace:
    """One run.

    Args:
        settings: of the world.
        execution: ``distributed``, ``fused`` or ``auto``.
        policy: of all devices.
        seed: of all dice.
    """
    options = msgspec.convert({**settings, "policy": {**settings["policy"], "execution": execution}}, SpeculateOptions)
    if policy is not None:
        options = replace(options, policy=replace(options.policy, window=cast(Any, policy)))  # a file can only name one
    sink = Sink()
    figures = {**KIND.run(options, Scenario(kind="speculate", kind_location=KINDS["speculate"], seed=seed), sink), **sink.metrics()}
    if figures["failed"]:
        raise AssertionError(f"{settings}: expected whole answers, {figures['failed']:g} failed")
    return Pace(figures["tokens_per_s"] / settings["workload"]["arrivals"]["closed"], figures["tpot_mean"])


def with_tpot(seen: Sequence[WindowState], tpot: float) -> list[WindowState]:
    """What a client sees that has heard the server's stream; where devices only draft they never do."""
    return [replace(state, tpot=tpot) for state in seen]
