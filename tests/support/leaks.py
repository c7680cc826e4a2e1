"""What a process holds: sockets, tasks, threads, memory. A test compares before and after."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Holdings", "alive", "holding_nothing_new", "resident_bytes", "settled", "watched_loop", "without_collector"]


class Holdings:
    """What this process holds now."""

    def __init__(self) -> None:
        self.sockets = _sockets()
        self.tasks = {task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()}
        self.threads = {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}  # the loop's own pool stays

    def beyond(self, other: Holdings) -> list[str]:
        """What this one has and ``other`` hasn't, in words."""
        found = [f"socket {name}" for name in sorted(self.sockets - other.sockets)]
        found += [f"task {task!r}" for task in self.tasks - other.tasks]
        return found + [f"thread {thread.name}" for thread in self.threads - other.threads]


def _sockets() -> set[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # the folder's own descriptor
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def resident_bytes() -> int:
    """Resident memory of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def settled(condition: Callable[[], Any], *, limit: float = 10.0) -> None:
    """Wait until the condition holds: closing a socket takes the loop a few turns.

    Raises:
        TimeoutError: it did not within ``limit`` seconds.
    """
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def watched_loop() -> AsyncIterator[list[dict[str, Any]]]:
    """Fails when the loop was told of an exception nobody handled; gives what it was told."""
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: told.append(context))
    try:
        yield told
        gc.collect()  # a future whose exception nobody took says so when it is collected
        await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(before)
    assert not told, f"unhandled in the loop: {told}"


@asynccontextmanager
async def holding_nothing_new(*, limit: float = 10.0) -> AsyncIterator[None]:
    """Fails when what happens inside leaves a socket, a task or a thread behind, or an exception that nobody handled."""
    before = Holdings()
    async with watched_loop():
        yield
    try:
        await settled(lambda: not Holdings().beyond(before), limit=limit)
    except TimeoutError:
        raise AssertionError(f"left behind: {Holdings().beyond(before)}") from None


def alive(*kinds: type) -> list[object]:
    """Objects of these classes that something holds. Other libraries' lazy objects aren't woken, as ``isinstance`` would."""
    return [each for each in gc.get_objects() if issubclass(type(each), kinds)]


@contextmanager
def without_collector() -> Iterator[None]:
    """Let nothing look for cycles: what is freed in here was held by no cycle."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
