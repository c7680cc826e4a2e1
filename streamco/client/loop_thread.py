"""An event loop on a separate thread, so that code without asyncio can wait for coroutines.

The thread starts with the first call, so that a program may create its clients before it forks. It is a daemon thread, and what runs on it
is closed before the interpreter exits. A caller that waits for a coroutine keeps a reference to the ``LoopThread``; without any references,
the thread ends by itself.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from importlib import import_module
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet, finalize

from streamco.errors import StreamClosed, UsageError

__all__ = ["LoopThread", "call_at_exit"]

P = ParamSpec("P")
T = TypeVar("T")

_EXIT_SECONDS = 5.0  # limit for closing while the interpreter exits
_POLL_SECONDS = 0.2 if sys.platform == "win32" else None  # on Windows, a thread that waits without a limit doesn't see Ctrl-C


class LoopThread:
    """A thread that runs an event loop; any number of threads may call it at once.

    Args:
        end: coroutine function that is awaited on the loop before it ends. It must not refer to this object.
    """

    def __init__(self, end: Callable[[], Awaitable[None]]) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None  # None before the first call
        self._thread: threading.Thread | None = None
        self._process: int | None = None  # the process of the thread
        self._is_closed = False

    def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function on the loop and return its result. If the wait is interrupted, for example by Ctrl-C, cancel it.

        Raises:
            StreamClosed: the thread was closed, before the call or during it.
            UsageError: the caller is on the loop itself, or in a process that was forked from the thread's process.
        """
        task: asyncio.Task[Any] | None = None
        is_given_up = False

        async def run() -> T:
            nonlocal task
            task = asyncio.current_task()
            if is_given_up:
                raise asyncio.CancelledError
            return await function(*args, **kwargs)

        future: Future[T] | None = None
        try:  # before the work is submitted: Ctrl-C may come at any line
            future = self._submit(run)
            if _POLL_SECONDS is not None:
                while not future.done():
                    wait([future], _POLL_SECONDS)
            return future.result()
        except CancelledError:
            raise StreamClosed("the client was closed during the call") from None
        finally:
            is_given_up = True
            if future is not None:
                future.cancel()  # no effect if it is done
            elif task is not None and self._loop is not None:
                self._loop.call_soon_threadsafe(task.cancel)

    def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain function (not a coroutine function) on the loop, or directly if there is no loop, and return its result.

        Raises:
            UsageError: as for ``call``.
        """

        async def run() -> T:
            return function(*args, **kwargs)

        self._check_caller()
        if self._loop is None or self._is_closed:
            return function(*args, **kwargs)
        return self.call(run)

    def post(self, function: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Schedule a function on the loop, from any thread and without waiting for it; does nothing if the loop has ended."""
        if self._loop is not None and self._process == os.getpid():
            _post(self._loop, function)

    def close(self) -> None:
        """Await ``end`` and end the loop; idempotent. In a forked process this does nothing, because the loop belongs to the other process.

        Raises:
            UsageError: the caller is on the loop itself.
        """
        if self._process not in (None, os.getpid()):
            return
        self._check_caller()
        with self._lock:
            loop, thread, was_closed, self._is_closed = self._loop, self._thread, self._is_closed, True
        if loop is None or thread is None:
            return
        if was_closed:
            thread.join()  # another thread may already be closing it
            return
        try:
            _run_on(loop, self._end).result()
        finally:
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def close_at_exit(self) -> None:
        """Do the same as ``close``, but give up after a few seconds and never raise."""
        if self._process != os.getpid():
            return
        with self._lock:
            loop, thread, was_closed, self._is_closed = self._loop, self._thread, self._is_closed, True
        if loop is None or thread is None or was_closed:
            return
        with suppress(Exception):
            _run_on(loop, self._end).result(_EXIT_SECONDS)
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(loop.stop)
        thread.join(_EXIT_SECONDS)

    def _submit(self, function: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        self._check_caller()
        with self._lock:
            if self._is_closed:
                raise StreamClosed("the client is closed")
            loop = self._loop or self._start()
            try:
                return _run_on(loop, function)
            except RuntimeError as error:
                raise StreamClosed("the client's event loop has ended") from error

    def _check_caller(self) -> None:
        """Check that the caller may wait for the loop. This doesn't take the lock, which a fork may have left locked."""
        if self._process not in (None, os.getpid()):
            text = "expected the process of the first call, got one that was forked from it; make a client in each process, after the fork"
            raise UsageError(f"SyncClient: {text}")
        if self._thread is not None and threading.get_ident() == self._thread.ident:
            text = "expected a call from another thread than the client's own, whose event loop it would stop; use streamco.Client there"
            raise UsageError(f"SyncClient: {text}")

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run_loop, args=(loop,), name="streamco-sync", daemon=True)
        thread.start()
        self._process, self._loop, self._thread = os.getpid(), loop, thread
        finalize(self, _end_alone, loop, self._end, self._process).atexit = False
        _register_for_exit(self)
        return loop


def call_at_exit(function: Callable[[], object]) -> None:
    """Call a function when the interpreter ends, while threads of executors still run: closing a model needs such a thread.

    Functions registered with ``atexit`` run after those threads have ended. Functions registered here run before that, because the last
    one registered runs first: importing the executors' module makes sure that its own function is already registered.
    """
    import_module("concurrent.futures.thread")
    getattr(threading, "_register_atexit", atexit.register)(function)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, then end its remaining tasks, so that nobody waits for them forever."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _run_on(loop: asyncio.AbstractEventLoop, function: Callable[[], Awaitable[T]]) -> Future[T]:
    """Schedule a function on a loop; if that fails, no coroutine is left unawaited.

    Raises:
        RuntimeError: the loop is closed.
    """

    async def run() -> T:
        return await function()

    coroutine = run()
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise


def _post(loop: asyncio.AbstractEventLoop, function: Callable[[], Awaitable[object]]) -> None:
    with suppress(RuntimeError):  # the loop has ended
        _run_on(loop, function)


def _end_alone(loop: asyncio.AbstractEventLoop, end: Callable[[], Awaitable[None]], process: int) -> None:
    """End the loop of a ``LoopThread`` that nothing refers to. This doesn't wait, because a finaliser may run on any thread."""

    async def end_and_stop() -> None:
        try:
            await end()
        finally:
            loop.stop()

    if process == os.getpid():
        _post(loop, end_and_stop)


_running: WeakSet[LoopThread] = WeakSet()
_is_registered = False


def _register_for_exit(thread: LoopThread) -> None:
    global _is_registered  # noqa: PLW0603  one function for the process
    _running.add(thread)
    if not _is_registered:
        _is_registered = True
        call_at_exit(_close_all)


def _close_all() -> None:
    for thread in list(_running):
        thread.close_at_exit()
