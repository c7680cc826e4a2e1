"""One split answer, two drivers: asyncio and SimPy command the same rows at the same times, whatever is rejected or lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, cast

import numpy as np
import pytest
import simpy

from streamco.core.split.events import (
    AnswerEnded,
    CloseSession,
    ComputeRows,
    OpenSession,
    RowsAdded,
    RowsComputed,
    SendRows,
    SessionLost,
    SessionReady,
    SplitCommand,
    SplitEvent,
    StatesArrived,
    Truncated,
)
from streamco.core.split.machine import SplitMachine
from streamco.endpoints.split.base import AnswerEngine, DeepStates, LinkEvent, SplitLink
from streamco.endpoints.split.driver import SplitDriver
from streamco.engines.base import GenerationRequest
from streamco.engines.split.answer import AnswerOwner, SplitGeneration
from streamco.engines.split.tally import SplitTraffic
from streamco.policies.chunking import PromptPlan
from streamco.sim.driver import call_at
from streamco.sim.split.driver import SimulatedSplit
from streamco.testing.virtual_clock import run_in_virtual_time
from tests.contract.test_speculation_drivers import LoopTime

Log = list[tuple[float, SplitEvent | None, list[SplitCommand]]]
STATES = np.zeros((0, 1), np.float32)


class Scenario:
    """A random prompt, drafts and their verdicts, times of device, link and server, and sessions that are lost."""

    def __init__(self, seed: int) -> None:
        rng = Random(seed)
        self.seed = seed
        self.prompt = rng.randint(1, 60)
        self.tokens = rng.randint(1, 30)
        self.chunk, self.unanswered = rng.randint(1, 20), rng.randint(1, 5)
        self.most_drafts = rng.choice([0, 4])
        self.has_layer = rng.random() < 0.5
        self.rtt = rng.uniform(0.001, 0.1)
        self.loses = rng.choice([0.0, 0.1])
        self.fails_to_open = rng.choice([0.0, 0.2])

    def plan(self, rows: int, computed: int) -> PromptPlan:
        return PromptPlan(min(self.chunk, rows) if computed < rows else rows, self.unanswered)

    def machine(self) -> SplitMachine:
        return SplitMachine(plan=self.plan, max_rows=32)


class Device:
    """The parts on the device, in any clock that has timeouts."""

    def __init__(self, env: Any, scenario: Scenario, tell: Callable[[SplitEvent], None]) -> None:
        self._env, self._scenario, self._tell = env, scenario, tell
        self._rng = Random(f"device {scenario.seed}")
        self._rows, self._made, self._drafts, self._free = scenario.prompt, 0, 0, 0.0

    def begin(self) -> None:
        self._work(1, lambda: self._tell(RowsAdded(self._rows, 1)))

    def compute(self, command: ComputeRows) -> None:
        self._work(command.stop - command.start, lambda: self._tell(RowsComputed(command.stop)))

    def read(self, _event: StatesArrived) -> None:
        self._work(1 + self._drafts, self._conclude)

    def _work(self, rows: int, done: Callable[[], None]) -> None:
        self._free = max(self._env.now, self._free) + rows * self._rng.uniform(0.001, 0.01)
        call_at(self._env, self._free - self._env.now, done)

    def _conclude(self) -> None:
        accepted = self._rng.randint(0, self._drafts)
        self._made += 1 + accepted
        if self._made >= self._scenario.tokens:
            self._tell(AnswerEnded())
            return
        if accepted < self._drafts:
            self._rows -= self._drafts - accepted
            self._tell(Truncated(self._rows))
        self._drafts = self._rng.randint(0, self._scenario.most_drafts)
        self._work(1 + self._drafts, self._add)

    def _add(self) -> None:
        self._rows += 1 + self._drafts
        if self._scenario.has_layer:
            self._tell(RowsComputed(self._rows))
        self._tell(RowsAdded(self._rows, 1 + self._drafts))


class Server:
    """An answer's session at a server that loses sessions."""

    def __init__(self, env: Any, scenario: Scenario, tell: Callable[[SplitEvent], None]) -> None:
        self._env, self._scenario, self._tell = env, scenario, tell
        self._rng = Random(f"server {scenario.seed}")
        self._attempt, self._held, self._free = -1, 0, 0.0
        self.is_closed = False

    def open(self, command: OpenSession) -> None:
        self._attempt = command.attempt
        self._held = self._held if command.may_resume else 0
        event = SessionReady(command.attempt, self._held)
        if self._rng.random() < self._scenario.fails_to_open:
            self._later(self._scenario.rtt, SessionLost(command.attempt, may_resume=False))
        else:
            self._later(self._scenario.rtt, event)

    def send(self, command: SendRows) -> None:
        assert command.attempt == self._attempt
        assert command.start <= self._held, "no gap"
        self._held = command.stop
        rows = command.stop - command.start
        self._free = max(self._env.now + self._scenario.rtt / 2, self._free) + rows * self._rng.uniform(0.001, 0.01)
        delay = self._free + self._scenario.rtt / 2 - self._env.now
        if self._rng.random() < self._scenario.loses:
            self._later(delay, SessionLost(command.attempt, may_resume=self._rng.random() < 0.5))
        else:
            self._later(delay, StatesArrived(command.attempt))

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True

    def _later(self, delay: float, event: SessionReady | SessionLost | StatesArrived) -> None:
        def tell() -> None:
            if event.attempt == self._attempt and not self.is_closed:
                if isinstance(event, SessionLost):
                    self._attempt = -1  # what was on its way is lost, too
                self._tell(event)

        call_at(self._env, delay, tell)


class Session(Server):
    """The session as a driver on asyncio has it."""

    traffic = SplitTraffic()

    def send(self, command: SendRows, states: Any = None) -> None:
        assert len(states) == command.stop - command.start
        super().send(command)


class Link:
    """The link as a driver on asyncio has it."""

    max_rows, max_positions, round_trip = 32, 1000, 0.0

    def __init__(self, env: Any, scenario: Scenario) -> None:
        self._env, self._scenario = env, scenario
        self.sessions: list[Session] = []

    def plan(self, rows: int, *, computed: int = 0, input_costs: object = None) -> PromptPlan:
        return self._scenario.plan(rows, computed)

    def row_seconds(self, rows: int) -> float:
        return 0.0

    def session(self, emit: Callable[[LinkEvent], None], reserve: int) -> Session:
        def tell(event: SplitEvent) -> None:
            assert isinstance(event, SessionReady | SessionLost | StatesArrived)
            emit(DeepStates(event.attempt, STATES) if isinstance(event, StatesArrived) else event)

        self.sessions.append(Session(self._env, self._scenario, tell))
        return self.sessions[-1]


class Engine:
    """The engine as a driver on asyncio has it, on the same clock instead of a thread."""

    input_costs = None
    most_tokens = 1000

    def __init__(self, env: Any, scenario: Scenario) -> None:
        self._env, self._scenario = env, scenario
        self.losses = 0

    def submit(self, request: GenerationRequest, wake: Callable[[], None], owner: AnswerOwner | None = None) -> Any:
        assert owner is not None
        owner.generation = cast(SplitGeneration, self)
        self._device = Device(self._env, self._scenario, owner.tell)
        self._device.begin()
        return self

    made = 0

    def rows(self, start: int, stop: int) -> Any:
        return range(start, stop)

    def compute(self, generation: object, rows: ComputeRows) -> None:
        self._device.compute(rows)

    def read(self, generation: object, states: object) -> None:
        self._device.read(StatesArrived(0))

    def record_loss(self, generation: object) -> None:
        self.losses += 1

    def fail(self, generation: object, error: Exception) -> None:
        raise error


def live(scenario: Scenario) -> Log:
    log: Log = []

    async def drive() -> None:
        env = LoopTime()
        engine, link = Engine(env, scenario), Link(env, scenario)
        over: asyncio.Future[SplitDriver] = asyncio.get_running_loop().create_future()
        driver = SplitDriver(cast(AnswerEngine, engine), cast(SplitLink, link), on_over=over.set_result, log=log)
        driver.start()
        driver.submit(GenerationRequest(prompt_ids=[1]), lambda: None)
        assert await over is driver
        assert driver.is_over
        assert [session.is_closed for session in link.sessions] == [True]
        assert engine.losses == sum(isinstance(event, SessionLost) for _, event, _ in log)

    run_in_virtual_time(drive())
    return log


def simulated(scenario: Scenario) -> Log:
    log: Log = []
    env = simpy.Environment()

    def tell(event: SplitEvent) -> None:
        driver.receive(event)

    device, server = Device(env, scenario, tell), Server(env, scenario, tell)
    driver = SimulatedSplit(env, scenario.machine(), device=device, server=server, log=log)
    driver.start()
    device.begin()
    env.run()
    assert server.is_closed
    return log


def commands(log: Log) -> list[tuple[float, SplitCommand]]:
    return [(now, command) for now, _, step in log for command in step]


@pytest.mark.parametrize("seed", range(300))
def test_both_drivers_give_the_same_commands_at_the_same_times(seed: int) -> None:
    scenario = Scenario(seed)
    on_asyncio, in_simpy = commands(live(scenario)), commands(simulated(scenario))
    assert [command for _, command in on_asyncio] == [command for _, command in in_simpy], f"seed {seed}"
    assert [now for now, _ in on_asyncio] == pytest.approx([now for now, _ in in_simpy], abs=2e-3), f"seed {seed}"
    assert on_asyncio[-1][1] == CloseSession()


@pytest.mark.parametrize("seed", range(50))
def test_a_recorded_live_log_replays(seed: int) -> None:
    scenario = Scenario(seed)
    log, machine = live(scenario), scenario.machine()
    machine.start(now=log[0][0])
    assert machine.take_commands() == log[0][2]
    for now, event, expected in log[1:]:
        assert event is not None
        machine.receive(event, now=now)
        assert machine.take_commands() == expected, f"seed {seed} at {now}"


def test_the_scenarios_have_what_they_are_for() -> None:
    logs = [live(Scenario(seed)) for seed in range(60)]
    events = [event for log in logs for _, event, _ in log]
    assert sum(isinstance(event, SessionLost) for event in events) > 50
    assert sum(isinstance(event, Truncated) for event in events) > 50
    sent = [command for log in logs for _, command in commands(log) if isinstance(command, SendRows)]
    assert sum(command.wanted > 1 for command in sent) > 100
    assert sum(not command.wanted for command in sent) > 100, "chunks of prompts"
