"""A caller of the proxy, and its figures for one day. Money is in whole nanodollars, so that sums are exact."""

from __future__ import annotations

import math
import re

from msgspec import Struct

from streamco.endpoints.base import Kind
from streamco.errors import ConfigError

__all__ = ["MAX_BUDGET", "MAX_CALLERS", "MAX_RATE", "SIDES", "Caller", "DayFigures", "from_nanos", "to_nanos"]

MAX_CALLERS = 1024
MAX_BUDGET = 1_000_000  # US dollars a day
MAX_RATE = 100_000  # requests a minute
SIDES: tuple[Kind, ...] = ("device", "server")

_NANOS = 1_000_000_000
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")  # goes into logs, headers and labels of metrics


class Caller(Struct, frozen=True, kw_only=True):
    """One caller and its limits, without its key.

    Args:
        name: name in logs, metrics and figures: up to 64 letters, digits, dots, dashes or underscores.
        budget: nanodollars that it may spend per day (UTC), or None for no limit.
        rate: requests per minute, or None for no limit.
        sides: sides that its answers may come from.
        is_operator: True if it may read the figures of all callers (``/metrics``, ``/streamco/totals``).

    Raises:
        ConfigError: a value is out of range.
    """

    name: str
    budget: int | None = None
    rate: int | None = None
    sides: tuple[Kind, ...] = SIDES
    is_operator: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"callers: name: expected 1 to 64 letters, digits, dots, dashes or underscores, got {self.name!r}")
        if self.budget is not None and not 0 <= self.budget <= MAX_BUDGET * _NANOS:
            raise ConfigError(f"callers: budget: expected 0 to {MAX_BUDGET} US dollars a day, got {from_nanos(self.budget):g}")
        if self.rate is not None and not 1 <= self.rate <= MAX_RATE:
            raise ConfigError(f"callers: rate: expected 1 to {MAX_RATE} requests a minute, got {self.rate}")
        if not self.sides or not set(self.sides) <= set(SIDES):
            raise ConfigError(f"callers: sides: expected device, server or both, got {','.join(self.sides) or 'none'}")


class DayFigures(Struct, frozen=True, kw_only=True):
    """One caller's figures for one day, with money in nanodollars.

    Args:
        day: the day in UTC, such as 2026-11-27.
        spent: cost of the answers that have ended.
        reserved: the most that the answers in progress may cost.
        requests: requests that were admitted.
        spared: how many of them the device answered alone, because the budget didn't cover a server.
        refused: requests that were refused because the budget didn't cover them.
        prompt_tokens: prompt tokens that all endpoints read.
        completion_tokens: tokens that all endpoints generated.
        estimated_prompt_tokens, estimated_completion_tokens: how many of each are estimates, because no endpoint counted them.
    """

    day: str
    spent: int = 0
    reserved: int = 0
    requests: int = 0
    spared: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated_prompt_tokens: int = 0
    estimated_completion_tokens: int = 0


def to_nanos(usd: float) -> int:
    """Return US dollars as nanodollars, rounded up.

    Raises:
        ConfigError: the amount is negative, infinite or NaN.
    """
    if not 0 <= usd < math.inf:
        raise ConfigError(f"callers: expected US dollars >= 0, got {usd!r}")
    return math.ceil(round(usd * _NANOS, 3))  # 16000.000000000002 is 16000


def from_nanos(nanos: int) -> float:
    """Return nanodollars as US dollars."""
    return nanos / _NANOS
