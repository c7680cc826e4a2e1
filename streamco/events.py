"""Events of an endpoint's stream and of its reader, and the partial answer that another endpoint continues.

The events are the input of the race machine. An event carries a whole batch, from one network read or one drain of the engine's ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

from msgspec import Struct

from streamco.errors import EndpointError
from streamco.openai_types import ChatCompletionChunk, CompletionUsage, has_output, with_text

__all__ = [
    "AbilitiesFound",
    "ESTIMATE",
    "Event",
    "Origin",
    "Partial",
    "PreCopy",
    "ReaderLeft",
    "StreamCancelled",
    "StreamEnded",
    "StreamFailed",
    "StreamRetrying",
    "TextCount",
    "TextRepeated",
    "TokenConfidence",
    "TokensReceived",
    "Written",
    "common_prefix_length",
]

Origin = Literal["draft", "accepted", "corrected", "bonus", "device", "remote"]
"""Where a token of a speculated answer comes from. "draft" is not verified yet, and "accepted" is a verified draft token. The target model
put "corrected" in place of a rejected token, and "bonus" after a fully accepted draft. The device committed "device" without verification,
and the remote stream generated "remote"."""

PreCopy = Literal["append", "warm", "none"]
"""The effect of prefilling a prompt at an endpoint early: "append" keeps it, "warm" warms a cache and is billed, "none" does nothing."""


class TokenConfidence(NamedTuple):
    """How sure the model was of one token of an answer.

    Args:
        probability: the probability that the model gave the token (at temperature 1, without truncation), 0..1.
        ends_sentence: True if a sentence or a line ends with the token.
    """

    probability: float
    ends_sentence: bool


class TokensReceived(Struct, frozen=True):
    """Chunks have arrived from an endpoint.

    Args:
        source: name of the endpoint.
        chunks: the chunks in order, including chunks without content, such as role deltas and usage.
        tokens: number of content tokens (text, reasoning or tool call) in the chunks; an estimate if the ids aren't known.
        confidences: how sure the model was of each text token in the chunks, in order; empty if that isn't known.
    """

    source: str
    chunks: list[ChatCompletionChunk]
    tokens: int
    confidences: tuple[TokenConfidence, ...] = ()

    @property
    def has_output(self) -> bool:
        """True if the chunks contain anything generated, even if it isn't a token, such as media or encrypted reasoning."""
        return any(has_output(choice.delta) for chunk in self.chunks for choice in chunk.choices)


class TextRepeated(Struct, frozen=True, gc=False):
    """An endpoint has sent a chunk that differs from an earlier one only in its text.

    Args:
        source: name of the endpoint.
        like: the earlier chunk, which has one choice and no text except its content. It must not be changed.
        text: the text of the new chunk.
        tokens: estimated number of tokens in the text.
    """

    confidences: ClassVar[tuple[TokenConfidence, ...]] = ()

    source: str
    like: ChatCompletionChunk
    text: str
    tokens: int

    @property
    def chunks(self) -> list[ChatCompletionChunk]:
        """A list with just the new chunk, which is created again on each access."""
        return [with_text(self.like, self.text)]

    def expand(self) -> TokensReceived:
        """Return the equivalent ``TokensReceived`` event."""
        return TokensReceived(self.source, self.chunks, self.tokens)


class StreamEnded(Struct, frozen=True):
    """An endpoint has finished its answer properly. ``usage`` is its own token count, or None if it sent none."""

    source: str
    finish_reason: str | None = None
    usage: CompletionUsage | None = None


class StreamFailed(Struct, frozen=True):
    """An endpoint has failed, and will send nothing more."""

    source: str
    error: EndpointError


class StreamRetrying(Struct, frozen=True):
    """An endpoint has failed before the first content and will retry its server. Its stream continues as if it hadn't failed.

    Args:
        source: name of the endpoint.
        error: the failure.
        wait: seconds until it retries.
    """

    source: str
    error: EndpointError
    wait: float


class StreamCancelled(Struct, frozen=True):
    """A commanded cancel has taken effect, and the connection or sequence is released.

    Each ``CancelStream`` leads to one such event, which is the last event of its stream, even if the stream has ended or failed meanwhile.
    """

    source: str


class AbilitiesFound(Struct, frozen=True):
    """An endpoint's capabilities have become known.

    Args:
        source: name of the endpoint.
        continues: True if it can continue an answer that another endpoint has begun.
        vocabulary: fingerprint of its tokenizer; None if it isn't known.
    """

    source: str
    continues: bool
    vocabulary: str | None


class ReaderLeft(Struct, frozen=True):
    """The caller has stopped reading (break, aclose, task cancelled, client closed)."""

    reason: str = "closed"


ESTIMATE = "estimate"
"""The value of ``TextCount.counter`` if the number is only an estimate."""


class TextCount(Struct, frozen=True):
    """The number of tokens in a text, and how they were counted: "token ids", "tiktoken o200k_base", "estimate" ..."""

    tokens: int
    counter: str

    @property
    def is_estimated(self) -> bool:
        """True if the number is a guess, made from the text's size or with another model's tokenizer."""
        return self.counter == ESTIMATE


class Written(Struct, frozen=True):
    """The text that a stream has written so far.

    Args:
        text: the whole text; None if the stream wrote anything else as well, such as reasoning, a tool call or a second choice.
        has_ids: True if every token came with its id, so that the sum of ``TokensReceived.tokens`` is an exact count.
    """

    text: str | None
    has_ids: bool


Event = TokensReceived | StreamEnded | StreamFailed | StreamRetrying | StreamCancelled | ReaderLeft | AbilitiesFound


class Partial(Struct, frozen=True, kw_only=True):
    """The beginning of an answer that another endpoint should continue.

    Args:
        text: the text, in whole code points.
        ids: the token ids of the text; None if some of them are unknown, or if they come from several vocabularies.
        vocabulary: fingerprint of the tokenizer to which ``ids`` belong.
        tokens: number of tokens in the answer so far, which is the position at which to continue.
        is_counted: True if every token came with its id, so that ``tokens`` is exact; False if part of it is an estimate.
        blank_tokens: how many tokens at the end came with ids and are only whitespace. An endpoint that gets only text writes them again.
    """

    text: str
    ids: tuple[int, ...] | None = None
    vocabulary: str | None = None
    tokens: int = 0
    is_counted: bool = False
    blank_tokens: int = 0


def common_prefix_length(first: Sequence[object], second: Sequence[object], start: int = 0) -> int:
    """Return the length of the longest common prefix of two sequences of token ids, characters or pieces of text.

    Slices are compared by bisection, so a long prompt is compared at C speed, never element by element.

    Args:
        first, second: two texts, or two sequences of elements.
        start: how many elements at the beginning are known to be equal.
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
