"""Encodes answers as the UI message stream of Vercel's AI SDK, for ``useChat`` in a browser, and reads the messages that it sends.

The codec does no IO. ``encode_ui_stream`` is an async iterator of bytes, which any web framework can send as the body of a response with
the headers ``UI_STREAM_HEADERS``. No part of the AI SDK is needed here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from streamco.client.stream import ChatStream
from streamco.core.report import Report
from streamco.errors import ConfigError, StreamcoError
from streamco.integrations.chunk_parts import ToolCallNumbers, report_fields, thinking_of
from streamco.openai_types import ChatCompletionChunk, ToolCallDelta
from streamco.wire.openai.tool_calls import arguments_of

__all__ = ["UI_STREAM_HEADERS", "UIMessageEncoder", "encode_ui_stream", "public_report", "read_ui_messages"]

_log = logging.getLogger("streamco")

UI_STREAM_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "content-type": "text/event-stream",
        "cache-control": "no-cache",
        "x-vercel-ai-ui-message-stream": "v1",
        "x-accel-buffering": "no",  # nginx would buffer the whole answer
    }
)
"""The headers of a response that is a UI message stream."""

DONE = b"data: [DONE]\n\n"
ERROR_TEXT = "The answer could not be finished."

_REASONS = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content-filter",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
}
_URLS = ("data:image/", "https://")


def public_report(report: Report) -> dict[str, Any]:
    """Return the message metadata for a browser: the report without its notes and the texts of errors, which may quote servers."""
    fields = report_fields(report)
    fields.pop("notes", None)
    for endpoint in fields.get("endpoints", ()):
        endpoint.pop("error", None)
    return {"report": fields}


async def encode_ui_stream(
    stream: ChatStream,
    *,
    message_id: str | None = None,
    metadata: Callable[[Report], Any] | None = public_report,
    error_text: Callable[[StreamcoError], str] = lambda _: ERROR_TEXT,
) -> AsyncGenerator[bytes, None]:
    """Yield an answer as the body of a response. If the reader disconnects, all work for the answer stops.

    A failure in the middle of an answer becomes an error part, because the response has already begun. ``create(..., stream=True)`` raises
    any failure before the first token.

    Args:
        stream: the answer.
        message_id: id of the message in the browser. With None the browser chooses it, and can also continue its last message.
        metadata: makes the message's metadata from the final report, or None to send no metadata.
        error_text: makes the text that the browser gets from an error; the default quotes nothing from it.
    """
    encoder = UIMessageEncoder(message_id=message_id)
    yield encoder.begin()
    async with stream:
        try:
            async for chunk in stream:
                if data := encoder.encode(chunk):
                    yield data
        except StreamcoError as error:
            _log.warning("an answer to a browser failed: %s", type(error).__name__)
            yield encoder.fail(error_text(error), None if metadata is None else metadata(stream.report))
            return
    report = stream.report
    yield encoder.end(report.finish_reason, None if metadata is None else metadata(report))


class UIMessageEncoder:
    """Encodes the chunks of one answer (its first choice) as server-sent events of the UI message stream.

    Args:
        message_id: id of the message, or None to let the reader choose it.
    """

    def __init__(self, *, message_id: str | None = None) -> None:
        self._message_id = message_id
        self._block: tuple[Literal["text", "reasoning"], str] | None = None
        self._blocks = 0
        self._numbers = ToolCallNumbers()
        self._calls: dict[int, _ToolInput] = {}

    def begin(self) -> bytes:
        """Return the events that begin the message."""
        start = {"type": "start"} if self._message_id is None else {"type": "start", "messageId": self._message_id}
        return _event(start) + _event({"type": "start-step"})

    def encode(self, chunk: ChatCompletionChunk) -> bytes:
        """Return the events for a chunk, or b"" if it has nothing to show."""
        events: list[bytes] = []
        for choice in chunk.choices[:1]:
            delta = choice.delta
            if thinking := thinking_of(delta):
                events += self._write("reasoning", thinking)
            for text in (delta.content, delta.refusal):
                if text:
                    events += self._write("text", text)
            for piece in delta.tool_calls or ():
                events += self._close_block()
                events += self._input(piece)
        return b"".join(events)

    def end(self, finish_reason: str | None, metadata: Any = None) -> bytes:
        """Return the events that end a complete answer.

        Args:
            finish_reason: the finish reason as OpenAI names it.
            metadata: the message's metadata, if any.
        """
        events = [*self._close_block(), *(event for call in self._calls.values() for event in call.end())]
        finish: dict[str, Any] = {"type": "finish", "finishReason": _REASONS.get(finish_reason or "", "other")}
        if metadata is not None:
            finish["messageMetadata"] = metadata
        return b"".join([*events, _event({"type": "finish-step"}), _event(finish), DONE])

    def fail(self, error_text: str, metadata: Any = None) -> bytes:
        """Return the events that end an answer that failed. Incomplete tool calls stay incomplete.

        Args:
            error_text: the text that the browser shows.
            metadata: the message's metadata, if any. It is sent before the error, because a reader may stop there.
        """
        events = self._close_block()
        if metadata is not None:
            events.append(_event({"type": "message-metadata", "messageMetadata": metadata}))
        return b"".join([*events, _event({"type": "error", "errorText": error_text}), DONE])

    def _write(self, kind: Literal["text", "reasoning"], text: str) -> list[bytes]:
        events: list[bytes] = []
        if self._block is None or self._block[0] != kind:
            events = self._close_block()
            self._blocks += 1
            self._block = (kind, f"{kind}-{self._blocks}")
            events.append(_event({"type": f"{kind}-start", "id": self._block[1]}))
        return [*events, _event({"type": f"{kind}-delta", "id": self._block[1], "delta": text})]

    def _close_block(self) -> list[bytes]:
        if self._block is None:
            return []
        kind, identity = self._block
        self._block = None
        return [_event({"type": f"{kind}-end", "id": identity})]

    def _input(self, piece: ToolCallDelta) -> list[bytes]:
        number = self._numbers.number(piece)
        if number not in self._calls:
            self._calls[number] = _ToolInput()
        return self._calls[number].add(piece)


class _ToolInput:
    """A tool call whose input arrives in pieces. It is shown as soon as its name is known."""

    def __init__(self) -> None:
        self._id = ""
        self._name = ""
        self._arguments = ""
        self._is_custom = False
        self._is_begun = False

    def add(self, piece: ToolCallDelta) -> list[bytes]:
        self._id = self._id or piece.id or ""
        function = piece.custom or piece.function
        self._is_custom = self._is_custom or piece.custom is not None
        added = arguments_of(piece) or ""
        self._arguments += added
        if not self._is_begun:
            self._name += (function.name if function is not None else None) or ""
            if not self._name:
                return []
            self._is_begun = True
            self._id = self._id or f"call_{token_hex(8)}"
            start = _event({"type": "tool-input-start", "toolCallId": self._id, "toolName": self._name})
            return [start, *self._delta(self._arguments)]
        return self._delta(added)

    def end(self) -> list[bytes]:
        if not self._is_begun:
            return []
        named: dict[str, Any] = {"toolCallId": self._id, "toolName": self._name}
        if self._is_custom:
            return [_event({"type": "tool-input-available", **named, "input": self._arguments})]
        try:
            value = json.loads(self._arguments or "{}")
        except json.JSONDecodeError:
            text = "The tool's input isn't JSON."
            return [_event({"type": "tool-input-error", **named, "input": self._arguments, "errorText": text})]
        return [_event({"type": "tool-input-available", **named, "input": value})]

    def _delta(self, text: str) -> list[bytes]:
        return [_event({"type": "tool-input-delta", "toolCallId": self._id, "inputTextDelta": text})] if text else []


def _event(part: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(part)


def read_ui_messages(messages: Any, *, allows_system: bool = False) -> list[dict[str, Any]]:
    """Convert the messages that a browser sent to a conversation in OpenAI's format.

    Text, images, and finished tool calls with their results are kept. Thinking, sources, data parts and unfinished tool calls are left
    out.

    Args:
        messages: ``messages`` of the request's body. They come from outside, so everything is checked.
        allows_system: accept system messages, too. They are refused by default, because a browser could send any.

    Raises:
        ConfigError: a message is malformed, or has a file that isn't an image or is neither inside the message nor at an https address.
    """
    found: list[dict[str, Any]] = []
    for index, message in enumerate(_list(messages, "messages")):
        where = f"messages[{index}]"
        role = _text(message, "role", where)
        parts = [(f"{where}.parts[{number}]", part) for number, part in enumerate(_list(_field(message, "parts", where), f"{where}.parts"))]
        numbered = [(place, part, _text(part, "type", place)) for place, part in parts]
        if role == "user":
            found.append({"role": "user", "content": _user_content(numbered)})
        elif role == "assistant":
            found += _assistant_messages(numbered)
        elif role == "system" and allows_system:
            found.append({"role": "system", "content": _joined_text(numbered)})
        else:
            raise ConfigError(f"{where}.role: expected user or assistant{', or system' if allows_system else ''}, got a different role")
    return found


_Part = tuple[str, Any, str]  # its path in the request, the part, its type


def _joined_text(parts: Iterable[_Part]) -> str:
    return "".join(_text(part, "text", where) for where, part, kind in parts if kind == "text")


def _user_content(parts: list[_Part]) -> str | list[dict[str, Any]]:
    if not any(kind == "file" for _, _, kind in parts):
        return _joined_text(parts)
    content: list[dict[str, Any]] = []
    for where, part, kind in parts:
        if kind == "text":
            content.append({"type": "text", "text": _text(part, "text", where)})
        elif kind == "file":
            content.append({"type": "image_url", "image_url": {"url": _image_url(part, where)}})
    return content


def _image_url(part: Any, where: str) -> str:
    url = _text(part, "url", where)
    if not _text(part, "mediaType", where).startswith("image/"):
        raise ConfigError(f"{where}.mediaType: expected an image, got a different type")
    if not url.lower().startswith(_URLS):
        raise ConfigError(f"{where}.url: expected an image inside the message (data:image/...) or at an https address, got a different URL")
    return url


def _assistant_messages(parts: Iterable[_Part]) -> Iterator[dict[str, Any]]:
    """Yield the messages of each step: the assistant's message and the results of its tools."""
    steps: list[list[_Part]] = [[]]
    for each in parts:
        if each[2] == "step-start":
            steps.append([])
        else:
            steps[-1].append(each)
    for step in steps:
        text = _joined_text(step)
        calls, results = [], []
        for where, part, kind in step:
            state = part.get("state")
            if not (kind == "dynamic-tool" or kind.startswith("tool-")) or state not in {"output-available", "output-error"}:
                continue
            identity = _text(part, "toolCallId", where)
            name = _text(part, "toolName", where) if kind == "dynamic-tool" else kind.removeprefix("tool-")
            arguments = json.dumps(part.get("input", part.get("rawInput")))
            calls.append({"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}})
            output = part.get("output") if state == "output-available" else _text(part, "errorText", where)
            results.append({"role": "tool", "tool_call_id": identity, "content": output if isinstance(output, str) else json.dumps(output)})
        if text or calls:
            yield {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
        yield from results


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{where}: expected a list, got {type(value).__name__}")
    return value


def _field(value: Any, name: str, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected an object, got {type(value).__name__}")
    if name not in value:
        raise ConfigError(f"{where}.{name}: expected a value, got none")
    return value[name]


def _text(value: Any, name: str, where: str) -> str:
    text = _field(value, name, where)
    if not isinstance(text, str):
        raise ConfigError(f"{where}.{name}: expected a string, got {type(text).__name__}")
    return text
