"""Advice on drafts, based on the cost of a model's batches, which ``streamco serve`` prints when it starts."""

from __future__ import annotations

from collections.abc import Mapping

from streamco.profiles.row_costs import useful_sizes

__all__ = ["row_advice"]

_EXPENSIVE = 3.2  # if a batch of four rows costs more than this many single rows, tiles would help
_TILES = "2.1"  # the same ratio for Qwen2.5-Coder-1.5B in Q4_0, repacked, on one thread


def row_advice(costs: Mapping[int, float], *, may_use_tiles: bool) -> list[str]:
    """Return sentences with advice about drafts, or [] if nothing was measured.

    Args:
        costs: seconds of a batch by number of rows, for each size from 1 on.
        may_use_tiles: True if the weights' format isn't Q4_0, and this build has kernels for tiles.
    """
    if 1 not in costs or 4 not in costs:
        return []
    single, four = costs[1], costs[4]
    lines = [f"rows of a verification: {_prices(costs)}"]
    if sizes := useful_sizes(costs):
        drafted = ", ".join(str(rows - 1) for rows in sizes)
        lines.append(f"drafts of {drafted} tokens are cheapest here, because one row more is the verifier's own token")
    if may_use_tiles and four > _EXPENSIVE * single:
        lines.append(
            f"four rows cost {four / single:.1f} times one; weights in Q4_0 need {_TILES} times, as measured with Qwen2.5-Coder-1.5B "
            "(docs/serve.md, Rows)"
        )
    return lines


def _prices(costs: Mapping[int, float]) -> str:
    shown = [rows for rows in (1, 2, 3, 4, 6, 8, 12, 16) if rows in costs]
    return ", ".join(f"{rows} in {1000 * costs[rows]:.{1 if costs[rows] < 0.01 else 0}f} ms" for rows in shown)
