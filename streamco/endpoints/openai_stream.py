"""One streamed answer over HTTP: connecting with retries, reading, ending, cancelling.

Opening (connecting, waiting for the headers, retrying) runs in a task, so that a cancelled ``receive`` loses nothing. After that,
``receive`` reads the socket itself: one network read, one parse, one event. Chunks before the first content (role, prompt filters) are held
back until it arrives. Until then a failed request can be retried, because the reader has seen nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, overload

from msgspec import Struct

from streamco.config import Limits, Timeouts
from streamco.endpoints.base import OnRetry
from streamco.endpoints.confidences import take_confidences
from streamco.endpoints.continuation import BoundaryWhitespace
from streamco.endpoints.http import HttpClient
from streamco.endpoints.network.http_errors import root_cause, translate
from streamco.endpoints.network.watchdog import Watchdog
from streamco.endpoints.retry import Retries, is_transient
from streamco.errors import (
    ConcurrentRead,
    EndpointError,
    EndpointProtocolError,
    EndpointStatusError,
    EndpointTimeoutError,
    StreamClosed,
    StreamConsumed,
)
from streamco.events import StreamEnded, TextRepeated, TokensReceived, Written
from streamco.openai_types import ChatCompletionChunk, has_output
from streamco.wire.event_stream_parser import EventStreamParser
from streamco.wire.messages_api.message_stream import MessageStreamParser
from streamco.wire.openai.errors import status_error
from streamco.wire.openai.msgpack_body import MSGPACK
from streamco.wire.openai.msgpack_stream import MsgpackStreamParser
from streamco.wire.openai.stream import ChatStreamParser
from streamco.wire.responses_api.response_stream import ResponseStreamParser
from streamco.wire.token_frames import TokenCodec

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

__all__ = ["CallApi", "StreamCall", "OpenAIStream"]

CallApi = Literal["chat", "completions", "responses", "messages"]
Parser = ChatStreamParser | MsgpackStreamParser | EventStreamParser

_MAX_HELD = 16_384  # chunks before the first content: an hour of keep-alives, and a few MB
_ERROR_BYTES = 64 << 10  # bytes read of an error's body
_MAX_REFINEMENTS = 3  # per request: once for each optional field
_EOF_GRACE = 0.02  # seconds that the end of the stream waits for the last bytes, so that the next request finds the connection free
_USUAL_FIRST_TOKEN = Timeouts().first_token
_WHOLE_ANSWER = 600.0  # seconds for an answer that isn't streamed, if the first-token limit is the default; the same as in OpenAI's SDK
_END_GRACE = 5.0  # seconds for usage and [DONE] after the last finish_reason; some servers send neither and keep the socket open
_NOT_BEGUN = ChatStreamParser()  # for streams without an answer so far; it is never fed


class StreamCall(Struct, frozen=True):
    """An HTTP request for a stream.

    Args:
        url: the request's URL.
        headers: the request's headers.
        body: the request's body, in JSON or in the type that the headers name.
        api: the API of the request and its answer.
        held_whitespace: whitespace that the server wasn't shown and will write again, or "".
        codec: unpacks the ids of a MessagePack answer; None if the headers don't accept MessagePack.
        choices: number of choices requested.
        unstreamed: what the server can't stream, in words, if the request therefore asks for a whole answer; "" if it asks for a stream.
        is_graded: True to read log-probabilities from the answer, which show how sure the model was.
        strips_logprobs: True to remove them from the answer, because the caller hasn't requested them.
    """

    url: URL
    headers: Mapping[str, str]
    body: bytes
    api: CallApi
    held_whitespace: str = ""
    codec: TokenCodec | None = None
    choices: int = 1
    unstreamed: str = ""
    is_graded: bool = False
    strips_logprobs: bool = False


class _Opener:
    """Sends one stream's request, and retries if that may help; owned by ``OpenAIStream``.

    Args:
        client: the HTTP client, which may not have been started yet.
        prepare: builds the call; called for each attempt.
        refine: called with each error status and its call; returns True if ``prepare`` will now build a call that avoids the error.
        retries: decides whether this request is retried.
        timeouts: ``connect``, in seconds.
    """

    __slots__ = ("_client", "_name", "_prepare", "_refine", "_refined", "_retries", "_timeouts", "call", "changes", "on_retry")

    def __init__(
        self,
        name: str,
        client: HttpClient,
        prepare: Callable[[], Awaitable[StreamCall]],
        refine: Callable[[EndpointStatusError, StreamCall], bool],
        retries: Retries,
        *,
        timeouts: Timeouts,
    ) -> None:
        self._name = name
        self._timeouts = timeouts
        self._client = client
        self._prepare = prepare
        self._refine = refine
        self.changes: Mapping[str, str] = {}
        """Sentences that say what was left out of the request after a refusal; ``refine`` adds to them."""
        self._retries = retries
        self._refined = 0
        self.call: StreamCall | None = None
        """The last attempt's call, or None before the first."""
        self.on_retry: OnRetry | None = None

    async def open(self, wait: float, watchdog: Watchdog) -> tuple[aiohttp.ClientResponse, StreamCall]:
        """Try until an answer begins; return the response and the call that it belongs to.

        Args:
            wait: seconds before the first attempt.
            watchdog: limits the time of each attempt; suspended while waiting between them.

        Raises:
            EndpointError: another attempt wouldn't help.
        """
        while True:
            if wait:
                watchdog.suspend()
                await asyncio.sleep(wait)
            watchdog.restart()
            try:
                self.call = call = await self._prepare()
                if call.unstreamed and self._timeouts.first_token == _USUAL_FIRST_TOKEN:
                    watchdog.expect_whole(_WHOLE_ANSWER)
                response = await self._client.request("POST", call.url, headers=call.headers, body=call.body, timeouts=self._timeouts)
                await self._check(response)
            except EndpointError as error:
                next_wait = self.next_wait(error)
                if next_wait is None:
                    raise
                wait = next_wait
                continue
            return response, call

    def next_wait(self, error: EndpointError) -> float | None:
        """Return the seconds to wait after this error before the next attempt, or None to give up."""
        call, can_refine = self.call, self._refined < _MAX_REFINEMENTS
        if isinstance(error, EndpointStatusError) and call is not None and can_refine and self._refine(error, call):
            self._refined += 1
            return 0.0
        wait = self._retries.next_wait(error) if is_transient(error) else None
        if wait is not None and self.on_retry is not None:
            error.endpoint = error.endpoint or self._name
            if not self.on_retry(self._client.scrub(error), wait):
                return None
        return wait

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        """Raise unless the status is 2xx. The parser finds out whether the body is a stream, JSON or a page, as headers are often wrong."""
        if 200 <= response.status < 300:
            return
        body = await self._client.read(response, _ERROR_BYTES)
        error = status_error(response.status, response.headers, body, now=time.time(), endpoint=self._name)
        if response.headers.get("x-should-retry") == "false":  # OpenAI and Anthropic: the same request will fail again
            self._retries.forbid()
        raise error


class _End:
    """How a stream ended.

    Args:
        outcome: what the last ``receive`` returns or raises.
        settled: done when the connection is back in the pool; None if it already is, or was closed.
    """

    __slots__ = ("_was_given", "outcome", "settled")

    def __init__(self, outcome: StreamEnded | Exception, settled: asyncio.Future[None] | None = None) -> None:
        self.outcome = outcome
        self.settled = settled
        self._was_given = False

    def give(self, name: str) -> StreamEnded:
        """Return the end of the stream; works only once.

        Raises:
            Exception: the error that the stream failed with.
            StreamConsumed: the end was already returned.
        """
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if self._was_given:
            raise StreamConsumed(f"{name}: expected no receive after the end, got one")
        self._was_given = True
        return self.outcome


class OpenAIStream:
    """One answer from a server; see ``EndpointStream``. Created by ``OpenAIEndpoint.open``.

    Args:
        name: the endpoint's name.
        client, prepare, refine, retries, changes: how the request is sent; see ``_Opener``.
        timeouts: see ``Watchdog`` and ``HttpClient``.
        elapsed: see ``Watchdog``.
        limits: largest sizes that are accepted.
        on_over: called once when the connection is back in the pool or closed.
    """

    can_repeat: ClassVar[bool] = True
    """``receive`` has the argument ``repeats``."""

    __slots__ = (
        "__weakref__",
        "_boundary",
        "_cancelling",
        "_client",
        "_content",
        "_end",
        "_expired",
        "_held",
        "_is_closed",
        "_is_complete",
        "_is_reading",
        "_is_settled",
        "_limits",
        "_loop",
        "_name",
        "_on_over",
        "_opener",
        "_opening",
        "_parser",
        "_repeating",
        "_response",
        "_timeouts",
        "_watchdog",
    )

    def __init__(
        self,
        name: str,
        client: HttpClient,
        prepare: Callable[[], Awaitable[StreamCall]],
        *,
        refine: Callable[[EndpointStatusError, StreamCall], bool],
        changes: Mapping[str, str],
        retries: Retries,
        timeouts: Timeouts,
        elapsed: float = 0.0,
        limits: Limits,
        on_over: Callable[[OpenAIStream], None],
    ) -> None:
        self._name = name
        self._client = client
        self._opener = _Opener(name, client, prepare, refine, retries, timeouts=timeouts)
        self._opener.changes = changes
        self._timeouts = timeouts
        self._limits = limits
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._watchdog = Watchdog(self._loop, timeouts, self._expire, elapsed)
        self._opening: asyncio.Task[None] | None = None
        self._cancelling: asyncio.Task[None] | None = None
        self._response: aiohttp.ClientResponse | None = None
        self._content: aiohttp.StreamReader | None = None
        self._parser: Parser = _NOT_BEGUN
        self._repeating: ChatStreamParser | None = None  # the parser, if it can recognise reads that repeat others
        self._boundary = BoundaryWhitespace()
        self._held: list[ChatCompletionChunk] | None = []  # chunks before the first content; None once it has arrived
        self._is_complete = False
        self._is_settled = False  # True once chunks that continue the answer are passed on unchanged
        self._is_reading = False
        self._is_closed = False
        self._expired: EndpointTimeoutError | None = None
        self._end: _End | None = None

    @overload
    async def receive(self, *, repeats: Literal[False] = False) -> TokensReceived | StreamEnded: ...

    @overload
    async def receive(self, *, repeats: bool) -> TokensReceived | TextRepeated | StreamEnded: ...

    async def receive(self, *, repeats: bool = False) -> TokensReceived | TextRepeated | StreamEnded:
        """Wait for the next tokens or the end; one network read becomes one event. Cancelling loses nothing.

        Args:
            repeats: True to get ``TextRepeated`` for a read that differs from an earlier one only in its text.

        Raises:
            EndpointError: the answer failed; ``partial`` is the text so far.
            StreamClosed: the stream was cancelled.
            StreamConsumed: the stream has already ended.
            ConcurrentRead: another task is waiting here.
        """
        if self._is_reading:
            raise ConcurrentRead(f"{self._name}: expected one reader at a time, got a second receive while one waits")
        self._is_reading = True
        try:
            while (end := self._end) is None:
                content = self._content
                if content is None:
                    await self._wait_for_answer()
                    continue
                failure: Exception | None = None
                self._watchdog.resume()
                try:
                    data = await content.readany()
                except Exception as exc:  # noqa: BLE001  translated below; data read before it is parsed first
                    failure = exc
                    # aiohttp keeps the data from before the error, but every public call raises the error first.
                    data = content._read_nowait(-1)
                finally:
                    self._watchdog.pause()
                parser = self._parser
                repeating = self._repeating if repeats and self._is_settled and failure is None else None
                if repeating is not None and (repeated := repeating.feed_repeated(data)) is not None:
                    self._watchdog.feed(has_content=True)
                    return repeated
                chunks = parser.feed(data) if data else []
                if data and parser.goes_on and self._is_settled and failure is None:
                    self._watchdog.feed(has_content=True)
                    if repeating is not None and len(chunks) == 1:
                        repeating.learn_repeated(data, chunks[0])
                    return TokensReceived(self._name, chunks, parser.tokens)
                event = self._take(data, chunks, failure)
                if event is not None:
                    return event
            if end.settled is not None:
                settled, end.settled = end.settled, None
                await asyncio.wait([settled], timeout=_EOF_GRACE)
            return end.give(self._name)
        finally:
            self._is_reading = False

    async def cancel(self) -> None:
        """Close the connection and wait until it is closed, at most ``timeouts.cancel`` seconds; safe at any time, idempotent.

        A ``receive`` waiting in another task raises ``StreamClosed``. After a proper end this does nothing, because the connection is
        already back in the pool.
        """
        self._is_closed = True
        self._watchdog.stop()
        if self._opening is None and self._response is None and self._cancelling is None:
            self._on_over(self)
            return
        if self._cancelling is None:
            if self._opening is not None:
                self._opening.cancel()
            self._cancelling = self._loop.create_task(self._close_connection())
        await asyncio.shield(self._cancelling)

    @property
    def on_retry(self) -> OnRetry | None:
        """Function that is called before the request is retried, or None; see ``watch_retries``."""
        return self._opener.on_retry

    @on_retry.setter
    def on_retry(self, call: OnRetry) -> None:
        self._opener.on_retry = call

    @property
    def changes(self) -> Mapping[str, str]:
        """What was left out of the request; see ``changes_of``."""
        changes, call = self._opener.changes, self._opener.call
        if call is not None and call.unstreamed:
            changes = {**changes, "stream": f"the answer came whole, because the server doesn't stream {call.unstreamed}"}
        if self._parser.has_dropped_fields:
            changes = {**changes, "further fields": "some of the provider's own fields were dropped, because they had too many elements"}
        return changes

    @property
    def idle(self) -> float:
        """Seconds so far in which no task was waiting for the stream; see ``idle_of``."""
        return self._watchdog.idle

    def charge(self, seconds: float) -> None:
        """Count the seconds of a pause towards the limit for the whole answer."""
        self._watchdog.charge(seconds)

    def written(self) -> Written:
        """Return what the server has written so far."""
        parser = self._parser
        return Written(parser.partial_text() if parser.has_only_text else None, not parser.is_estimated)

    # Opening

    async def _wait_for_answer(self) -> None:
        if self._is_closed:
            raise StreamClosed(f"{self._name}: expected an open stream, got a receive after it was cancelled")
        if self._opening is None:
            self._opening = self._loop.create_task(self._open(0.0), name=f"streamco open {self._name}")
        opening = self._opening
        self._watchdog.resume()
        try:
            await asyncio.wait([opening])
        finally:
            self._watchdog.pause()
        if self._is_closed:
            raise StreamClosed(f"{self._name}: expected an open stream, got a receive while it was cancelled")
        self._opening = None
        if self._expired is not None:
            self._fail(self._expired)
        elif opening.cancelled():
            raise asyncio.CancelledError  # it was cancelled from outside, with every other task
        elif isinstance(error := opening.exception(), Exception):
            self._fail(error)

    async def _open(self, wait: float) -> None:
        """Wait until an answer begins, and set the stream up to read it."""
        response, call = await self._opener.open(wait, self._watchdog)
        self._parser = parser = self._make_parser(call, response.headers.get("Content-Type", ""))
        self._repeating = parser if isinstance(parser, ChatStreamParser) else None
        self._boundary = BoundaryWhitespace(call.held_whitespace)
        self._response = response
        self._content = response.content

    def _make_parser(self, call: StreamCall, media_type: str) -> Parser:
        if call.api == "responses":
            return ResponseStreamParser(endpoint=self._name, limits=self._limits)
        if call.api == "messages":
            return MessageStreamParser(endpoint=self._name, limits=self._limits)
        if call.codec is not None and media_type.partition(";")[0].strip().lower() == MSGPACK:
            return MsgpackStreamParser(call.codec, endpoint=self._name, limits=self._limits, api=call.api)
        return ChatStreamParser(endpoint=self._name, limits=self._limits, api=call.api, choices=call.choices)

    # Reading

    def _take(self, data: bytes, chunks: list[ChatCompletionChunk], failure: Exception | None) -> TokensReceived | None:
        """Process the chunks in one read's bytes; return None if there is nothing for the reader yet."""
        parser = self._parser
        tokens = parser.tokens if data else 0
        self._watchdog.feed(has_content=bool(data) and parser.has_progress)
        if parser.is_done:
            self._finish()
        elif parser.error is not None:
            self._handle_answer_error(parser.error, has_begun=_has_begun(chunks, tokens))
        elif failure is not None:
            chunks += self._handle_read_error(failure, has_begun=_has_begun(chunks, tokens))
        elif not data:
            chunks, tokens = self._close_parser()
        elif (parser.ends.has_reason or self._is_complete) and parser.is_complete != self._is_complete:
            self._is_complete = not self._is_complete  # content after a finish reason cancels it
            if self._is_complete:
                self._watchdog.expect_end(_END_GRACE)
        return self._release(chunks, tokens)

    def _release(self, chunks: list[ChatCompletionChunk], tokens: int) -> TokensReceived | None:
        held = self._held
        if held is not None:
            if len(held) > _MAX_HELD and not tokens and self._end is None and self._content is not None:
                self._fail(EndpointProtocolError(f"expected content in the first {_MAX_HELD} chunks, got none"))
            if held:
                chunks = held + chunks
            has_begun = _has_begun(chunks, tokens)
            if not has_begun and (self._end is None or isinstance(self._end.outcome, Exception)):
                self._held = [] if self._content is None else chunks  # None means that this attempt has failed
                return None
            self._held = None if has_begun else []
        if not chunks:
            return None
        call = self._opener.call
        is_graded = call is not None and call.is_graded
        self._is_settled = self._held is None and not (is_graded or self._boundary.is_open or self._is_complete)
        sure = take_confidences(chunks, strips=call.strips_logprobs) if call is not None and is_graded else ()
        event = TokensReceived(self._name, chunks, tokens, sure)
        return self._boundary.strip(event) if self._boundary.is_open else event

    def _close_parser(self) -> tuple[list[ChatCompletionChunk], int]:
        try:
            chunks = self._parser.close(is_proper=self._response is None or _has_length(self._response.headers))
        except EndpointError as error:
            self._handle_answer_error(error, has_begun=False)  # the chunks that the end would have completed are never returned
            return [], 0
        self._finish()
        return chunks, self._parser.tokens

    def _handle_read_error(self, failure: Exception, *, has_begun: bool) -> list[ChatCompletionChunk]:
        """End the stream after a read that failed, as the connection was lost or a time limit exceeded; return the last chunks, if any."""
        if self._is_closed:
            raise StreamClosed(f"{self._name}: expected an open stream, got a receive while it was cancelled")
        parser = self._parser
        if parser.is_complete:
            chunks = parser.finish()
            self._finish()
            return chunks
        if self._expired is not None:
            self._expired.partial = parser.partial_text()
            self._fail(self._expired)
            return []
        error = translate(failure, self._name, self._timeouts, partial=parser.partial_text())
        if error is None:
            self._fail(failure)
        else:
            error.__cause__ = root_cause(failure)
            self._handle_answer_error(error, has_begun=has_begun)
        return []

    def _handle_answer_error(self, error: EndpointError, *, has_begun: bool) -> None:
        """End the stream after a failed answer, or retry the request if the reader has seen nothing so far."""
        if self._held is not None and not has_begun:
            wait = self._opener.next_wait(error)
            if wait is not None:
                assert self._response is not None, "an answer breaks after it has begun"
                self._response.close()
                self._response = self._content = None
                self._opening = self._loop.create_task(self._open(wait), name=f"streamco open {self._name}")
                return
        self._fail(error)

    # Ends

    def _finish(self) -> None:
        parser = self._parser
        settled = None if self._response is None else self._client.finish(self._response)
        self._end = _End(StreamEnded(self._name, parser.finish_reason, parser.usage), settled)
        self._forget_response()

    def _fail(self, error: Exception) -> None:
        if isinstance(error, EndpointError):
            error.endpoint = error.endpoint or self._name
            self._client.scrub(error)
        self._end = _End(error)
        if self._response is not None:
            self._response.close()
        self._forget_response()

    def _forget_response(self) -> None:
        self._response = self._content = None
        self._watchdog.stop()
        self._on_over(self)

    def _expire(self, error: EndpointTimeoutError) -> None:
        """Stop waiting because a time limit was exceeded; ``receive`` then finds the error."""
        error.endpoint = self._name
        self._expired = error
        if self._opening is not None:
            self._opening.cancel()
        elif self._response is not None:
            self._response.close()

    async def _close_connection(self) -> None:
        opening, response = self._opening, self._response
        if opening is not None:
            await asyncio.wait([opening], timeout=self._timeouts.cancel)
            if opening.done() and not opening.cancelled():
                opening.exception()
            response = self._response
        if response is not None:
            await self._client.drop(response)
        self._opening = None
        self._forget_response()
        if self._opener.call is not None:
            self._client.warm(self._opener.call.url)


def _has_begun(chunks: list[ChatCompletionChunk], tokens: int) -> bool:
    """Return True if chunks contain any part of the answer."""
    return tokens > 0 or any(has_output(choice.delta) for chunk in chunks for choice in chunk.choices)


def _has_length(headers: Mapping[str, str]) -> bool:
    """Return True if the headers say where the body ends; otherwise it ends when the connection closes, for whatever reason."""
    return "Content-Length" in headers or "chunked" in headers.get("Transfer-Encoding", "").lower()
