"""What to do, in the imperative: the output of the core machines, carried out by a driver in order."""

from __future__ import annotations

from msgspec import Struct

from streamco.errors import StreamcoError
from streamco.openai_types import ChatCompletionChunk
from streamco.partial import Partial

__all__ = ["CancelStream", "Command", "ContinueStream", "DeliverTokens", "FailDelivery", "FinishDelivery", "OpenStream", "PrepareStream"]


class OpenStream(Struct, frozen=True):
    """Send the request to this endpoint now."""

    source: str


class ContinueStream(Struct, frozen=True):
    """Send the request to this endpoint with the answer's beginning; what it sends comes behind that. An empty beginning: anew."""

    source: str
    partial: Partial


class PrepareStream(Struct, frozen=True):
    """Have this endpoint read the request and the answer's beginning ahead; its ``StreamEnded`` says that it has."""

    source: str
    partial: Partial


class CancelStream(Struct, frozen=True):
    """Cancel this endpoint's stream, await it, and report ``StreamCancelled``.

    ``reason``: lost | reader left | explored | takes over | handed over | not needed | wanted | departed.
    """

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


Command = OpenStream | ContinueStream | PrepareStream | CancelStream | DeliverTokens | FinishDelivery | FailDelivery
