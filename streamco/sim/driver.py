"""Runs a session machine in SimPy: the same object as on asyncio, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import simpy

from streamco.commands import CancelStream, Command, ContinueStream, DeliverTokens, FailDelivery, FinishDelivery, OpenStream, PrepareStream
from streamco.core.machine import Machine
from streamco.events import Event, StreamCancelled

__all__ = ["Opening", "ScriptedSource", "SimulatedSession", "SimulatedSource", "SimulatedStream"]

Opening = OpenStream | ContinueStream | PrepareStream


class SimulatedStream(Protocol):
    """One answer in the making, in virtual time."""

    def cancel(self, released: Callable[[], None]) -> None:
        """Emit nothing more; call ``released`` when the connection or sequence is free."""
        ...


class SimulatedSource(Protocol):
    """An endpoint of the simulated world."""

    def open(self, env: simpy.Environment, emit: Callable[[Event], None], command: Opening) -> SimulatedStream:
        """Begin what the command says: an answer, the rest of one, or reading ahead; ``emit`` is called at the time of each event."""
        ...


def call_at(env: simpy.Environment, delay: float, function: Callable[[], None]) -> None:
    """Call ``function`` after ``delay`` seconds of virtual time."""
    timeout = env.timeout(delay)

    def fire(_: Any) -> None:
        function()

    timeout.callbacks.append(fire)


class _ScriptedStream:
    def __init__(self, env: simpy.Environment, source: ScriptedSource, emit: Callable[[Event], None]) -> None:
        self._env = env
        self._source = source
        self._emit = emit
        self._is_cancelled = False
        for at, event in source.script:
            call_at(env, at, lambda event=event: self._fire(event))  # type: ignore[misc]

    def _fire(self, event: Event) -> None:
        if not self._is_cancelled:
            self._emit(event)

    def cancel(self, released: Callable[[], None]) -> None:
        self._is_cancelled = True
        call_at(self._env, self._source.cancel_takes, released)


class ScriptedSource:
    """Plays (seconds after opening, event) in order.

    Args:
        cancel_takes: seconds a cancel needs.
    """

    def __init__(self, script: Sequence[tuple[float, Event]], *, cancel_takes: float = 0.0) -> None:
        self.script = script
        self.cancel_takes = cancel_takes

    def open(self, env: simpy.Environment, emit: Callable[[Event], None], command: Opening) -> SimulatedStream:
        """Begin the script, whatever the command."""
        return _ScriptedStream(env, self, emit)


class SimulatedSession:
    """One session in virtual time.

    Args:
        log: collects (now, event or None, commands) of every step.

    Attributes:
        deliveries: (time, command) of what the reader got.
        done: succeeds when the reader has everything, or the error.
    """

    def __init__(
        self,
        env: simpy.Environment,
        machine: Machine,
        sources: Mapping[str, SimulatedSource],
        *,
        log: list[tuple[float, Event | None, list[Command]]] | None = None,
    ) -> None:
        self.machine = machine
        self.deliveries: list[tuple[float, DeliverTokens]] = []
        self.done = env.event()
        self._env = env
        self._sources = sources
        self._streams: dict[str, SimulatedStream] = {}
        self._armed: float | None = None
        self._log = log

    def start(self) -> None:
        """Begin at the environment's present time."""
        self.machine.start(now=self._env.now)
        self._carry_out(None)

    def receive(self, event: Event) -> None:
        """Something happened now."""
        self.machine.receive(event, now=self._env.now)
        self._carry_out(event)

    def _carry_out(self, event: Event | None) -> None:
        commands = self.machine.take_commands()
        if self._log is not None:
            self._log.append((self._env.now, event, commands))
        for command in commands:
            match command:
                case OpenStream(source) | ContinueStream(source) | PrepareStream(source):
                    self._streams[source] = self._sources[source].open(self._env, self.receive, command)
                case CancelStream(source):
                    self._streams[source].cancel(lambda source=source: self.receive(StreamCancelled(source)))  # type: ignore[misc]
                case DeliverTokens():
                    self.deliveries.append((self._env.now, command))
                case FinishDelivery():
                    self.done.succeed()
                case FailDelivery(error):
                    self.done.succeed(error)
        self._arm()

    def _arm(self) -> None:
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline != self._armed:
            call_at(self._env, max(0.0, deadline - self._env.now), lambda: self._on_deadline(deadline))
        self._armed = deadline

    def _on_deadline(self, deadline: float) -> None:
        if deadline == self._armed:  # otherwise it was moved or dropped in the meantime
            self._armed = None
            self.machine.handle_deadline(now=max(deadline, self._env.now))
            self._carry_out(None)
