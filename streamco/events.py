"""Events of an endpoint's stream and of its reader, in the past tense, and the beginning of an answer that another endpoint continues.

The events are the input of the race machine. An event carries a whole batch: one network read, or one drain of the engine's ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from streamco.errors import EndpointError
from streamco.openai_types import ChatCompletionChunk, CompletionUsage, has_output

__all__ = [
    "ESTIMATE",
    "Event",
    "Partial",
    "PreCopy",
    "ReaderLeft",
    "StreamCancelled",
    "StreamEnded",
    "StreamFailed",
    "TextCount",
    "TokensReceived",
    "Written",
    "common_prefix_length",
]

PreCopy = Literal["append", "warm", "none"]
"""Effect of reading ahead at an endpoint: it keeps what it reads, it warms a cache and bills for it, or there is none."""


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

    @property
    def has_output(self) -> bool:
        """True if the chunks hold anything that was generated, also what is no token: media, encrypted reasoning."""
        return any(has_output(choice.delta) for chunk in self.chunks for choice in chunk.choices)


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


ESTIMATE = "estimate"
"""What ``TextCount.counter`` is if nothing counted."""


class TextCount(Struct, frozen=True):
    """Number of tokens of a text, and what counted it: "token ids", "tiktoken o200k_base", "estimate" ..."""

    tokens: int
    counter: str

    @property
    def is_estimated(self) -> bool:
        """True if nothing counted it: it is a guess from the text's size, or by the vocabulary of another model."""
        return self.counter == ESTIMATE


class Written(Struct, frozen=True):
    """What a stream has written so far.

    Args:
        text: the whole of it; None: it wrote more than text, such as reasoning, a tool call or a second choice.
        has_ids: every token came with its id, so that the sum of ``TokensReceived.tokens`` is a count.
    """

    text: str | None
    has_ids: bool


Event = TokensReceived | StreamEnded | StreamFailed | StreamCancelled | ReaderLeft


class Partial(Struct, frozen=True, kw_only=True):
    """The beginning of an answer that another endpoint is to continue.

    Args:
        text: the text, in whole code points.
        ids: the token ids of the text; None: not all of them are known, or they come from several vocabularies.
        vocabulary: fingerprint of the tokenizer that ``ids`` belong to.
        tokens: number of tokens of the answer so far, which is the position.
        is_counted: every token came with its id, so that ``tokens`` is a count; False: part of it is an estimate.
    """

    text: str
    ids: tuple[int, ...] | None = None
    vocabulary: str | None = None
    tokens: int = 0
    is_counted: bool = False


def common_prefix_length(first: Sequence[object], second: Sequence[object], start: int = 0) -> int:
    """Return how many elements (token ids, characters, pieces of text) both sequences begin with.

    Slices are compared and halved: a long prompt is compared at C speed, and nothing is looked at element by element.

    Args:
        first, second: two texts, or two sequences of elements.
        start: number of elements that are known to be the same.
    """
    limit = min(len(first), len(second))
    if start >= limit:
        return limit
    if type(first) is not type(second):  # a slice of a list never equals one of a tuple
        first, second = list(first), list(second)
    if first[start:limit] == second[start:limit]:
        return limit
    low, high = start, limit  # the first `low` are equal, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
