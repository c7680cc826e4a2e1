"""The beginning of an answer that another endpoint continues, what reading ahead does there, and how much two beginnings share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

__all__ = ["Partial", "PreCopy", "common_prefix_length"]

PreCopy = Literal["append", "warm", "none"]
"""What reading ahead does at an endpoint: it keeps what it reads, it warms a cache and bills for it, or nothing of use."""


class Partial(Struct, frozen=True, kw_only=True):
    """The beginning of an answer that somebody else is to go on with.

    Args:
        text: whole code points.
        ids: the tokens behind the text; None: not all of them are known, or they come from several vocabularies.
        vocabulary: fingerprint of the tokenizer that ``ids`` belong to.
        tokens: the position: how many tokens the answer has so far, estimated where ids are unknown.
    """

    text: str
    ids: tuple[int, ...] | None = None
    vocabulary: str | None = None
    tokens: int = 0


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
