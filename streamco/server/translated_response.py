"""The engine's answers in the format of a translated API: its pieces become chat chunks, which that API's encoder encodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from streamco.engines.base import GenerationEnd, TextPiece
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice
from streamco.server.http.errors import RequestError
from streamco.server.http.event_stream import HEADERS
from streamco.wire.answer_encoder import AnswerEncoder
from streamco.wire.openai.assembler import CompletionAssembler
from streamco.wire.openai.logprobs import chat_logprobs, token_logprobs

__all__ = ["TranslatedResponse"]


class TranslatedResponse:
    """A response format that uses an ``AnswerEncoder``; see ``ResponseFormat``.

    Args:
        encoder: the API's encoder.
        detokenize: the engine's method.
        top: number of alternatives to send with each token, or None for no log-probabilities.
    """

    headers: Mapping[str, str] = HEADERS

    def __init__(self, encoder: AnswerEncoder, *, detokenize: Callable[[Sequence[int]], bytes], top: int | None) -> None:
        self._encoder = encoder
        self._detokenize = detokenize
        self._top = top
        self._whole = CompletionAssembler()

    @property
    def keepalive(self) -> bytes:
        """Bytes without content, to send while the reader is waiting."""
        return self._encoder.keepalive

    def opening(self) -> bytes:
        """Return the bytes that come before the first piece."""
        return self._encoder.opening()

    def events(self, pieces: Sequence[TextPiece]) -> bytes:
        """Return the events of the pieces."""
        return b"".join([self._encoder.event(self._chunk(piece)) for piece in pieces])

    def closing(self, end: GenerationEnd) -> bytes:
        """Return the events that end the answer, including the usage and the stop string."""
        return self._encoder.event(_last_chunk(end)) + self._encoder.ending(end.reason) + self._encoder.done()

    def failing(self, refusal: RequestError) -> bytes:
        """Return the events of a failure."""
        return self._encoder.failing(refusal)

    def add(self, pieces: Sequence[TextPiece]) -> None:
        """Keep pieces for ``whole``."""
        for piece in pieces:
            self._whole.add(self._chunk(piece))

    def whole(self, end: GenerationEnd) -> bytes:
        """Return the answer as one JSON object."""
        self._whole.add(_last_chunk(end))
        return self._encoder.whole(self._whole.completion(), end.reason)

    def _chunk(self, piece: TextPiece) -> ChatCompletionChunk:
        choice = ChunkChoice(delta=ChoiceDelta(reasoning_content=piece.text) if piece.is_reasoning else ChoiceDelta(content=piece.text))
        if self._top is not None and not piece.is_reasoning:
            choice.logprobs = chat_logprobs(token_logprobs(piece.ids, piece.tops, self._top), self._detokenize)
        return ChatCompletionChunk(choices=[choice])


def _last_chunk(end: GenerationEnd) -> ChatCompletionChunk:
    choices = [] if end.stop is None else [ChunkChoice(delta=ChoiceDelta(), finish_reason="stop", stop_reason=end.stop)]
    return ChatCompletionChunk(choices=choices, usage=end.timings.usage())
