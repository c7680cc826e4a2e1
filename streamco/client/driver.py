"""What runs an answer, to those who read it; and the clock it runs by."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Protocol

from streamco.openai_types import ChatCompletionChunk

__all__ = ["AnswerDriver", "Batch", "TaskOwner", "clock_of"]

Batch = tuple[str, list[ChatCompletionChunk], float]
"""Endpoint name, chunks, when they were delivered (seconds, the driver's clock)."""


class AnswerDriver(Protocol):
    """One answer under way; ``streamco.client.race.driver.RaceDriver`` says what each does."""

    @property
    def is_over(self) -> bool:
        """True if nothing of it is at work any more."""
        ...

    @property
    def was_broken_off(self) -> bool:
        """True if it was left before its end."""
        ...

    @property
    def has_changed_hands(self) -> bool:
        """True if what its chunks say of usage is of a part of it alone."""
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
    """Return the system's, unless the loop has one of its own: uvloop's is truncated to milliseconds, asyncio's costs one more call."""
    has_own = isinstance(loop, asyncio.BaseEventLoop) and type(loop).time is not asyncio.BaseEventLoop.time
    return loop.time if has_own else time.monotonic


class TaskOwner(ABC):
    """A driver with its tasks.

    A base class and no part of one: two objects that hold each other would outlive the answer until the collector comes.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    def _crash(self, error: BaseException) -> None:
        """A task raised this; being cancelled is no error."""

    @abstractmethod
    def _end_if_idle(self) -> None:
        """A task has ended."""

    def _spawn(self, coroutine: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crash(error)
        self._end_if_idle()

    async def _wait_for_tasks(self) -> None:
        """Return when none runs, those that begin meanwhile included."""
        while self._tasks:
            await asyncio.wait(self._tasks)
