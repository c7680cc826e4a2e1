"""A kind of world for tests of experiments: no simulation, figures that follow from the options.

As a program it is ``streamco`` with this kind: ``python -m tests.sim.toy_kind simulate toy.yaml``.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from streamco.cli.main import main
from streamco.errors import ConfigError
from streamco.sim.experiment.metrics import Metric, RequestRow, Sink
from streamco.sim.experiment.scenario import KINDS, Named, Scenario

__all__ = ["BROKEN", "DYING", "INTERRUPTED", "KIND", "LOOKED_UP", "LOCATION"]

LOCATION = "tests.sim.toy_kind:KIND"
LOOKED_UP: list[str] = []  # traces, in order


class ToyLink(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rtt_ms: Annotated[float, Meta(ge=0)] = 10.0
    trace: str | None = None


class ToyPool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    share: float
    model: str = "small"


class ToyWorld(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    devices: int = 1
    link: ToyLink = ToyLink()
    pools: tuple[ToyPool, ...] = ()

    def __post_init__(self) -> None:
        if self.devices > 1000:
            raise ConfigError(f"devices: expected 1000 at most, got {self.devices}")


class ToyWorkload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    requests: int = 4


class ToyPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    window: int | Literal["dynamic", "adaptive"] = 4
    fails: bool = False
    hangs: bool = False


class ToyOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    world: ToyWorld
    workload: ToyWorkload = ToyWorkload()
    policy: ToyPolicy = ToyPolicy()


def look_up(trace: str) -> None:
    LOOKED_UP.append(trace)
    if trace == "nowhere":
        raise ConfigError(f"trace: expected a file that is there, got {trace}")


class ToyKind:
    options = ToyOptions
    metrics: Mapping[str, Metric] = {"waiting": Metric("time that requests wait", "s", "lower")}
    columns = ("throughput", "ttft_mean", "waiting")

    def describe(self, options: Any) -> str:
        return f"{options.world.devices} devices, {options.workload.requests} requests"

    def names(self, options: Any, scenario: Scenario) -> Iterator[Named]:
        for number, pool in enumerate(options.world.pools):
            yield Named(("world", "pools", number), pool.model, partial(look_up, pool.model))
        if options.world.link.trace is not None:
            yield Named(("world", "link", "trace"), options.world.link.trace, partial(look_up, options.world.link.trace))

    def run(self, options: Any, scenario: Scenario, sink: Sink) -> Mapping[str, float]:
        rng = random.Random(f"{scenario.seed} toy")
        if options.policy.fails:
            raise ConfigError(f"toy: expected luck, got none with seed {scenario.seed}")
        if options.policy.hangs:
            time.sleep(600)
        window = 6 if options.policy.window == "dynamic" else options.policy.window
        slow = options.world.link.rtt_ms / 1e3
        for number in reversed(range(options.workload.requests)):
            ttft = slow + rng.random() / 100
            seconds = ttft + 10 * (0.02 + slow / window)
            sink(RequestRow(number=number, arrival=0.1 * number, tokens=11, prompt_tokens=7, seconds=seconds, ttft=ttft, tpot=slow / 10))
        return {"waiting": slow / 3}


class BrokenKind(ToyKind):
    def run(self, options: Any, scenario: Scenario, sink: Sink) -> Mapping[str, float]:
        return {"undeclared": 1.0}


class DyingKind(ToyKind):
    def run(self, options: Any, scenario: Scenario, sink: Sink) -> Mapping[str, float]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a process doesn't outlive SIGKILL")


class InterruptedKind(ToyKind):
    def run(self, options: Any, scenario: Scenario, sink: Sink) -> Mapping[str, float]:
        os.kill(os.getpid(), signal.SIGINT)
        return super().run(options, scenario, sink)


KIND = ToyKind()
BROKEN = BrokenKind()
DYING = DyingKind()
INTERRUPTED = InterruptedKind()

if __name__ == "__main__":
    KINDS["toy"] = LOCATION
    sys.exit(main())
