"""What parsers of streamed answers share that keep no more than text and counts: state, limits and failures."""

from __future__ import annotations

from abc import ABC, abstractmethod

from streamco.config import Limits
from streamco.errors import EndpointError, EndpointProtocolError
from streamco.openai_types import ChatCompletionChunk, CompletionUsage

__all__ = ["AnswerParser"]


class AnswerParser(ABC):
    """Turns the body of one streamed answer into chat chunks; attributes and methods are those of ``ChatStreamParser``.

    Nothing that the server sends makes ``feed`` raise. A failure ends the stream and is stored in ``error``, after the chunks before it
    were returned; ``close`` raises it.

    Args:
        endpoint: the endpoint's name in errors.
        limits: ``event_bytes`` and ``answer_bytes``.
    """

    def __init__(self, *, endpoint: str, limits: Limits) -> None:
        self.endpoint = endpoint
        self.limits = limits
        self.tokens = 0
        self.finish_reason: str | None = None
        self.usage: CompletionUsage | None = None
        self.is_done = False
        self.error: EndpointError | None = None
        self.is_estimated = False
        self.has_only_text = True
        self.has_dropped_fields = False
        self._answer_bytes = limits.answer_bytes  # bytes left of the limit
        self._text: list[str] = []

    def partial_text(self) -> str:
        """Return the text in all chunks returned so far, without reasoning."""
        return "".join(self._text)

    def feed(self, data: bytes) -> list[ChatCompletionChunk]:
        """Take bytes of the body and return the chunks that they complete. Check ``error`` and ``is_done`` afterwards."""
        self.tokens = 0
        chunks: list[ChatCompletionChunk] = []
        if self.is_done or self.error is not None:
            return chunks
        self._answer_bytes -= len(data)
        try:
            if self._answer_bytes < 0:
                raise EndpointProtocolError(f"expected an answer of at most {self.limits.answer_bytes} bytes, got more")
            self._take(data, chunks)
        except EndpointError as error:
            self._fail(error)
        return chunks

    @abstractmethod
    def _take(self, data: bytes, chunks: list[ChatCompletionChunk]) -> None:
        """Append the chunks that the bytes complete.

        Raises:
            EndpointError: the answer can't go on; the chunks before are kept.
        """

    def _fail(self, error: EndpointError) -> None:
        error.endpoint = self.endpoint
        error.partial = self.partial_text()
        self.error = error
