"""Answers of the engine in the form of a translated API: its pieces as chat chunks, encoded by that API's encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from streamco.engines.base import GenerationTimings, TextPiece
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice
from streamco.server.http.errors import RequestError
from streamco.server.http.event_stream import HEADERS
from streamco.wire.answer_encoder import AnswerEncoder
from streamco.wire.openai.assembler import CompletionAssembler
from streamco.wire.openai.logprobs import chat_logprobs, token_logprobs

__all__ = ["TranslatedResponse"]


class TranslatedResponse:
    """A response format over an ``AnswerEncoder``; see ``ResponseFormat``.

    Args:
        encoder: the API's encoder.
        detokenize: the engine's method.
        top: number of alternatives sent with each token; None: no log-probabilities.
        stops: the request's stop strings, of which the one that ended an answer is named.
    """

    headers: Mapping[str, str] = HEADERS

    def __init__(
        self, encoder: AnswerEncoder, *, detokenize: Callable[[Sequence[int]], bytes], top: int | None, stops: Sequence[str]
    ) -> None:
        self._encoder = encoder
        self._detokenize = detokenize
        self._top = top
        self._stops = stops
        self._whole = CompletionAssembler()

    @property
    def keepalive(self) -> bytes:
        """Bytes that mean nothing, for a reader that waits."""
        return self._encoder.keepalive

    def opening(self) -> bytes:
        """Return what comes before the first piece."""
        return self._encoder.opening()

    def events(self, pieces: Sequence[TextPiece]) -> bytes:
        """Return the events of the pieces."""
        return b"".join([self._encoder.event(self._chunk(piece)) for piece in pieces])

    def closing(self, finish_reason: str, timings: GenerationTimings) -> bytes:
        """Return the events that end the answer, the usage among them."""
        usage = self._encoder.event(ChatCompletionChunk(usage=timings.usage()))
        return usage + self._encoder.ending(finish_reason) + self._encoder.done()

    def failing(self, refusal: RequestError) -> bytes:
        """Return the events of a failure."""
        return self._encoder.failing(refusal)

    def add(self, pieces: Sequence[TextPiece]) -> None:
        """Keep pieces for ``whole``."""
        for piece in pieces:
            self._whole.add(self._chunk(piece))

    def whole(self, finish_reason: str, timings: GenerationTimings) -> bytes:
        """Return the answer as one JSON object."""
        self._whole.add(ChatCompletionChunk(usage=timings.usage()))
        return self._encoder.whole(self._whole.completion(), finish_reason)

    def _chunk(self, piece: TextPiece) -> ChatCompletionChunk:
        choice = ChunkChoice(delta=ChoiceDelta(content=piece.text))
        if self._top is not None:
            choice.logprobs = chat_logprobs(token_logprobs(piece.ids, piece.top, self._top), self._detokenize)
        if piece.is_cut:
            choice.finish_reason, choice.stop_reason = "stop", self._matched_stop(piece)
        return ChatCompletionChunk(choices=[choice])

    def _matched_stop(self, piece: TextPiece) -> str | None:
        """Return the stop string that cut a piece: the piece's tokens go on with it after the text. None: it isn't certain."""
        if len(self._stops) == 1:
            return self._stops[0]
        cut = self._detokenize(piece.ids).decode("utf-8", "replace").removeprefix(piece.text)
        return next((stop for stop in self._stops if cut.startswith(stop)), None)
