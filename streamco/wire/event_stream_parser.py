"""Converts streams of typed events, as in OpenAI's Responses API and Anthropic's Messages API, to chat chunks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from typing import Any

from streamco.config import Limits
from streamco.errors import EndpointProtocolError
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage, has_output
from streamco.wire.answer_parser import AnswerParser
from streamco.wire.json_values import text_of
from streamco.wire.openai.errors import find_error, is_bare_error, stream_error
from streamco.wire.openai.json_body import JSONBody, decode_body, excerpt, is_json
from streamco.wire.openai.lenient_decode import decode_object, newer_usage
from streamco.wire.openai.token_estimate import ONE_TOKEN, estimate_delta, estimate_tokens, is_text
from streamco.wire.sse import SSEEvent, SSEParser
from streamco.wire.text_halves import TextHalves

__all__ = ["EventStreamParser"]

_LIMITS = Limits()
_LATEST = 1e12  # seconds since the epoch; no server's clock is later
_DONE = b"[DONE]"
_KEEPALIVES = frozenset(
    prefix + name for prefix in ("", "response.") for name in ("ping", "heartbeat", "keepalive", "keep_alive", "keep-alive")
)


class EventStreamParser(AnswerParser):
    """Turns the events of one streamed answer into chat chunks.

    An event's type is in its data, or else in its name. Events of unknown types are skipped. An event may also hold a list of
    objects, which are read like events. A body that is one JSON object instead of events is the whole answer.

    Args:
        endpoint: the endpoint's name in errors.
        limits: of these, ``event_bytes`` and ``answer_bytes`` are used, and ``body_bytes`` if the body is one JSON object.
    """

    first_event = ""
    """Type of the event with which an answer begins, for error messages."""
    foreign_types: tuple[str, ...] = ()
    """Prefixes of event types that belong to another API."""

    def __init__(self, *, endpoint: str = "", limits: Limits = _LIMITS) -> None:
        super().__init__(endpoint=endpoint, limits=limits)
        self._sse = SSEParser(limit_bytes=limits.event_bytes)
        self._halves = TextHalves()
        self._body: JSONBody | None = None
        self._is_stream = False
        self._has_begun = False
        self._skipped: bytes | None = None  # the first event that isn't part of the API
        self._head = ("", 0, "")  # id, created and model of all chunks
        self._chunks: list[ChatCompletionChunk] = []

    def _take(self, data: bytes, chunks: list[ChatCompletionChunk]) -> None:
        self._chunks = chunks
        if not self._is_stream:
            data = data if self._body is not None else data.lstrip()
            if self._body is None and data[:1] in (b"{", b"["):
                self._body = JSONBody(limit_bytes=self.limits.body_bytes)
            self._is_stream = self._body is None and bool(data)
        if self._body is not None:
            self._body.feed(data)
        else:
            self._read(self._sse.feed(data))

    def _take_end(self, chunks: list[ChatCompletionChunk]) -> bool:
        self._chunks = chunks
        if self._body is not None:
            self._read_body(decode_body(self._body.take()))
            return True
        events = self._sse.close()
        readable = [event for event in events if is_json(event.data) or event.data.strip() == _DONE]
        self._read(readable)
        if self.is_done or self.error is not None:
            return True
        if not self._has_begun and self._skipped is not None:
            raise EndpointProtocolError(f"expected {self.first_event} as the first event, got {excerpt(self._skipped)}")
        return readable == events

    def _finish(self, chunks: list[ChatCompletionChunk]) -> None:
        self._chunks = chunks
        self._close_parts()

    def _size(self) -> str:
        return f"{self._sse.events} events, "

    def _read(self, events: list[SSEEvent]) -> None:
        for event in events:
            if self.is_done or self.error is not None:
                return
            self._read_event(event)

    def _read_event(self, event: SSEEvent) -> None:
        payload = event.data.strip()
        name = "" if event.event == "message" else event.event
        if payload == _DONE:
            if self.ends.had_reason:
                self._end()
            return
        if name in _KEEPALIVES:
            return
        try:
            value = decode_object(payload, has_pieces=True)
        except ValueError:
            if payload[:1] in (b"{", b"["):
                raise EndpointProtocolError(f"expected JSON in an event, got {excerpt(payload)}") from None
            value = None
        if isinstance(value, dict):
            self._read_object(name, value, payload)
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            self._read_list(name, value, payload)
        else:
            self._skipped = self._skipped or payload

    def _read_list(self, name: str, values: list[Any], payload: bytes) -> None:
        """Read the objects of a list as if each were an event. Google's servers list errors this way, and some gateways list events."""
        for value in values:
            if isinstance(value, dict) and not self.is_done and self.error is None:
                self._read_object(name, value, payload)

    def _read_object(self, name: str, value: dict[str, Any], payload: bytes) -> None:
        kind = value.get("type")
        if not isinstance(kind, str) or not kind:
            kind = name
        if kind in _KEEPALIVES:
            return
        if not self._has_begun and ("choices" in value or kind.startswith(self.foreign_types)):
            raise EndpointProtocolError(f"expected {self.first_event} as the first event, got {excerpt(payload)}", is_lasting=True)
        is_known = self._decode(kind, value)
        if is_known and (self.is_done or self.error is not None or not value.get("error")):
            return
        if (error := find_error(value)) is not None:
            self._fail(stream_error({"error": error}))
        elif is_bare_error(value, is_all=False):
            self._fail(stream_error(value))
        else:
            self._skipped = self._skipped or payload

    def _read_body(self, value: Any) -> None:
        """Read a whole answer that was not streamed.

        Raises:
            EndpointError: the body is an error, or not an answer of this API.
        """
        if (error := find_error(value)) is not None:
            raise stream_error({"error": error})
        if not isinstance(value, dict) or not self._decode_whole(value):
            if is_bare_error(value, is_all=True):
                raise stream_error(value)
            got = excerpt(b"" if self._body is None else self._body.take())
            is_lasting = isinstance(value, dict) and "choices" in value
            raise EndpointProtocolError(f"expected {self.first_event} or a whole answer, got {got}", is_lasting=is_lasting)

    @abstractmethod
    def _decode(self, kind: str, value: dict[str, Any]) -> bool:
        """Emit what one event holds. Returns False if this API has no such event. Calls ``_end`` at the end, and fails on errors."""

    @abstractmethod
    def _decode_whole(self, value: dict[str, Any]) -> bool:
        """Emit a whole answer that was not streamed. Returns False if the value isn't an answer of this API."""

    def _close_parts(self) -> None:
        """Emit the text that is still held when the answer ends."""

    def _begin(self, name: Any, model: Any, created: Any = 0) -> None:
        """Begin the answer, and emit a chunk with the role."""
        self._has_begun = True
        when = int(created) if isinstance(created, int | float) and 0 <= created < _LATEST else 0
        self._head = (text_of(name), when, text_of(model))
        self._emit(ChoiceDelta(role="assistant"))

    def _emit(
        self,
        delta: ChoiceDelta,
        reason: str | None = None,
        *,
        usage: CompletionUsage | None = None,
        is_new: bool = True,
        **fields: Any,
    ) -> None:
        """Add a chunk to the chunks that ``feed`` returns, and count its tokens.

        Args:
            delta: text or other output that the chunk adds.
            reason: the chunk's finish reason.
            usage: the chunk's usage, kept only if it is plausible.
            is_new: False if the delta was held back, so that it doesn't take back a finish reason that came in the meantime.
            fields: additional fields of the choice.
        """
        if not self._has_begun:
            self._begin("", "")
        name, created, model = self._head
        chunk = ChatCompletionChunk(name, [ChunkChoice(delta=delta, finish_reason=reason, **fields)], created, model)
        chunk.usage = newer_usage(self.usage, usage)
        self.usage = chunk.usage or self.usage
        if has_output(delta):
            self.has_progress = True
            if is_new:
                self.ends.record_output()
            tokens = estimate_delta(delta)
            self.tokens += tokens
            self.is_estimated = self.is_estimated or bool(tokens)
            self.has_only_text = self.has_only_text and is_text(delta)
            if delta.content:
                self._text.append(delta.content)
        if reason is not None:
            chunk.choices[0].finish_reason = self._record_reason(reason)
        self._chunks.append(chunk)

    def _emit_text(self, text: str, logprobs: Any = None) -> None:
        """Emit a delta that is only text, as most are. Does the same as ``_emit`` at a third of the cost."""
        if not self._has_begun:
            self._begin("", "")
        name, created, model = self._head
        choice = ChunkChoice(ChoiceDelta(text), logprobs=logprobs)
        self._chunks.append(ChatCompletionChunk(name, [choice], created, model))
        if text:
            self._text.append(text)
            self.tokens += 1 if len(text) <= ONE_TOKEN else estimate_tokens(text)
            self.has_progress = self.is_estimated = True
            self.ends.record_output()

    def _end(self) -> None:
        """Handle the formal end of the answer.

        Raises:
            EndpointProtocolError: nothing in the answer was understood.
        """
        if self.error is None:
            self._record_end(self.ends.record_end())
            self._close_parts()
            self.is_done = True

    def _join(self, text: Hashable, piece: str) -> str:
        """Return a piece of a text in whole characters. Half a character at the end is held until the other half comes."""
        if piece.isascii() and not self._halves.is_open:
            return piece
        piece = self._halves.join(text, piece)
        if self._halves.is_open and self._halves.holds(text):
            self.has_progress = True
            self.ends.record_output()
        return piece

    def _fail_with(self, value: dict[str, Any]) -> None:
        """Fail with an error that the server sent."""
        self._fail(stream_error(value))
