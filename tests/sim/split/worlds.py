"""Small worlds of a split model: times that a person can add up."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from random import Random
from typing import Any

import simpy

from streamco.policies.serving.batching import BatchPolicy, Mixed
from streamco.profiles.row_costs import RowCosts
from streamco.sim.experiment.scenario import KINDS, Outcome, Scenario, run_scenario
from streamco.sim.split.options import LinkRange, SplitDevicePool, SplitPolicyOptions
from streamco.sim.split.split_answer import SimulatedSplitAnswer, SplitAnswerOutcome
from streamco.sim.split.split_device import SimulatedSplitDevice, VaryingLink
from streamco.sim.split.split_server import SimulatedSplitServer
from streamco.sim.workload.workload import SimulatedRequest

POOL = SplitDevicePool(count=1, input_ms=4.0, head_ms=1.0, draft_ms=0.5, heads_ms=3.0, row_ms=0.1, branch_share=0.1)
LINK = LinkRange(rtt_ms=10.0, up_mb_s=(8.0, 8.0), down_mb_s=(16.0, 16.0))
STATE = 8000  # bytes

WORLD: dict[str, Any] = {
    "device_pools": [{"count": 6, "input_ms": 4.0, "head_ms": 1.0, "draft_ms": 0.5, "heads_ms": 3.0, "row_ms": 0.1, "paces": [1.0, 2.0]}],
    "server": {"row_costs_ms": [[1, 20.0], [64, 24.0], [2048, 280.0]], "stages": 2},
}
WORKLOAD: dict[str, Any] = {
    "requests": 24,
    "arrivals": {"poisson_per_s": 4.0},
    "prompt": {"uniform": [20, 400]},
    "output": {"uniform": [5, 40]},
    "acceptance": {"mean": 0.6},
}


def batch_seconds(rows: int, context: int, sessions: int) -> float:
    return 0.020 + 0.0001 * rows


def request(
    *, prompt: int = 100, tokens: int = 6, accepted: str = "", confidences: tuple[float, ...] = (), ranks: str = "", number: int = 0
) -> Any:
    """An answer; positions that ``accepted`` doesn't name are accepted, and ranks that aren't named are 0."""
    return SimulatedRequest(
        number=number,
        arrival=0.0,
        prompt_tokens=prompt,
        output_tokens=tokens,
        accepted=bytes(map(int, accepted.ljust(tokens, "1"))),
        confidences=confidences,
        ranks=bytes(map(int, ranks.ljust(tokens, "0"))),
        device=0,
    )


class SmallSplit:
    """One device and a server, run to the end of its answers."""

    def __init__(
        self, *, batching: BatchPolicy | None = None, stages: int = 1, is_shared: bool = True, pool: SplitDevicePool = POOL
    ) -> None:
        self.env = simpy.Environment()
        self.batches: list[int] = []
        costs = RowCosts({rows: batch_seconds(rows, 0, 1) for rows in (1, 64, 2048)})
        self.server = SimulatedSplitServer(
            self.env,
            batch_seconds,
            costs,
            batching or Mixed(room=1 << 20),
            stages=stages,
            on_batch=lambda rows, seconds: self.batches.append(rows),
        )
        self.device = SimulatedSplitDevice(0, pool, VaryingLink(LINK, Random(1)), pace_requests=5, is_shared=is_shared, rng=Random(1))
        self.outcomes: list[SplitAnswerOutcome] = []

    def run(self, *requests: SimulatedRequest, **policy: Any) -> list[SplitAnswerOutcome]:
        for each in requests:
            answer = SimulatedSplitAnswer(
                self.env,
                self.device,
                self.server,
                each,
                SplitPolicyOptions(**policy),
                state_bytes=STATE,
                seed=1,
                on_outcome=self.outcomes.append,
            )
            answer.start()
        self.env.run()
        return self.outcomes


def run(*, seed: int = 1, rows: bool = False, world: Mapping[str, Any] = {}, workload: Mapping[str, Any] = {}, **policy: Any) -> Outcome:
    """Run the small experiment with changes."""
    scenario = Scenario(
        kind="split",
        kind_location=KINDS["split"],
        seed=seed,
        requests=rows,
        world={**copy.deepcopy(WORLD), **world},
        workload={**WORKLOAD, **workload},
        policy=policy,
    )
    return run_scenario(scenario)
