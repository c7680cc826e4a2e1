"""Events as OpenAI-compatible servers write them, for the tests."""

from __future__ import annotations

import json
from typing import Any

from streamco.openai_types import ChatCompletionChunk
from streamco.wire.openai.stream import ChatStreamParser

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


def event(value: object) -> bytes:
    """One event with this JSON."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(content: Any = None, *, finish: str | None = None, index: int = 0, top: dict[str, Any] | None = None, **delta: Any) -> bytes:
    """One ``chat.completion.chunk`` event."""
    if content is not None:
        delta["content"] = content
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return event({**head, "choices": [choice], **(top or {})})


def usage_chunk(**usage: Any) -> bytes:
    """The last chunk of a stream with ``include_usage``: no choices."""
    return event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": USAGE | usage})


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    """The content of one choice."""
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index)


def read(*pieces: bytes, **options: Any) -> tuple[ChatStreamParser, list[ChatCompletionChunk]]:
    """Feed a parser these pieces, without closing it."""
    parser = ChatStreamParser(**options)
    return parser, [found for piece in pieces for found in parser.feed(piece)]
