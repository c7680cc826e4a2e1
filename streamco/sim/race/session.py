"""The driver of the race machine in SimPy. It runs the same machine as the asyncio driver, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import simpy

from streamco.client.modes.race.endpoint_states import Watch
from streamco.core.race.commands import (
    LATE,
    CancelStream,
    Command,
    ContinueStream,
    DeliverTokens,
    FailDelivery,
    FinishDelivery,
    OpenStream,
    PauseStream,
    PrepareStream,
    ResumeStream,
)
from streamco.core.race.machine import RaceMachine
from streamco.events import Event, StreamCancelled
from streamco.sim.driver import SimulatedMachine, call_at

__all__ = ["Opening", "ScriptedSource", "SimulatedRace", "SimulatedSource", "SimulatedStream"]

Opening = OpenStream | ContinueStream | PrepareStream


class SimulatedStream(Protocol):
    """One answer that an endpoint is writing, in virtual time."""

    def cancel(self, released: Callable[[], None]) -> None:
        """Emit nothing more, and call ``released`` when the connection or sequence is free."""
        ...

    def pause(self) -> None:
        """Pause the stream."""
        ...

    def resume(self) -> None:
        """Continue after ``pause``."""
        ...


class SimulatedSource(Protocol):
    """An endpoint in virtual time."""

    def open(self, env: simpy.Environment, emit: Callable[[Event], None], command: Opening) -> SimulatedStream:
        """Start, continue or pre-copy an answer, as the command says. ``emit`` is called at the time of each event."""
        ...


class _ScriptedStream:
    def __init__(self, env: simpy.Environment, source: ScriptedSource, emit: Callable[[Event], None]) -> None:
        self._env = env
        self._source = source
        self._emit = emit
        self._is_cancelled = False
        self._kept: list[Event] | None = None  # events during a pause, or None if there is no pause
        for at, event in source.script:
            call_at(env, at, lambda event=event: self._fire(event))  # type: ignore[misc]

    def _fire(self, event: Event) -> None:
        if self._kept is not None:
            self._kept.append(event)
        elif not self._is_cancelled:
            self._emit(event)

    def pause(self) -> None:
        self._kept = []

    def resume(self) -> None:
        kept, self._kept = self._kept or [], None
        for event in kept:
            self._fire(event)

    def cancel(self, released: Callable[[], None]) -> None:
        self._is_cancelled = True
        call_at(self._env, self._source.cancel_takes, released)


class ScriptedSource:
    """An endpoint that plays a script.

    Args:
        script: (seconds after opening, event) pairs, in order.
        cancel_takes: seconds that a cancel takes.
    """

    def __init__(self, script: Sequence[tuple[float, Event]], *, cancel_takes: float = 0.0) -> None:
        self.script = script
        self.cancel_takes = cancel_takes

    def open(self, env: simpy.Environment, emit: Callable[[Event], None], command: Opening) -> SimulatedStream:
        """Play the script, whatever the command is."""
        return _ScriptedStream(env, self, emit)


class SimulatedRace(SimulatedMachine[Event, Command]):
    """One race in virtual time.

    Args:
        log: collects (now, event or None, commands) of every step.
        watch: if given, it is told which endpoints fail and which answer, as with the live driver.
        on_over: called once when the answer and all work for it have ended.

    Attributes:
        deliveries: (time, command) of each delivery to the reader.
        done: an event that succeeds with None when the reader has the whole answer, or with the error when the answer has failed.
    """

    def __init__(
        self,
        env: simpy.Environment,
        machine: RaceMachine,
        sources: Mapping[str, SimulatedSource],
        *,
        log: list[tuple[float, Event | None, list[Command]]] | None = None,
        watch: Watch | None = None,
        on_over: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(env, machine, log)
        self._race, self._watch, self._on_over = machine, watch, on_over
        self.deliveries: list[tuple[float, DeliverTokens]] = []
        self.done = env.event()
        self._sources = sources
        self._streams: dict[str, SimulatedStream] = {}

    def _receive(self, event: Event) -> None:
        super()._receive(event)
        if self._watch is not None:
            self._watch.receive(event)

    def _carry_out(self, event: Event | None) -> None:
        super()._carry_out(event)
        if self._on_over is not None and self._race.is_over:
            on_over, self._on_over = self._on_over, None
            on_over()

    def _do(self, command: Command) -> None:
        match command:
            case OpenStream(source) | ContinueStream(source) | PrepareStream(source):
                if self._watch is not None:
                    self._watch.opened(source, is_whole=isinstance(command, OpenStream))
                self._streams[source] = self._sources[source].open(self._env, self.receive, command)
            case PauseStream(source):
                self._streams[source].pause()
            case ResumeStream(source):
                self._streams[source].resume()
            case CancelStream(source, reason):
                if reason == LATE and self._watch is not None:
                    self._watch.late(source)
                self._streams[source].cancel(lambda: self.receive(StreamCancelled(source)))
            case DeliverTokens():
                self.deliveries.append((self._env.now, command))
            case FinishDelivery():
                self.done.succeed()
            case FailDelivery(error):
                self.done.succeed(error)
