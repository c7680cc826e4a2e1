"""How much the text leans on a token: the column sums of the attention (Synera sections 3.2 and 4.2).

Row i of the attention matrix is what token i pays to each token up to itself; it sums to 1. What a column receives over all rows is
its token's importance. Rows of tokens that don't exist yet can't be summed, so a fresh token has had fewer chances than an old one: a
chunk is compared with other chunks of the same age, and thresholds are profiled with the very rows that are read at run time.

Which layers and rows to read was measured (bench/importance.py): each chunk of the target's answers was left to the draft model in turn,
and its importance compared with what the rest of the answer then lacked. With SmolLM2 the rank correlation is 0.23 (Q2_K for Q8_0; pruned:
0.12) for the last four layers and the rows of the chunk itself; more layers add nothing, the last one alone says nothing (-0.01), earlier
ones say less. Leaving out what tokens pay to themselves loses most of it (0.07). Eight more tokens of the draft behind the chunk would add
a little (0.30), but the decision would have to wait for them. The mean confidence of the chunk says more than any of it (0.49).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from streamco.errors import ConfigError

__all__ = ["LAYERS", "chunk_importance", "column_sums", "draft_importance"]

LAYERS = (-4, -3, -2, -1)  # to be read, counted from the model's end; reading them takes under a tenth of a token's time

Floats = NDArray[np.float64] | NDArray[np.float32]


def column_sums(rows: Iterable[Floats]) -> NDArray[np.float64]:
    """Return the importance of every token that a row can see.

    Args:
        rows: the attention of one token each, in order, shape (..., keys); axes in front of the keys (layers, heads) are averaged. Later
            rows may be longer: a cache grows. A matrix of (queries, keys) is its rows.

    Returns:
        Shape (keys of the longest row,).

    Raises:
        ConfigError: a row without an axis of keys.
    """
    averages = [_average(row) for row in rows]
    sums = np.zeros(max((row.size for row in averages), default=0))
    for row in averages:
        sums[: row.size] += row
    return sums


def chunk_importance(sums: NDArray[np.float64], start: int, count: int) -> float:
    """Return the i of P_imp: mean importance of the draft tokens at positions ``start`` to ``start + count - 1``.

    A token whose own row was not read (the newest may not have been decoded yet) is left out; 0 where that leaves none.

    Raises:
        ConfigError: ``start`` below 0, or ``count`` below 1.
    """
    if start < 0 or count < 1:
        raise ConfigError(f"importance: expected start >= 0 and count >= 1, got {start} and {count}")
    chunk = sums[start : start + count]
    return float(chunk.mean()) if chunk.size else 0.0


def draft_importance(rows: Sequence[Floats]) -> float:
    """Return the i of a draft that is being written: mean attention to those of its tokens whose own row is there.

    Args:
        rows: what the row of each token of the draft, from the first on, pays to the draft's tokens up to itself, shape (layers, n).

    Raises:
        ConfigError: no rows.
    """
    return chunk_importance(column_sums(rows), 0, len(rows))


def _average(row: Floats) -> NDArray[np.float64]:
    if row.ndim < 1 or not row.shape[-1]:
        raise ConfigError(f"importance: expected rows of shape (..., keys), got {row.shape}")
    average: NDArray[np.float64] = row.reshape(-1, row.shape[-1]).mean(axis=0, dtype=np.float64)
    return average
