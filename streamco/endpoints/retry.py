"""Whether and when a request is tried again: a decision about one error, without doing anything.

Only failures before the first content come here. After it a retry would show the reader text twice and break tool-call JSON; going on
with another endpoint is the session's business then.
"""

from __future__ import annotations

import random
import ssl
from random import Random

from streamco.config import RetryPolicy
from streamco.errors import EndpointConnectError, EndpointError, EndpointProtocolError, EndpointStatusError, EndpointTimeoutError

__all__ = ["Backoff", "Retries", "is_transient"]

_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})
# A 429 of these kinds lasts until somebody pays (OpenAI error codes guide).
_LASTING = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")


def is_transient(error: EndpointError) -> bool:
    """Return True if the same request may succeed a little later.

    Yes: no connection, the connect limit, 408, 409, 425, 429, 5xx (529 included), an answer cut before its first content.
    No: other 4xx, a used-up quota, a certificate that is not trusted, a server that was silent for the whole first-token limit (waiting
    as long again helps nobody).
    """
    match error:
        case EndpointStatusError(status=status, body=body):
            is_lasting = any(code in body for code in _LASTING)
            return (status in _TRANSIENT_STATUSES or status >= 500) and not is_lasting
        case EndpointTimeoutError(phase=phase):
            return phase == "connect"
        case EndpointConnectError():
            return not isinstance(error.__cause__, ssl.SSLError) or isinstance(error.__cause__, ssl.SSLEOFError)
        case EndpointProtocolError():
            return True
    return False


class Retries:
    """The retries of one request.

    Args:
        policy: how many, how long.
        rng: the source of the jitter.
    """

    __slots__ = ("_policy", "_retries", "_rng")

    def __init__(self, policy: RetryPolicy, rng: random.Random) -> None:
        self._policy = policy
        self._rng = rng
        self._retries = 0

    def forbid(self) -> None:
        """No further retry: the server said that it would be of no use."""
        self._retries = self._policy.attempts

    def next_wait(self, error: EndpointError) -> float | None:
        """Seconds to wait before the next try after this transient error; None: give up.

        The server's own wish is kept to; one beyond ``longest_wait`` means giving up now rather than calling too early. Without one it is
        exponential backoff with full jitter: uniform in [0, backoff * 2^n] (M. Brooker, AWS Architecture Blog, 2015).
        """
        policy = self._policy
        if self._retries >= policy.attempts:
            return None
        retry_after = error.retry_after if isinstance(error, EndpointStatusError) else None
        if retry_after is not None and retry_after > policy.longest_wait:
            return None
        ceiling = min(policy.backoff * 2**self._retries, policy.longest_wait)
        self._retries += 1
        return self._rng.uniform(0.0, ceiling) if retry_after is None else retry_after


_MAX_RETRY_AFTER = 60.0  # seconds; a server that asks for more is asked sooner


class Backoff:
    """Seconds to wait before the next try: exponential, with full jitter; the first comes at once.

    Args:
        first, longest: seconds; ceilings of the second wait and of any.
        rng: dice.
    """

    def __init__(self, first: float, max_wait: float, rng: Random) -> None:
        self._first = first
        self._max_wait = max_wait
        self._rng = rng
        self._tries = 0

    def next_wait(self, retry_after: float | None = None) -> float:
        """Return the wait; what the server wishes goes first, up to a minute."""
        self._tries += 1
        if retry_after is not None:
            return min(retry_after, _MAX_RETRY_AFTER)
        if self._tries == 1:
            return 0.0
        return self._rng.uniform(0.0, min(self._max_wait, self._first * 2.0 ** (self._tries - 2)))
