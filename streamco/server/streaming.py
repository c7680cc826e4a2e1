"""One HTTP answer, sent as a stream while the engine generates or as one JSON object at the end."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from aiohttp import web

from streamco.engines.base import GenerationEnd
from streamco.server.http.errors import RequestError
from streamco.server.http.event_stream import EventStream
from streamco.server.options import ServeOptions
from streamco.server.responses import ResponseFormat, StreamFormat
from streamco.server.wakeup import Clock, GenerationReader

logger = logging.getLogger("streamco.server")

__all__ = ["answer_whole", "stream_answer"]


async def stream_answer(
    request: web.Request, work: GenerationReader, answer: StreamFormat, options: ServeOptions, clock: Clock, *, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Send an answer while it is generated. ``headers`` are sent in addition to the format's.

    Raises:
        RequestError: the answer failed before anything was sent.
        ConnectionError: the reader disconnected.
    """
    stream = EventStream(request, options.reader_timeout, {**answer.headers, **headers})
    try:
        await _send(stream, work, answer, options.keepalive, clock)
    except ConnectionError:
        raise
    except Exception:
        if not stream.has_begun:
            raise
        # too late for a status: another response inside this one wouldn't be HTTP
        logger.exception("%s %s failed in mid-stream", request.method, request.path)
        await stream.close(answer.failing(RequestError(500, "server: can't finish the answer because of an internal error")))
    return stream.response


async def _send(stream: EventStream, work: GenerationReader, answer: StreamFormat, keepalive: float, clock: Clock) -> None:
    has_opened = False
    while True:
        _check_reader(stream.request)
        burst = await work.receive(clock.now() + keepalive)
        if burst is None and work.stopped_by is None:
            await stream.write(answer.keepalive)
            continue
        pieces, end = burst or ([], None)
        failure = _failure(work, end)
        if failure is not None and not pieces and not stream.has_begun:
            raise failure
        data = answer.events(pieces) if has_opened else answer.opening() + answer.events(pieces)
        has_opened = True
        if failure is not None:
            data += answer.failing(failure)
        elif end is not None:
            data += answer.closing(end)
        if failure is not None or end is not None:
            await stream.close(data)
            return
        await stream.write(data)


async def answer_whole(
    request: web.Request, work: GenerationReader, answer: ResponseFormat, options: ServeOptions, clock: Clock, *, headers: Mapping[str, str]
) -> web.Response:
    """Collect an answer and return it as one object. ``headers`` are added to the response.

    Raises:
        RequestError: the answer failed.
        ConnectionError: the client disconnected.
    """
    while True:
        _check_reader(request)
        burst = await work.receive(clock.now() + options.keepalive)
        if burst is None and work.stopped_by is None:
            continue
        pieces, end = burst or ([], None)
        failure = _failure(work, end)
        if failure is not None:
            raise failure
        answer.add(pieces)
        if end is not None:
            return web.Response(body=answer.whole(end), content_type="application/json", headers=headers)


def _failure(work: GenerationReader, end: GenerationEnd | None) -> RequestError | None:
    """Return the error that ended the answer, or None if there was none."""
    if work.stopped_by is not None:
        return RequestError(503, f"server: can't finish the answer because of {work.stopped_by}", code="shutdown")
    if end is None or end.reason in {"stop", "length"}:
        return None
    if end.reason == "cancelled":
        return RequestError(503, "engine: closed before the answer was complete", code="shutdown")
    return RequestError(500, f"engine: can't finish the answer: {end.error or end.reason}", code="engine_error")


def _check_reader(request: web.Request) -> None:
    """Raise if the connection is lost, so that no sequence stays busy for it. Without handler cancellation, only this check sees it."""
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError("reader: the connection is closed")
