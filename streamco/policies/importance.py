"""Importance of tokens: the column sums of the attention matrix (Synera sections 3.2 and 4.2).

Row i of the attention matrix is the attention that token i pays to each token up to itself, and adds up to 1. The importance of a token is
the sum of its column. Rows of later tokens don't exist yet, so a recent token's sum has fewer terms than an old token's sum. Therefore a
chunk is compared with other chunks of the same age, and thresholds are profiled with the same rows that are read at run time.

The layers and rows to read were chosen by measurement (docs/research/papers.md). Each chunk of the target's answers was left to the draft
model in turn, and its importance was compared with the loss in the rest of the answer. These are the lowest and highest
rank correlations of four cases: SmolLM2, in Q2_K or pruned, drafts for SmolLM2 in Q8_0, on Alpaca or XSum (2,250 chunks in all):

    last four layers, rows of the chunk itself      0.07 to 0.21; more layers are better only in some cases
    last layer alone                               -0.13 to 0.13
    without the attention of tokens to themselves   0.03 to 0.18
    with nine more draft tokens after the chunk     0.16 to 0.21, but the decision would have to wait for them
    mean confidence of the chunk, for comparison    0.29 to 0.58
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from streamco.errors import ConfigError

__all__ = ["LAYERS", "chunk_importance", "column_sums", "draft_importance"]

LAYERS = (-4, -3, -2, -1)  # layers to read, counted from the last one; reading them takes under a tenth of a token's time

Floats = NDArray[np.float64] | NDArray[np.float32]


def column_sums(rows: Iterable[Floats]) -> NDArray[np.float64]:
    """Return the importance of every token that has a column.

    Args:
        rows: the attention of each token, in order, each row of shape (..., keys). The axes before the keys (layers, heads) are averaged.
            Later rows may be longer, because a cache grows. A matrix of shape (queries, keys) is a sequence of rows.

    Returns:
        The importances, shape (keys of the longest row,).

    Raises:
        ConfigError: a row has no axis of keys.
    """
    averages = [_average(row) for row in rows]
    sums = np.zeros(max((row.size for row in averages), default=0))
    for row in averages:
        sums[: row.size] += row
    return sums


def chunk_importance(sums: NDArray[np.float64], start: int, count: int) -> float:
    """Return i, the mean importance of the draft tokens at positions ``start`` to ``start + count - 1``, for P_imp.

    Tokens without a column are left out, because the newest may not have been decoded yet. If none are left, the result is 0.

    Raises:
        ConfigError: ``start`` is below 0, or ``count`` below 1.
    """
    if start < 0 or count < 1:
        raise ConfigError(f"importance: expected start >= 0 and count >= 1, got {start} and {count}")
    chunk = sums[start : start + count]
    return float(chunk.mean()) if chunk.size else 0.0


def draft_importance(rows: Sequence[Floats]) -> float:
    """Return i for a draft in progress, the mean importance of the tokens that have a row.

    Args:
        rows: the attention of each draft token, beginning with the first, to the draft's tokens up to itself, each of shape (layers, n).

    Raises:
        ConfigError: there are no rows.
    """
    return chunk_importance(column_sums(rows), 0, len(rows))


def _average(row: Floats) -> NDArray[np.float64]:
    if row.ndim < 1 or not row.shape[-1]:
        raise ConfigError(f"importance: expected rows of shape (..., keys), got {row.shape}")
    average: NDArray[np.float64] = row.reshape(-1, row.shape[-1]).mean(axis=0, dtype=np.float64)
    return average
