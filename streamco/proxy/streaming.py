"""One answer to an HTTP client: as events while it is made, or whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from streamco.client.stream import ChatStream
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


class _Sender:
    """Writes events and, during silence, keep-alives to one response: two tasks write, one at a time."""

    def __init__(self, request: web.Request, shape: ResponseShape, options: ProxyOptions) -> None:
        self.events = EventStream(request, options.reader_timeout)
        self._shape = shape
        self._keepalive = options.keepalive
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._quiet_since = self._loop.time()

    async def write(self, data: bytes) -> None:
        async with self._lock:
            await self.events.write(data)
        self._quiet_since = self._loop.time()

    @asynccontextmanager
    async def keeping_alive(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._keep_alive(), name="streamco proxy keep-alive")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _keep_alive(self) -> None:
        with suppress(ConnectionError):  # the reader left, which cancels the handler: nothing to do here
            while True:
                silence = self._loop.time() - self._quiet_since
                if silence >= self._keepalive:
                    await self.write(self._shape.keepalive)
                else:
                    await asyncio.sleep(self._keepalive - silence)


class OriginMarks:
    """Encodes the chunks of one answer with what made them, and its final report.

    Args:
        fields: makes the field of each chunk.
        shape: encodes the chunks.
    """

    def __init__(self, fields: OriginFields, shape: ChatShape | CompletionShape) -> None:
        self._fields = fields
        self._shape = shape

    def event(self, chunk: ChatCompletionChunk) -> bytes:
        """Return the chunk as an event, with its origin."""
        return self._shape.event(chunk, self._fields.describe(chunk))

    async def last_report(self) -> bytes:
        """Return the event with the final report, when all work has ended; b"": there is none."""
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
) -> web.StreamResponse:
    """Send an answer while it is made; the caller closes it.

    Args:
        request: the request.
        answer: the answer, not read yet.
        shape: encodes it.
        options: the proxy's limits.
        unknown_model: a name that the proxy doesn't have, as the caller used it; "": it has the name.
        marks: encodes chunks with what made them; None: chunks don't say it.

    Raises:
        RequestError: it failed before anything was sent.
        ConnectionError: the reader left.
    """
    sender = _Sender(request, shape, options)
    async with sender.keeping_alive():
        try:
            await answer.first()
            if not sender.events.has_begun:
                sender.events.response.headers.update(opening_headers(answer.report) | model_header(answer.report, unknown_model))
            async for chunk in answer:
                if data := shape.event(chunk) if marks is None else marks.event(chunk):
                    await sender.write(data)
        except ConnectionError:
            raise
        except Exception as error:
            failure = _failure_of(error, request)
            if not sender.events.has_begun:
                raise failure from error
            last = b"" if marks is None else await marks.last_report()
            await sender.write(last + shape.failing(failure))  # too late for a status
        else:
            report = answer.report
            ending = shape.ending(report.finish_reason)
            if marks is not None:
                if ending:
                    await sender.write(ending)  # its reader need not wait for the end of all work
                ending, report = await marks.last_report(), answer.report
            await sender.write(ending + comment(report) + shape.done())
    await sender.events.close()
    return sender.events.response


async def answer_whole(answer: ChatStream, shape: ResponseShape, *, unknown_model: str = "") -> web.Response:
    """Collect an answer and return it as one object; the caller closes it. ``unknown_model``: see ``stream_answer``.

    Raises:
        RequestError: it failed.
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
    return web.Response(body=body, content_type="application/json", headers=headers(report) | model_header(report, unknown_model))


def _failure_of(error: Exception, request: web.Request) -> RequestError:
    if isinstance(error, StreamcoError):
        return explain(error)
    logger.error("%s %s failed in mid-stream", request.method, request.path, exc_info=error)
    return RequestError(500, "proxy: expected to finish the answer, got an internal error")
