"""Events of an endpoint's stream and of its reader, in the past tense: the input of the race machine.

An event carries a whole batch: one network read, or one drain of the engine's ring.
"""

from __future__ import annotations

from msgspec import Struct

from streamco.errors import EndpointError
from streamco.openai_types import ChatCompletionChunk, CompletionUsage

__all__ = ["Event", "ReaderLeft", "StreamCancelled", "StreamEnded", "StreamFailed", "TextCount", "TokensReceived", "Written"]


class TokensReceived(Struct, frozen=True):
    """Chunks have come from an endpoint.

    Args:
        source: name of the endpoint.
        chunks: chunks in order, also role deltas, usage and others without content.
        tokens: number of content tokens (text, reasoning or tool call) in them, estimated if ids are not known; 0: no content.
    """

    source: str
    chunks: list[ChatCompletionChunk]
    tokens: int


class StreamEnded(Struct, frozen=True):
    """An endpoint has finished its answer properly; ``usage``: its own count, None: it sent none."""

    source: str
    finish_reason: str | None = None
    usage: CompletionUsage | None = None


class StreamFailed(Struct, frozen=True):
    """An endpoint has failed; nothing more comes from it."""

    source: str
    error: EndpointError


class StreamCancelled(Struct, frozen=True):
    """A commanded cancel has taken effect: the connection or sequence is released.

    One follows each ``CancelStream``, as the last event of its stream, also if the stream ended or failed in the meantime.
    """

    source: str


class ReaderLeft(Struct, frozen=True):
    """The caller has stopped reading (break, aclose, task cancelled, client closed)."""

    reason: str = "closed"


class TextCount(Struct, frozen=True):
    """Number of tokens of a text, and what counted it: "token ids", "tiktoken o200k_base", "estimate" ..."""

    tokens: int
    counter: str


class Written(Struct, frozen=True):
    """What a stream has written so far.

    Args:
        text: the whole of it; None: it wrote more than text, such as reasoning, a tool call or a second choice.
        has_ids: every token came with its id, so that the sum of ``TokensReceived.tokens`` is a count.
    """

    text: str | None
    has_ids: bool


Event = TokensReceived | StreamEnded | StreamFailed | StreamCancelled | ReaderLeft
