"""Routing policies, which choose the server for an incoming request (DSD section 3.4; compared in section 5.3, figures 7 and 8).

``RandomChoice`` draws a server, ``RoundRobin`` takes them in turn, and ``ShortestQueue`` compares all servers. ``TwoChoices`` compares two.
That is nearly as good as comparing all. If the known loads are old, it also keeps all requests from going to the same server ("The Power
of Two Choices in Randomized Load Balancing", Mitzenmacher, 2001). ``InOrder`` takes the first server, so the others are only used if it is
unavailable.

A client uses these policies to spread its answers over several verifiers, and the simulator uses them to spread a fleet's requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from random import Random
from typing import Protocol

from streamco.errors import ConfigError

__all__ = ["ROUTING", "InOrder", "RandomChoice", "RoundRobin", "RoutingPolicy", "ShortestQueue", "TwoChoices", "routing_policy"]


class RoutingPolicy(Protocol):
    """A policy that chooses servers. A system uses one object for all its requests."""

    @property
    def name(self) -> str:
        """Name of the policy in reports and settings."""
        ...

    def choose(self, loads: Sequence[int], rng: Random) -> int:
        """Return the index of the chosen server.

        Args:
            loads: number of requests that each server has. There must be at least one server.
            rng: random source for the choice.
        """
        ...


class InOrder:
    """Chooses the first server."""

    name = "in-order"

    def choose(self, loads: Sequence[int], rng: Random) -> int:
        """Return 0, the first server's index."""
        return 0


class RandomChoice:
    """Chooses a server at random."""

    name = "random"

    def choose(self, loads: Sequence[int], rng: Random) -> int:
        """Return a random index."""
        return int(rng.random() * len(loads))


class RoundRobin:
    """Chooses one server after another, beginning with the first."""

    name = "round-robin"

    def __init__(self) -> None:
        self._next = 0

    def choose(self, loads: Sequence[int], rng: Random) -> int:
        """Return the index after the last chosen one."""
        index = self._next % len(loads)
        self._next = index + 1
        return index


class ShortestQueue:
    """Chooses a server with the fewest requests (JSQ).

    Among equals the choice is random, because the first server would otherwise get all requests of a lightly loaded system.
    """

    name = "join-shortest-queue"

    def choose(self, loads: Sequence[int], rng: Random) -> int:
        """Return the index of one of the least loaded servers."""
        lowest = min(loads)
        index, equals = loads.index(lowest), loads.count(lowest)
        if equals > 1:
            for _ in range(int(rng.random() * equals)):
                index = loads.index(lowest, index + 1)
        return index


class TwoChoices:
    """Chooses the less loaded of two random servers."""

    name = "power-of-two-choices"

    def choose(self, loads: Sequence[int], rng: Random) -> int:
        """Return the index of the less loaded of two random servers, or of the one drawn first if they are equal."""
        servers = len(loads)
        if servers == 1:
            return 0
        first, second = int(rng.random() * servers), int(rng.random() * (servers - 1))
        second += second >= first  # two different ones
        return first if loads[first] <= loads[second] else second


_KINDS: tuple[type[RandomChoice | RoundRobin | ShortestQueue | TwoChoices | InOrder], ...] = (
    RandomChoice,
    RoundRobin,
    ShortestQueue,
    TwoChoices,
    InOrder,
)

ROUTING: Mapping[str, Callable[[], RoutingPolicy]] = {kind.name: kind for kind in _KINDS}
"""Routing policies by name."""


def routing_policy(name: str) -> RoutingPolicy:
    """Create the policy with this name. ``jsq`` is short for ``join-shortest-queue``.

    Raises:
        ConfigError: there is no policy with this name.
    """
    full = ShortestQueue.name if name == "jsq" else name
    if full not in ROUTING:
        near = get_close_matches(name, ROUTING, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"routing: expected {', '.join(ROUTING)} or jsq, got {name!r}{hint}")
    return ROUTING[full]()
