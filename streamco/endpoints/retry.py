"""Decides whether and when a request is retried after an error.

Only failures before the first content are handled here. Later, a retry would show the reader text twice and break tool-call JSON; instead,
the race continues with another endpoint.
"""

from __future__ import annotations

import random
import ssl
from random import Random

from streamco.config import RetryPolicy
from streamco.errors import EndpointConnectError, EndpointError, EndpointProtocolError, EndpointStatusError, EndpointTimeoutError

__all__ = ["Backoff", "Retries", "is_transient"]

_MAX_DOUBLINGS = 60  # of the backoff; more would eventually overflow a float
_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})
# A 429 of these kinds lasts until the account is paid (OpenAI error codes guide).
_LASTING = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")


def is_transient(error: EndpointError) -> bool:
    """Return True if the same request may succeed a little later.

    It is True for a failed connection, the connect limit, the statuses 408, 409, 425, 429 and 5xx (529 included), and an answer that was
    cut off before its first content. It is False for other 4xx statuses, an exhausted quota, an untrusted certificate, an answer from a
    different API, and a server that was silent for the whole first-token limit, because waiting that long again doesn't help the reader.
    """
    match error:
        case EndpointStatusError(status=status, body=body):
            is_lasting = any(code in body for code in _LASTING)
            return (status in _TRANSIENT_STATUSES or status >= 500) and not is_lasting
        case EndpointTimeoutError(phase=phase):
            return phase == "connect"
        case EndpointConnectError():
            return not isinstance(error.__cause__, ssl.SSLError) or isinstance(error.__cause__, ssl.SSLEOFError)
        case EndpointProtocolError(is_lasting=is_lasting):
            return not is_lasting
    return False


class Retries:
    """Decides whether and when one request is retried.

    Args:
        policy: the number of retries, and how long to wait before them.
        rng: draws the jitter.
    """

    __slots__ = ("_policy", "_retries", "_rng")

    def __init__(self, policy: RetryPolicy, rng: random.Random) -> None:
        self._policy = policy
        self._rng = rng
        self._retries = 0

    def forbid(self) -> None:
        """Allow no more retries, because the server said that they would fail."""
        self._retries = self._policy.attempts

    def next_wait(self, error: EndpointError) -> float | None:
        """Return the seconds to wait after this transient error before the next attempt, or None to give up.

        If the server sent a ``retry_after``, that is the wait. If it is longer than ``longest_wait``, the request fails now, because an
        earlier attempt would fail too. Otherwise the wait is exponential backoff with full jitter: uniform in [0, backoff * 2^n]
        (M. Brooker, AWS Architecture Blog, 2015).
        """
        policy = self._policy
        if self._retries >= policy.attempts:
            return None
        retry_after = error.retry_after if isinstance(error, EndpointStatusError) else None
        if retry_after is not None and retry_after > policy.longest_wait:
            return None
        ceiling = min(policy.backoff * 2.0 ** min(self._retries, _MAX_DOUBLINGS), policy.longest_wait)
        self._retries += 1
        return self._rng.uniform(0.0, ceiling) if retry_after is None else retry_after


_MAX_RETRY_AFTER = 60.0  # seconds; a server that asks for a longer wait is retried after this long


class Backoff:
    """Computes the waits between attempts to connect: exponential with full jitter; the first attempt is immediate.

    Args:
        first: ceiling of the second wait, in seconds.
        max_wait: ceiling of every wait, in seconds.
        rng: draws the jitter.
    """

    def __init__(self, first: float, max_wait: float, rng: Random) -> None:
        self._first = first
        self._max_wait = max_wait
        self._rng = rng
        self._tries = 0

    def next_wait(self, retry_after: float | None = None) -> float:
        """Return the seconds to wait before the next attempt.

        Args:
            retry_after: seconds that the server asked for, capped at 60, or None.
        """
        self._tries += 1
        if retry_after is not None:
            return min(retry_after, _MAX_RETRY_AFTER)
        if self._tries == 1:
            return 0.0
        return self._rng.uniform(0.0, min(self._max_wait, self._first * 2.0 ** (self._tries - 2)))
