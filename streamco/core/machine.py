"""The interface between every core machine and its drivers.

A machine never waits, reads a clock or draws random numbers. ``now`` (seconds on one monotonic clock) is passed in with every call. The
driver collects commands with ``take_commands`` and carries them out in order. ``next_deadline`` says when the machine wants to be called
again. A driver in ``client`` or ``server`` runs the machine on asyncio, and ``sim/driver.py`` runs the same object in SimPy.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

__all__ = ["Machine"]

EventT_contra = TypeVar("EventT_contra", contravariant=True)
CommandT = TypeVar("CommandT")


class Machine(Protocol[EventT_contra, CommandT]):
    """A state machine without IO."""

    def start(self, *, now: float) -> None:
        """Start the machine. This is called once, before any other method."""
        ...

    def receive(self, event: EventT_contra, *, now: float) -> None:
        """Handle an event that happened at ``now``, in seconds."""
        ...

    def take_commands(self) -> list[CommandT]:
        """Return the commands issued since the last call, in order. Each command is returned only once."""
        ...

    def next_deadline(self) -> float | None:
        """Return when ``handle_deadline`` must be called next, or None if nothing is due before another event."""
        ...

    def handle_deadline(self, *, now: float) -> None:
        """Do the work that is due at ``now``. Calling this before the deadline does nothing."""
        ...
