"""Decodes events with fields that the types don't declare: first without types, then the declared fields with types.

Many providers that send such fields send them in each event. After one such event, the fast decoder isn't tried on the next one. The
memory that the fields take is limited, because an empty object takes 3 bytes in an event but twenty times as much in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from streamco.openai_types import ChatCompletionChunk, CompletionUsage, further_fields
from streamco.wire.openai.fast_decode import Api, TextChunk, decode_chat_chunk, decode_text_chunk, make_chat_chunk
from streamco.wire.openai.further_fields import UnknownPart, put_back, take_unknown
from streamco.wire.openai.lenient_decode import check_depth, decode_object, has_many_brackets

__all__ = ["ExtendedDecoder"]

_FREE_ELEMENTS = 65_536  # array and object elements in an answer's undeclared fields
_BYTES_AN_ELEMENT = 32  # this many bytes of such events allow one more; real ones have at least 50 bytes for each element
_MAX_LEFT = 1 << 20


class ExtendedDecoder:
    """Decodes the events of one answer, including fields that the types don't declare.

    Args:
        api: the API that the events belong to.
    """

    def __init__(self, api: Api = "chat") -> None:
        self._is_chat = api == "chat"
        self.place = b'"delta"' if self._is_chat else b'"text"'
        """The JSON key under which this API's events hold text."""
        self._fast = decode_chat_chunk if self._is_chat else decode_text_chunk
        self.usual: Callable[[bytes], ChatCompletionChunk] = self._fast
        """The function that decodes the next event: the fast decoder, or ``decode`` if the last event had unknown fields."""
        self._left = _FREE_ELEMENTS
        self.has_dropped = False
        """True if undeclared fields were dropped because the answer had too many elements in such fields."""

    def decode(self, payload: bytes) -> ChatCompletionChunk:
        """Decode an event to a chunk. Undeclared fields that are null are left out.

        Raises:
            msgspec.DecodeError, UnicodeDecodeError: the event is not JSON, or a known field has another type.
            ValueError, RecursionError: the event is nested too deep.
        """
        value = check_depth(msgspec.json.decode(payload), payload)
        kind = ChatCompletionChunk if self._is_chat else TextChunk
        unknown = take_unknown(kind, value) if type(value) is dict else None
        chunk = msgspec.convert(value, ChatCompletionChunk) if self._is_chat else make_chat_chunk(msgspec.convert(value, TextChunk))
        self.usual = self._fast if unknown is None else self.decode
        return put_back(chunk, unknown) if unknown is not None and self._may_keep(unknown, payload) else chunk

    def decode_long(self, payload: bytes) -> ChatCompletionChunk:
        """Decode a long event like ``usual``, but check its nesting first, because it is long enough to be nested too deep.

        Raises:
            msgspec.DecodeError, ValueError, RecursionError: the event doesn't fit the types, or is nested too deep.
        """
        if has_many_brackets(payload):
            decode_object(payload)
        return self.usual(payload)

    def extend_usage(self, chunk: ChatCompletionChunk, payload: bytes) -> None:
        """Add undeclared fields to a chunk's usage. The fast decoder skips these, because most answers have only one usage."""
        if chunk.usage is None or further_fields(chunk.usage):
            return
        if has_many_brackets(payload):  # more than any usage has
            self.has_dropped = True
            return
        unknown = take_unknown(CompletionUsage, msgspec.json.decode(payload)["usage"])
        if unknown is not None and self._may_keep(unknown, payload):
            chunk.usage = put_back(chunk.usage, unknown)

    def _may_keep(self, unknown: UnknownPart, payload: bytes) -> bool:
        """Return True if these fields are within the limit, and subtract them from it. Counts exactly only if a rough bound is too high."""
        self._left = min(self._left + len(payload) // _BYTES_AN_ELEMENT, _MAX_LEFT)
        elements = payload.count(b",") + payload.count(b"{") + payload.count(b"[")
        if elements > self._left:
            elements = _count_elements(unknown, self._left)
        if elements > self._left:
            self.has_dropped = True
            return False
        self._left -= elements
        return True


def _count_elements(unknown: UnknownPart, limit: int) -> int:
    """Count the elements in the arrays and objects of undeclared fields. Counting stops beyond the limit."""
    level: list[Any] = [item for fields in unknown.all_fields() for item in fields.values()]
    found = 0
    while found <= limit:
        level = [item for holder in level if isinstance(holder, dict | list) for item in _items(holder)]
        if not level:
            break
        found += len(level)
    return found


def _items(holder: dict[str, Any] | list[Any]) -> Any:
    return holder.values() if isinstance(holder, dict) else holder
