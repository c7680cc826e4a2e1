"""One machine, two drivers: asyncio and SimPy must command the same, each generating its own events and deadlines."""

from __future__ import annotations

import asyncio
import random

import pytest
import simpy

from streamco.client.driver import SessionDriver
from streamco.commands import Command, FailDelivery
from streamco.core.legs import Start
from streamco.core.session import SessionMachine, SessionPlan
from streamco.endpoints.base import Request
from streamco.errors import EndpointConnectError, EndpointError, StreamcoError
from streamco.events import Event, StreamEnded, StreamFailed, TokensReceived
from streamco.sim.driver import ScriptedSource, SimulatedSession
from streamco.testing.clock import run_in_virtual_time
from streamco.testing.endpoint import ScriptedEndpoint, text_chunk

Log = list[tuple[float, Event | None, list[Command]]]
Script = list[tuple[float, str | EndpointError]]


class Scenario:
    """Random waits, token times, failures, pace and cancel times for two or three endpoints."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        names = ["server", "device", "spare"][: rng.choice([2, 3])]
        waits = [0.0, rng.choice([0.0, rng.uniform(0, 2), None]), None]
        self.plan = SessionPlan(
            starts=tuple(Start(name, wait) for name, wait in zip(names, waits, strict=False)),
            pace=rng.choice([None, rng.uniform(2, 40)]),
            explore=rng.random() < 0.3,
        )
        self.cancel_takes = {name: rng.choice([0.0, rng.uniform(0.001, 0.5)]) for name in names}
        self.scripts = {name: self._script(rng, name) for name in names}

    def _script(self, rng: random.Random, name: str) -> Script:
        script: Script = []
        at = rng.uniform(0.05, 2)
        for index in range(rng.randrange(12)):
            script.append((at, f"{name}{index} "))
            at += rng.expovariate(rng.choice([2, 20]))
        if not script or rng.random() < 0.3:
            script.append((at, EndpointConnectError("cut", endpoint=name)))
        return script

    def on_asyncio(self) -> Log:
        return run_in_virtual_time(self._drive())

    async def _drive(self) -> Log:
        log: Log = []
        loop = asyncio.get_running_loop()
        endpoints = {name: ScriptedEndpoint(name, script, cancel_takes=self.cancel_takes[name]) for name, script in self.scripts.items()}
        driver = SessionDriver(SessionMachine(self.plan), endpoints, Request(prompt=""), clock=loop.time, log=log)
        driver.start()
        try:
            while await driver.next_batch() is not None:
                pass
        except StreamcoError:
            pass
        while not driver.is_over:
            await asyncio.sleep(0.01)
        return log

    def in_simpy(self) -> Log:
        log: Log = []
        env = simpy.Environment()
        sources = {
            name: ScriptedSource(
                [self._event(name, at, item) for at, item in script] + self._end(name), cancel_takes=self.cancel_takes[name]
            )
            for name, script in self.scripts.items()
        }
        SimulatedSession(env, SessionMachine(self.plan), sources, log=log).start()
        env.run()
        return log

    def _event(self, name: str, at: float, item: str | EndpointError) -> tuple[float, Event]:
        event = StreamFailed(name, item) if isinstance(item, EndpointError) else TokensReceived(name, [text_chunk(item)], 1)
        return at, event

    def _end(self, name: str) -> list[tuple[float, Event]]:
        at, last = self.scripts[name][-1]
        return [] if isinstance(last, EndpointError) else [(at, StreamEnded(name, "stop"))]


def told(log: Log) -> list[tuple[float, Command | str]]:
    return [(now, comparable(command)) for now, _, commands in log for command in commands]


def comparable(command: Command) -> Command | str:
    """Errors are equal when they say the same."""
    return f"fail: {command.error}" if isinstance(command, FailDelivery) else command


@pytest.mark.parametrize("seed", range(300))
def test_both_drivers_give_the_same_commands_at_the_same_times(seed: int) -> None:
    scenario = Scenario(seed)
    live, simulated = told(scenario.on_asyncio()), told(scenario.in_simpy())
    assert [command for _, command in live] == [command for _, command in simulated], f"seed {seed}"
    assert [now for now, _ in live] == pytest.approx([now for now, _ in simulated], abs=2e-3), f"seed {seed}"


@pytest.mark.parametrize("seed", range(50))
def test_a_recorded_live_log_replays(seed: int) -> None:
    scenario = Scenario(seed)
    log = scenario.on_asyncio()
    machine = SessionMachine(scenario.plan)
    machine.start(now=log[0][0])
    assert machine.take_commands() == log[0][2]
    for now, event, commands in log[1:]:
        if event is None:
            machine.handle_deadline(now=now)
        else:
            machine.receive(event, now=now)
        assert list(map(comparable, machine.take_commands())) == list(map(comparable, commands)), f"seed {seed} at {now}"
