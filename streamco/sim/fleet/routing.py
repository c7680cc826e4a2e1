"""Which server an incoming request goes to (DSD section 3.4; compared in section 5.3, figures 7 and 8).

``RandomChoice`` throws dice, ``RoundRobin`` goes round, ``ShortestQueue`` looks at all servers. ``TwoChoices`` looks at two: nearly as good
as looking at all, and where what is known about loads is old, not everybody runs to the same server ("The Power of Two Choices in
Randomized Load Balancing", Mitzenmacher, 2001).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol

from streamco.errors import ConfigError

__all__ = ["ROUTING", "RandomChoice", "RoundRobin", "RoutingPolicy", "ShortestQueue", "TwoChoices", "routing_policy"]


class RoutingPolicy(Protocol):
    """Chooses servers; one object for all requests of a system."""

    @property
    def name(self) -> str:
        """What reports and settings call it."""
        ...

    def choose(self, loads: Sequence[int], rng: Random) -> int:
        """Return the index of the server.

        Args:
            loads: requests that each server has, of one server at least.
            rng: for what is left to chance.
        """
        ...


class RandomChoice:
    """Any server."""

    name = "random"

    def choose(self, loads: Sequence[int], rng: Random) -> int:
        """Return a throw of dice."""
        return int(rng.random() * len(loads))


class RoundRobin:
    """One server after the other, from the first."""

    name = "round-robin"

    def __init__(self) -> None:
        self._next = 0

    def choose(self, loads: Sequence[int], rng: Random) -> int:
        """Return the one behind the last."""
        index = self._next % len(loads)
        self._next = index + 1
        return index


class ShortestQueue:
    """A server that has least to do (JSQ).

    Among equals dice decide: always taking the first, it would get everything while nobody has much to do.
    """

    name = "join-shortest-queue"

    def choose(self, loads: Sequence[int], rng: Random) -> int:
        """Return one of the least loaded."""
        lowest = min(loads)
        index, equals = loads.index(lowest), loads.count(lowest)
        if equals > 1:
            for _ in range(int(rng.random() * equals)):
                index = loads.index(lowest, index + 1)
        return index


class TwoChoices:
    """Of two servers that dice name, the one that has less to do."""

    name = "power-of-two-choices"

    def choose(self, loads: Sequence[int], rng: Random) -> int:
        """Return the less loaded of two; of equals the first that was named."""
        servers = len(loads)
        if servers == 1:
            return 0
        first, second = int(rng.random() * servers), int(rng.random() * (servers - 1))
        second += second >= first  # two different ones
        return first if loads[first] <= loads[second] else second


ROUTING: Mapping[str, Callable[[], RoutingPolicy]] = {kind.name: kind for kind in (RandomChoice, RoundRobin, ShortestQueue, TwoChoices)}
"""By name."""


def routing_policy(name: str) -> RoutingPolicy:
    """Return a policy by its name, at its beginning.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in ROUTING:
        raise ConfigError(f"routing: expected one of {', '.join(ROUTING)}, got {name!r}")
    return ROUTING[name]()
