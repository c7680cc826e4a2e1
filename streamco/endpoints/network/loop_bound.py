"""State that belongs to one event loop, such as connections, tasks and locks. A client may outlive its loop and move to another one.

``asyncio.run`` creates a loop and closes it, so a program that calls it for each request uses its client in many loops, one after another.
State from one loop can't be used in the next, so it is created again for each loop and found here.

When a loop ends, its state is closed. ``asyncio.run`` closes the loop's asynchronous generators before it closes the loop, and each
``LoopBound`` has a generator that waits for that. A loop that was closed without this is noticed when the next one is used.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar
from weakref import ref

from streamco.errors import ConfigError

__all__ = ["LoopBound", "LoopState", "check_process", "run_in"]


class LoopState:
    """Base class for an object's state on one event loop."""

    async def aclose(self) -> None:
        """Close connections and end tasks; called once, in the loop."""

    def drop(self) -> None:
        """Drop anything that can't be closed any more because the loop is closed."""


StateT = TypeVar("StateT", bound=LoopState)


class _Scope(Generic[StateT]):
    """A state and the loop that it belongs to."""

    def __init__(self, loop: asyncio.AbstractEventLoop, state: StateT) -> None:
        self.loop = loop
        self.state = state
        self.process = os.getpid()
        self.is_over = False
        self.is_asked = False
        self._ending = _wait_for_end(state, ref(self))
        with suppress(StopIteration):
            self._ending.__anext__().send(None)  # from here on the loop knows the generator

    async def aclose(self) -> None:
        """Close the state, in its loop."""
        self.is_asked = True
        await self._ending.aclose()


async def _wait_for_end(state: StateT, scope: ref[_Scope[StateT]]) -> AsyncGenerator[None, None]:
    """Close a state when its scope or its loop ends, or when the scope is dropped. It refers to its scope only weakly."""
    try:
        yield
    finally:
        if (ended := scope()) is not None:
            ended.is_over = True
            if not ended.is_asked:  # the loop is closing all generators, and would warn about each new one, such as websockets'
                sys.set_asyncgen_hooks(firstiter=None)
        await state.aclose()


class LoopBound(Generic[StateT]):
    """An owner's state on the running event loop, created again for each loop.

    Only one loop at a time may use it, because what an owner learns and counts isn't thread-safe.

    Args:
        make: creates the state, in the loop. It must not refer to the owner, which would then live until the garbage collector runs.
        owner: the owner's name, for errors.
    """

    __slots__ = ("_make", "_owner", "_scope")

    def __init__(self, make: Callable[[], StateT], *, owner: str) -> None:
        self._make = make
        self._owner = owner
        self._scope: _Scope[StateT] | None = None

    def get(self) -> StateT:
        """Return the state on the running loop; create it if there is none.

        Raises:
            ConfigError: the owner is in use on another running loop, or this process was forked from the one that uses it.
        """
        scope, loop = self._scope, asyncio.get_running_loop()
        if scope is not None and not scope.is_over:
            if scope.loop is loop:
                return scope.state
            self._leave(scope)
        self._scope = scope = _Scope(loop, self._make())
        return scope.state

    @property
    def current(self) -> StateT | None:
        """The state on the running loop, or None if there is none or the loop is ending."""
        scope = self._scope
        return scope.state if scope is not None and not scope.is_over and scope.loop is asyncio.get_running_loop() else None

    @property
    def latest(self) -> StateT | None:
        """The state on the most recent loop, whether or not that loop has ended; None if there was no loop."""
        return None if self._scope is None else self._scope.state

    async def aclose(self) -> None:
        """Close the state in its own loop; idempotent. In a forked process nothing is closed, because it shares the connections."""
        scope, self._scope = self._scope, None
        if scope is not None and not scope.is_over and scope.process == os.getpid():
            await run_in(scope.loop, scope.aclose)
            if scope.loop.is_closed():
                scope.state.drop()

    def _leave(self, scope: _Scope[StateT]) -> None:
        """Drop the state on another loop, which must not be running."""
        check_process(scope.process, self._owner)
        if scope.loop.is_running():
            text = "already in use by another running event loop; make a client for each loop"
            raise ConfigError(f"{self._owner}: {text}")
        if scope.loop.is_closed():
            scope.state.drop()


def check_process(process: int, owner: str) -> None:
    """Check that this is the process with the id ``process``.

    Raises:
        ConfigError: this process was forked from that one, so it lacks that one's threads and must not use its connections.
    """
    if process != os.getpid():
        text = "expected the process that it was started in, got one that was forked from it; make a client in each process, after the fork"
        raise ConfigError(f"{owner}: {text}")


async def run_in(loop: asyncio.AbstractEventLoop, function: Callable[[], Awaitable[None]]) -> None:
    """Await a function in the loop that it belongs to. Does nothing if that loop isn't running, because it couldn't run the function.

    Args:
        loop: the running loop, or the loop of another thread.
        function: the function to await.
    """
    if loop is asyncio.get_running_loop():
        await function()
    elif loop.is_running():

        async def await_there() -> None:
            await function()

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(await_there(), loop))
