"""What is kept of an answer that somebody has rated."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["RatedAnswer"]

_Share = Annotated[float, Meta(ge=0, le=1)]
_Count = Annotated[int, Meta(ge=0)]


class RatedAnswer(Struct, frozen=True, kw_only=True):
    """What a learned score keeps of an answer that was rated: a few numbers, no text and no ids of tokens.

    Args:
        mean: geometric mean of the tokens' probabilities.
        tenth, median: quantiles of the tokens' probabilities; a tenth and a half of the tokens were less likely.
        tokens: number of the probabilities.
        is_complete: True if the answer had ended with them.
        prompt_tokens: length of the prompt.
        task: the caller's name for the kind of task; None: none given.
        good: True if the answer was good.
    """

    mean: _Share
    tenth: _Share
    median: _Share
    tokens: _Count
    is_complete: bool
    prompt_tokens: _Count
    task: str | None = None
    good: bool
