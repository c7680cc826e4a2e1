"""Calls between the consumer of one piece of work and the engine that does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["Consumer", "EngineSignals"]


class EngineSignals(Protocol):
    """Calls from a consumer's thread to the engine while its work runs; neither blocks."""

    def notify(self) -> None:
        """Make the engine check its work again, because something changed on the consumer's side."""
        ...

    def interrupt(self, work: object) -> None:
        """Note that ``work`` was cancelled, and stop the running decode if all work in it was cancelled."""
        ...


class Consumer:
    """Calls a consumer's ``wake`` from the engine's thread and keeps the first error that it raises.

    Such an error is the consumer's fault, so it must not end the work of others.

    Args:
        wake: tells the consumer that there is something to take; None if not needed.

    Attributes:
        failure: the first error; None if there was none.
        taken: number of tokens that the consumer has taken; the consumer counts them.
    """

    __slots__ = ("_wake", "failure", "taken")

    def __init__(self, wake: Callable[[], None] | None) -> None:
        self._wake = wake
        self.failure: Exception | None = None
        self.taken = 0

    def wake(self) -> bool:
        """Call ``wake``. Returns False if it raised an error, in which case the work should be cancelled."""
        try:
            if self._wake is not None:
                self._wake()
        except Exception as exc:  # noqa: BLE001  # kept for the end of the work
            self.failure = self.failure or exc
            return False
        return True
