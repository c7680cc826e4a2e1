"""The driver of the split machine in SimPy. It runs the same machine as the asyncio driver, in virtual time."""

from __future__ import annotations

from typing import Protocol, assert_never

import simpy

from streamco.core.split.events import (
    CloseSession,
    ComputeRows,
    OpenSession,
    SendRows,
    SplitCommand,
    SplitEvent,
    StatesArrived,
)
from streamco.core.split.machine import SplitMachine
from streamco.sim.driver import SimulatedMachine

__all__ = ["DeviceSide", "ServerSide", "SimulatedSplit"]


class DeviceSide(Protocol):
    """The device's parts of a split model in virtual time."""

    def compute(self, command: ComputeRows) -> None:
        """Compute shallow states; answered with ``RowsComputed``."""
        ...

    def read(self, event: StatesArrived) -> None:
        """Read the deep states that were wanted; answered later with ``RowsAdded`` or ``AnswerEnded``."""
        ...


class ServerSide(Protocol):
    """One answer's session at a server in virtual time. It answers later, never in the middle of a call."""

    def open(self, command: OpenSession) -> None:
        """Open or resume the session; answered with ``SessionReady`` or ``SessionLost``."""
        ...

    def send(self, command: SendRows) -> None:
        """Send rows; answered with ``StatesArrived`` or ``SessionLost``."""
        ...

    def close(self) -> None:
        """End the session."""
        ...


class SimulatedSplit(SimulatedMachine[SplitEvent, SplitCommand]):
    """One split answer's machine between a device and a server.

    Args:
        env: the simulation.
        machine: the answer's machine, not started yet.
        device: computes shallow states and reads deep ones.
        server: the answer's session.
        log: collects (now, event or None, commands) of every step.
    """

    machine: SplitMachine

    def __init__(
        self,
        env: simpy.Environment,
        machine: SplitMachine,
        *,
        device: DeviceSide,
        server: ServerSide,
        log: list[tuple[float, SplitEvent | None, list[SplitCommand]]] | None = None,
    ) -> None:
        super().__init__(env, machine, log)
        self._device = device
        self._server = server

    def receive(self, event: SplitEvent) -> None:
        """Give the machine an event that happens now. If it completes the states that the machine waits for, the device reads them."""
        was_waiting = self.machine.is_waiting
        super().receive(event)
        if isinstance(event, StatesArrived) and was_waiting and not self.machine.is_waiting:
            self._device.read(event)

    def _do(self, command: SplitCommand) -> None:
        match command:
            case ComputeRows():
                self._device.compute(command)
            case OpenSession():
                self._server.open(command)
            case SendRows():
                self._server.send(command)
            case CloseSession():
                self._server.close()
            case _ as never:
                assert_never(never)
