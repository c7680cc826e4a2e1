"""OpenAI's streamed answers: bytes in, chunk objects out.

One event costs one typed decode and a handful of attribute reads. What doesn't fit the types, and what carries no content (errors,
whole messages, usage under another name), takes a slower way round: see ``tolerant``.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from streamco.chunks import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage
from streamco.config import Limits
from streamco.errors import EndpointError, EndpointProtocolError
from streamco.wire.failures import stream_error
from streamco.wire.sse import SSEParser
from streamco.wire.tolerant import build_chunk, build_usage, decode_object

__all__ = ["Api", "ChatStreamParser", "estimate_tokens"]

Api = Literal["chat", "completions"]

_LIMITS = Limits()
_ONE_TOKEN = 12  # characters; a piece of text up to this long counts as one token
_BYTES_A_TOKEN = 4  # UTF-8 bytes of a token in longer pieces: OpenAI's rule of thumb, and a CJK character is 3 bytes


class _TextChoice(Struct):
    text: str = ""
    index: int = 0
    finish_reason: str | None = None
    logprobs: Any = None
    token_ids: list[int] | None = None


class _TextChunk(Struct):
    """One event of a legacy completion; ``choices`` has no default: an event without them is looked at without types."""

    choices: list[_TextChoice]
    id: str = ""
    created: int = 0
    model: str = ""
    usage: CompletionUsage | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None


_decode_chat = msgspec.json.Decoder(ChatCompletionChunk).decode
_decode_text = msgspec.json.Decoder(_TextChunk).decode


def _decode_text_chunk(payload: bytes) -> ChatCompletionChunk:
    chunk = _decode_text(payload)
    choices = [ChunkChoice(ChoiceDelta(c.text), c.index, c.finish_reason, c.logprobs, c.token_ids) for c in chunk.choices]
    return ChatCompletionChunk(
        chunk.id,
        choices,
        chunk.created,
        chunk.model,
        usage=chunk.usage,
        system_fingerprint=chunk.system_fingerprint,
        service_tier=chunk.service_tier,
    )


def estimate_tokens(text: str) -> int:
    """How many tokens a piece of streamed text stands for when nobody told the ids.

    Servers mostly send one token an event, so a piece of at most 12 characters counts 1; a longer one was put together by the server
    and counts a token for every 4 bytes of UTF-8.
    """
    if len(text) <= _ONE_TOKEN:
        return 1 if text else 0
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return -(-size // _BYTES_A_TOKEN)


class ChatStreamParser:
    """Turns the body of one streamed answer into chunks.

    Nothing the peer sends makes ``feed`` raise: a failure is left in ``error``, after the chunks before it were returned, and ends
    the stream. ``close`` raises it.

    Args:
        endpoint: name for errors.
        limits: ``event_bytes``, ``answer_bytes`` and, for a body that turns out not to be a stream, ``body_bytes``.
        api: "chat", or "completions": legacy text completions come out as chat chunks with the text as ``delta.content``.
        cumulative: every delta repeats the text so far (some gateways; SGLang's own API): give out only what is new. Servers that send a
            growing ``message`` beside proper deltas (Perplexity) don't need it, and a growing ``message`` without deltas is
            recognised by itself.
    """

    def __init__(self, *, endpoint: str = "", limits: Limits = _LIMITS, api: Api = "chat", cumulative: bool = False) -> None:
        self.endpoint = endpoint
        self.limits = limits
        self.cumulative = cumulative
        self.tokens = 0
        """Content tokens (text, reasoning, tool calls) in the chunks given last: ids where the server tells them, else estimated."""
        self.finish_reason: str | None = None
        """The first choice's; another's while the first has none."""
        self.usage: CompletionUsage | None = None
        """The last usage the server sent."""
        self.is_done = False
        """The server said that nothing more comes ([DONE])."""
        self.error: EndpointError | None = None
        """Why the answer can't go on: an error event, malformed bytes, a limit."""
        self._api: Api = api
        self._decode_typed = _decode_chat if api == "chat" else _decode_text_chunk
        self._decode = self._decode_cumulative if cumulative else self._decode_typed
        self._sse = SSEParser(limit_bytes=limits.event_bytes)
        self._received = 0  # bytes
        self._text: list[str] = []  # content of choice 0
        self._seen: set[int] = set()  # choices with anything but plain content of choice 0
        self._finished: set[int] = set()
        self._whole: dict[int, str] = {}  # cumulative text so far, by choice
        self._has_begun = False
        self._body: bytearray | None = None  # a body that is not an event stream
        self._is_one_body = False  # and is not NDJSON either
        self._activity = 0  # events and comments before the bytes given last

    @property
    def is_complete(self) -> bool:
        """The answer is whole: every choice has its finish_reason, or the server said [DONE]."""
        seen = self._seen | {0} if self._text else self._seen
        return self.is_done or (bool(self._finished) and seen <= self._finished)

    @property
    def comments(self) -> int:
        """Comment lines so far: keep-alives, which are no content."""
        return self._sse.comments

    @property
    def is_alive(self) -> bool:
        """Whether the bytes given last held (the end of) an event or a comment."""
        return self._sse.events + self._sse.comments > self._activity

    def partial_text(self) -> str:
        """The text of the first choice in all chunks given so far, reasoning not included."""
        return "".join(self._text)

    def feed(self, data: bytes) -> list[ChatCompletionChunk]:
        """Take bytes of the body, give the chunks they complete; look at ``error`` and ``is_done`` afterwards."""
        self.tokens = 0
        if self.error is not None or self.is_done:
            return []
        sse = self._sse
        self._activity = sse.events + sse.comments
        self._received += len(data)
        if self._received > self.limits.answer_bytes:
            self._fail(f"expected an answer of at most {self.limits.answer_bytes} bytes, got more")
            return []
        if not self._has_begun:
            data = self._begin(data)
        if self._body is not None:
            return self._collect(data)
        try:
            payloads = sse.feed_data(data)
        except EndpointProtocolError as exc:
            self._fail(str(exc))
            return []
        return self._read(payloads) if payloads else []

    def close(self) -> list[ChatCompletionChunk]:
        """Take the end of the body; give the chunks of a last event that lacks its blank line, or of a body that is no stream.

        Raises:
            EndpointError: ``error``, or the answer is truncated: neither a finish_reason nor [DONE] came. ``partial`` is the text of
                the chunks given before; an unfinished last event is not given then.
        """
        self.tokens = 0
        chunks = self._flush() if self.error is None and not self.is_done else []
        if self.error is None and not self.is_complete:
            self._fail(
                f"expected a finish_reason or [DONE] before the end of the stream, got a truncated answer: "
                f"{self._sse.events} events, {len(self.partial_text())} characters"
            )
        if self.error is not None:
            raise self.error
        return chunks

    def parse_body(self, body: bytes) -> list[ChatCompletionChunk]:
        """Read a whole answer that was not streamed, as chunks: its content first, then finish_reason and usage.

        Like ``feed`` it leaves failures in ``error``. Blank lines before the JSON (DeepSeek, while the request waits) are skipped.
        """
        self.tokens = 0
        value = self._decode_object(body.strip(), "a JSON answer")
        if value is None:
            return []
        if not isinstance(value, dict) or _find_error(value) is not None:
            self.error = stream_error(value, endpoint=self.endpoint)
            return []
        if not isinstance(value.get("choices"), list):
            self._fail(f"expected a JSON answer with choices, got {_excerpt(body)}")
            return []
        self.is_done = True
        whole = build_chunk(value)
        last = [ChunkChoice(index=choice.index, finish_reason=choice.finish_reason) for choice in whole.choices]
        end = msgspec.structs.replace(whole, choices=last)
        whole.usage = None
        for choice in whole.choices:
            choice.finish_reason = None
        self._account(whole)
        self._account(end)
        if self.tokens and self.usage is not None and self.usage.completion_tokens:
            self.tokens = self.usage.completion_tokens
        return [whole, end]

    def _begin(self, data: bytes) -> bytes:
        data = data.lstrip()
        if data:
            self._has_begun = True
            if data[0] in b"{[":
                self._body = bytearray()
        return data

    def _collect(self, data: bytes) -> list[ChatCompletionChunk]:
        """Keep a body that is JSON instead of events; a second JSON line shows NDJSON, which is refused at once."""
        body = self._body
        assert body is not None
        body += data
        if len(body) > self.limits.body_bytes:
            self._fail(f"expected an answer of at most {self.limits.body_bytes} bytes, got more")
        elif not self._is_one_body:
            line, newline, rest = bytes(body).partition(b"\n")
            if newline and rest.strip():
                self._is_one_body = not _is_json(line)
                if not self._is_one_body:
                    self._fail(f'expected server-sent events ("data: ..." lines), got NDJSON: {_excerpt(line)}')
        return []

    def _flush(self) -> list[ChatCompletionChunk]:
        if self._body is not None:
            body, self._body = self._body, None
            return self.parse_body(bytes(body))
        try:
            payloads = [event.data for event in self._sse.close()]
        except EndpointProtocolError as exc:
            self._fail(str(exc))
            return []
        given = len(self._text)
        chunks = self._read([payload for payload in payloads if _is_json(payload) or payload.strip() == b"[DONE]"])
        if not self.is_complete:
            del self._text[given:]
        return chunks

    def _read(self, payloads: list[bytes]) -> list[ChatCompletionChunk]:
        """Decode and account for events; the branch for one choice with plain content or reasoning is the hot path."""
        chunks: list[ChatCompletionChunk] = []
        decode = self._decode
        text = self._text
        tokens = 0
        for payload in payloads:
            try:
                chunk = decode(payload)
            except (msgspec.DecodeError, UnicodeDecodeError):
                odd = self._read_odd(payload)
                if odd is None:
                    if self.is_done or self.error is not None:
                        break
                    continue
                chunk = odd
            choices = chunk.choices
            if len(choices) == 1:
                choice = choices[0]
                if choice.finish_reason is None and not choice.index and chunk.usage is None:
                    delta = choice.delta
                    piece = delta.content
                    if piece:
                        text.append(piece)
                    else:
                        piece = delta.reasoning_content or delta.reasoning
                    if piece:
                        ids = choice.token_ids
                        tokens += len(ids) if ids else 1 if len(piece) <= _ONE_TOKEN else estimate_tokens(piece)
                        chunks.append(chunk)
                        continue
            kept = self._read_rest(chunk, payload)
            if kept is not None:
                chunks.append(kept)
            if self.error is not None:
                break
        self.tokens += tokens
        return chunks

    def _decode_cumulative(self, payload: bytes) -> ChatCompletionChunk:
        chunk = self._decode_typed(payload)
        self._keep_new(chunk)
        return chunk

    def _read_odd(self, payload: bytes) -> ChatCompletionChunk | None:
        """An event that the typed decoder refused; None when there is nothing in it, or the stream is over."""
        payload = payload.strip()
        if payload == b"[DONE]":
            self.is_done = True
            return None
        value = self._decode_object(payload, "a JSON chunk") if payload else None
        if not isinstance(value, dict):
            return None
        if self._notice_error(value):
            return None
        chunk = build_chunk(value)
        if self.cumulative:
            self._keep_new(chunk)
        return chunk

    def _read_rest(self, chunk: ChatCompletionChunk, payload: bytes) -> ChatCompletionChunk | None:
        """An event that is not plain content: account for it; look without types at one that seems empty. None: drop it."""
        before = self.tokens
        if chunk.choices and b'"delta"' not in payload and b'"message"' in payload:
            chunk = build_chunk(decode_object(payload))
            self._keep_new(chunk)
        self._account(chunk)
        is_failed = any(choice.finish_reason == "error" for choice in chunk.choices)
        may_fail = is_failed or (self.tokens == before and b'"error"' in payload)
        if may_fail and self._notice_error(decode_object(payload), is_failed=is_failed):
            return chunk if self.tokens > before else None
        if chunk.usage is None and b'"x_groq"' in payload:
            chunk.usage = build_usage(_get(decode_object(payload), "x_groq", "usage"))
            self.usage = chunk.usage or self.usage
        is_known = chunk.choices or chunk.usage is not None or b'"choices"' in payload
        return chunk if is_known else None

    def _account(self, chunk: ChatCompletionChunk) -> None:
        if chunk.usage is not None:
            self.usage = chunk.usage
        for choice in chunk.choices:
            self._seen.add(choice.index)
            delta = choice.delta
            if delta.content and choice.index == 0:
                self._text.append(delta.content)
            self.tokens += len(choice.token_ids) if choice.token_ids else _estimate_delta(delta)
            if choice.finish_reason is not None:
                self._finished.add(choice.index)
                if choice.index == 0 or self.finish_reason is None:
                    self.finish_reason = choice.finish_reason

    def _keep_new(self, chunk: ChatCompletionChunk) -> None:
        """Cut from every content what was given before. Text that was revised can't be taken back: then nothing is given."""
        for choice in chunk.choices:
            content = choice.delta.content
            if not content:
                continue
            known = self._whole.get(choice.index)
            if known is None:
                known = self.partial_text() if choice.index == 0 else ""
            if content.startswith(known):
                self._whole[choice.index] = content
                choice.delta.content = content[len(known) :]
            else:
                choice.delta.content = None

    def _notice_error(self, value: Any, *, is_failed: bool = False) -> bool:
        """Leave an in-band error in ``error``; False when ``value`` holds none."""
        error = _find_error(value)
        if error is None and not is_failed:
            return False
        self.error = stream_error(
            {"error": error if error is not None else 'finish_reason "error" and no error object'},
            endpoint=self.endpoint,
            partial=self.partial_text(),
        )
        return True

    def _decode_object(self, data: bytes, expected: str) -> Any:
        try:
            return decode_object(data)
        except ValueError:
            self._fail(f"expected {expected}, got {_excerpt(data)}")
            return None

    def _fail(self, message: str) -> None:
        self.error = EndpointProtocolError(message, endpoint=self.endpoint, partial=self.partial_text())


def _estimate_delta(delta: ChoiceDelta) -> int:
    """Tokens of everything a delta holds; reasoning under two names is one text."""
    tokens = estimate_tokens(delta.content or "") + estimate_tokens(delta.reasoning_content or delta.reasoning or "")
    tokens += estimate_tokens(delta.refusal or "")
    calls = [call.function for call in delta.tool_calls or ()]
    for function in (*calls, delta.function_call):
        if function is not None:
            tokens += estimate_tokens(function.name or "") + estimate_tokens(function.arguments or "")
    return tokens


def _find_error(value: Any) -> Any:
    """The error in an event: at the top, in a choice (OpenRouter) or in x_groq; None when there is none."""
    if not isinstance(value, dict):
        return None
    choices = value.get("choices")
    holders = [value, *(choices if isinstance(choices, list) else ()), value.get("x_groq")]
    return next((holder["error"] for holder in holders if isinstance(holder, dict) and holder.get("error")), None)


def _get(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _is_json(data: bytes) -> bool:
    try:
        decode_object(data)
    except ValueError:
        return False
    return True


def _excerpt(data: bytes) -> str:
    text = data[:80].decode("utf-8", "replace")
    return repr(text) if len(data) <= 80 else f"{text!r} ... ({len(data)} bytes)"
