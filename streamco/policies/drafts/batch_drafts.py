"""How many draft tokens a server's next batch should verify beside the next tokens of its answers (DSD's fused mode, section 3.3).

A batch of rows takes a time that is known by their number (the server's price list). A draft token is one row more, and gives a token if it
and all before it are accepted. So rows are added, the likeliest first, to the number that gives the most tokens a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heapreplace

__all__ = ["MIN_GAIN", "draft_length", "draft_rows"]

MIN_GAIN = 1.05
"""Tokens a second of a batch with drafts over those without, from which on it is worth its risk: times and chances are estimates."""


def draft_rows(chances: Sequence[Sequence[float]], rows: int, seconds: Callable[[int], float], *, most: int) -> list[int]:
    """Return the number of draft tokens of each answer that the next batch should have; all 0: drafts don't pay.

    Args:
        chances: of each answer, the chances that its first draft token, its first two, ... are accepted: 0..1, not rising.
        rows: rows of the batch without drafts, at least 1; each gives a token.
        seconds: returns the seconds of a batch from its number of rows.
        most: rows of the largest batch.
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
    """Return how many tokens a model should draft of each of ``rows`` answers (DSD, equations 1 and 2); 0: drafts don't pay.

    Args:
        acceptance: chance that a draft token is accepted if all before it are, 0..1.
        step: seconds in which the model drafts one token of each answer.
        rows: number of answers, at least 1.
        seconds: returns the seconds of a batch from its number of rows.
        most: rows of the largest batch.
        longest: most tokens of a draft.
    """
    best, pace = 0, MIN_GAIN / seconds(rows)
    tokens = chance = 1.0
    for length in range(1, min(longest, most // rows - 1) + 1):
        chance *= acceptance
        tokens += chance
        if (found := tokens / (length * step + seconds(rows * (length + 1)))) > pace:
            best, pace = length, found
    return best
