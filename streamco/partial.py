"""The beginning of an answer that another endpoint goes on with, and what reading ahead does there."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = ["Partial", "PreCopy"]

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
