"""The callers' file for an event loop: each call runs in one thread of its own, so that no answer waits for the disk."""

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

LONGEST_WAIT = 5.0  # seconds that a request waits for the file, calls before it included; then it is refused
CHECK_INTERVAL = 1.0  # seconds
WRITE_INTERVAL = 1.0  # seconds between attempts to write costs that could not be written


class CallerAccounts:
    """Keys, rates and budgets of a proxy's callers. Every method raises ``ConfigError`` if the file can't be used.

    Calls are carried out in their order, also those that are no longer waited for.

    Args:
        path: the file.
        clock: Unix time.
        patience: seconds that one call may wait for another process.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time, patience: float = 1.0) -> None:
        self.clock = clock
        self._store = CallerStore(path, patience=patience)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="streamco callers")
        self._is_closed = False
        self._checking: asyncio.Task[None] | None = None  # the last check of the file
        self._checked_until = -math.inf  # when a check that succeeded is repeated; on the event loop's clock
        self._writing: asyncio.Task[None] | None = None  # attempts to write what could not be written
        self._may_be_unwritten = False  # a call has failed, or is no longer waited for, since the last attempt began

    async def start(self) -> None:
        """Open the file.

        Raises:
            ConfigError: it isn't there, is damaged or another one, or can't be read and written.
        """
        try:
            await self.run(self._store.check)
        except ConfigError:
            self._thread.shutdown(wait=False)
            raise

    async def check(self) -> None:
        """Check that the file can be read and written; see ``start``. All that ask at once share one check.

        One that succeeds counts for a second, unless a call fails.
        """
        now = asyncio.get_running_loop().time()
        if self._checking is None or (self._checking.done() and now >= self._checked_until):
            self._checked_until = now + CHECK_INTERVAL
            self._checking = asyncio.create_task(self.run(self._store.check))
            self._checking.add_done_callback(_take_exception)
        await asyncio.shield(self._checking)

    async def aclose(self) -> None:
        """Write what is not written yet, close the file and end the thread; idempotent.

        Raises:
            ConfigError: it can't be written; what was reserved stays reserved.
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
        """Return the caller with this key; None: there is none."""
        return await self.run(self._store.find, key_hash)

    async def admit(self, key_hash: bytes) -> tuple[Caller, float] | None:
        """Find the caller with this key and count a request against its rate; see ``CallerStore.admit``."""
        return await self.run(self._store.admit, key_hash, self.clock())

    async def reserve(self, reservation: str, name: str, cost: int, *, may_fall_back: bool) -> ReservedCost | None:
        """Reserve the most that a request may cost; see ``CallerStore.reserve``.

        If it fails or is cancelled, it may be carried out all the same. So ``settle`` or ``withdraw`` must follow.
        """
        return await self.run(self._store.reserve, reservation, name, cost, self.clock(), may_fall_back=may_fall_back)

    async def settle(self, reservation: str, settled: SettledCost) -> None:
        """Replace a reservation by the real cost; see ``CallerStore.settle``.

        If it fails, it is tried again until it is written, a second after each attempt.
        """
        await self._run_or_retry(self._store.settle, reservation, settled)

    async def withdraw(self, reservation: str) -> None:
        """Take a reservation back, if it was made; see ``CallerStore.withdraw``. If it fails, it is tried again as in ``settle``."""
        await self._run_or_retry(self._store.withdraw, reservation)

    async def figures(self, name: str) -> tuple[Caller, DayFigures]:
        """Return a caller's limits, and its figures of this day."""
        return await self.run(self._store.figures, name, self.clock())

    async def run(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function in the thread, after the calls before it.

        Raises:
            ConfigError: it raised this, or the calls before it took too long.
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
        """Run a function that settles. If it fails, start the task that writes it later."""
        try:
            await self.run(function, *args, **options)
        except (ConfigError, asyncio.CancelledError) as error:  # a call that is no longer waited for may fail yet
            self._may_be_unwritten = True
            if not self._is_closed and (self._writing is None or self._writing.done()):
                self._writing = asyncio.create_task(self._write_later(str(error)), name="streamco callers writing")
            raise

    async def _write_later(self, reason: str) -> None:
        """Write the costs that could not be written, as soon as the file allows it. ``reason``: why it didn't; another one is logged."""
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
    """Take the exception of a call that is no longer waited for: what it was for has failed already."""
    if not waiting.cancelled():
        waiting.exception()
