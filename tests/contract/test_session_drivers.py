"""One machine, two drivers: asyncio and SimPy must command the same, each generating its own events and deadlines."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

import pytest
import simpy
from msgspec.structs import replace

from streamco.client.modes.race.driver import RaceDriver
from streamco.core.race.attempt import AttemptPlan
from streamco.core.race.commands import Command, DeliverTokens, FailDelivery, FinishDelivery, OpenStream, PrepareStream
from streamco.core.race.gate import GatePlan
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.core.race.migration import MigrationPlan
from streamco.endpoints.base import Capabilities, Request
from streamco.errors import EndpointConnectError, EndpointError, StreamcoError
from streamco.events import Event, PreCopy, StreamEnded, StreamFailed, TokenConfidence, TokensReceived
from streamco.openai_types import ChatCompletionChunk
from streamco.policies.migration import Terms
from streamco.profiles import RemainingLength
from streamco.sim.race.session import Opening, ScriptedSource, SimulatedRace, SimulatedSource, SimulatedStream
from streamco.testing.endpoint import ScriptedEndpoint, text_chunk
from streamco.testing.virtual_clock import run_in_virtual_time

Log = list[tuple[float, Event | None, list[Command]]]
Script = list[tuple[float, str | EndpointError]]


class Scenario:
    """Random waits, token times, failures, pace and cancel times for two or three endpoints."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        names = ["server", "device", "spare"][: rng.choice([2, 3])]
        waits = [0.0, rng.choice([0.0, rng.uniform(0, 2), None]), None]
        self.plan = RacePlan(
            attempts=tuple(AttemptPlan(name, wait) for name, wait in zip(names, waits, strict=False)),
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
        driver = RaceDriver(RaceMachine(self.plan), self.endpoints(), Request(prompt=""), clock=loop.time, log=log)
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
        SimulatedRace(env, RaceMachine(self.plan), self.sources(), log=log).start()
        env.run()
        return log

    def endpoints(self) -> dict[str, ScriptedEndpoint]:
        return {name: ScriptedEndpoint(name, script, cancel_takes=self.cancel_takes[name]) for name, script in self.scripts.items()}

    def sources(self) -> Mapping[str, SimulatedSource]:
        return {
            name: ScriptedSource(
                [self._event(name, at, item) for at, item in script] + self._end(name), cancel_takes=self.cancel_takes[name]
            )
            for name, script in self.scripts.items()
        }

    def _event(self, name: str, at: float, item: str | EndpointError) -> tuple[float, Event]:
        event = StreamFailed(name, item) if isinstance(item, EndpointError) else TokensReceived(name, [text_chunk(item)], 1)
        return at, event

    def _end(self, name: str) -> list[tuple[float, Event]]:
        at, last = self.scripts[name][-1]
        return [] if isinstance(last, EndpointError) else [(at, StreamEnded(name, "stop"))]


class GatedScenario(Scenario):
    """A race with a gate: the device is sure or not, the server fails, is late or answers, and what was held is shown or not."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = random.Random(f"gate {seed}")
        self.sure = rng.random()
        gate = GatePlan(
            source="device",
            score=lambda probabilities, is_complete: sum(probabilities) / len(probabilities),
            min_score=0.5,
            tokens=rng.choice([1, 3, 16]),
            max_wait=rng.choice([0.2, 5.0]),
            obstacle=rng.choice(["", "", "spent"]),
        )
        waits = {"server": rng.choice([None, 0.0, 1.0]), "device": rng.choice([0.0, 0.0, 0.5]), "spare": None}
        self.plan = replace(self.plan, gate=gate, attempts=tuple(AttemptPlan(name, waits[name]) for name in self.scripts))

    def endpoints(self) -> dict[str, ScriptedEndpoint]:
        endpoints = super().endpoints()
        endpoints["device"].probability = self.sure
        return endpoints

    def _event(self, name: str, at: float, item: str | EndpointError) -> tuple[float, Event]:
        at, event = super()._event(name, at, item)
        if name == "device" and isinstance(event, TokensReceived):
            event = replace(event, confidences=(TokenConfidence(self.sure, ends_sentence=False),))
        return at, event


class MovingScenario(Scenario):
    """All endpoints write the same answer, some fail in it; they read ahead or keep nothing; moves pay or don't."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        names = ["server", "device", "spare"][: rng.choice([2, 3])]
        pace = rng.choice([None, rng.uniform(4, 10)])
        self.prompt_tokens = rng.choice([10, 100])
        self.length = rng.choice([30, 90])
        kinds: list[PreCopy] = ["append", "append", "warm", "none"]
        self.pre_copy = {name: rng.choice(kinds) for name in names}
        self.prefill_s = {name: rng.choice([0.001, 0.02]) for name in names}
        self.plan = RacePlan(
            attempts=tuple(
                AttemptPlan(name, None if index and rng.random() < 0.6 else 0.0, continues=True) for index, name in enumerate(names)
            ),
            pace=pace,
            explore=rng.random() < 0.2,
            on_failure="migrate",
            migration=MigrationPlan(
                terms={name: self._terms(rng, name, 1e-7 if index else 1e-6) for index, name in enumerate(names)},
                lengths=RemainingLength((200,), (0.0,)),
                prompt_tokens=self.prompt_tokens,
                reader_rate=pace or 5.0,
                capacity=rng.choice([10, 400]),
                rule=rng.choice(["pre-copy", "pre-copy", "full-buffer"]),
                max_migrations=rng.choice([1, 2]),
            ),
        )
        self.cancel_takes = {name: rng.choice([0.0, rng.uniform(0.001, 0.5)]) for name in names}
        self.prepare_error = {name: EndpointConnectError("cut", endpoint=name) if rng.random() < 0.1 else None for name in names}
        self.scripts = {name: self._script(rng, name) for name in names}

    def _terms(self, rng: random.Random, name: str, completion: float) -> Terms:
        setup = rng.choice([None, None, 0.2]) if self.pre_copy[name] == "append" else 0.2
        return Terms(
            prompt=rng.choice([0.0, 1e-9]),
            completion=completion * rng.choice([0.1, 1.0]),
            setup=setup,
            per_token=self.prefill_s[name],
            rate=rng.choice([None, 30.0]),
            pre_copy=self.pre_copy[name],
        )

    def _script(self, rng: random.Random, name: str) -> Script:
        script: Script = []
        at, rate = rng.uniform(0.05, 0.6), rng.choice([8.0, 40.0])
        for index in range(self.length):
            script.append((at, f"{index} "))
            at += rng.expovariate(rate)
        if rng.random() < 0.2:
            broken = rng.randrange(self.length)
            script[broken] = (script[broken][0], EndpointConnectError("cut", endpoint=name))
        return script

    def endpoints(self) -> dict[str, ScriptedEndpoint]:
        return {
            name: ScriptedEndpoint(
                name,
                script,
                tokens=self.prompt_tokens,
                cancel_takes=self.cancel_takes[name],
                capabilities=Capabilities(pre_copy=self.pre_copy[name]),
                prepare_takes=0.03,
                prefill_s=self.prefill_s[name],
                prepare_error=self.prepare_error[name],
            )
            for name, script in self.scripts.items()
        }

    def sources(self) -> Mapping[str, SimulatedSource]:
        return {name: PlayedSource(endpoint, self.scripts[name]) for name, endpoint in self.endpoints().items()}


class PlayedSource:
    """A ``ScriptedEndpoint`` in the simulated world: it reads ahead and goes on as that does, by its own account of what was read."""

    def __init__(self, endpoint: ScriptedEndpoint, script: Script) -> None:
        self.endpoint = endpoint
        self.script = script

    def open(self, env: simpy.Environment, emit: Callable[[Event], None], command: Opening) -> SimulatedStream:
        request = Request(prompt="", partial=None if isinstance(command, OpenStream) else command.partial)
        reads = self.endpoint.prefill_s * (self.endpoint.count_prompt(request) - self.endpoint.count_kept(request))
        if not isinstance(command, PrepareStream):
            events = self._written(0 if request.partial is None else request.partial.tokens, reads)
        else:
            events = self._read(self.endpoint.prepare_takes + reads)

        def tell(event: Event) -> None:
            if isinstance(command, PrepareStream) and isinstance(event, StreamEnded):
                self.endpoint.keep(request)
            emit(event)

        return ScriptedSource(events, cancel_takes=self.endpoint.cancel_takes).open(env, tell, command)

    def _read(self, at: float) -> list[tuple[float, Event]]:
        name = self.endpoint.name
        if self.endpoint.prepare_error is not None:
            return [(at, StreamFailed(name, self.endpoint.prepare_error))]
        warm: list[tuple[float, Event]] = [(at, TokensReceived(name, [text_chunk("warm", finish_reason="length")], 1))]
        return [*(warm if self.endpoint.capabilities.pre_copy == "warm" else []), (at, StreamEnded(name))]

    def _written(self, position: int, reads: float) -> list[tuple[float, Event]]:
        name = self.endpoint.name
        skipped = self.script[position - 1][0] - reads if position else 0.0
        events: list[tuple[float, Event]] = []
        for at, item in self.script[position:]:
            if isinstance(item, EndpointError):
                return [*events, (at - skipped, StreamFailed(name, item))]
            events.append((at - skipped, TokensReceived(name, [text_chunk(item)], 1)))
        return [*events, (events[-1][0] if events else 0.0, StreamEnded(name, "stop"))]


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


@pytest.mark.parametrize("seed", range(200))
def test_both_drivers_give_the_same_commands_behind_a_gate(seed: int) -> None:
    scenario = GatedScenario(seed)
    live, simulated = told(scenario.on_asyncio()), told(scenario.in_simpy())
    assert [command for _, command in live] == [command for _, command in simulated], f"seed {seed}"
    assert [now for now, _ in live] == pytest.approx([now for now, _ in simulated], abs=2e-3), f"seed {seed}"


@pytest.mark.parametrize("seed", range(200))
def test_both_drivers_give_the_same_commands_where_answers_move(seed: int) -> None:
    scenario = MovingScenario(seed)
    live, simulated = told(scenario.on_asyncio()), told(scenario.in_simpy())
    assert [command for _, command in live] == [command for _, command in simulated], f"seed {seed}"
    assert [now for now, _ in live] == pytest.approx([now for now, _ in simulated], abs=2e-3), f"seed {seed}"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in delivered(live))
    whole = "".join(f"{index} " for index in range(scenario.length))
    assert text == whole if FinishDelivery() in [command for _, command in live] else whole.startswith(text), f"seed {seed}"


def delivered(commands: list[tuple[float, Command | str]]) -> list[ChatCompletionChunk]:
    return [chunk for _, command in commands if isinstance(command, DeliverTokens) for chunk in command.chunks]


@pytest.mark.parametrize("kind", [Scenario, GatedScenario, MovingScenario])
@pytest.mark.parametrize("seed", range(50))
def test_a_recorded_live_log_replays(kind: type[Scenario], seed: int) -> None:
    scenario = kind(seed)
    log = scenario.on_asyncio()
    machine = RaceMachine(scenario.plan)
    machine.start(now=log[0][0])
    assert machine.take_commands() == log[0][2]
    for now, event, commands in log[1:]:
        if event is None:
            machine.handle_deadline(now=now)
        else:
            machine.receive(event, now=now)
        assert list(map(comparable, machine.take_commands())) == list(map(comparable, commands)), f"seed {seed} at {now}"
