"""What runs an answer, to those who read it; and the clock it runs by."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from streamco.openai_types import ChatCompletionChunk

__all__ = ["AnswerDriver", "Batch", "clock_of"]

Batch = tuple[str, list[ChatCompletionChunk], float]
"""Endpoint name, chunks, when they were delivered (seconds, the driver's clock)."""


class AnswerDriver(Protocol):
    """One answer under way; ``streamco.client.race.driver.SessionDriver`` says what each does."""

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is at work any more."""
        ...

    @property
    def was_broken_off(self) -> bool:
        """Whether it was left before its end."""
        ...

    @property
    def has_changed_hands(self) -> bool:
        """Whether what its chunks say of usage is of a part of it alone."""
        ...

    async def next_batch(self) -> Batch | None:
        """Wait for the next delivery; None: the answer is complete."""
        ...

    async def peek(self) -> None:
        """Wait until there is something to read or an end."""
        ...

    async def aclose(self) -> None:
        """Stop all work and wait for its end."""
        ...

    def leave(self) -> None:
        """Stop all work without waiting."""
        ...

    def leave_soon(self) -> None:
        """``leave`` from anywhere."""
        ...


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The system's, unless the loop has one of its own: uvloop's is truncated to milliseconds, asyncio's costs one more call."""
    has_own = isinstance(loop, asyncio.BaseEventLoop) and type(loop).time is not asyncio.BaseEventLoop.time
    return loop.time if has_own else time.monotonic
