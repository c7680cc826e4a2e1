"""A kind of world for tests of experiments: no simulation, figures that follow from the options."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from streamco.errors import ConfigError
from streamco.sim.figures import Figure, RequestRow, Sink
from streamco.sim.scenario import Scenario

__all__ = ["KIND", "PLACE", "BrokenKind", "ToyKind"]

PLACE = "tests.sim.toys:KIND"


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


class ToyOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    world: ToyWorld
    workload: ToyWorkload = ToyWorkload()
    policy: ToyPolicy = ToyPolicy()


class ToyKind:
    options = ToyOptions
    figures: Mapping[str, Figure] = {"waiting": Figure("time that requests wait", "s", "lower")}
    columns = ("throughput", "ttft_mean", "waiting")

    def describe(self, options: Any) -> str:
        return f"{options.world.devices} devices, {options.workload.requests} requests"

    def run(self, options: Any, scenario: Scenario, sink: Sink) -> Mapping[str, float]:
        dice = random.Random(f"{scenario.seed} toy")
        if options.policy.fails:
            raise ConfigError(f"toy: expected luck, got none with seed {scenario.seed}")
        window = 6 if options.policy.window == "dynamic" else options.policy.window
        slow = options.world.link.rtt_ms / 1e3
        for number in reversed(range(options.workload.requests)):
            ttft = slow + dice.random() / 100
            seconds = ttft + 10 * (0.02 + slow / window)
            sink(RequestRow(number=number, arrival=0.1 * number, tokens=11, prompt_tokens=7, seconds=seconds, ttft=ttft, tpot=slow / 10))
        return {"waiting": slow / 3}


class BrokenKind(ToyKind):
    def run(self, options: Any, scenario: Scenario, sink: Sink) -> Mapping[str, float]:
        return {"undeclared": 1.0}


KIND = ToyKind()
BROKEN = BrokenKind()
