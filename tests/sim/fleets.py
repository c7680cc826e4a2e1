"""Small worlds for tests."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import simpy

from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.prior import EstimatesPrior
from streamco.core.verifier.options import SchedulerOptions
from streamco.policies.serving.routing import routing_policy
from streamco.policies.window import Static
from streamco.profiles.row_costs import RowCosts
from streamco.sim.driver import call_at
from streamco.sim.fleet.fleet import AnswerOutcome, DeviceModel, Execution, Fleet, FleetDevice
from streamco.sim.fleet.recorded_answer import END
from streamco.sim.fleet.target_server import PassLimits, TargetServer
from streamco.sim.hardware.links import ConstantLink
from streamco.sim.workload.workload import SimulatedRequest

STEP, DRAFT_STEP, RTT = 0.05, 0.01, 0.04
OPEN = SchedulerOptions(
    kv_tokens=1 << 20, places=1000, context_tokens=1 << 16, prefill_within=float("inf"), late_stretch=1e9, draft_stretch=float("inf")
)


def flat(rows: int, tokens: int, context: int, sequences: int) -> float:
    return STEP


def requests(count: int, *, gap: float = 0.5, tokens: int = 20, acceptance: float = 1.0, seed: int = 1) -> list[SimulatedRequest]:
    rng = Random(seed)
    return [
        SimulatedRequest(
            number=number,
            arrival=number * gap,
            prompt_tokens=30,
            output_tokens=tokens,
            accepted=bytes(rng.random() < acceptance for _ in range(tokens)),
        )
        for number in range(count)
    ]


class SmallFleet:
    """A fleet that is run to its end."""

    def __init__(
        self,
        requested: Sequence[SimulatedRequest],
        *,
        devices: int = 4,
        servers: int = 1,
        execution: Execution = "distributed",
        window: int = 4,
        branches: int = 0,
        siblings: int = 0,
        ahead: int = 0,
        options: SchedulerOptions = OPEN,
        until: float = 1e6,
    ) -> None:
        self.env = simpy.Environment()
        self.outcomes: list[AnswerOutcome] = []
        limits = PassLimits(row_costs=RowCosts({1: STEP, 32: STEP}) if siblings else None)
        self.servers = [TargetServer(self.env, flat, options, limits=limits) for _ in range(servers)]
        prior = EstimatesPrior(step_times=(DRAFT_STEP,) * 6)
        model = DeviceModel(name="device", step_times=prior.step_times, seconds_per_token=0.001, token_joules=2.0, prompt_joules=0.5)
        self.devices = [
            FleetDevice(
                number,
                model,
                ConstantLink(RTT),
                SpeculationEstimates(window=Static(window), prior=prior),
                rtt=RTT if siblings else None,
            )
            for number in range(devices)
        ]
        self.fleet = Fleet(
            self.env,
            devices=self.devices,
            servers=self.servers,
            routing=routing_policy("join-shortest-queue"),
            execution=execution,
            options=SpeculationMachineOptions(
                end_ids=frozenset({END}),
                has_remote=execution != "distributed",
                is_adaptive=execution != "distributed",
                is_parallel=branches > 0,
                max_branches=branches,
                max_ahead=ahead,
                max_siblings=siblings,
            ),
            rng=Random(1),
            on_outcome=self.outcomes.append,
        )
        for request in requested:
            call_at(self.env, request.arrival, lambda request=request: self.fleet.take(request))  # type: ignore[misc]
        while len(self.outcomes) < len(requested) and self.env.peek() < until:
            self.env.step()
