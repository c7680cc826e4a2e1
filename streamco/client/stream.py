"""The streams that a caller iterates: OpenAI-shaped chunks, or tokens."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Generic, Literal, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from streamco.client.answer import PendingAnswer
from streamco.client.driver import AnswerDriver, Batch, Relay, SpeculatedChunk
from streamco.core.report import Opening, Report
from streamco.core.report_parts import AnswerUsage
from streamco.errors import ConcurrentRead, StreamClosed, StreamcoError, StreamConsumed, UsageError
from streamco.events import Origin
from streamco.openai_types import ChatCompletionChunk, ChunkChoice, CompletionUsage, further_fields

__all__ = ["AnswerStream", "ChatStream", "Retracted", "Settled", "Token", "TokenStream"]

Item = TypeVar("Item")


class Token(Struct, frozen=True):
    """One token of the answer, or several that arrived as one.

    Args:
        text: whole code points, never "" except in the subclasses.
        id: the token's id at its endpoint; None if it isn't known or several tokens make up the text.
        source: the endpoint's name.
        time: when it was delivered, in seconds on the monotonic clock.
        kind: "content" for the answer's text, "reasoning" for the model's thinking.
        origin: how the token of a speculated answer came about; "draft" means not verified yet (docs/speculation.md). None if the answer
            was raced.
    """

    text: str
    id: int | None
    source: str
    time: float
    kind: Literal["content", "reasoning"] = "content"
    origin: Origin | None = None


class Retracted(Token, frozen=True, kw_only=True):
    """The newest ``characters`` of the text are retracted; all of them were provisional. Its own text is "".

    Occurs only in speculated answers with ``emit="draft"``.
    """

    characters: int


class Settled(Token, frozen=True, kw_only=True):
    """The oldest ``characters`` of the provisional text are final; ``origin`` says why. Its own text is "".

    Occurs only in speculated answers with ``emit="draft"``.
    """

    characters: int


class AnswerStream(ABC, Generic[Item]):
    """An answer that is being delivered; iterate it once.

    Leaving the loop early (``break``, an exception, a cancelled task) stops all work for the answer. Use the stream as an async context
    manager if that work must have ended before the program continues. ``anext`` reads single items, and an ``async for`` after it reads the
    rest. Cancelling a read, for example by a timeout, ends the stream.
    """

    def __init__(self, answer: PendingAnswer) -> None:
        self._answer = answer
        self._iterator: AsyncGenerator[Item, None] | None = None
        self._has_reader = False
        self._is_reading = False

    # Reading

    def __aiter__(self) -> AsyncGenerator[Item, None]:
        # Only the caller's loop refers to the generator: a `break` drops it, and dropping it ends the work.
        if self._iterator is not None and not self._is_reading and not self._answer.is_closed:
            iterator, self._iterator = self._iterator, None
            return iterator
        self._begin()
        return self._iterate()

    def _begin(self) -> None:
        """Register the only reader of the answer."""
        if self._answer.is_closed:
            raise StreamClosed("the stream is closed")
        if self._is_reading:
            raise ConcurrentRead("expected one reader at a time, got a second read while one waits")
        if self._has_reader:
            raise StreamConsumed("expected a fresh stream, got a second iteration")
        self._has_reader = True

    async def __anext__(self) -> Item:
        if self._is_reading:
            raise ConcurrentRead("expected one reader at a time, got a second read while one waits")
        if self._iterator is None:
            self._iterator = self.__aiter__()
        self._is_reading = True
        try:
            return await anext(self._iterator)
        except StopAsyncIteration:
            if self._answer.was_broken_off:  # by a cancelled read: the text so far must not be taken for the whole answer
                raise StreamClosed("the stream was closed by a read that was cancelled") from None
            raise
        finally:
            self._is_reading = False

    @abstractmethod
    def _iterate(self) -> AsyncGenerator[Item, None]:
        """Return a generator of the items, which must keep no reference to the stream."""

    # Ending

    async def aclose(self) -> None:
        """Stop all work for this answer and wait until connections and sequences are released; idempotent."""
        await self._answer.aclose()

    async def close(self) -> None:
        """Do the same as ``aclose``, which OpenAI's SDK calls ``close``."""
        await self.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    # Afterwards

    @property
    def report(self) -> Report:
        """The report on the answer so far; final once the iteration has ended.

        Raises:
            StreamConsumed: the answer has not started; iterate first.
        """
        return self._answer.report()

    def rate(self, good: bool) -> bool:
        """Say whether the answer was good, once it has ended; see ``Client.rate``.

        Raises:
            ConfigError: the client has no ``Race(quality=...)``, or ``good`` is neither True nor False.
            UsageError: the answer has not ended, or was rated before.
        """
        return self._answer.rate(good)

    @property
    def rating_key(self) -> str:
        """A unique key for ``Client.rate`` that nobody can guess; request ids may be used twice."""
        return self._answer.key

    @property
    def usage(self) -> AnswerUsage:
        """Tokens of the answer so far, in OpenAI's shape; ``is_estimated`` is True if not all of them were counted by an endpoint.

        Raises:
            StreamConsumed: the answer has not started; iterate first.
        """
        return self._answer.usage()


class ChatStream(AnswerStream[ChatCompletionChunk]):
    """A stream of chunks in the shape of OpenAI's ``chat.completion.chunk``.

    Chunks without choices (usage) are left out. If they have provider-specific fields (Azure's content-filter results, the timings of
    llama.cpp's server), these are sent with an empty delta, so that code that reads the first choice still works. If you request usage with
    ``stream_options={"include_usage": True}``, the last chunk contains it, whichever endpoint wins, with ``is_estimated`` if it had to be
    estimated (``AnswerUsage``). After a hand-over, the usage covers the whole answer.
    """

    def __init__(self, answer: PendingAnswer, *, includes_usage: bool = False) -> None:
        super().__init__(answer)
        self._includes_usage = includes_usage

    async def pass_on(self, send: Callable[[ChatCompletionChunk], Awaitable[None]], relay: Relay | None = None) -> None:
        """Read the whole answer, passing its parts to two functions. For programs that send it on: most plain text then needs no chunk.

        Args:
            send: awaited with each chunk.
            relay: awaited instead with text, if its chunk would differ from an earlier one only in the text, in order with the chunks.
                With None, all text is sent as chunks. Errors of both functions end the stream and are raised.

        Raises:
            StreamcoError: the answer failed.
            StreamConsumed: something was read before.
        """
        self._begin()
        self._is_reading = True
        try:
            async with _Reading(self._answer) as driver:
                chunks = _Chunks(self._answer, driver, includes_usage=self._includes_usage)
                while (batch := await driver.next_batch(relay)) is not None:
                    for chunk in chunks.take(batch):
                        await send(chunk)
                for chunk in chunks.end():
                    await send(chunk)
        finally:
            self._is_reading = False

    async def first(self) -> None:
        """Wait for the first delivery without reading it.

        Raises:
            StreamcoError: no endpoint could give the answer; the stream is then closed.
        """
        driver = await self._answer.start()
        try:
            await driver.peek()
        except StreamcoError as error:
            await self.aclose()
            self._answer.describe(error)
            raise

    @property
    def opening(self) -> Opening:
        """The part of the report that is known at the first token, for headers sent before the answer; far cheaper than ``report``.

        Raises:
            StreamConsumed: the answer has not started; await ``first`` first.
        """
        return self._answer.opening()

    @property
    def source(self) -> str | None:
        """Name of the endpoint that the newest chunk came from, or None if no chunk has been read."""
        return self._answer.source

    def _iterate(self) -> AsyncGenerator[ChatCompletionChunk, None]:
        return _read_chunks(self._answer, includes_usage=self._includes_usage)


class TokenStream(AnswerStream[Token]):
    """A stream of the answer's text, token by token; ``kind`` marks the model's thinking."""

    def _iterate(self) -> AsyncGenerator[Token, None]:
        return _read_tokens(self._answer)


class _Reading:
    """A context for reading an answer. On leaving it, the answer's work ends, and a ``StreamcoError`` gets the answer's report."""

    __slots__ = ("_answer", "_driver")

    def __init__(self, answer: PendingAnswer) -> None:
        self._answer = answer
        self._driver: AnswerDriver | None = None

    async def __aenter__(self) -> AnswerDriver:
        self._driver = driver = await self._answer.start()
        return driver

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        driver = self._driver
        assert driver is not None, "it was entered"
        if not driver.is_over:
            await _leave(driver)
        if isinstance(error, StreamcoError):
            self._answer.describe(error)


async def _read_chunks(answer: PendingAnswer, *, includes_usage: bool) -> AsyncGenerator[ChatCompletionChunk, None]:
    async with _Reading(answer) as driver:
        chunks = _Chunks(answer, driver, includes_usage=includes_usage)
        while (batch := await driver.next_batch()) is not None:
            for chunk in chunks.take(batch):
                yield chunk
        for chunk in chunks.end():
            yield chunk


class _Chunks:
    """Chooses which of the delivered chunks a reader gets; see ``ChatStream`` about usage and chunks without choices."""

    __slots__ = ("_answer", "_counts", "_driver", "_includes_usage", "_last")

    def __init__(self, answer: PendingAnswer, driver: AnswerDriver, *, includes_usage: bool) -> None:
        self._answer = answer
        self._driver = driver
        self._includes_usage = includes_usage
        self._last: ChatCompletionChunk | None = None
        self._counts: ChatCompletionChunk | None = None  # the newest chunk with only usage; some servers also send one at the beginning

    def take(self, batch: Batch) -> list[ChatCompletionChunk]:
        """Return the chunks that the reader gets for a delivery."""
        self._answer.source, given, _ = batch
        shown: list[ChatCompletionChunk] = []
        for chunk in given:
            if chunk.usage is not None and (self._driver.has_changed_hands or (self._last is not None and _lacks_a_count(chunk.usage))):
                chunk = replace(chunk, usage=None)  # noqa: PLW2901  its usage counts the earlier part as prompt, or lacks a part
            if self._counts is not None and (chunk.choices or chunk.usage is not None):  # it wasn't the last one
                if further_fields(self._counts):
                    shown.append(replace(self._counts, usage=None, choices=[ChunkChoice()]))
                self._counts = None
            if chunk.choices:
                shown.append(chunk)
                self._last = chunk
            elif self._includes_usage and chunk.usage is not None:
                self._counts = chunk
            elif further_fields(chunk):
                shown.append(replace(chunk, usage=None, choices=[ChunkChoice()]))
        return shown

    def end(self) -> list[ChatCompletionChunk]:
        """Return the chunks that the reader gets at the end."""
        last = self._last
        if self._counts is not None:
            return [self._counts]
        if self._includes_usage and last is not None and last.usage is None:
            return [ChatCompletionChunk(id=last.id, created=last.created, model=last.model, usage=_shown(self._answer.usage()))]
        return []


def _lacks_a_count(usage: CompletionUsage) -> bool:
    """Return True if one of the counts is zero; the answer's own usage then has the real number."""
    return not (usage.prompt_tokens and usage.completion_tokens)


def _shown(usage: AnswerUsage) -> CompletionUsage:
    """Return the usage with OpenAI's fields, and with ``is_estimated`` only if it is True."""
    if usage.is_estimated:
        return usage
    return CompletionUsage(**{name: getattr(usage, name) for name in CompletionUsage.__struct_fields__})


async def _read_tokens(answer: PendingAnswer) -> AsyncGenerator[Token, None]:
    written: list[str] = []
    async with _Reading(answer) as driver:
        while (batch := await driver.next_batch()) is not None:
            for token in _tokens(batch):
                if token.kind == "content":
                    written.append(token.text)
                yield token
            _check_calls(batch, written)


def _check_calls(batch: Batch, written: list[str]) -> None:
    """Check that there is no tool call, which a stream of tokens would leave out.

    Args:
        batch: the chunks.
        written: the text so far.

    Raises:
        UsageError: a chunk has a tool call.
    """
    for chunk in batch[1]:
        for choice in chunk.choices[:1]:
            if choice.delta.tool_calls or choice.delta.function_call:
                error = UsageError("stream: expected text, got a tool call, which a chunk of chat.completions.create can show")
                error.partial = "".join(written)
                raise error


def _tokens(batch: Batch) -> list[Token]:
    source, chunks, time = batch
    found: list[Token] = []
    for chunk in chunks:
        origin = None
        if isinstance(chunk, SpeculatedChunk):
            origin = chunk.origin
            if chunk.retracted:
                found.append(Retracted("", None, source, time, characters=chunk.retracted))
            if chunk.settled:
                found.append(Settled("", None, source, time, origin=origin, characters=chunk.settled))
        for choice in chunk.choices[:1]:
            delta, ids = choice.delta, choice.token_ids
            if thinking := delta.reasoning_content or delta.reasoning:
                found.append(Token(thinking, None, source, time, "reasoning"))
            if delta.content:
                found.append(Token(delta.content, ids[0] if ids and len(ids) == 1 else None, source, time, "content", origin))
    return found


async def _leave(driver: AnswerDriver) -> None:
    """End the work after the reader has left. A cancelled reader doesn't wait for it."""
    driver.leave()
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        await driver.aclose()
