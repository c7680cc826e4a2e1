"""The base class of parsers for streamed answers that keep only text and counts. It handles state, limits and failures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from streamco.config import Limits
from streamco.errors import EndpointError, EndpointProtocolError
from streamco.openai_types import ChatCompletionChunk, CompletionUsage
from streamco.wire.completeness import Completeness, End
from streamco.wire.openai.errors import stream_error

__all__ = ["AnswerParser"]


class AnswerParser(ABC):
    """Turns the body of one streamed answer into chat chunks. It has the attributes and methods of ``ChatStreamParser``.

    Nothing that the server sends makes ``feed`` raise. A failure ends the stream: ``feed`` returns the chunks before it, stores it
    in ``error``, and ``close`` raises it.

    Args:
        endpoint: the endpoint's name in errors.
        limits: of these, ``event_bytes`` and ``answer_bytes`` are used.
    """

    def __init__(self, *, endpoint: str, limits: Limits) -> None:
        self.endpoint = endpoint
        self.limits = limits
        self.tokens = 0
        self.has_progress = False
        self.goes_on = False
        self.usage: CompletionUsage | None = None
        self.is_done = False
        self.error: EndpointError | None = None
        self.is_estimated = False
        self.has_only_text = True
        self.has_dropped_fields = False
        self.ends = Completeness()
        """The signs of the answer's end that have come so far."""
        self._answer_bytes = limits.answer_bytes  # bytes left of the limit
        self._text: list[str] = []

    @property
    def finish_reason(self) -> str | None:
        """The answer's finish reason, or None if none has come."""
        return self.ends.finish_reason

    @property
    def is_complete(self) -> bool:
        """True if the answer is whole by the rules of ``Completeness``."""
        return self.ends.is_whole

    def partial_text(self) -> str:
        """Return the text of all chunks returned so far, without reasoning."""
        return "".join(self._text)

    def feed(self, data: bytes) -> list[ChatCompletionChunk]:
        """Parse more bytes of the body and return the chunks that they complete. Check ``error`` and ``is_done`` afterwards."""
        self.tokens = 0
        self.has_progress = False
        chunks: list[ChatCompletionChunk] = []
        if self.is_done or self.error is not None:
            return chunks
        self._answer_bytes -= len(data)
        try:
            if self._answer_bytes < 0:
                raise EndpointProtocolError(f"expected an answer of at most {self.limits.answer_bytes} bytes, got more", is_limit=True)
            self._take(data, chunks)
        except EndpointError as error:
            self._fail(error)
        return chunks

    def close(self, *, is_proper: bool = True) -> list[ChatCompletionChunk]:
        """Handle the end of the body, and return the last chunks.

        Args:
            is_proper: see ``Completeness.record_close``.

        Raises:
            EndpointError: the stored ``error``, or a new one if the answer is truncated.
        """
        self.tokens = 0
        self.has_progress = False
        chunks: list[ChatCompletionChunk] = []
        returned = len(self._text)
        if self.error is None and not self.is_done:
            try:
                is_proper = self._take_end(chunks) and is_proper
                if not self.is_done and self.error is None:
                    self._record_end(self.ends.record_close(is_proper=is_proper))
                    self._finish(chunks)
            except EndpointError as error:
                self._fail(error)
        if self.error is not None:
            del self._text[returned:]  # these chunks are never returned
            self.error.partial = self.partial_text()
            raise self.error
        return chunks

    def finish(self) -> list[ChatCompletionChunk]:
        """Return the last chunks of a whole answer whose body never ends, because the connection was lost or is silent."""
        chunks: list[ChatCompletionChunk] = []
        self.ends.record_close(is_proper=False)
        self._finish(chunks)
        return chunks

    def _finish(self, chunks: list[ChatCompletionChunk]) -> None:  # noqa: B027  most parsers hold nothing
        """Append the chunks that are still held when a whole answer ends."""

    @abstractmethod
    def _take(self, data: bytes, chunks: list[ChatCompletionChunk]) -> None:
        """Append the chunks that the bytes complete.

        Raises:
            EndpointError: the answer can't continue. Chunks appended before stay in ``chunks``.
        """

    def _take_end(self, chunks: list[ChatCompletionChunk]) -> bool:
        """Append the last chunks at the end of the body. Returns False if the body ends within an event. Raises like ``_take``."""
        return True

    def _record_reason(self, value: Any) -> str | None:
        """Record a finish reason as the server sent it. None and blank reasons are ignored.

        Raises:
            EndpointError: the reason means a failure.
        """
        reason = self.ends.record_reason(value)
        if (failure := self.ends.failure) is not None:
            raise stream_error({"error": {"message": f'the answer ended with "{failure}"', "code": failure}})
        return reason

    def _record_end(self, end: End) -> None:
        """Raise an error unless the answer ended whole.

        Raises:
            EndpointProtocolError: the answer is truncated or empty.
        """
        if end == "cut":
            got = f"a truncated answer: {self._size()}{len(self.partial_text())} characters"
            raise EndpointProtocolError(f"expected a finish reason before the end of the stream, got {got}")
        if end == "empty":
            raise EndpointProtocolError("expected text, calls or a finish reason in the answer, got other fields alone")

    def _size(self) -> str:
        """Return how much has come besides the text, as words for an error message."""
        return ""

    def _fail(self, error: EndpointError) -> None:
        error.endpoint = self.endpoint
        error.partial = self.partial_text()
        self.error = error
        self.is_done = False
