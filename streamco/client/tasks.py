"""The tasks of one answer: every one is held until its end, and what ends one badly is told."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine

__all__ = ["TaskOwner"]


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
