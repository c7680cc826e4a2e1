"""The limit on requests a minute: a token bucket, which fills at the rate and holds a minute's requests."""

from __future__ import annotations

from typing import Self

from msgspec import Struct

__all__ = ["TokenBucket"]

_MINUTE = 60.0


class TokenBucket(Struct, frozen=True):
    """State of one caller's bucket.

    Args:
        tokens: requests that may come at once.
        at: Unix time of this state.
    """

    tokens: float
    at: float

    @classmethod
    def full(cls, rate: int, now: float) -> Self:
        """Return the bucket of a caller that has not asked for a minute."""
        return cls(float(rate), now)

    def take(self, rate: int, now: float) -> tuple[TokenBucket, float]:
        """Return the bucket after a request, and the seconds that it comes too early; 0: it is admitted.

        A request that comes too early takes nothing. If the clock steps back, no time has passed. After a step of at most a minute the
        bucket fills when the clock has caught up, so a clock that swings gains nothing. After a longer one it fills from there.

        Args:
            rate: requests a minute.
            now: Unix time.
        """
        at = self.at if now < self.at <= now + _MINUTE else now
        tokens = min(float(rate), self.tokens + max(0.0, now - self.at) * rate / _MINUTE)
        if tokens >= 1:
            return TokenBucket(tokens - 1, at), 0.0
        return TokenBucket(tokens, at), at - now + (1 - tokens) * _MINUTE / rate
