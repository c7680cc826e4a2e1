"""Fast decoders: the JSON of one event becomes a chunk in a single pass.

The types refuse unknown fields, so the decoders raise for an event that has some. Such an event is decoded again, with these fields.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage
from streamco.wire.openai.further_fields import known_part, with_unknown_part

__all__ = ["Api", "decode_chat_chunk", "decode_extended_chunk", "decode_text_chunk"]

Api = Literal["chat", "completions"]


class _TextChoice(Struct, forbid_unknown_fields=True):
    text: str = ""
    index: int = 0
    finish_reason: str | None = None
    logprobs: Any = None
    token_ids: list[int] | None = None
    stop_reason: Any = None


class _TextChunk(Struct, forbid_unknown_fields=True):
    """One event of a legacy completion. ``choices`` has no default, so an event without it goes to the lenient decoder."""

    choices: list[_TextChoice]
    id: str = ""
    created: int = 0
    model: str = ""
    object: str = "text_completion"
    usage: CompletionUsage | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None


decode_chat_chunk = msgspec.json.Decoder(ChatCompletionChunk).decode
"""Decode a chat completion event; raises msgspec.DecodeError or UnicodeDecodeError if a field is unknown or has another type."""


def decode_extended_chunk(payload: bytes) -> ChatCompletionChunk:
    """Decode a chat completion event with unknown fields, which takes about ten times as long.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError: it is not JSON, or a known field has another type.
    """
    value = msgspec.json.decode(payload)
    chunk = msgspec.convert(known_part(ChatCompletionChunk, value), ChatCompletionChunk)
    return with_unknown_part(chunk, value)


_decode_text = msgspec.json.Decoder(_TextChunk).decode


def decode_text_chunk(payload: bytes) -> ChatCompletionChunk:
    """Decode a legacy text completion event as a chat chunk: ``text`` becomes ``delta.content``. It raises as ``decode_chat_chunk``."""
    event = _decode_text(payload)
    return ChatCompletionChunk(
        id=event.id,
        choices=[
            ChunkChoice(ChoiceDelta(c.text), c.index, c.finish_reason, c.logprobs, c.token_ids, stop_reason=c.stop_reason)
            for c in event.choices
        ],
        created=event.created,
        model=event.model,
        usage=event.usage,
        system_fingerprint=event.system_fingerprint,
        service_tier=event.service_tier,
    )
