"""The figures that are stored about an answer that somebody has rated."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["RatedAnswer"]

_Share = Annotated[float, Meta(ge=0, le=1)]
_Count = Annotated[int, Meta(ge=0)]


class RatedAnswer(Struct, frozen=True, kw_only=True):
    """The data that a learned score stores about a rated answer: a few numbers, but no text and no token ids.

    Args:
        mean: geometric mean of the tokens' probabilities.
        tenth, median: the 0.1 and 0.5 quantiles of the tokens' probabilities.
        tokens: number of tokens that these figures come from.
        is_complete: True if the answer ended with these tokens.
        prompt_tokens: length of the prompt.
        task: the caller's name for the kind of task, if given.
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
