"""Decides how many draft tokens a server's next batch verifies along with its answers' next tokens (DSD's fused mode, section 3.3).

The time that a batch takes follows from its number of rows (the server's price list). A draft token is one more row, and gives a token if
it and all tokens before it are accepted. So rows are added, likeliest first, up to the number that gives the most tokens per second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heapreplace

__all__ = ["MIN_GAIN", "draft_length", "draft_rows"]

MIN_GAIN = 1.05
"""Drafts must give this many times as many tokens per second to be worth the risk, because times are estimates."""


def draft_rows(chances: Sequence[Sequence[float]], rows: int, seconds: Callable[[int], float], *, most: int) -> list[int]:
    """Return how many draft tokens of each answer the next batch should have. All are 0 if drafts don't pay.

    Args:
        chances: for each answer, the chances that its first draft token, its first two, ... are accepted, 0..1, never rising.
        rows: number of rows in the batch without drafts, at least 1. Each gives a token.
        seconds: returns how many seconds a batch takes from its number of rows.
        most: number of rows in the largest batch.
    """
    taken = [0] * len(chances)
    best, pace = list(taken), MIN_GAIN * rows / seconds(rows)
    heap = [(-each[0], index) for index, each in enumerate(chances) if each]
    heapify(heap)
    tokens, count = float(rows), rows
    while heap and count < most:
        chance, index = heap[0]
        tokens -= chance
        count += 1
        taken[index] += 1
        if taken[index] < len(chances[index]):
            heapreplace(heap, (-chances[index][taken[index]], index))
        else:
            heappop(heap)
        if (found := tokens / seconds(count)) > pace:
            best, pace = list(taken), found
    return best


def draft_length(acceptance: float, step: float, rows: int, seconds: Callable[[int], float], *, most: int, longest: int) -> int:
    """Return how many tokens a model should draft for each of ``rows`` answers (DSD, equations 1 and 2), or 0 if drafts don't pay.

    Args:
        acceptance: chance that a draft token is accepted if all tokens before it are, 0..1.
        step: seconds that the model takes to draft one token for each answer.
        rows: number of answers, at least 1.
        seconds: returns how many seconds a batch takes from its number of rows.
        most: number of rows in the largest batch.
        longest: maximum length of a draft.
    """
    best, pace = 0, MIN_GAIN / seconds(rows)
    tokens = chance = 1.0
    for length in range(1, min(longest, most // rows - 1) + 1):
        chance *= acceptance
        tokens += chance
        if (found := tokens / (length * step + seconds(rows * (length + 1)))) > pace:
            best, pace = length, found
    return best
