"""An asyncio event loop with virtual time, which advances only when nothing else can happen, so hours of waiting take milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from streamco.lazy_numpy import load_numpy

__all__ = ["VirtualTimeLoop", "run_in_virtual_time"]

Result = TypeVar("Result")


class _InstantSelector(selectors.DefaultSelector):
    """Advances its loop's clock instead of sleeping. Real sockets are served if they are ready at once."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None and timeout > 0:
            self.loop.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop on a virtual clock that starts at 0 seconds, for code that waits only for timers."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _InstantSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self.now


def run_in_virtual_time(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end on a ``VirtualTimeLoop``, as ``asyncio.run`` does, and return its result."""
    load_numpy()  # a client would load it in a thread, while this clock runs on
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
