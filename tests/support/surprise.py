"""How far counts stray from probabilities."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def surprise(seen: Counter[Key], probabilities: dict[Key, float], draws: int) -> float:
    """Pearson's chi-square as a share of its 99.9 % point (Wilson and Hilferty's); outcomes expected fewer than 5 times are one."""
    rare = [outcome for outcome, share in probabilities.items() if draws * share < 5.0]
    cells = [(seen[outcome], draws * share) for outcome, share in probabilities.items() if draws * share >= 5.0]
    if rare:
        cells.append((sum(seen[outcome] for outcome in rare), draws * sum(probabilities[outcome] for outcome in rare)))
    freedom = len(cells) - 1
    limit = freedom * (1.0 - 2.0 / (9.0 * freedom) + 3.0902 * math.sqrt(2.0 / (9.0 * freedom))) ** 3
    return sum((count - expected) ** 2 / expected for count, expected in cells if expected) / limit
