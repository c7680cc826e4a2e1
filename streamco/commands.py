"""What to do, in the imperative: the output of the core machines, carried out by a driver in order."""

from __future__ import annotations

from msgspec import Struct

from streamco.chunks import ChatCompletionChunk
from streamco.errors import StreamcoError

__all__ = ["CancelStream", "Command", "DeliverTokens", "FailDelivery", "FinishDelivery", "OpenStream"]


class OpenStream(Struct, frozen=True):
    """Send the request to this endpoint now."""

    source: str


class CancelStream(Struct, frozen=True):
    """Cancel this endpoint's stream, await it, and report ``StreamCancelled``. ``reason``: lost | reader left | explored."""

    source: str
    reason: str


class DeliverTokens(Struct, frozen=True):
    """Hand these chunks to the reader now, in order."""

    source: str
    chunks: list[ChatCompletionChunk]


class FinishDelivery(Struct, frozen=True):
    """The answer is complete: the reader's iteration ends after what was delivered."""


class FailDelivery(Struct, frozen=True):
    """The answer failed: the reader's iteration raises this after what was delivered."""

    error: StreamcoError


Command = OpenStream | CancelStream | DeliverTokens | FinishDelivery | FailDelivery
