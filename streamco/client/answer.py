"""An answer that a stream will read. The client's mode prepares it, and the first read starts it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from streamco.client.answer_log import REQUEST_ID_HEADER, AnswerLog
from streamco.client.driver import AnswerDriver
from streamco.client.modes.base import AskedAnswer, Prepared
from streamco.client.settings import ClientSettings
from streamco.config import ReaderPace
from streamco.core.report import Opening, Report
from streamco.core.report_parts import AnswerUsage
from streamco.endpoints.base import Request
from streamco.endpoints.network.loop_bound import run_in
from streamco.errors import ConfigError, StreamClosed, StreamcoError, StreamConsumed, UsageError

__all__ = ["PendingAnswer"]


class PendingAnswer:
    """The answer of a stream; the first read prepares and starts it.

    Both the stream and the generator that its reader iterates hold a reference to this object, but not to each other. So a dropped stream
    ends at once, without waiting for the garbage collector, and an ``async for`` can go on even if nothing else refers to its
    stream. The driver must not refer to this object, because then nobody would notice that a stream was dropped.

    Args:
        request: the complete, validated request.
        settings: the client's settings.
        pace: how fast the reader gets text: a number of tokens per second, "smooth" to spread it evenly at the rate at which it arrives, or
            None to send it as soon as it arrives.
        shows_drafts: True if the reader can take text back.
        is_streamed: False if the reader gets the answer in one piece; then ``pace`` is None.
        notes: the first notes of the report.

    Attributes:
        driver: runs the answer; None if it hasn't started.
        is_closed: True if the stream was closed.
        source: the endpoint that the newest chunk came from, or None if no chunk has been read.
    """

    def __init__(
        self,
        request: Request,
        settings: ClientSettings,
        *,
        pace: ReaderPace,
        shows_drafts: bool = False,
        is_streamed: bool = True,
        notes: Sequence[str] = (),
    ) -> None:
        self.driver: AnswerDriver | None = None
        self.is_closed = False
        self.source: str | None = None
        self._settings = settings
        log = AnswerLog(_named_id(request.headers))
        self._asked = AskedAnswer(
            replace(request, headers={**request.headers, REQUEST_ID_HEADER: log.request_id}),
            settings,
            pace=pace,
            shows_drafts=shows_drafts,
            is_streamed=is_streamed,
            notes=list(notes),
            log=log,
        )
        self._prepared: Prepared[Any] | None = None  # None if not prepared, or abandoned
        self._loop: asyncio.AbstractEventLoop | None = None  # the driver's
        self._lock = asyncio.Lock()  # two tasks may wait for the start of one stream

    async def start(self) -> AnswerDriver:
        """Start the answer if it hasn't started, and return its driver.

        Raises:
            StreamClosed: the stream or the client is already closed.
            ConfigError: no endpoint can serve the request, or the answer has begun in another event loop.
        """
        if self.driver is None:
            async with self._lock:
                if self.driver is None:
                    self.driver = await self._start()
        elif self._loop is not asyncio.get_running_loop():
            raise ConfigError("stream: can't be read in this event loop, because its answer began in a different one")
        return self.driver

    @property
    def was_broken_off(self) -> bool:
        """True if the reader left before the answer had ended."""
        return self.driver is not None and self.driver.was_broken_off

    async def aclose(self) -> None:
        """End the answer and wait until its work has ended; idempotent."""
        self.is_closed = True
        if self.driver is not None and self._loop is not None:
            await run_in(self._loop, self.driver.aclose)

    def report(self) -> Report:
        """Return the report on the answer so far.

        Raises:
            StreamConsumed: the answer has not started.
        """
        if self.driver is None:
            raise StreamConsumed("expected a stream that has begun, got a report asked for before the first read")
        return self._asked.complete(self.driver.report(), self._notes(self.driver))

    def describe(self, error: StreamcoError) -> None:
        """Attach the answer's report to the error that ended it, unless the error already has one."""
        if error.report is None:
            error.report = self.report()

    def opening(self) -> Opening:
        """Return the part of the report that is known at the first token.

        Raises:
            StreamConsumed: the answer has not started.
        """
        if self.driver is None:
            raise StreamConsumed("expected a stream that has begun, got its opening asked for before the first read")
        return replace(self.driver.opening(), notes=self._notes(self.driver))

    def usage(self) -> AnswerUsage:
        """Return the answer's token counts so far.

        Raises:
            StreamConsumed: the answer has not started.
        """
        if self.driver is None:
            raise StreamConsumed("expected a stream that has begun, got usage asked for before the first read")
        return self.driver.usage()

    def rate(self, good: bool) -> bool:
        """Say whether the answer was good; see ``Client.rate``."""
        return self._settings.planner.rate(self._asked.log.key, good=good)

    @property
    def key(self) -> str:
        """A key that identifies only this answer and can't be guessed."""
        return self._asked.log.key

    def __del__(self) -> None:
        driver = self.driver
        if driver is not None and not driver.is_over:
            driver.leave_soon()

    async def _start(self) -> AnswerDriver:
        """Prepare and start the answer; if that fails, close everything that was prepared."""
        asked, settings = self._asked, self._settings
        prepared: Prepared[Any] | None = None
        try:
            if not settings.is_started:
                await settings.start()
            self._check_open()
            outcome = await settings.planner.prepare(asked)
            if not isinstance(outcome, Prepared):
                raise AssertionError(f"expected a mode that makes every answer, got {outcome.text!r}")
            prepared = outcome
            self._check_open()  # it may have been closed in the meantime
            settings.endpoints.check_open()  # the client may have been closed while the prompt was counted
            driver: AnswerDriver = prepared.start()
        except BaseException as error:
            if prepared is not None:
                await prepared.aclose()
            if isinstance(error, StreamcoError) and not isinstance(error, UsageError):
                settings.observers.refuse(asked.request, error)
            raise
        self._loop = asyncio.get_running_loop()
        self._prepared = prepared
        return driver

    def _check_open(self) -> None:
        if self.is_closed:
            raise StreamClosed("the stream was closed before it began")

    def _notes(self, driver: AnswerDriver) -> list[str]:
        """Return the answer's notes so far."""
        if self._prepared is not None:
            self._prepared.note(driver)
        return list(self._asked.notes)


def _named_id(headers: Mapping[str, str]) -> str:
    """Return the request id that the caller gave in the headers, or "" if there is none."""
    return next((value for name, value in headers.items() if name.lower() == REQUEST_ID_HEADER.lower()), "")
