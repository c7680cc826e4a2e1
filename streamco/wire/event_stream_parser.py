"""Reading the streams of APIs with typed events, such as OpenAI's Responses API and Anthropic's Messages API, as chat chunks."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from streamco.config import Limits
from streamco.errors import EndpointError, EndpointProtocolError
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage
from streamco.wire.answer_parser import AnswerParser
from streamco.wire.openai.errors import stream_error
from streamco.wire.openai.json_body import excerpt
from streamco.wire.openai.lenient_decode import decode_object, is_plausible
from streamco.wire.openai.stream import estimate_delta
from streamco.wire.sse import SSEParser

__all__ = ["EventStreamParser"]

_LIMITS = Limits()
_LATEST = 1e12  # seconds since the epoch; no server's clock is later


class EventStreamParser(AnswerParser):
    """Turns the events of one streamed answer into chat chunks.

    Args:
        endpoint: the endpoint's name in errors.
        limits: ``event_bytes`` and ``answer_bytes``.
    """

    first_event = ""
    """Type of the event that an answer begins with, for errors."""

    def __init__(self, *, endpoint: str = "", limits: Limits = _LIMITS) -> None:
        super().__init__(endpoint=endpoint, limits=limits)
        self._sse = SSEParser(limit_bytes=limits.event_bytes)
        self._has_begun = False
        self._head: dict[str, Any] = {}  # id, created and model of all chunks

    @property
    def is_complete(self) -> bool:
        """True if the answer is whole: its finish reason or its end has come."""
        return self.is_done or self.finish_reason is not None

    def close(self) -> list[ChatCompletionChunk]:
        """Take the end of the body, and return the chunks of a last event without its blank line.

        Raises:
            EndpointError: ``error``, or the answer is truncated.
        """
        self.tokens = 0
        chunks: list[ChatCompletionChunk] = []
        if self.error is None and not self.is_done:
            try:
                self._read([event.data for event in self._sse.close()], chunks)
            except EndpointError as error:
                self._fail(error)
            if self.error is None and not self.is_complete:
                got = f"a truncated answer: {self._sse.events} events, {len(self.partial_text())} characters"
                self._fail(EndpointProtocolError(f"expected a finish reason before the end of the stream, got {got}"))
        if self.error is not None:
            raise self.error
        return chunks

    def _take(self, data: bytes, chunks: list[ChatCompletionChunk]) -> None:
        self._read(self._sse.feed_data(data), chunks)

    def _read(self, payloads: list[bytes], chunks: list[ChatCompletionChunk]) -> None:
        for payload in payloads:
            if self.is_done or self.error is not None:
                return
            try:
                value = decode_object(payload)
            except ValueError:
                raise EndpointProtocolError(f"expected JSON in an event, got {excerpt(payload)}") from None
            if not isinstance(value, dict) or not isinstance(kind := value.get("type"), str):
                raise EndpointProtocolError(f"expected an event with a type, got {excerpt(payload)}")
            if not self._has_begun and kind not in {self.first_event, "error", "ping"}:
                raise EndpointProtocolError(f"expected {self.first_event} as the first event, got {excerpt(payload)}", is_lasting=True)
            if (chunk := self._decode(kind, value)) is not None:
                self._count(chunk)
                chunks.append(chunk)

    @abstractmethod
    def _decode(self, kind: str, value: dict[str, Any]) -> ChatCompletionChunk | None:
        """Return the chunk of an event; None: it has none. Sets ``is_done`` at the end and fails at an error event."""

    def _begin(self, name: Any, model: Any, created: Any = 0) -> ChatCompletionChunk:
        """Return the chunk of an answer that begins."""
        self._has_begun = True
        self._head = {
            "id": name if isinstance(name, str) else "",
            "model": model if isinstance(model, str) else "",
            "created": int(created) if isinstance(created, int | float) and 0 <= created < _LATEST else 0,
        }
        return self._chunk(ChoiceDelta(role="assistant"))

    def _chunk(self, delta: ChoiceDelta, finish_reason: str | None = None, **fields: Any) -> ChatCompletionChunk:
        return ChatCompletionChunk(**self._head, choices=[ChunkChoice(delta=delta, finish_reason=finish_reason, **fields)])

    def _finish(self, reason: str, usage: CompletionUsage | None, **fields: Any) -> ChatCompletionChunk:
        """Return the chunk with the finish reason and the usage."""
        chunk = self._chunk(ChoiceDelta(), reason, **fields)
        chunk.usage = usage if usage is not None and is_plausible(usage) else None
        return chunk

    def _fail_with(self, value: dict[str, Any]) -> None:
        """Fail with an error that the server sent."""
        self._fail(stream_error(value))

    def _count(self, chunk: ChatCompletionChunk) -> None:
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices:
            delta = choice.delta
            tokens = estimate_delta(delta)
            self.tokens += tokens
            self.is_estimated = self.is_estimated or bool(tokens)
            if delta.content:
                self._text.append(delta.content)
            elif tokens:
                self.has_only_text = False
            self.finish_reason = choice.finish_reason or self.finish_reason


def text_of(value: Any) -> str:
    """Return the value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def count_of(value: Any) -> int:
    """Return the value if it is a number of tokens, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
