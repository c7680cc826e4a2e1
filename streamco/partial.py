"""The beginning of an answer that another endpoint continues, what reading ahead does there, and how much two beginnings share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

__all__ = ["Partial", "PreCopy", "common_prefix_length"]

PreCopy = Literal["append", "warm", "none"]
"""Effect of reading ahead at an endpoint: it keeps what it reads, it warms a cache and bills for it, or there is none."""


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
