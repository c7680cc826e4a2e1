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
"""The reason for a cancel: the reader had waited long enough."""


class OpenStream(Struct, frozen=True):
    """Send the request to this endpoint now."""

    source: str


class ContinueStream(Struct, frozen=True):
    """Send the request and the beginning of the answer to this endpoint, for the rest; if the beginning is empty, for the whole answer."""

    source: str
    partial: Partial


class PrepareStream(Struct, frozen=True):
    """Have this endpoint process the request and the beginning of the answer in advance; ``StreamEnded`` reports that it is done."""

    source: str
    partial: Partial


class CancelStream(Struct, frozen=True):
    """Cancel this endpoint's stream, await it, and report ``StreamCancelled``.

    Args:
        source: name of the endpoint whose stream ends.
        reason: lost | late | reader left | explored | takes over | handed over | not needed | wanted (as the target of a migration) |
            diverged | refused | asked elsewhere.
    """

    source: str
    reason: str


class PauseStream(Struct, frozen=True):
    """Let this endpoint stop where it is and keep what it has, because it may have to continue."""

    source: str


class ResumeStream(Struct, frozen=True):
    """Let this endpoint, which was paused, continue."""

    source: str


class DeliverTokens(Struct, frozen=True):
    """Hand these chunks to the reader now, in order."""

    source: str
    chunks: list[ChatCompletionChunk]


class FinishDelivery(Struct, frozen=True):
    """End the reader's iteration after what was delivered: the answer is complete."""


class FailDelivery(Struct, frozen=True):
    """Raise this error in the reader's iteration after what was delivered."""

    error: StreamcoError


Command = (
    OpenStream | ContinueStream | PrepareStream | PauseStream | ResumeStream | CancelStream | DeliverTokens | FinishDelivery | FailDelivery
)
