"""How many rows a batch may have in exact mode: as many as leave each row the bits it has beside one other.

llama.cpp multiplies by other kernels where a batch has more rows, and they add up in another order. A single row always has a kernel of its
own. Beyond that it depends on the quantisation and the build: Q8_0, Q4_0 and Q4_1 gave the same bits from 2 to 40 rows, Q2_K other ones
from 8 rows on (logits up to 0.57 apart). So it is tried, once a model is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from streamco.engines.context import ABORTED
from streamco.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Rows", "largest_exact_batch"]

FEWEST = 2


class Rows(Protocol):
    """The part of a context that this needs."""

    def add_run(self, tokens: list[int], position: int, sequence: int, *, wants_logits: int) -> int:
        """Add consecutive tokens of one sequence."""
        ...

    def decode(self) -> int:
        """Compute the rows."""
        ...

    def logits(self, row: int) -> NDArray[np.float32]:
        """Of a row of the last decode."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...


def largest_exact_batch(context: Rows, most: int) -> int:
    """The most rows, up to ``most``, with which the second row's logits are what they are in a batch of two.

    Kernels change at one size and not back again, so between two sizes with the same bits nothing else is tried.

    Raises:
        EngineError: the model does not run.
    """
    wanted = _second_row(context, FEWEST)
    if most <= FEWEST or _second_row(context, most) == wanted:
        return most
    same, other = FEWEST, most
    while other - same > 1:
        middle = (same + other) // 2
        if _second_row(context, middle) == wanted:
            same = middle
        else:
            other = middle
    return same


def _second_row(context: Rows, rows: int) -> bytes:
    context.add_run(list(range(1, rows + 1)), 0, 0, wants_logits=rows)
    status = context.decode()
    logits = context.logits(1).tobytes() if status == 0 else b""
    context.clear()
    if status not in {0, ABORTED}:
        raise EngineError(f"llama_decode: expected 0 from {rows} tokens, got {status}")
    return logits
