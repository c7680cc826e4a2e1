"""A contender in a process of its own: code for another processor may kill it, and the bench goes on without it."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

__all__ = ["ChildContender", "NotOnThisProcessor"]

Run = Callable[..., Any]


class NotOnThisProcessor(Exception):
    """A signal killed a contender's process, as an instruction that the processor doesn't have or doesn't grant does."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"not on this processor ({signal.Signals(number).name})")


class ChildContender:
    """Makes a contender in a child, and runs it there. Belongs to one thread.

    Args:
        make: a function of a module, which returns the function to run.
        arguments: what ``make`` gets.
    """

    def __init__(self, make: Callable[..., Run], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would have this process's threads and models, but for the threads
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def __call__(self, *arguments: Any) -> Any:
        """Return what the contender returns.

        Raises:
            NotOnThisProcessor: a signal has killed it, now or before.
            RuntimeError: it has failed; the child's stderr says how.
        """
        try:
            self._pipe.send(arguments)
            return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
        code = self._process.exitcode
        if code is not None and code < 0:
            raise NotOnThisProcessor(-code)
        raise RuntimeError(f"contender: expected a figure from its process, got exit status {code}")

    def close(self) -> None:
        """End the child; idempotent."""
        self._pipe.close()
        self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _serve(pipe: Connection, make: Callable[..., Run], arguments: tuple[Any, ...]) -> None:
    _leave_no_core()
    run = make(*arguments)
    while True:
        try:
            given = pipe.recv()
        except EOFError:
            return
        pipe.send(run(*given))


def _leave_no_core() -> None:
    """Keep no core file of a crash, because it is an expected answer."""
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
