"""What every core machine offers to its drivers.

A machine never waits, reads a clock or throws dice: ``now`` (seconds on one monotonic clock) comes in with every call, commands are
collected with ``take_commands`` and carried out in order, and a wanted wake-up is returned as data by ``next_deadline``.
A driver in ``client`` or ``server`` runs it on asyncio, ``sim/driver.py`` runs the very same object in SimPy.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

__all__ = ["Machine"]

EventT_contra = TypeVar("EventT_contra", contravariant=True)
CommandT = TypeVar("CommandT")


class Machine(Protocol[EventT_contra, CommandT]):
    """A state machine without IO."""

    def start(self, *, now: float) -> None:
        """Begin; called once, before anything else."""
        ...

    def receive(self, event: EventT_contra, *, now: float) -> None:
        """Take note of what happened."""
        ...

    def take_commands(self) -> list[CommandT]:
        """Return what to do, in order; each command is handed out once."""
        ...

    def next_deadline(self) -> float | None:
        """When ``handle_deadline`` wants to be called; None: never, unless something happens."""
        ...

    def handle_deadline(self, *, now: float) -> None:
        """The deadline has come; ``now`` is at or after it, earlier calls do nothing."""
        ...
