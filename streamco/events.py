"""What happened, in the past tense: the input of the core machines.

An event carries a whole batch (one network read, one drain of the engine's ring), never one token by principle.
"""

from __future__ import annotations

from msgspec import Struct

from streamco.errors import EndpointError
from streamco.openai_types import ChatCompletionChunk, CompletionUsage

__all__ = ["Event", "ReaderLeft", "StreamCancelled", "StreamEnded", "StreamFailed", "TokensReceived"]


class TokensReceived(Struct, frozen=True):
    """An endpoint sent chunks.

    Args:
        source: name of the endpoint.
        chunks: in order; may hold role deltas, usage and other chunks without content.
        tokens: how many content tokens (text, reasoning or tool call) they hold, estimated where ids are unknown; 0: no content.
    """

    source: str
    chunks: list[ChatCompletionChunk]
    tokens: int


class StreamEnded(Struct, frozen=True):
    """An endpoint finished its answer properly. ``usage`` is the endpoint's own count, None when it sent none."""

    source: str
    finish_reason: str | None = None
    usage: CompletionUsage | None = None


class StreamFailed(Struct, frozen=True):
    """An endpoint failed; nothing more comes from it."""

    source: str
    error: EndpointError


class StreamCancelled(Struct, frozen=True):
    """A cancel that was commanded has taken effect: connection or sequence are released.

    Each ``CancelStream`` is answered by one, the last event of its stream, also where the stream ended or failed meanwhile.
    """

    source: str


class ReaderLeft(Struct, frozen=True):
    """The caller stopped reading (break, aclose, task cancelled, client closed)."""

    reason: str = "closed"


Event = TokensReceived | StreamEnded | StreamFailed | StreamCancelled | ReaderLeft
