"""Fast decoders, which turn the JSON of one event into a chunk in a single pass.

The types refuse unknown fields, so the decoders raise an error for an event that has any. ``extended_decode`` then decodes the event again
and keeps these fields.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage

__all__ = ["Api", "TextChoice", "TextChunk", "decode_chat_chunk", "decode_text_chunk", "make_chat_chunk"]

Api = Literal["chat", "completions"]


class TextChoice(Struct, forbid_unknown_fields=True):
    """One choice of a legacy completion.

    Servers send the last four fields with each token, mostly as null. Their types allow only null, so that an event with another value goes
    to the decoder that keeps unknown fields.
    """

    text: str = ""
    index: int = 0
    finish_reason: str | None = None
    logprobs: Any = None
    token_ids: list[int] | None = None
    stop_reason: Any = None
    matched_stop: Any = None
    content_filter_results: Any = None
    prompt_token_ids: None = None  # vLLM
    prompt_logprobs: None = None  # vLLM
    hidden_states: None = None  # SGLang
    seed: None = None  # Together


class TextChunk(Struct, forbid_unknown_fields=True):
    """One event of a legacy completion. ``choices`` has no default, so an event without it goes to the lenient decoder."""

    choices: list[TextChoice]
    id: str = ""
    created: int = 0
    model: str = ""
    object: str = "text_completion"
    usage: CompletionUsage | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    provider: Any = None


decode_chat_chunk = msgspec.json.Decoder(ChatCompletionChunk).decode
"""Decode a chat completion event. Raises msgspec.DecodeError or UnicodeDecodeError if a field is unknown or has another type."""

_decode_text = msgspec.json.Decoder(TextChunk).decode


def decode_text_chunk(payload: bytes) -> ChatCompletionChunk:
    """Decode a legacy text completion event to a chat chunk, with ``text`` as ``delta.content``. Raises like ``decode_chat_chunk``."""
    return make_chat_chunk(_decode_text(payload))


def make_chat_chunk(event: TextChunk) -> ChatCompletionChunk:
    """Convert an event of a legacy completion to a chat chunk."""
    return ChatCompletionChunk(
        id=event.id,
        choices=[
            ChunkChoice(
                ChoiceDelta(c.text),
                c.index,
                c.finish_reason,
                c.logprobs,
                c.token_ids,
                content_filter_results=c.content_filter_results,
                stop_reason=c.stop_reason,
                matched_stop=c.matched_stop,
            )
            for c in event.choices
        ],
        created=event.created,
        model=event.model,
        usage=event.usage,
        system_fingerprint=event.system_fingerprint,
        service_tier=event.service_tier,
        provider=event.provider,
    )
