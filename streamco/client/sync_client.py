"""A client for code without asyncio: the same calls and types as ``Client``, but each call blocks.

Everything runs in one ``Client``, whose event loop has a thread of its own (``LoopThread``). There is no logic here: each method waits for
the client's method, and each stream for the client's stream.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from functools import partial, wraps
from inspect import signature
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from streamco.client.arguments import UNSET, ChatOptions, Messages, NotGiven, ParseOptions, Unset
from streamco.client.chat import Completions
from streamco.client.chat_events import ChatEvent, ChatEventStream
from streamco.client.client import Client
from streamco.client.degradation import Degradation
from streamco.client.loop_thread import LoopThread
from streamco.client.observers.base import AnswerObservers
from streamco.client.stream import AnswerStream, ChatStream, Token
from streamco.client.whole_answer import Answer, ParsedAnswer, ParsedT
from streamco.config import Pace, ReaderPace
from streamco.core.report import Opening, Report
from streamco.core.report_parts import AnswerUsage
from streamco.core.totals import Totals
from streamco.errors import ConcurrentRead, StreamClosed
from streamco.openai_types import ChatCompletion, ChatCompletionChunk

__all__ = ["SyncChatStream", "SyncClient", "SyncEventStream", "SyncStream"]

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")
_END: Any = object()


class _SyncAnswer:
    """The part that all streams of a ``SyncClient`` share.

    Args:
        source: the stream on the loop.
        loop: the thread that runs it.
    """

    def __init__(self, source: AnswerStream[Any] | ChatEventStream[Any], loop: LoopThread) -> None:
        self._source = source
        self._loop = loop

    def close(self) -> None:
        """Stop all work for this answer, and wait until connections and sequences are released; idempotent."""
        with suppress(StreamClosed):  # it was closed with its client
            self._loop.call(self._source.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def report(self) -> Report:
        """The report on the answer so far; final once the answer has been read to its end.

        Raises:
            StreamConsumed: the answer has not started.
        """
        return self._loop.read(lambda: self._source.report)

    @property
    def usage(self) -> AnswerUsage:
        """Tokens of the answer so far; ``is_estimated`` is True if not all of them were counted by an endpoint.

        Raises:
            StreamConsumed: the answer has not started.
        """
        return self._loop.read(lambda: self._source.usage)

    @property
    def rating_key(self) -> str:
        """A key that identifies this answer in ``SyncClient.rate``."""
        return self._source.rating_key

    def rate(self, good: bool) -> bool:
        """Say whether the answer was good, once it has ended; see ``Client.rate``."""
        return self._loop.read(self._source.rate, good)


class SyncStream(_SyncAnswer, Generic[Item]):
    """An answer that is being delivered; iterate it once.

    Leaving the loop early stops all work for the answer, and so does dropping the iterator. ``close``, or leaving a ``with`` block, waits
    until that work has ended. ``next`` reads single items, and a ``for`` after it reads the rest.
    """

    def __init__(self, source: AnswerStream[Item], loop: LoopThread) -> None:
        super().__init__(source, loop)
        self._stream = source
        self._items: _Items[Item] | None = None

    def __iter__(self) -> Iterator[Item]:
        items, self._items = self._items, None
        return items if items is not None else self._begin()

    def __next__(self) -> Item:
        if self._items is None:
            self._items = self._begin()
        return next(self._items)

    def _begin(self) -> _Items[Item]:
        return _Items(self._loop.read(self._stream.__aiter__), self._loop)


class SyncChatStream(SyncStream[ChatCompletionChunk]):
    """A stream of chunks in the shape of OpenAI's ``chat.completion.chunk``; see ``ChatStream``."""

    def __init__(self, source: ChatStream, loop: LoopThread) -> None:
        super().__init__(source, loop)
        self._chunks = source

    @property
    def opening(self) -> Opening:
        """The part of the report that is known at the first token."""
        return self._loop.read(lambda: self._chunks.opening)

    @property
    def source(self) -> str | None:
        """Name of the endpoint that the newest chunk came from, or None if no chunk has been read."""
        return self._chunks.source


class SyncEventStream(_SyncAnswer, Generic[ParsedT]):
    """An answer as events; use it in a ``with`` block. See ``ChatEventStream``."""

    def __init__(self, source: ChatEventStream[ParsedT], loop: LoopThread) -> None:
        super().__init__(source, loop)
        self._events = source
        self._items: _Items[ChatEvent[ParsedT]] = _Items(source, loop)

    def __enter__(self) -> Self:
        self._loop.call(self._events.__aenter__)
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ChatEvent[ParsedT]:
        return next(self._items)

    def until_done(self) -> Self:
        """Read the rest of the answer."""
        self._loop.call(self._events.until_done)
        return self

    def get_final_completion(self) -> ParsedAnswer[ParsedT]:
        """Read the rest of the answer and return the whole answer, with ``message.parsed`` if a class was requested.

        Raises:
            UnparsedAnswer: it was cut off, or isn't valid JSON for the class that was requested.
        """
        return self._loop.call(self._events.get_final_completion)

    @property
    def current_completion_snapshot(self) -> ChatCompletion:
        """The answer so far."""
        return self._loop.read(lambda: self._events.current_completion_snapshot)


class _Items(Iterator[Item]):
    """An iterator over a stream on the loop; dropping the iterator stops all work for the answer.

    Args:
        source: provides the items; its ``aclose`` ends the work.
        loop: the thread that runs it.
    """

    def __init__(self, source: AsyncGenerator[Item, None] | ChatEventStream[Any], loop: LoopThread) -> None:
        self._source = source
        self._loop = loop
        self._is_over = False
        self._reading = threading.Lock()

    def __next__(self) -> Item:
        if not self._reading.acquire(blocking=False):
            raise ConcurrentRead("expected one reader at a time, got a second read while one waits")
        try:
            item: Item = self._loop.call(_next_item, self._source)
        finally:
            self._reading.release()
        if item is _END:
            self._is_over = True
            raise StopIteration
        return item

    def __del__(self) -> None:
        if not self._is_over:
            self._loop.post(self._source.aclose)


async def _next_item(source: AsyncIterator[Any]) -> Any:
    return await anext(source, _END)


class SyncCompletions:
    """The object ``client.chat.completions`` of a ``SyncClient``.

    Args:
        completions: the client's ``Completions``.
        loop: the thread that runs it.
    """

    def __init__(self, completions: Completions, loop: LoopThread) -> None:
        self._completions = completions
        self._loop = loop

    @overload
    def create(
        self,
        *,
        messages: Messages,
        stream: Literal[True],
        model: str | NotGiven | None = None,
        pace: Pace | Unset = UNSET,
        **options: Unpack[ChatOptions],
    ) -> SyncChatStream: ...

    @overload
    def create(
        self,
        *,
        messages: Messages,
        stream: Literal[False] | NotGiven | None = False,
        model: str | NotGiven | None = None,
        **options: Unpack[ChatOptions],
    ) -> Answer: ...

    @overload
    def create(
        self,
        *,
        messages: Messages,
        stream: bool,
        model: str | NotGiven | None = None,
        pace: Pace | Unset = UNSET,
        **options: Unpack[ChatOptions],
    ) -> SyncChatStream | Answer: ...

    def create(self, **options: Any) -> SyncChatStream | Answer:
        """Ask for an answer and wait for it, or for its first token if ``stream=True``; see ``Client.chat.completions.create``."""
        create: Callable[..., Awaitable[ChatStream | Answer]] = self._completions.create
        answer = self._loop.call(create, **options)
        return SyncChatStream(answer, self._loop) if isinstance(answer, ChatStream) else answer

    @overload
    def parse(
        self,
        *,
        messages: Messages,
        response_format: type[ParsedT],
        model: str | NotGiven | None = None,
        **options: Unpack[ParseOptions],
    ) -> ParsedAnswer[ParsedT]: ...

    @overload
    def parse(
        self,
        *,
        messages: Messages,
        response_format: Mapping[str, Any] | NotGiven | None = None,
        model: str | NotGiven | None = None,
        **options: Unpack[ParseOptions],
    ) -> ParsedAnswer[None]: ...

    def parse(self, **options: Any) -> ParsedAnswer[Any]:
        """Ask for an answer as JSON that fits a class, wait for it and parse it; see ``Client.chat.completions.parse``."""
        parse: Callable[..., Awaitable[ParsedAnswer[Any]]] = self._completions.parse
        return self._loop.call(parse, **options)

    @overload
    def stream(
        self,
        *,
        messages: Messages,
        response_format: type[ParsedT],
        model: str | NotGiven | None = None,
        pace: Pace | Unset = UNSET,
        **options: Unpack[ParseOptions],
    ) -> SyncEventStream[ParsedT]: ...

    @overload
    def stream(
        self,
        *,
        messages: Messages,
        response_format: Mapping[str, Any] | NotGiven | None = None,
        model: str | NotGiven | None = None,
        pace: Pace | Unset = UNSET,
        **options: Unpack[ParseOptions],
    ) -> SyncEventStream[None]: ...

    def stream(self, **options: Any) -> SyncEventStream[Any]:
        """Ask for an answer as events: ``with client.chat.completions.stream(...) as stream``; see ``Client.chat.completions.stream``."""
        stream: Callable[..., ChatEventStream[Any]] = self._completions.stream
        return SyncEventStream(self._loop.read(stream, **options), self._loop)


class SyncChat:
    """The object ``client.chat`` of a ``SyncClient``.

    Args:
        client: the client on the loop.
        loop: the thread that runs it.
    """

    def __init__(self, client: Client, loop: LoopThread) -> None:
        self.completions = SyncCompletions(client.chat.completions, loop)


def _takes(method: Callable[Concatenate[Client, P], object]) -> Callable[[Callable[..., T]], Callable[Concatenate[SyncClient, P], T]]:
    """Return a decorator that gives a method the signature of a ``Client`` method."""

    def decorate(function: Callable[..., T]) -> Callable[Concatenate[SyncClient, P], T]:
        returned = signature(function).return_annotation
        function.__signature__ = signature(method).replace(return_annotation=returned)  # type: ignore[attr-defined]  # for help()
        return function

    return decorate


def _waits(method: Callable[Concatenate[Client, P], Awaitable[T]]) -> Callable[Concatenate[SyncClient, P], T]:
    """Return a ``SyncClient`` method that calls a ``Client`` method and waits for it."""

    @wraps(method)
    def wait(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.call(method, self._client, *args, **kwargs)

    return wait


def _reads(method: Callable[Concatenate[Client, P], T]) -> Callable[Concatenate[SyncClient, P], T]:
    """Return a ``SyncClient`` method that calls a ``Client`` method on the client's loop."""

    @wraps(method)
    def read(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.read(method, self._client, *args, **kwargs)

    return read


class SyncClient:
    """A client for code without asyncio: it has the arguments, calls and types of ``Client``, but each call blocks.

    It runs an event loop on a separate thread, which starts with the first call. Any number of threads may call it at once, even threads
    that run an event loop themselves, such as a notebook's; a call then blocks that loop. Ctrl-C cancels the answer that you are waiting
    for, and the client stays usable. Functions that you pass to it (gates, observers, keys) run on its thread and can't call it.

    A process that is forked before the first call starts its own thread; in one that is forked later, calls raise ``UsageError``.
    """

    @_takes(Client.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._client = Client(*args, **kwargs)
        self._loop = LoopThread(self._client.aclose)
        self._owns_loop = True
        self.chat = SyncChat(self._client, self._loop)

    start = _waits(Client.start)
    check_device = _waits(Client.check_device)
    count_tokens = _waits(Client.count_tokens)
    profile = _reads(Client.profile)
    rate = _reads(Client.rate)

    def close(self) -> None:
        """Stop all answers and release every connection, model and thread; idempotent. A client from ``with_options`` closes nothing."""
        if self._owns_loop:
            self._loop.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @_takes(Client.with_options)
    def with_options(self, **options: Any) -> SyncClient:
        """Return a client with different settings that uses the same endpoints and thread; see ``Client.with_options``."""
        other = copy(self)
        other._owns_loop = False
        other._client = self._loop.read(self._client.with_options, **options)
        other.chat = SyncChat(other._client, self._loop)
        return other

    def stream(
        self,
        messages: Messages,
        *,
        model: str | NotGiven | None = None,
        pace: Pace | Unset = UNSET,
        **options: Unpack[ChatOptions],
    ) -> SyncStream[Token]:
        """Ask for an answer as tokens; nothing happens before the first read. See ``Client.stream``."""
        stream = partial(self._client.stream, messages, model=model, pace=pace, **options)
        return SyncStream(self._loop.read(stream), self._loop)

    @property
    def totals(self) -> Totals:
        """Costs of all answers so far; see ``Client.totals``."""
        return self._loop.read(lambda: self._client.totals)

    @property
    def degraded(self) -> tuple[Degradation, ...]:
        """The endpoints that failed or could not start, and have not answered since; empty if no problem is known."""
        return self._loop.read(lambda: self._client.degraded)

    @property
    def pace(self) -> ReaderPace:
        """How fast the reader gets text.

        This is a number of tokens per second, "smooth" to spread text evenly at the rate at which it arrives, or None to send it at once.
        """
        return self._client.pace

    @property
    def observers(self) -> AnswerObservers:
        """The observers of the answers; you can add more. They are called on the client's thread."""
        return self._client.observers

    @property
    def endpoint_names(self) -> tuple[str, ...]:
        """Names of the endpoints, as in reports."""
        return self._client.endpoint_names
