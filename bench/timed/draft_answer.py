"""One answer of a split model, with what a draft layer reads along it."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

__all__ = ["Answer"]


class Answer(Struct, frozen=True, eq=False):
    """Prompt and answer.

    Args:
        ids: their token ids.
        prompt: tokens of the prompt.
        shallow: states after the input layers of all tokens except the last, shape (tokens - 1, width).
        deep: states after the final norm of the same tokens; zeros before the prompt's last one, whose states aren't sent.
        rounds: in which the answer was written.
    """

    ids: list[int]
    prompt: int
    shallow: NDArray[np.float32]
    deep: NDArray[np.float32]
    rounds: int

    @property
    def tokens(self) -> int:
        """Tokens that rounds made: those of the answer except the first, which the prompt's own trip brings."""
        return len(self.ids) - self.prompt - 1
