"""Answers in the formats of OpenAI's chat completions and completions, whole or as server-sent events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from streamco.engines.base import GenerationEnd, GenerationTimings, TextPiece
from streamco.server.http.encoding import CHAT, COMPLETION, DONE, Json, ObjectNames, encode, event, make_choice
from streamco.server.http.errors import RequestError, error_event
from streamco.server.http.event_stream import HEADERS, KEEPALIVE
from streamco.wire.openai.logprobs import TokenLogprob, chat_logprobs, token_logprobs

__all__ = ["ChatResponse", "CompletionResponse", "ResponseFormat", "StreamFormat", "usage_of"]

Detokenize = Callable[[Sequence[int]], bytes]


def usage_of(timings: GenerationTimings) -> Json:
    """Return OpenAI's usage object. ``cached_tokens`` counts the prompt tokens found in the KV cache."""
    return {
        "prompt_tokens": timings.prompt_tokens,
        "completion_tokens": timings.completion_tokens,
        "total_tokens": timings.prompt_tokens + timings.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": timings.reused_tokens},
    }


class StreamFormat(Protocol):
    """Encodes one streamed answer."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the response."""
        ...

    @property
    def keepalive(self) -> bytes:
        """Bytes without content, to send while the reader is waiting."""
        ...

    def opening(self) -> bytes:
        """Return the bytes that come before the first piece."""
        ...

    def events(self, pieces: Sequence[TextPiece]) -> bytes:
        """Return the encoded pieces, each by itself."""
        ...

    def closing(self, end: GenerationEnd) -> bytes:
        """Return the end of the answer, with the finish reason, and the usage if requested."""
        ...

    def failing(self, refusal: RequestError) -> bytes:
        """Return the end of an answer that failed after it had begun."""
        ...


class ResponseFormat(StreamFormat, Protocol):
    """Encodes one answer, as a stream of events or, from the pieces that ``add`` keeps, as a whole."""

    def add(self, pieces: Sequence[TextPiece]) -> None:
        """Keep pieces for ``whole``."""
        ...

    def whole(self, end: GenerationEnd) -> bytes:
        """Return the answer as one JSON object."""
        ...


class _Answer:
    """The common part of both response formats.

    Args:
        name: the answer's id.
        model: the model's name as the client knows it.
        created: seconds since the epoch.
        detokenize: the engine's method.
        top: number of alternatives to send with each token, or None for no log-probabilities.
        wants_ids: True to send token ids (vLLM's ``return_token_ids``).
        wants_usage: True to end a stream with usage; its other chunks have ``"usage": null``.
        prompt_ids: the prompt, sent with the first chunk if ids are sent.
    """

    objects: ObjectNames
    chunk_field: str
    headers: Mapping[str, str] = HEADERS
    keepalive = KEEPALIVE

    def __init__(
        self,
        *,
        name: str,
        model: str,
        created: int,
        detokenize: Detokenize,
        top: int | None,
        wants_ids: bool,
        wants_usage: bool,
        prompt_ids: Sequence[int],
    ) -> None:
        self._head: Json = {"id": name, "created": created, "model": model}
        self._detokenize = detokenize
        self._top = top
        self._wants_ids = wants_ids
        self._wants_usage = wants_usage
        self._prompt_ids = prompt_ids
        self._pieces: list[TextPiece] = []
        self._has_stopped = False

    def add(self, pieces: Sequence[TextPiece]) -> None:
        self._pieces += pieces

    def events(self, pieces: Sequence[TextPiece]) -> bytes:
        return b"".join([event(self._chunk([self._piece_choice(piece)])) for piece in pieces])

    def closing(self, end: GenerationEnd) -> bytes:
        last = b"" if self._has_stopped else event(self._chunk([self._final_choice(end.reason)]))
        if self._wants_usage:
            last += event({**self._chunk([]), "usage": usage_of(end.timings)})
        return last + DONE

    def failing(self, refusal: RequestError) -> bytes:
        return error_event(refusal)

    def whole(self, end: GenerationEnd) -> bytes:
        choice = self._whole_choice(None if self._top is None else self._logprobs(self._pieces), end.reason)
        if self._wants_ids:
            choice["token_ids"] = [token for piece in self._pieces for token in piece.ids]
            choice["prompt_token_ids"] = self._prompt_ids
        return encode({**self._head, "object": self.objects.whole, "choices": [choice], "usage": usage_of(end.timings)})

    def _text(self) -> str:
        return "".join([piece.text for piece in self._pieces if not piece.is_reasoning])

    def _chunk(self, choices: list[Json]) -> Json:
        chunk = {**self._head, "object": self.objects.chunk, "choices": choices}
        if self._wants_usage:
            chunk["usage"] = None
        return chunk

    def _piece_choice(self, piece: TextPiece) -> Json:
        choice = make_choice(0, self.chunk_field, self._piece_content(piece))
        if self._top is not None and not piece.is_reasoning:
            choice["logprobs"] = self._logprobs([piece])
        if piece.is_cut:  # the end comes with it: a client that loses the connection in between must not continue after the stop string
            self._has_stopped = True
            choice["finish_reason"] = "stop"
        elif self._wants_ids:
            choice["token_ids"] = piece.ids
        return choice

    def _piece_content(self, piece: TextPiece) -> object:
        raise NotImplementedError

    def _final_choice(self, finish_reason: str) -> Json:
        raise NotImplementedError

    def _whole_choice(self, logprobs: Json | None, finish_reason: str) -> Json:
        raise NotImplementedError

    def _logprobs(self, pieces: Sequence[TextPiece]) -> Json:
        raise NotImplementedError

    def _tokens(self, pieces: Sequence[TextPiece]) -> list[TokenLogprob]:
        return [token for piece in pieces if not piece.is_reasoning for token in token_logprobs(piece.ids, piece.tops, self._top or 0)]


class ChatResponse(_Answer):
    """Response format of ``/v1/chat/completions``."""

    objects = CHAT
    chunk_field = "delta"

    def opening(self) -> bytes:
        """Return a chunk with the role, as OpenAI does."""
        chunk = self._chunk([make_choice(0, "delta", {"role": "assistant", "content": ""})])
        if self._wants_ids:
            chunk["prompt_token_ids"] = self._prompt_ids
        return event(chunk)

    def _piece_content(self, piece: TextPiece) -> Json:
        return {"reasoning_content" if piece.is_reasoning else "content": piece.text}

    def _final_choice(self, finish_reason: str) -> Json:
        return make_choice(0, "delta", {}, finish_reason=finish_reason)

    def _whole_choice(self, logprobs: Json | None, finish_reason: str) -> Json:
        message: Json = {"role": "assistant", "content": self._text(), "refusal": None}
        if reasoning := "".join([piece.text for piece in self._pieces if piece.is_reasoning]):
            message["reasoning_content"] = reasoning
        return make_choice(0, "message", message, logprobs=logprobs, finish_reason=finish_reason)

    def _logprobs(self, pieces: Sequence[TextPiece]) -> Json:
        return chat_logprobs(self._tokens(pieces), self._detokenize)


class CompletionResponse(_Answer):
    """Response format of ``/v1/completions``."""

    objects = COMPLETION
    chunk_field = "text"
    _offset = 0

    def opening(self) -> bytes:
        """Return nothing, or a chunk with the prompt's ids if ids are sent."""
        return event({**self._chunk([make_choice(0, "text", "")]), "prompt_token_ids": self._prompt_ids}) if self._wants_ids else b""

    def _piece_content(self, piece: TextPiece) -> str:
        return piece.text

    def _final_choice(self, finish_reason: str) -> Json:
        return make_choice(0, "text", "", finish_reason=finish_reason)

    def _whole_choice(self, logprobs: Json | None, finish_reason: str) -> Json:
        return make_choice(0, "text", self._text(), logprobs=logprobs, finish_reason=finish_reason)

    def _logprobs(self, pieces: Sequence[TextPiece]) -> Json:
        tokens = self._tokens(pieces)
        texts = [self._name(token) for token, _, _ in tokens]
        offsets = []
        for piece in pieces:
            offsets += [self._offset] * len(piece.ids)
            self._offset += len(piece.text)
        return {
            "tokens": texts,
            "token_logprobs": [logprob for _, logprob, _ in tokens],
            "top_logprobs": [{self._name(token): logprob for token, logprob in others} for _, _, others in tokens] if self._top else None,
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        """Return the token's text, or its bytes if it's part of a character, as OpenAI does. Names are JSON keys, so they must differ."""
        data = self._detokenize([token])
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
