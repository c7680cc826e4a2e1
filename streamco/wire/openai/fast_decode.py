"""Fast decoders: the JSON of one event becomes a chunk in a single pass."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage

__all__ = ["Api", "decode_chat_chunk", "decode_text_chunk"]

Api = Literal["chat", "completions"]


class _TextChoice(Struct):
    text: str = ""
    index: int = 0
    finish_reason: str | None = None
    logprobs: Any = None
    token_ids: list[int] | None = None


class _TextChunk(Struct):
    """One event of a legacy completion. ``choices`` has no default, so an event without it goes to the lenient decoder."""

    choices: list[_TextChoice]
    id: str = ""
    created: int = 0
    model: str = ""
    usage: CompletionUsage | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None


decode_chat_chunk = msgspec.json.Decoder(ChatCompletionChunk).decode
"""Decode a chat completion event; raises msgspec.DecodeError or UnicodeDecodeError if a field has another type."""

_decode_text = msgspec.json.Decoder(_TextChunk).decode


def decode_text_chunk(payload: bytes) -> ChatCompletionChunk:
    """Decode a legacy text completion event as a chat chunk: ``text`` becomes ``delta.content``. It raises as ``decode_chat_chunk``."""
    event = _decode_text(payload)
    return ChatCompletionChunk(
        id=event.id,
        choices=[ChunkChoice(ChoiceDelta(c.text), c.index, c.finish_reason, c.logprobs, c.token_ids) for c in event.choices],
        created=event.created,
        model=event.model,
        usage=event.usage,
        system_fingerprint=event.system_fingerprint,
        service_tier=event.service_tier,
    )
