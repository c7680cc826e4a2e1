"""A driver that runs a core machine in SimPy: it passes on events, carries out commands and keeps the deadline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import simpy

from streamco.core.machine import Machine

__all__ = ["SimulatedMachine", "call_at"]

EventT = TypeVar("EventT")
CommandT = TypeVar("CommandT")


def call_at(env: simpy.Environment, delay: float, function: Callable[[], None]) -> None:
    """Call ``function`` after ``delay`` seconds of virtual time."""
    timeout = env.timeout(delay)

    def fire(_: Any) -> None:
        function()

    timeout.callbacks.append(fire)


class SimulatedMachine(ABC, Generic[EventT, CommandT]):
    """Base class for drivers that run one machine in virtual time.

    Args:
        log: collects (now, event or None, commands) of every step.

    Attributes:
        machine: the machine being run.
    """

    def __init__(
        self,
        env: simpy.Environment,
        machine: Machine[EventT, CommandT],
        log: list[tuple[float, EventT | None, list[CommandT]]] | None = None,
    ) -> None:
        self.machine = machine
        self._env = env
        self._armed: float | None = None
        self._log = log

    def start(self) -> None:
        """Start the machine at the environment's current time."""
        self.machine.start(now=self._env.now)
        self._carry_out(None)

    def receive(self, event: EventT) -> None:
        """Give the machine an event that happens now."""
        self._receive(event)
        self._carry_out(event)

    def _receive(self, event: EventT) -> None:
        self.machine.receive(event, now=self._env.now)

    @abstractmethod
    def _do(self, command: CommandT) -> None:
        """Carry out a command."""

    def _carry_out(self, event: EventT | None) -> None:
        commands = self.machine.take_commands()
        if self._log is not None:
            self._log.append((self._env.now, event, commands))
        for command in commands:
            self._do(command)
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline != self._armed:
            call_at(self._env, max(0.0, deadline - self._env.now), lambda: self._on_deadline(deadline))
        self._armed = deadline

    def _on_deadline(self, deadline: float) -> None:
        if deadline == self._armed:  # otherwise the machine has changed or dropped it since
            self._armed = None
            self.machine.handle_deadline(now=max(deadline, self._env.now))
            self._carry_out(None)
