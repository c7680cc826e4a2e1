"""Commands of the race machine, which its driver carries out in order."""

from __future__ import annotations

from msgspec import Struct

from streamco.errors import StreamcoError
from streamco.events import Partial
from streamco.openai_types import ChatCompletionChunk

__all__ = ["LATE"]
__all__ += ["CancelStream", "Command", "ContinueStream", "DeliverTokens", "FailDelivery", "FinishDelivery", "OpenStream"]
__all__ += ["PauseStream", "PrepareStream", "ResumeStream"]


LATE = "late"
"""The reason for a cancellation when the reader had waited long enough."""


class OpenStream(Struct, frozen=True):
    """Send the request to this endpoint now."""

    source: str


class ContinueStream(Struct, frozen=True):
    """Send this endpoint the request and the answer's beginning, so that it writes the rest. The beginning may be empty."""

    source: str
    partial: Partial


class PrepareStream(Struct, frozen=True):
    """Have this endpoint process the request and the beginning of the answer in advance. ``StreamEnded`` reports that it has finished."""

    source: str
    partial: Partial


class CancelStream(Struct, frozen=True):
    """Cancel this endpoint's stream, await it, and report ``StreamCancelled``.

    Args:
        source: name of the endpoint whose stream ends.
        reason: one of lost, late, reader left, explored, takes over, handed over, not needed, wanted (as the target of a migration),
            diverged, refused, asked elsewhere.
    """

    source: str
    reason: str


class PauseStream(Struct, frozen=True):
    """Make this endpoint pause and keep its state, because it may have to continue."""

    source: str


class ResumeStream(Struct, frozen=True):
    """Make this paused endpoint continue."""

    source: str


class DeliverTokens(Struct, frozen=True):
    """Hand these chunks to the reader now, in order."""

    source: str
    chunks: list[ChatCompletionChunk]


class FinishDelivery(Struct, frozen=True):
    """End the reader's iteration after the delivered text, because the answer is complete."""


class FailDelivery(Struct, frozen=True):
    """Raise this error in the reader's iteration after the delivered text."""

    error: StreamcoError


Command = (
    OpenStream | ContinueStream | PrepareStream | PauseStream | ResumeStream | CancelStream | DeliverTokens | FinishDelivery | FailDelivery
)
