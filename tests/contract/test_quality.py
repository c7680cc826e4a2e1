"""What a reader is said to have seen is one number: the simulator and the live driver give the same quality for the same scripts.

Times are multiples of a power of two, so that neither clock rounds, and each endpoint has its own among them, so that no two of them do
something at the same time, where the order would be the clock's affair.
"""

from __future__ import annotations

import random

import pytest
import simpy

from streamco.client.modes.race.driver import RaceDriver
from streamco.core.meter import Quality
from streamco.core.race.attempt import AttemptPlan
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.endpoints.base import Request
from streamco.errors import EndpointConnectError, EndpointError, StreamcoError
from streamco.events import Event, StreamEnded, StreamFailed, TokensReceived
from streamco.sim.race.session import ScriptedSource, SimulatedRace
from streamco.testing.endpoint import ScriptedEndpoint, text_chunk
from streamco.testing.virtual_clock import run_in_virtual_time

TICK = 2.0**-8  # seconds
Script = list[tuple[float, str | EndpointError]]


class Scenario:
    """Endpoints that stutter, burst and fail, before readers of several speeds, paced or not."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        names = ["server", "device", "spare"][: rng.choice([1, 2, 3])]
        waits = [0.0, rng.choice([0.0, rng.randrange(512) * TICK, None]), None]
        self.plan = RacePlan(
            attempts=tuple(AttemptPlan(name, wait) for name, wait in zip(names, waits, strict=False)),
            pace=rng.choice([None, 2.0, 4.0, 16.0]),
            explore=rng.random() < 0.3,
            reader_rate=rng.choice([None, 3.5, 20.0]),
        )
        self.cancel_takes = rng.choice([0.0, 16 * TICK])
        self.scripts = {name: self._script(rng, name, (index + 1) * TICK / 4) for index, name in enumerate(names)}

    def _script(self, rng: random.Random, name: str, offset: float) -> Script:
        script: Script = []
        at = rng.randrange(1, 512) * TICK + offset
        for index in range(rng.randrange(60)):
            script.append((at, f"{name}{index} "))
            at += rng.choice([0, 0, 5, 20, 60, 400]) * TICK
        if not script or rng.random() < 0.2:
            script.append((at, EndpointConnectError("cut", endpoint=name)))
        return script

    def live(self) -> RaceMachine:
        """On asyncio, in virtual time, read as fast as it comes."""
        return run_in_virtual_time(self._drive())

    async def _drive(self) -> RaceMachine:
        endpoints = {name: ScriptedEndpoint(name, script, cancel_takes=self.cancel_takes) for name, script in self.scripts.items()}
        driver = RaceDriver(RaceMachine(self.plan), endpoints, Request(prompt=""))
        driver.start()
        try:
            while await driver.next_batch() is not None:
                pass
        except StreamcoError:
            pass
        await driver.aclose()
        return driver.machine

    def simulated(self) -> RaceMachine:
        """In SimPy."""
        env = simpy.Environment()
        sources = {name: ScriptedSource(list(self._events(name)), cancel_takes=self.cancel_takes) for name in self.scripts}
        machine = RaceMachine(self.plan)
        SimulatedRace(env, machine, sources).start()
        env.run()
        return machine

    def _events(self, name: str) -> list[tuple[float, Event]]:
        events = [(at, self._event(name, item)) for at, item in self.scripts[name]]
        last, event = events[-1]
        return events if isinstance(event, StreamFailed) else [*events, (last, StreamEnded(name, "stop"))]

    def _event(self, name: str, item: str | EndpointError) -> Event:
        return StreamFailed(name, item) if isinstance(item, EndpointError) else TokensReceived(name, [text_chunk(item)], 1)


@pytest.mark.parametrize("seed", range(300))
def test_quality_is_the_same_number_live_and_simulated(seed: int) -> None:
    scenario = Scenario(seed)
    live, simulated = scenario.live(), scenario.simulated()
    assert live.meter.tokens == simulated.meter.tokens
    assert live.meter.quality() == simulated.meter.quality(), f"seed {seed}"
    assert 0.0 <= live.meter.quality().score <= 1.0


def test_the_scenarios_tell_good_answers_from_bad_ones() -> None:
    found: list[Quality] = [Scenario(seed).simulated().meter.quality() for seed in range(300)]
    assert sum(quality.score == 1.0 for quality in found) > 30
    assert sum(quality.score < 0.9 for quality in found) > 30
    assert sum(quality.stalls > 1 for quality in found) > 30
    assert len({quality.score for quality in found}) > 100
