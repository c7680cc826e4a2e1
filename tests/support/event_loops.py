"""Event loops in threads of their own, for tests of what is used in several loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

__all__ = ["LoopThread", "in_thread", "loop_thread"]

T = TypeVar("T")


class LoopThread:
    """An event loop that runs in another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and wait for its result."""
        return self.begin(coroutine).result(timeout=30)

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run a coroutine there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


@contextmanager
def loop_thread() -> Iterator[LoopThread]:
    """A loop that runs until the end of the block, and ends as ``asyncio.run`` ends its own."""
    started: Future[LoopThread] = Future()

    async def main() -> None:
        ended = asyncio.Event()
        ends.append(ended.set)
        started.set_result(LoopThread(asyncio.get_running_loop()))
        await ended.wait()

    ends: list[Callable[[], None]] = []
    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    there = started.result(timeout=30)
    try:
        yield there
    finally:
        there.loop.call_soon_threadsafe(ends[0])
        thread.join(timeout=30)


@contextmanager
def in_thread(context: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """What an asynchronous context manager gives, open in a loop of another thread: a server for several loops here."""

    async def enter() -> T:
        return await context.__aenter__()

    async def leave() -> None:
        await context.__aexit__(None, None, None)

    with loop_thread() as there:
        value = there.run(enter())
        try:
            yield value
        finally:
            there.run(leave())
