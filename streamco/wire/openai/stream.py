"""Parses OpenAI's streamed answers: bytes go in, chunk objects come out.

One event costs one typed decode and a handful of attribute reads. Events that don't fit the types, and events without content (errors,
whole messages, usage under another name), take a slower path (``lenient_decode``).
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from streamco.config import Limits
from streamco.errors import EndpointError, EndpointProtocolError
from streamco.events import TextRepeated
from streamco.openai_types import ChatCompletionChunk, ChunkChoice, CompletionUsage, further_fields, has_output
from streamco.wire.completeness import Completeness, End, read_reason
from streamco.wire.openai.delta_halves import DeltaHalves, make_whole
from streamco.wire.openai.errors import find_error, is_bare_error, stream_error
from streamco.wire.openai.extended_decode import ExtendedDecoder
from streamco.wire.openai.fast_decode import Api
from streamco.wire.openai.further_fields import may_hold_text
from streamco.wire.openai.json_body import JSONBody, decode_body, excerpt, is_json, split_answer
from streamco.wire.openai.lenient_decode import CumulativeText, build_chunk, decode_object, find_usage, newer_usage
from streamco.wire.openai.other_apis import OddEvents, foreign_answer
from streamco.wire.openai.repeated_events import FEW, RepeatedEvents
from streamco.wire.openai.token_estimate import ONE_TOKEN, estimate_delta, estimate_tokens, is_text
from streamco.wire.openai.tool_calls import ChoiceNumbers
from streamco.wire.sse import SSEParser

__all__ = ["Api", "ChatStreamParser"]

_LIMITS = Limits()
_DONE = b"[DONE]"
_USAGE = re.compile(rb'"usage"\s*:\s*[^\sn]')  # a usage that isn't null; in a stream with usage, most events have null
_PLACES = (b'"delta"', b'"message"', b'"text"')
_JSON_BEGINS = (b"{", b"[", b'"')
_SHORT = 768  # an event of up to this many bytes can't be nested so deep that walking it overflows the stack
_WITHOUT_IDS, _NOT_TEXT = 1, 2
_REMEDY = "if its API is another one, use an OpenAI-compatible base_url"


class ChatStreamParser:
    """Turns the body of one streamed answer into chat chunks.

    Nothing that the server sends makes ``feed`` raise. A failure ends the stream: ``feed`` returns the chunks before it, stores it in
    ``error``, and ``close`` raises it. ``error.partial`` is always the text of the chunks that were returned.

    A server may repeat the whole text so far in a growing ``message`` (Perplexity). If such an event has no ``delta``, the chunk holds
    only the new text.

    Args:
        endpoint: the endpoint's name in errors.
        limits: of these, ``event_bytes`` and ``answer_bytes`` are used, and ``body_bytes`` if the body is JSON instead of events.
        api: "chat" or "completions". Legacy text completions become chat chunks with the text as ``delta.content``.
        choices: number of choices that were requested. With 1, every choice counts as the first, because some servers use ``index`` for
            something else. None means that the number isn't known, so each index counts as a choice of its own.
    """

    __slots__ = (
        "_answer_bytes",
        "_body",
        "_choices",
        "_cumulative",
        "_extended",
        "_halves",
        "_is_streaming",
        "_kinds",
        "_odd",
        "_repeated",
        "_sse",
        "_text",
        "endpoint",
        "ends",
        "error",
        "goes_on",
        "has_progress",
        "is_done",
        "limits",
        "tokens",
        "usage",
    )

    def __init__(self, *, endpoint: str = "", limits: Limits = _LIMITS, api: Api = "chat", choices: int | None = None) -> None:
        self.endpoint = endpoint
        self.limits = limits
        self.tokens = 0
        """Tokens (text, reasoning, tool calls) in the last returned chunks, counted if the server sends ids, otherwise estimated."""
        self.has_progress = False
        """True if the last bytes contained any output of the model, even without tokens, such as media, encrypted reasoning or labels."""
        self.goes_on = False
        """True if the last bytes contained only text or reasoning, without an end, an error or half a character."""
        self.usage: CompletionUsage | None = None
        """The last plausible usage that the server sent."""
        self.is_done = False
        """True once the server has sent [DONE]. Nothing more comes after it."""
        self.error: EndpointError | None = None
        """The reason why the answer can't continue: an error event, malformed bytes, or a limit."""
        self.ends = Completeness(choices=choices)
        """The signs of the answer's end that have come so far."""
        self._extended = ExtendedDecoder(api)
        self._repeated = RepeatedEvents(self._extended.usual)
        self._sse = SSEParser(limit_bytes=limits.event_bytes)
        self._answer_bytes = limits.answer_bytes  # bytes left of the limit
        self._text: list[str] = []  # content of the first choice
        self._kinds = 0  # flags of output that has come: _WITHOUT_IDS, _NOT_TEXT
        self._choices = ChoiceNumbers(is_one=choices == 1)
        self._halves = DeltaHalves()
        self._cumulative = CumulativeText()
        self._is_streaming = False  # before the first event, in a JSON body and after the end
        self._body: JSONBody | None = None
        self._odd = OddEvents()

    @property
    def is_estimated(self) -> bool:
        """True if some tokens came without ids and had to be estimated."""
        return bool(self._kinds & _WITHOUT_IDS)

    @property
    def has_only_text(self) -> bool:
        """True if only text of the first choice came, without reasoning or calls."""
        return not self._kinds & _NOT_TEXT

    @property
    def finish_reason(self) -> str | None:
        """Finish reason of the first choice, or of another choice while the first has none."""
        return self.ends.finish_reason

    @property
    def is_complete(self) -> bool:
        """True if the answer is whole by the rules of ``Completeness``."""
        return self.ends.is_whole

    @property
    def has_dropped_fields(self) -> bool:
        """True if provider-specific fields were dropped because they had too many elements."""
        return self._extended.has_dropped

    @property
    def events(self) -> int:
        """Number of events so far, of any kind."""
        return self._sse.events

    @property
    def comments(self) -> int:
        """Number of comment lines so far. They show that the server is alive."""
        return self._sse.comments

    def partial_text(self) -> str:
        """Return the first choice's text from all chunks returned so far, without reasoning."""
        return "".join(self._text)

    def feed(self, data: bytes) -> list[ChatCompletionChunk]:
        """Parse more bytes of the body and return the chunks that they complete. Check ``error`` and ``is_done`` afterwards."""
        self.tokens = 0
        self.has_progress = self.goes_on = False
        if not self._is_streaming:
            data = self._begin(data)
            if not data:
                return []
        self._answer_bytes -= len(data)
        try:
            payloads = self._sse.feed_data(data)
        except EndpointProtocolError as exc:
            self._fail(exc)
            return []
        if self._answer_bytes < 0:
            self._fail(EndpointProtocolError(f"expected an answer of at most {self.limits.answer_bytes} bytes, got more", is_limit=True))
            return []
        return self._read(payloads) if payloads else []

    def feed_repeated(self, data: bytes) -> TextRepeated | None:
        """Parse a read if it is one event that differs from an earlier one only in its content. Otherwise parse nothing and return None."""
        size = len(data)
        if not (self.goes_on and self._sse.is_between and size <= self._answer_bytes and size <= self.limits.event_bytes):
            return None
        found = self._repeated.read_alike(data)
        if found is None:
            return None
        like, text = found
        self._answer_bytes -= size
        self._sse.events += 1
        self._text.append(text)
        self.tokens = tokens = 1 if len(text) <= ONE_TOKEN else estimate_tokens(text)
        return TextRepeated(self.endpoint, like, text, tokens)

    def learn_repeated(self, data: bytes, chunk: ChatCompletionChunk) -> None:
        """Learn the last read and its only chunk, so that ``feed_repeated`` finds similar reads."""
        self._repeated.learn_read(data, chunk)

    def close(self, *, is_proper: bool = True) -> list[ChatCompletionChunk]:
        """Handle the end of the body. Returns the chunks of a last event without its blank line, or of a body that is one JSON answer.

        Args:
            is_proper: see ``Completeness.record_close``.

        Raises:
            EndpointError: the stored ``error``, or a new one if the answer is truncated. An unfinished last event is then dropped.
        """
        self.tokens = 0
        self.has_progress = self.goes_on = False
        returned = len(self._text)
        chunks = self._flush(is_proper) if self.error is None and not self.is_done else []
        if self.error is not None:
            del self._text[returned:]  # these chunks are never returned
            self.error.partial = self.partial_text()
            raise self.error
        return chunks

    def finish(self) -> list[ChatCompletionChunk]:
        """Return the last chunks of a whole answer whose body never ends, because the connection was lost or is silent."""
        chunks: list[ChatCompletionChunk] = []
        self.ends.record_close(is_proper=False)
        self._take_rest(chunks)
        return chunks

    def parse_body(self, body: bytes) -> list[ChatCompletionChunk]:
        """Read a whole answer that was not streamed. Returns one chunk with its content and one with finish_reason and usage.

        Like ``feed``, it stores failures in ``error``. Blank lines before the JSON are skipped.
        """
        self.tokens = 0
        try:
            value = decode_body(body)
            if self._record_error(value):
                return []
            chunks = split_answer(value)
        except EndpointError as exc:
            self._fail(exc)
            return []
        for chunk in chunks:
            self._keep_usage(chunk)
            self._count_chunk(chunk)
        if self.ends.failure is not None:
            self._record_error(value, otherwise=f'finish_reason "{self.ends.failure}" without an error object')
            return []
        self.is_done = True
        self._record_end(self.ends.record_end())
        if self.tokens and self.usage is not None and self.usage.completion_tokens:
            self.tokens = min(self.usage.completion_tokens, len(body))  # a token of the text has at least one byte
        return chunks

    def _begin(self, data: bytes) -> bytes:
        """Handle bytes outside the stream (blanks before it, a JSON body, bytes after the end), and return the bytes of the stream."""
        if self.error is not None or self.is_done:
            return b""
        if self._body is None:
            data = data.lstrip()
            if data and data[0] in b"{[":
                self._body = JSONBody(limit_bytes=self.limits.body_bytes)
        if self._body is None:
            self._is_streaming = bool(data)
            return data
        try:
            self._body.feed(data)
        except EndpointError as exc:
            self._fail(exc)
        return b""

    def _flush(self, is_proper: bool) -> list[ChatCompletionChunk]:
        if self._body is not None:
            return self.parse_body(self._body.take())
        try:
            payloads = [event.data for event in self._sse.close()]
        except EndpointProtocolError as exc:
            self._fail(exc)
            return []
        readable = [payload for payload in payloads if is_json(payload) or payload.strip() == _DONE]
        chunks = self._read(readable)
        if self.error is None and not self.is_done:
            if self._odd.first is not None and not (self.ends.has_choice or self._odd.has_chunk):
                self._fail(self._unknown_events(self._odd.first))
            else:
                self._record_end(self.ends.record_close(is_proper=is_proper and readable == payloads))  # otherwise it ends in half an event
                self._take_rest(chunks)
        return chunks

    def _record_end(self, end: End) -> None:
        """Store an error unless the answer ended whole."""
        if end == "cut":
            stray = f", and {excerpt(self._odd.text)} for an event" if self._odd.text else ""
            got = f"a truncated answer: {self.events} events, {len(self.partial_text())} characters{stray}"
            self._fail(EndpointProtocolError(f"expected a finish_reason or [DONE] before the end of the stream, got {got}"))
        elif end == "empty":
            self._fail(EndpointProtocolError("expected text, calls or a finish reason in the answer, got other fields alone"))

    def _read(self, payloads: list[bytes]) -> list[ChatCompletionChunk]:
        """Decode and count events. The branches for plain content or reasoning in the first choice are the hot path."""
        chunks: list[ChatCompletionChunk] = []
        decode = self._extended.usual
        tokens = kinds = at = 0
        goes_on = True
        end = len(payloads)
        last = end - FEW if end > FEW and self._repeated.is_useful else 0  # after this one, too few are left to be worth copying
        ends, halves = self.ends, self._halves
        is_open = not (ends.has_reason or halves.is_open)  # the next text takes back no reason and completes no half
        while at < end:
            payload, at = payloads[at], at + 1
            try:
                chunk = decode(payload) if len(payload) <= _SHORT else self._extended.decode_long(payload)
            except (msgspec.DecodeError, ValueError, RecursionError) as refusal:
                goes_on = False
                self._read_other(payload, refusal, chunks, tokens)
            else:
                choices = chunk.choices
                if is_open and len(choices) == 1 and chunk.usage is None:
                    choice = choices[0]
                    reason = choice.finish_reason
                    if not choice.index and (not reason or read_reason(reason) is None):
                        delta = choice.delta
                        piece = delta.content
                        if piece:
                            self._text.append(piece)
                        else:
                            piece = delta.reasoning_content or delta.reasoning
                            kinds |= bool(piece) << 1  # _NOT_TEXT
                        if piece:
                            if reason is not None:  # a blank one
                                choice.finish_reason = None
                            ids = choice.token_ids
                            tokens += len(ids) if ids else 1 if len(piece) <= ONE_TOKEN else estimate_tokens(piece)
                            kinds |= not ids  # _WITHOUT_IDS
                            chunks.append(chunk)
                            at += self._copy_repeated(payloads, at, chunks) if at <= last else 0
                            continue
                goes_on = False
                self._read_other(payload, chunk, chunks, tokens)
            is_open = at < end and not (ends.has_reason or halves.is_open)
            if not self._is_streaming:
                break
        if tokens:
            self.tokens += tokens
            self.has_progress, self.goes_on = True, goes_on
            self._kinds |= kinds
            if not ends.is_noted:
                ends.note_output()
        return chunks

    def _copy_repeated(self, payloads: list[bytes], start: int, chunks: list[ChatCompletionChunk]) -> int:
        """Add copied chunks for events that repeat an earlier event except for the text. Returns how many were added.

        Args:
            payloads: the events of one read.
            start: index of the next event. The last chunk in ``chunks`` belongs to the event before it.
            chunks: the list to which the chunks are added.
        """
        copied = self._repeated.copy_after(payloads[start - 1], chunks[-1], payloads, start)
        if copied is None:
            return 0
        chunks += copied.chunks
        if copied.is_content:
            self._text += copied.pieces
        self.tokens += len(copied.pieces) if copied.longest <= ONE_TOKEN else sum(map(estimate_tokens, copied.pieces))
        self._kinds |= _WITHOUT_IDS
        return len(copied.chunks)

    def _check_end(self) -> None:
        """Record [DONE]. If no choice came before it, store an error, because it is another API's stream or an answer that never began."""
        if self.ends.has_choice:
            self._record_end(self.ends.record_end())
        elif self._odd.first is None or self._odd.has_chunk:
            self._fail(EndpointProtocolError(f"expected chunks with choices before [DONE], got {self.events} events without"))
        else:
            self._fail(self._unknown_events(self._odd.first))

    def _unknown_events(self, first: bytes) -> EndpointError:
        """Return the error for a stream of which nothing was understood. This may be a temporary fault, so the request may be retried."""
        value = self._decode_lenient(first)
        if is_bare_error(value, is_all=True):
            return stream_error(value)
        got = f"{self.events} events without, the first: {excerpt(first)}"
        return EndpointProtocolError(f"expected chunks with choices, got {got}; {_REMEDY}")

    def _check_unknown(self, payload: bytes) -> None:
        """Store an error if an event without choices and usage is an error, or if it comes before any chunk and belongs to another API."""
        if self.error is not None:
            return
        value = self._decode_lenient(payload)
        if not (self._odd.has_chunk or self.ends.has_choice) and self._odd.first is None:
            self._odd.first = payload
            if (foreign := foreign_answer(value)) is not None:
                self._fail(foreign)
                return
        if is_bare_error(value, is_all=False):
            self._fail(stream_error(value))

    def _read_other(self, payload: bytes, decoded: ChatCompletionChunk | Exception, chunks: list[ChatCompletionChunk], tokens: int) -> None:
        """Read an event that is not plain content. ``tokens`` counts the tokens of plain content before it in the same read."""
        if tokens:
            self.ends.note_output()
        if isinstance(decoded, Exception):
            self._read_untyped(payload, decoded, chunks)
        else:
            self._read_chunk(decoded, payload, chunks)

    def _read_untyped(self, payload: bytes, refusal: Exception, chunks: list[ChatCompletionChunk]) -> None:
        """Read an event that the typed decoder refused because it has an unknown field or a value of another type.

        Args:
            payload: the event's bytes.
            refusal: the decoder's error.
            chunks: the list to which the event's chunk is added.
        """
        payload = payload.strip()
        if payload.strip(b'"') == _DONE:
            self._take_rest(chunks)
            self.is_done = True
            self._is_streaming = False
            self._check_end()
            return
        if not payload:
            return
        if "unknown field" in str(refusal):
            try:
                extended = self._extended.decode(payload)
            except (msgspec.DecodeError, ValueError, RecursionError):
                pass  # a known field has another type as well, or it is nested too deep
            else:
                self._read_chunk(extended, payload, chunks)
                return
        self._read_lenient(payload, chunks)

    def _read_lenient(self, payload: bytes, chunks: list[ChatCompletionChunk]) -> None:
        """Read an event without types."""
        if payload[:1] not in _JSON_BEGINS:  # a gateway's ping, or part of a truncated answer, whose error then shows it
            self._odd.text = self._odd.text or payload
            return
        value = self._decode(payload)
        for each in value if isinstance(value, list) else [value]:
            if self.error is None and not self._record_error(each) and isinstance(each, dict) and each:
                self._read_chunk(make_whole(build_chunk(each)), payload, chunks, is_built=True)

    def _read_chunk(self, chunk: ChatCompletionChunk, payload: bytes, chunks: list[ChatCompletionChunk], *, is_built: bool = False) -> None:
        """Count an event's chunk, and add it to ``chunks`` unless it says nothing.

        An event is decoded again without types if its text isn't in the API's usual field, or if it seems empty, because it may hold an
        error.

        Args:
            chunk: the decoded event.
            payload: the event's bytes.
            chunks: the list to which the chunk is added.
            is_built: True if the chunk comes from ``build_chunk`` and not from the typed decoder.
        """
        is_elsewhere = bool(chunk.choices) and self._extended.place not in payload
        if is_elsewhere and not is_built and any(place in payload for place in _PLACES):
            self._read_lenient(payload, chunks)
            return
        if is_elsewhere and is_built and b'"message"' in payload:
            if not self._cumulative.has_begun:
                self._cumulative.begin(self.partial_text())
            self._cumulative.keep_new(chunk)
        if chunk.usage is not None or _USAGE.search(payload):  # also finds x_groq's usage
            self._read_usage(chunk, payload, is_built)
        before = self.tokens
        had_progress, self.has_progress = self.has_progress, False
        self._count_chunk(chunk, may_have_halves=is_built)
        is_empty = self.tokens == before and not self.has_progress
        self.has_progress = self.has_progress or had_progress
        if self.ends.failure is not None:
            otherwise = f'finish_reason "{self.ends.failure}" without an error object'
            self._record_error(self._decode_lenient(payload), otherwise=otherwise)
        elif is_empty and b'"error"' in payload:
            self._record_error(self._decode_lenient(payload))
        is_known = bool(chunk.choices) or chunk.usage is not None or b'"choices"' in payload
        if is_known:
            self._odd.has_chunk = True
        else:
            self._check_unknown(payload)
        if is_known and not (is_empty and self.error is not None and not any(choice.logprobs for choice in chunk.choices)):
            chunks.append(chunk)

    def _take_rest(self, chunks: list[ChatCompletionChunk]) -> None:
        """Add chunks with a replacement character for each half character whose other half never came."""
        for index, delta in self._halves.give_up_all() if self._halves.is_open else ():
            chunk = ChatCompletionChunk(choices=[ChunkChoice(delta=delta, index=index)])
            self._count_chunk(chunk, is_numbered=True)
            chunks.append(chunk)

    def _read_usage(self, chunk: ChatCompletionChunk, payload: bytes, is_built: bool) -> None:
        """Set a chunk's usage from its event, whatever name it has there, if it is plausible. The newest usage is also stored."""
        usage = chunk.usage
        if usage is not None and not is_built:
            if not (usage.prompt_tokens and usage.completion_tokens):
                chunk.usage = find_usage(self._decode_lenient(payload))
            else:
                self._extended.extend_usage(chunk, payload)
        elif usage is None:
            chunk.usage = find_usage(self._decode_lenient(payload))
        self._keep_usage(chunk)

    def _keep_usage(self, chunk: ChatCompletionChunk) -> None:
        chunk.usage = newer_usage(self.usage, chunk.usage)
        self.usage = chunk.usage or self.usage

    def _decode_lenient(self, payload: bytes) -> dict[str, Any]:
        """Decode an event's object without types. Returns {} for other JSON values, and sets ``error`` if the event isn't JSON."""
        value = self._decode(payload)
        return value if isinstance(value, dict) else {}

    def _decode(self, payload: bytes) -> Any:
        try:
            return decode_object(payload, has_pieces=True)
        except ValueError:
            self._fail(EndpointProtocolError(f"expected a JSON chunk, got {excerpt(payload)}"))
            return None

    def _count_chunk(self, chunk: ChatCompletionChunk, *, may_have_halves: bool = False, is_numbered: bool = False) -> None:
        """Count a chunk's tokens, and record its output and finish reasons.

        Args:
            chunk: the chunk to count.
            may_have_halves: True if the chunk was decoded without types.
            is_numbered: True if the chunk was made here and its choices already have the right numbers.
        """
        ends = self.ends
        for choice in chunk.choices:
            if not is_numbered:
                self._choices.settle(choice)
            index = choice.index
            if (may_have_halves or self._halves.is_open) and self._halves.join(choice):
                self.has_progress = True
                ends.record_output(index)
            delta = choice.delta
            if delta.content and index == 0:
                self._text.append(delta.content)
            tokens = len(choice.token_ids or ())
            if has_output(delta):
                if not tokens:
                    tokens = estimate_delta(delta)
                    self._kinds |= bool(tokens) * _WITHOUT_IDS
                self.has_progress = True
                ends.record_output(index)
                self._kinds |= (index != 0 or not is_text(delta)) * _NOT_TEXT
            else:
                ends.record_choice(index, has_unread=type(choice) is not ChunkChoice and may_hold_text(further_fields(choice)))
            self.tokens += tokens
            if choice.finish_reason is not None:
                choice.finish_reason = ends.record_reason(choice.finish_reason, index)
                if ends.failure is not None:
                    choice.finish_reason = None

    def _record_error(self, value: Any, *, otherwise: str | None = None) -> bool:
        """Store an event's error in ``error``. Returns False if ``value`` holds no error and ``otherwise`` isn't given."""
        error = otherwise if (found := find_error(value)) is None else found
        if error is not None:
            self._fail(stream_error({"error": error}))
        return error is not None

    def _fail(self, error: EndpointError) -> None:
        error.endpoint = self.endpoint
        error.partial = self.partial_text()
        self.error = error
        self.is_done = self._is_streaming = False
