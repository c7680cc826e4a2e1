"""The limit on requests per minute: a token bucket, which fills at the rate and holds a minute's requests."""

from __future__ import annotations

from typing import Self

from msgspec import Struct

__all__ = ["TokenBucket"]

_MINUTE = 60.0


class TokenBucket(Struct, frozen=True):
    """The state of one caller's bucket.

    Args:
        tokens: number of requests that may come at once.
        at: Unix time of this state.
    """

    tokens: float
    at: float

    @classmethod
    def full(cls, rate: int, now: float) -> Self:
        """Return the bucket of a caller that hasn't sent a request for a minute."""
        return cls(float(rate), now)

    def take(self, rate: int, now: float) -> tuple[TokenBucket, float]:
        """Return the bucket after a request, and by how many seconds the request is too early, or 0 if it is admitted.

        A request that is too early takes nothing. If the clock steps back, no time counts as passed. After a step of at most a minute, the
        bucket fills again once the clock has caught up, so a clock that goes back and forth gains nothing. After a longer step, it fills
        from the new time on.

        Args:
            rate: requests per minute.
            now: Unix time.
        """
        at = self.at if now < self.at <= now + _MINUTE else now
        tokens = min(float(rate), self.tokens + max(0.0, now - self.at) * rate / _MINUTE)
        if tokens >= 1:
            return TokenBucket(tokens - 1, at), 0.0
        return TokenBucket(tokens, at), at - now + (1 - tokens) * _MINUTE / rate
