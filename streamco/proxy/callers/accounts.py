"""The callers' file for use in an event loop. All calls run in one separate thread, so that no answer waits for the disk."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from streamco.endpoints.network.peer_timeout import PeerTimeout
from streamco.errors import ConfigError
from streamco.proxy.callers.base import Caller, DayFigures
from streamco.proxy.callers.store import CallerStore, ReservedCost, SettledCost

__all__ = ["CallerAccounts"]

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("streamco.proxy")

LONGEST_WAIT = 5.0  # seconds that a request waits for the file, including earlier calls, before it is refused
CHECK_INTERVAL = 1.0  # seconds
WRITE_INTERVAL = 1.0  # seconds between attempts to write costs that couldn't be written


class CallerAccounts:
    """Keys, rates and budgets of a proxy's callers. Every method raises ``ConfigError`` if the file can't be used.

    Calls are carried out in order, even if the code that made them no longer waits.

    Args:
        path: the file.
        clock: returns the Unix time.
        patience: seconds that one call may wait for another process.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time, patience: float = 1.0) -> None:
        self.clock = clock
        self._store = CallerStore(path, patience=patience)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="streamco callers")
        self._is_closed = False
        self._checking: asyncio.Task[None] | None = None  # the last check of the file
        self._checked_until = -math.inf  # event loop's time until which a successful check counts
        self._writing: asyncio.Task[None] | None = None  # attempts to write costs that couldn't be written
        self._may_be_unwritten = False  # since the last attempt began, a call has failed or been abandoned

    async def start(self) -> None:
        """Open the file.

        Raises:
            ConfigError: it doesn't exist, is damaged, isn't a callers' file, or can't be read and written.
        """
        try:
            await self.run(self._store.check)
        except ConfigError:
            self._thread.shutdown(wait=False)
            raise

    async def check(self) -> None:
        """Check that the file can be read and written; see ``start``. Concurrent calls share one check.

        A successful check counts for a second, unless a call fails.
        """
        now = asyncio.get_running_loop().time()
        if self._checking is None or (self._checking.done() and now >= self._checked_until):
            self._checked_until = now + CHECK_INTERVAL
            self._checking = asyncio.create_task(self.run(self._store.check))
            self._checking.add_done_callback(_take_exception)
        await asyncio.shield(self._checking)

    async def aclose(self) -> None:
        """Write the costs that haven't been written yet, close the file and end the thread. Idempotent.

        Raises:
            ConfigError: the costs can't be written; their reservations stay.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._writing is not None:
            self._writing.cancel()
        try:
            await self.run(self._store.write_settled)
        finally:
            self._thread.submit(self._store.close)
            self._thread.shutdown(wait=False)

    async def find(self, key_hash: bytes) -> Caller | None:
        """Return the caller with this key, or None if there is none."""
        return await self.run(self._store.find, key_hash)

    async def admit(self, key_hash: bytes) -> tuple[Caller, float] | None:
        """Find the caller with this key and count a request against its rate; see ``CallerStore.admit``."""
        return await self.run(self._store.admit, key_hash, self.clock())

    async def reserve(self, reservation: str, name: str, cost: int, *, may_fall_back: bool) -> ReservedCost | None:
        """Reserve the most that a request may cost; see ``CallerStore.reserve``.

        Even if this fails or is cancelled, the reservation may be made. So always call ``settle`` or ``withdraw`` afterwards.
        """
        return await self.run(self._store.reserve, reservation, name, cost, self.clock(), may_fall_back=may_fall_back)

    async def settle(self, reservation: str, settled: SettledCost) -> None:
        """Replace a reservation with the real cost; see ``CallerStore.settle``.

        If this fails, it is retried every second until the cost is written.
        """
        await self._run_or_retry(self._store.settle, reservation, settled)

    async def withdraw(self, reservation: str) -> None:
        """Take a reservation back, if it was made; see ``CallerStore.withdraw``. If it fails, it is retried as in ``settle``."""
        await self._run_or_retry(self._store.withdraw, reservation)

    async def figures(self, name: str) -> tuple[Caller, DayFigures]:
        """Return a caller's limits, and its figures for today."""
        return await self.run(self._store.figures, name, self.clock())

    async def run(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function in the thread, after all earlier calls.

        Raises:
            ConfigError: the function raised it, or the calls took too long.
        """
        waiting = asyncio.wrap_future(self._thread.submit(function, *args, **options))
        try:
            async with PeerTimeout(LONGEST_WAIT):
                return await asyncio.shield(waiting)
        except ConfigError:
            self._checked_until = -math.inf
            raise
        except TimeoutError as error:
            self._checked_until = -math.inf
            raise ConfigError(f"callers: expected an answer of {self._store.path} within {LONGEST_WAIT:g} s, got none") from error
        finally:
            if not waiting.done():
                waiting.add_done_callback(_take_exception)

    async def _run_or_retry(self, function: Callable[P, None], *args: P.args, **options: P.kwargs) -> None:
        """Run a function that settles a cost. If it fails, start the task that writes the cost later."""
        try:
            await self.run(function, *args, **options)
        except (ConfigError, asyncio.CancelledError) as error:  # an abandoned call may still fail
            self._may_be_unwritten = True
            if not self._is_closed and (self._writing is None or self._writing.done()):
                self._writing = asyncio.create_task(self._write_later(str(error)), name="streamco callers writing")
            raise

    async def _write_later(self, reason: str) -> None:
        """Write the costs that couldn't be written, as soon as the file allows it. Errors other than ``reason`` are logged."""
        while True:
            await asyncio.sleep(WRITE_INTERVAL)
            self._may_be_unwritten = False
            try:
                await self.run(self._store.write_settled)
                if not self._store.has_unsettled and not self._may_be_unwritten:
                    return
            except ConfigError as error:
                if str(error) != reason:
                    logger.warning("%s; costs are not written until then", error)
                reason = str(error)


def _take_exception(waiting: asyncio.Future[T]) -> None:
    """Retrieve the exception of an abandoned call, so that it isn't logged. The request that made the call has failed already."""
    if not waiting.cancelled():
        waiting.exception()
