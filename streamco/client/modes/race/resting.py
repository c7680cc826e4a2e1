"""The endpoints of a client that rest because they have failed; see ``core.race.breaker``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from streamco.client.answer_log import describe_error
from streamco.core.race.breaker import Breaker, rests_after
from streamco.errors import EndpointError
from streamco.machine_driver import clock_of

__all__ = ["Resting", "Watch"]


class Resting:
    """Which endpoints rest, shared by clients from ``with_options``: what one answer meets, the others know at once."""

    def __init__(self) -> None:
        self._breakers: dict[str, Breaker] = {}  # of endpoints that have failed

    def find(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return why endpoints rest, as a clause, by name; those that don't are left out."""
        if not self._breakers:
            return {}
        now = _now()
        found = {name: breaker for name in names if (breaker := self._breakers.get(name)) is not None and breaker.is_resting(now=now)}
        return {name: f"it has just failed ({breaker.kind})" for name, breaker in found.items()}

    def watch(self) -> Watch:
        """Return what an answer tells about its endpoints."""
        return Watch(self._breakers)

    async def aclose(self) -> None:
        """Forget all failures."""
        self._breakers.clear()


class Watch:
    """What one answer meets at its endpoints.

    Args:
        breakers: those of the client, by endpoint.
    """

    def __init__(self, breakers: dict[str, Breaker]) -> None:
        self._breakers = breakers
        self._asked: dict[str, float] = {}  # endpoints that have given no token yet, and when they were asked
        self._tried: dict[str, Breaker] = {}  # those that this answer tries after their rest

    def opened(self, name: str) -> None:
        """Record that an endpoint is asked."""
        now = _now()
        self._asked[name] = now
        breaker = self._breakers.get(name)
        if breaker is not None and breaker.begin(now=now):
            self._tried[name] = breaker

    def failed(self, name: str, error: EndpointError) -> None:
        """Record a failure, also one after which the endpoint asks its server again."""
        if rests_after(error):
            self._breakers.setdefault(name, Breaker()).record_failure(error, describe_error(error), now=_now())
            if name in self._asked:
                self._asked[name] = _now()  # it may be asked again, and answer that
        self.ended(name)

    def answered(self, name: str) -> None:
        """Record tokens; the first ones show that an endpoint works, if it hasn't failed for another answer since it was asked."""
        if (asked := self._asked.pop(name, None)) is None:
            return
        breaker = self._breakers.get(name)
        if breaker is not None and asked >= breaker.failed:
            breaker.record_answer()
            del self._breakers[name]
        self.ended(name)

    def ended(self, name: str) -> None:
        """Record that the answer isn't at an endpoint any more, or has seen enough of it."""
        if (breaker := self._tried.pop(name, None)) is not None:
            breaker.end_trial()

    def close(self) -> None:
        """Record that the answer is over."""
        for name in list(self._tried):
            self.ended(name)


def _now() -> float:
    return clock_of(asyncio.get_running_loop())()
