"""What the caller iterates: OpenAI-shaped chunks, or tokens."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Generic, Literal, Self, TypeVar

from msgspec import Struct

from streamco.chunks import ChatCompletionChunk
from streamco.client.driver import Batch, SessionDriver
from streamco.core.report import Report
from streamco.errors import StreamClosed, StreamConsumed

__all__ = ["AnswerStream", "ChatStream", "Token", "TokenStream"]

Item = TypeVar("Item")


class Token(Struct, frozen=True):
    """A piece of the answer as its endpoint made it: one token, or several that arrived as one.

    Args:
        text: whole code points, never "".
        id: the token's id at its endpoint; None where ids are unknown, or several tokens make up the text.
        source: the endpoint's name.
        time: when it was delivered, seconds on the monotonic clock.
        kind: the answer's own text, or thinking aloud.
    """

    text: str
    id: int | None
    source: str
    time: float
    kind: Literal["content", "reasoning"] = "content"


class AnswerStream(ABC, Generic[Item]):
    """An answer on its way. Iterate it once; leaving the loop early (``break``, an exception, task cancel) stops all work behind it.

    Use it as an async context manager where the end of the work must be certain before the program goes on.
    """

    def __init__(self, begin: Callable[[], Awaitable[SessionDriver]], report: Callable[[SessionDriver], Report]) -> None:
        self._begin = begin
        self._make_report = report
        self._driver: SessionDriver | None = None
        self._iterator: AsyncGenerator[Item, None] | None = None
        self._is_closed = False
        self._has_reader = False

    # Reading

    def __aiter__(self) -> AsyncGenerator[Item, None]:
        # The generator belongs to the loop alone, so that a `break` drops it, and dropping it ends the work.
        self._check_unread()
        self._has_reader = True
        return self._iterate()

    async def __anext__(self) -> Item:
        if self._iterator is None:
            self._iterator = self.__aiter__()
        return await anext(self._iterator)

    def _check_unread(self) -> None:
        if self._is_closed:
            raise StreamClosed("expected an open stream, got a read after it was closed")
        if self._has_reader:
            raise StreamConsumed("expected a fresh stream, got a second iteration")

    async def _start(self) -> SessionDriver:
        if self._driver is None:
            self._driver = await self._begin()
            if self._is_closed:
                self._driver.leave()
        return self._driver

    @abstractmethod
    def _iterate(self) -> AsyncGenerator[Item, None]:
        """What the caller gets of each batch."""

    # Ending

    async def aclose(self) -> None:
        """Stop all work behind this answer and wait until connections and sequences are released; idempotent."""
        self._is_closed = True
        if self._driver is not None:
            await self._driver.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    def __del__(self) -> None:
        driver = self._driver
        if driver is not None and not driver.is_over:
            driver.leave_soon()

    # Afterwards

    @property
    def report(self) -> Report:
        """Figures so far; final once the iteration has ended.

        Raises:
            StreamConsumed: nothing was asked yet: iterate first.
        """
        if self._driver is None:
            raise StreamConsumed("expected a stream that has begun, got a report asked for before the first read")
        return self._make_report(self._driver)


class ChatStream(AnswerStream[ChatCompletionChunk]):
    """Chunks in the shape of OpenAI's ``chat.completion.chunk``.

    Chunks without choices (Azure's content-filter results, usage) are left out unless usage was asked for with
    ``stream_options={"include_usage": True}``; then the last chunk has it, whoever won.
    """

    def __init__(
        self, begin: Callable[[], Awaitable[SessionDriver]], report: Callable[[SessionDriver], Report], *, includes_usage: bool = False
    ) -> None:
        super().__init__(begin, report)
        self._includes_usage = includes_usage

    async def first(self) -> None:
        """Wait for the first delivery without reading it.

        Raises:
            StreamcoError: no endpoint could give the answer.
        """
        await (await self._start()).peek()

    async def _iterate(self) -> AsyncGenerator[ChatCompletionChunk, None]:
        driver = await self._start()
        shows_all, last = self._includes_usage, None
        try:
            while (batch := await driver.next_batch()) is not None:
                for chunk in batch[1]:
                    if chunk.choices:
                        yield chunk
                        last = chunk
                    elif shows_all and chunk.usage is not None:
                        shows_all = False
                        yield chunk
            if shows_all and last is not None and (final := _usage_chunk(driver, last)) is not None:
                yield final
        finally:
            if not driver.is_over:
                await _leave(driver)


def _usage_chunk(driver: SessionDriver, last: ChatCompletionChunk) -> ChatCompletionChunk | None:
    """OpenAI's last chunk, for a winner that reported usage in another way."""
    if last.usage is not None:
        return None
    usage = driver.machine.legs[driver.machine.winner or ""].usage
    return ChatCompletionChunk(id=last.id, created=last.created, model=last.model, usage=usage) if usage else None


class TokenStream(AnswerStream[Token]):
    """The answer's text piece by piece, thinking text marked by ``kind``."""

    async def _iterate(self) -> AsyncGenerator[Token, None]:
        driver = await self._start()
        try:
            while (batch := await driver.next_batch()) is not None:
                for token in _tokens(batch):
                    yield token
        finally:
            if not driver.is_over:
                await _leave(driver)


def _tokens(batch: Batch) -> list[Token]:
    source, chunks, time = batch
    found = []
    for chunk in chunks:
        for choice in chunk.choices[:1]:
            delta, ids = choice.delta, choice.token_ids
            if thinking := delta.reasoning_content or delta.reasoning:
                found.append(Token(thinking, None, source, time, "reasoning"))
            if delta.content:
                found.append(Token(delta.content, ids[0] if ids and len(ids) == 1 else None, source, time))
    return found


async def _leave(driver: SessionDriver) -> None:
    """End the work when a reader is gone for good; a cancelled reader must not wait, but the work ends all the same."""
    driver.leave()
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        await driver.aclose()
