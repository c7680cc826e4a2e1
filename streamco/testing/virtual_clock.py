"""An asyncio event loop whose time passes only while nothing else can happen: hours of waiting take milliseconds, always the same."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["VirtualTimeLoop", "run_in_virtual_time"]

Result = TypeVar("Result")


class _InstantSelector(selectors.DefaultSelector):
    """Instead of sleeping, moves its loop's clock. Real sockets are still served when they are ready at once."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None and timeout > 0:
            self.loop.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at 0 seconds; for code that waits by timers only."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _InstantSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Virtual seconds."""
        return self.now


def run_in_virtual_time(main: Coroutine[Any, Any, Result]) -> Result:
    """``asyncio.run`` on a ``VirtualTimeLoop``."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
