"""The arithmetic of a daily budget: what is spent, reserved and left. All amounts are nanodollars."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from msgspec import Struct

__all__ = ["DayBudget", "day_before", "day_of", "seconds_left"]

_DAY = 86_400


class DayBudget(Struct, frozen=True, kw_only=True):
    """One caller's budget on one day.

    Args:
        limit: the most that may be spent, or None for no limit.
        spent: cost of the answers that have ended.
        reserved: the most that the answers in progress may cost.
    """

    limit: int | None
    spent: int = 0
    reserved: int = 0

    @property
    def left(self) -> int | None:
        """The amount left for further answers, at least 0, or None for no limit."""
        return None if self.limit is None else max(0, self.limit - self.spent - self.reserved)

    def covers(self, cost: int) -> bool:
        """Return True if the budget covers an answer that costs at most this. It always covers an answer that costs nothing."""
        return cost == 0 or self.limit is None or self.spent + self.reserved + cost <= self.limit


def day_of(now: float) -> str:
    """Return the day of a Unix time in UTC, such as 2026-11-27."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def day_before(now: float, days: int) -> str:
    """Return the day in UTC that was this many days ago."""
    return day_of(now - days * _DAY)


def seconds_left(now: float) -> int:
    """Return the seconds until midnight in UTC, 1 to 86,400."""
    return math.ceil(_DAY - now % _DAY)
