"""The SimPy driver: the session machine in virtual time, without asyncio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import simpy

from streamco.core.race.attempt import AttemptPlan, AttemptState
from streamco.core.race.commands import CancelStream, Command, DeliverTokens, FinishDelivery, OpenStream
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.errors import AllEndpointsFailed, EndpointConnectError
from streamco.events import Event, ReaderLeft, StreamCancelled, StreamEnded, StreamFailed, TokensReceived
from streamco.sim.race.session import Opening, ScriptedSource, SimulatedRace, SimulatedStream
from streamco.testing.endpoint import text_chunk

BOTH = (AttemptPlan("server", 0.0), AttemptPlan("device", 0.0))


def words(source: str, *times: float) -> list[tuple[float, Event]]:
    script: list[tuple[float, Event]] = [(time, TokensReceived(source, [text_chunk(f"{source}{n} ")], 1)) for n, time in enumerate(times)]
    return [*script, (times[-1], StreamEnded(source, "stop"))]


class World:
    """A session among scripted sources."""

    def __init__(self, attempts: tuple[AttemptPlan, ...] = BOTH, *, pace: float | None = None, **sources: Any) -> None:
        self.env = simpy.Environment()
        self.log: list[tuple[float, Event | None, list[Command]]] = []
        self.machine = RaceMachine(RacePlan(attempts=attempts, pace=pace))
        self.session = SimulatedRace(self.env, self.machine, sources, log=self.log)

    def run(self, until: float | None = None) -> World:
        self.session.start()
        self.env.run(until)
        return self

    @property
    def delivered(self) -> list[tuple[float, str]]:
        return [
            (time, chunk.choices[0].delta.content or "")
            for time, delivery in self.session.deliveries
            for chunk in delivery.chunks
            if chunk.choices[0].delta.content
        ]

    def times_of(self, kind: type[Any]) -> list[tuple[float, str]]:
        return [(now, command.source) for now, _, commands in self.log for command in commands if isinstance(command, kind)]


def test_the_faster_source_is_delivered_at_its_own_times() -> None:
    world = World(server=ScriptedSource(words("server", 0.5, 0.6)), device=ScriptedSource(words("device", 0.2, 0.4, 0.7))).run()
    assert world.delivered == [(0.2, "device0 "), (0.4, "device1 "), (0.7, "device2 ")]
    assert world.machine.winner == "device"
    assert world.session.done.triggered
    assert world.session.done.value is None


def test_a_source_starts_when_its_wait_is_over() -> None:
    attempts = (AttemptPlan("server", 0.0), AttemptPlan("device", 0.25))
    world = World(attempts, server=ScriptedSource(words("server", 5.0)), device=ScriptedSource(words("device", 0.1))).run()
    assert world.times_of(OpenStream) == [(0.0, "server"), (0.25, "device")]
    assert world.delivered == [(0.35, "device0 ")]


def test_a_wait_that_is_not_needed_any_more_fires_nothing() -> None:
    attempts = (AttemptPlan("server", 0.0), AttemptPlan("device", 3.0))
    world = World(attempts, server=ScriptedSource(words("server", 0.1)), device=ScriptedSource(words("device", 0.1))).run()
    assert world.times_of(OpenStream) == [(0.0, "server")]
    assert world.machine.attempts["device"].state is AttemptState.SPARED
    assert world.log[-1][0] == pytest.approx(0.1), "the dropped deadline is no step"


def test_a_loser_emits_nothing_and_is_released_after_its_time() -> None:
    loser = ScriptedSource(words("server", 0.3, 0.4, 0.5), cancel_takes=0.05)
    world = World(server=loser, device=ScriptedSource(words("device", 0.2, 0.9))).run()
    assert world.times_of(CancelStream) == [(0.2, "server")]
    released = [now for now, event, _ in world.log if isinstance(event, StreamCancelled)]
    assert released == [pytest.approx(0.25)]
    assert not any(isinstance(event, TokensReceived) and event.source == "server" for _, event, _ in world.log)
    assert world.machine.attempts["server"].stopped == pytest.approx(0.25)


def test_paced_tokens_come_when_they_are_due() -> None:
    attempts = (AttemptPlan("server", 0.0),)
    world = World(attempts, pace=10.0, server=ScriptedSource(words("server", *[0.1] * 5))).run()
    assert [time for time, _ in world.delivered] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert world.log[-1][2][-1] == FinishDelivery()


def test_a_failure_is_the_value_of_done() -> None:
    def failing(name: str) -> ScriptedSource:
        return ScriptedSource([(0.1, StreamFailed(name, EndpointConnectError("refused")))])

    world = World(server=failing("server"), device=failing("device")).run()
    assert isinstance(world.session.done.value, AllEndpointsFailed)
    assert world.delivered == []


def test_a_process_may_wait_for_the_end() -> None:
    world = World(server=ScriptedSource(words("server", 0.5)), device=ScriptedSource(words("device", 0.2, 1.5)))
    ends = []

    def reader() -> Any:
        world.session.start()
        error = yield world.session.done
        ends.append((world.env.now, error))

    world.env.process(reader())
    world.env.run()
    assert ends == [(1.5, None)]


def test_a_reader_that_leaves_stops_every_source() -> None:
    world = World(server=ScriptedSource(words("server", 0.1, 5.0, 9.0)), device=ScriptedSource(words("device", 8.0)))
    world.run(until=1.0)
    world.session.receive(ReaderLeft())
    world.env.run()
    assert world.machine.is_over
    assert world.env.now < 10
    assert [time for time, _ in world.delivered] == [0.1]


def test_sessions_of_one_world_share_its_time() -> None:
    env = simpy.Environment()
    machines = []

    def begin_at(time: float, session: SimulatedRace) -> None:
        env.timeout(time).callbacks.append(lambda _: session.start())

    for number in range(50):
        machine = RaceMachine(RacePlan(attempts=(AttemptPlan("server", 0.0),)))
        begin_at(number * 0.1, SimulatedRace(env, machine, {"server": ScriptedSource(words("server", 1.0, 2.0))}))
        machines.append(machine)
    env.run()
    assert [machine.finished for machine in machines] == pytest.approx([number * 0.1 + 2.0 for number in range(50)])


def test_a_source_may_decide_for_itself_what_happens_when() -> None:
    class Echo:
        def __init__(self) -> None:
            self.cancelled = 0

        def open(self, env: simpy.Environment, emit: Callable[[Event], None], command: Opening) -> SimulatedStream:
            def work() -> Any:
                yield env.timeout(0.5)
                emit(TokensReceived("server", [text_chunk("hi")], 1))
                yield env.timeout(0.5)
                emit(StreamEnded("server", "stop"))

            env.process(work())
            return self

        def pause(self) -> None:
            raise AssertionError("nothing is graded")

        def resume(self) -> None:
            raise AssertionError("nothing is graded")

        def cancel(self, released: Callable[[], None]) -> None:
            self.cancelled += 1
            released()

    echo = Echo()
    world = World((AttemptPlan("server", 0.0),), server=echo).run()
    assert world.delivered == [(0.5, "hi")]
    assert world.machine.finished == 1.0
    assert echo.cancelled == 0


def test_the_log_holds_every_step_and_its_commands() -> None:
    world = World((AttemptPlan("server", 0.0),), server=ScriptedSource(words("server", 0.5))).run()
    kinds = [(now, type(event).__name__, [type(command).__name__ for command in commands]) for now, event, commands in world.log]
    assert kinds == [
        (0.0, "NoneType", ["OpenStream"]),
        (0.5, "TokensReceived", ["DeliverTokens"]),
        (0.5, "StreamEnded", ["FinishDelivery"]),
    ]
    assert all(isinstance(delivery, DeliverTokens) for _, delivery in world.session.deliveries)
