"""Reads answers that are one JSON object, whether a stream was requested or not."""

from __future__ import annotations

from typing import Any

import msgspec

from streamco.errors import EndpointError, EndpointProtocolError
from streamco.openai_types import ChatCompletionChunk, ChunkChoice
from streamco.wire.openai.errors import find_error, is_bare_error, stream_error
from streamco.wire.openai.lenient_decode import build_chunk, decode_object
from streamco.wire.openai.other_apis import foreign_answer

__all__ = ["JSONBody", "decode_body", "excerpt", "is_json", "split_answer"]


class JSONBody:
    """Collects a body that begins with JSON. NDJSON (one JSON object per line, as in Ollama's own API) is refused at the second line.

    Args:
        limit_bytes: maximum size of a body, in bytes.
    """

    def __init__(self, *, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._data = bytearray()
        self._has_line = False
        self._whole_line: bytes | None = None  # the first line, if that is a whole JSON value

    def feed(self, data: bytes) -> None:
        """Add bytes of the body.

        Raises:
            EndpointError: the body is too large, is NDJSON, or is an error followed by more lines.
        """
        self._data += data
        if len(self._data) > self.limit_bytes:
            raise EndpointProtocolError(
                f"expected an answer of at most {self.limit_bytes} bytes, got {len(self._data)} bytes and more", is_limit=True
            )
        if not self._has_line and b"\n" in data:
            data = self._take_line()
        if self._whole_line is not None and data.strip():
            raise _refuse_lines(self._whole_line)

    def _take_line(self) -> bytes:
        """Check whether the first line is whole JSON, and return the bytes after it. Called once."""
        self._has_line = True
        line, _, rest = bytes(self._data).partition(b"\n")
        if is_json(line):
            self._whole_line = line
        return rest

    def take(self) -> bytes:
        """Return the whole body."""
        return bytes(self._data)


def _refuse_lines(first: bytes) -> EndpointError:
    """Return the error to raise for a body that is several lines of JSON.

    Some gateways send an error as a line of JSON without ``data:``, followed by [DONE]; that error is then returned.
    """
    value = decode_object(first)
    if (error := find_error(value)) is not None:
        return stream_error({"error": error})
    if (foreign := foreign_answer(value, form="NDJSON stream")) is not None:
        return foreign
    if is_bare_error(value, is_all=True):
        return stream_error(value)
    expected = 'server-sent events ("data: ..." lines) or one JSON answer'
    return EndpointProtocolError(f"expected {expected}, got NDJSON: {excerpt(first)}")


def decode_body(body: bytes) -> Any:
    """Decode the JSON in a body. Blank lines before it, which DeepSeek sends while the request waits, are skipped.

    Raises:
        EndpointProtocolError: the body is not JSON.
    """
    try:
        return decode_object(body.strip())
    except ValueError as exc:
        raise EndpointProtocolError(f"expected a JSON answer, got {excerpt(body)}") from exc


def split_answer(value: Any) -> list[ChatCompletionChunk]:
    """Split a whole answer into two chunks, one with its content and one with finish_reason and usage.

    Raises:
        EndpointError: the answer has no choices.
    """
    if not isinstance(value, dict) or not isinstance(value.get("choices"), list) or not value["choices"]:
        if (foreign := foreign_answer(value, form="answer")) is not None:
            raise foreign
        if is_bare_error(value, is_all=True):
            raise stream_error(value)
        raise EndpointProtocolError(f"expected a JSON answer with choices, got {excerpt(msgspec.json.encode(value))}")
    whole = build_chunk(value)
    ends = [_end_of(choice) for choice in whole.choices]
    end = msgspec.structs.replace(whole, choices=ends)
    whole.usage = None
    for choice in whole.choices:
        choice.finish_reason = choice.native_finish_reason = choice.stop_reason = choice.matched_stop = None
    return [whole, end]


def _end_of(choice: ChunkChoice) -> ChunkChoice:
    return ChunkChoice(
        index=choice.index,
        finish_reason=choice.finish_reason,
        native_finish_reason=choice.native_finish_reason,
        stop_reason=choice.stop_reason,
        matched_stop=choice.matched_stop,
    )


def is_json(data: bytes) -> bool:
    """Return True if ``data`` is one complete JSON value."""
    try:
        decode_object(data)
    except ValueError:
        return False
    return True


def excerpt(data: bytes, size: int = 80) -> str:
    """Return the first ``size`` bytes of ``data`` as text for an error message, with the length of ``data`` if it is longer."""
    text = data[:size].decode("utf-8", "replace")
    return repr(text) if len(data) <= size else f"{text!r} ... ({len(data)} bytes)"
