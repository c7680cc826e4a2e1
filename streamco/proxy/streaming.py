"""Sends one answer to an HTTP client, either as events while it is made or as a whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Self

from aiohttp import web

from streamco.client.driver import Relay
from streamco.client.stream import ChatStream
from streamco.core.report import opening_of
from streamco.errors import StreamcoError
from streamco.openai_types import ChatCompletionChunk
from streamco.proxy.config import ProxyOptions
from streamco.proxy.error_responses import explain
from streamco.proxy.origins import OriginFields
from streamco.proxy.report_headers import comment, headers, model_header, opening_headers
from streamco.proxy.response_shapes import ChatShape, CompletionShape, ResponseShape
from streamco.server.http.errors import RequestError
from streamco.server.http.event_stream import EventStream
from streamco.wire.answer_encoder import AnswerFormError
from streamco.wire.openai.assembler import CompletionAssembler

__all__ = ["OriginMarks", "answer_whole", "stream_answer"]

logger = logging.getLogger("streamco.proxy")

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class _Sender:
    """Writes events to one response, one write at a time, and keep-alives during silence. It sends keep-alives inside ``async with``.

    A timer watches for silence, and a task is started only for a keep-alive, which most answers never need. ``write`` and ``relay`` are
    plain functions, because a coroutine for each event would cost too much time.
    """

    __slots__ = ("_is_writing", "_keepalive", "_keepalive_task", "_loop", "_quiet_since", "_repeating", "_shape", "_timer", "events")

    def __init__(self, request: web.Request, shape: ResponseShape, options: ProxyOptions) -> None:
        self.events = EventStream(request, options.reader_timeout)
        self._shape = shape
        self._repeating = shape if isinstance(shape, ChatShape | CompletionShape) else None
        self._keepalive = options.keepalive
        self._loop = asyncio.get_running_loop()
        self._quiet_since = self._loop.time()
        self._is_writing = False
        self._keepalive_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> Awaitable[None]:
        """Send bytes, after all earlier ones."""
        if self._keepalive_task is None and (writing := self.events.quick_write(data)) is not None:
            self._quiet_since = self._loop.time()
            return writing
        return self._write_slowly(data)

    @property
    def relay(self) -> Relay | None:
        """The function that sends a chunk which differs from an earlier one only in its text; None if the shape can't repeat chunks."""
        return None if self._repeating is None else self._repeat

    def _repeat(self, like: ChatCompletionChunk, text: str) -> Awaitable[None]:
        assert self._repeating is not None, "checked by relay"
        return self.write(self._repeating.repeat(like, text))

    async def _write_slowly(self, data: bytes) -> None:
        if self._keepalive_task is not None:
            await asyncio.wait([self._keepalive_task])
        self._is_writing = True
        try:
            await self.events.write(data)
        finally:
            self._is_writing = False
        self._quiet_since = self._loop.time()

    async def finish(self, data: bytes) -> None:
        """Send the last bytes and end the response."""
        if self._keepalive_task is not None:
            await asyncio.wait([self._keepalive_task])
        self._is_writing = True
        await self.events.close(data)

    async def __aenter__(self) -> Self:
        self._watch(self._keepalive)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._keepalive_task is not None:
            self._keepalive_task.cancel()
            await asyncio.wait([self._keepalive_task])

    def _watch(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        """Send a keep-alive if nothing was written for its interval, and no other write is waiting for the reader."""
        silence = self._loop.time() - self._quiet_since
        if silence < self._keepalive:
            self._watch(self._keepalive - silence)
        elif self._is_writing:
            self._watch(self._keepalive)
        else:
            self._timer = None
            self._keepalive_task = self._loop.create_task(self._send_keepalive(), name="streamco proxy keep-alive")

    async def _send_keepalive(self) -> None:
        try:
            await self.events.write(self._shape.keepalive)
        except ConnectionError:
            return  # the reader disconnected, which cancels the handler, so there is nothing to do here
        finally:
            self._keepalive_task = None
        self._quiet_since = self._loop.time()
        self._watch(self._keepalive)


class OriginMarks:
    """Encodes the chunks of one answer with their origin, and its final report.

    Args:
        fields: makes the field ``streamco`` of each chunk.
        shape: encodes the chunks.
    """

    def __init__(self, fields: OriginFields, shape: ChatShape | CompletionShape) -> None:
        self._fields = fields
        self._shape = shape

    def event(self, chunk: ChatCompletionChunk) -> bytes:
        """Return the chunk as an event, with its origin."""
        return self._shape.event(chunk, self._fields.describe(chunk))

    def ending(self, reason: str | None) -> bytes:
        """Return an event with the finish reason if no chunk had it, or b"" if the chunks had it."""
        return self._shape.ending(reason, self._fields.describe_end())

    async def last_report(self) -> bytes:
        """Wait until all work has ended, and return the event with the final report, or b"" if there is none."""
        report = await self._fields.finish()
        return b"" if report is None else self._shape.report(report)


async def stream_answer(
    request: web.Request,
    answer: ChatStream,
    shape: ResponseShape,
    options: ProxyOptions,
    *,
    unknown_model: str = "",
    marks: OriginMarks | None = None,
    more_headers: Mapping[str, str] = NO_HEADERS,
) -> web.StreamResponse:
    """Send an answer while it is made; the caller closes it.

    Args:
        request: the request.
        answer: the answer, not read yet.
        shape: encodes it.
        options: the proxy's limits.
        unknown_model: the requested model name if the proxy doesn't have it, otherwise "".
        marks: encodes chunks with their origin, or None to leave it out.
        more_headers: additional headers of the response.

    Raises:
        RequestError: the answer failed before anything was sent.
        ConnectionError: the reader disconnected.
    """
    sender = _Sender(request, shape, options)
    sender.events.response.headers.update(more_headers)
    async with sender:
        try:
            await answer.first()
            if not sender.events.has_begun:
                opening = answer.opening
                sender.events.response.headers.update(opening_headers(opening) | model_header(opening, unknown_model))
            # In a task of its own, because each event resumes all coroutines that wait for it, and above this one there are ten.
            await asyncio.create_task(_send_chunks(answer, sender, shape, marks))
        except ConnectionError:
            raise
        except Exception as error:
            if not sender.events.has_begun:
                raise _failure_of(error, request) from error  # not kept in a variable, because its frames refer to the request
            failure = _failure_of(error, request)
            last = b"" if marks is None else await marks.last_report()
            await sender.finish(last + shape.failing(failure))  # too late for a status
        else:
            report = answer.report
            if marks is None:
                ending = shape.ending(report.finish_reason)
            else:
                if ending := marks.ending(report.finish_reason):
                    await sender.write(ending)  # so that the reader needn't wait until all work has ended
                ending, report = await marks.last_report(), answer.report
            await sender.finish(ending + comment(report) + shape.done())
    return sender.events.response


def _send_chunks(answer: ChatStream, sender: _Sender, shape: ResponseShape, marks: OriginMarks | None) -> Coroutine[Any, Any, None]:
    """Return a coroutine that sends all chunks. This is a plain function, because a coroutine here would be resumed with each event."""
    encode = shape.event if marks is None else marks.event

    async def send(chunk: ChatCompletionChunk) -> None:
        if data := encode(chunk):
            await sender.write(data)

    return answer.pass_on(send, sender.relay if marks is None else None)


async def answer_whole(
    answer: ChatStream, shape: ResponseShape, *, unknown_model: str = "", more_headers: Mapping[str, str] = NO_HEADERS
) -> web.Response:
    """Collect an answer and return it as one object; the caller closes it. For the options see ``stream_answer``.

    Raises:
        RequestError: the answer failed.
    """
    assembler = CompletionAssembler()
    try:
        async for chunk in answer:
            assembler.add(chunk)
    except StreamcoError as error:
        raise explain(error) from error
    report = answer.report
    try:
        body = shape.whole(assembler.completion(), report.finish_reason)
    except AnswerFormError as error:
        raise RequestError(502, str(error), code="endpoint_failed") from error
    found = {**headers(report), **model_header(opening_of(report), unknown_model), **more_headers}
    return web.Response(body=body, content_type="application/json", headers=found)


def _failure_of(error: Exception, request: web.Request) -> RequestError:
    if isinstance(error, StreamcoError):
        return explain(error)
    logger.error("%s %s failed in mid-stream", request.method, request.path, exc_info=error)
    return RequestError(500, "proxy: expected to finish the answer, got an internal error")
