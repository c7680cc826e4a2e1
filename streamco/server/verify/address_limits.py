"""Limits how many connections each source may have at a time, and how many faults per minute. It has no IO and no clock.

A connection with a valid key in its header is counted under its address and that key. All others are counted only under their address: a
peer can write anything into its ``Origin``, so it must not gain by using many different ones. Connections with an ``Origin`` get half of
their address's limits, and their faults lock out only each other. So web pages can't use up the limits of their visitor's other programs.
"""

from __future__ import annotations

from collections import Counter, deque

from msgspec import Struct

__all__ = ["AddressLimits", "Source"]

_MINUTE = 60.0
_MAX_ADDRESSES = 4096  # whose faults are remembered
_PAGES = 0.5  # share of an address's connections and faults that web pages may have
_KEPT = 0.25  # share of all connections that is reserved for peers with a valid key


class Source(Struct, frozen=True):
    """The properties of a connection's peer by which the limits distinguish peers.

    Args:
        address: the peer's address.
        key: name of the valid key in its header, or None if there is none or the server has no keys.
        is_page: True if it has an ``Origin``, so it comes from a web page.
    """

    address: str
    key: str | None = None
    is_page: bool = False


class AddressLimits:
    """Counts connections and faults by source; the service owns it.

    Args:
        connections: maximum in total.
        peer_connections: maximum per address without a key, and per address and key.
        faults_per_minute: maximum per address without a key, and per address and key. Beyond it, new connections are refused until the
            oldest fault is a minute old.
        has_keys: True if the server has keys, so that a quarter of all connections is reserved for peers with one in their header.
    """

    def __init__(self, *, connections: int, peer_connections: int, faults_per_minute: int, has_keys: bool) -> None:
        self._max_connections = connections
        self._max_keyless = connections - (int(connections * _KEPT) if has_keys else 0)
        self._max_each = peer_connections
        self._max_faults = faults_per_minute
        self._present: Counter[Source] = Counter()  # by group; see _groups
        self._total = self._keyless = 0
        self._faults: dict[Source, deque[float]] = {}

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return self._total

    def refusal(self, source: Source, *, now: float) -> tuple[str, float] | None:
        """Return why a new connection is refused and the seconds to wait, or None if it is allowed."""
        group, share = _groups(source)[0]
        faults, limit = self._faults.get(group, ()), max(1, int(self._max_faults * share))
        if len(faults) >= limit and faults[-limit] + _MINUTE > now:
            return f"faults: expected fewer than {limit} a minute, got {len(faults)}", faults[-limit] + _MINUTE - now
        if self._total >= self._max_connections:
            return f"connections: the limit is {self._max_connections}", 1.0
        if source.key is None and self._keyless >= self._max_keyless:
            return f"connections: the limit is {self._max_keyless} without a key in the header", 1.0
        for group, share in _groups(source):
            limit = max(1, int(self._max_each * share))
            if self._present[group] >= limit:
                return f"connections: the limit is {limit} from {_described(group)}", 1.0
        return None

    def join(self, source: Source) -> None:
        """Record a new connection."""
        self._count(source, 1)

    def leave(self, source: Source) -> None:
        """Record the end of a connection."""
        self._count(source, -1)

    def record_faults(self, source: Source, count: int, *, now: float) -> None:
        """Record protocol faults of a connection from this source."""
        group, _ = _groups(source)[0]
        faults = self._faults.pop(group, None) or deque(maxlen=self._max_faults)
        faults.extend([now] * min(count, self._max_faults))
        self._faults[group] = faults  # in order of the last fault
        while len(self._faults) > _MAX_ADDRESSES:
            del self._faults[next(iter(self._faults))]

    def _count(self, source: Source, change: int) -> None:
        self._total += change
        self._keyless += change if source.key is None else 0
        for group, _ in _groups(source):
            self._present[group] += change
            if self._present[group] <= 0:
                del self._present[group]


def _groups(source: Source) -> list[tuple[Source, float]]:
    """Return the groups that a connection is counted in, its own first, with each group's share of an address's limits."""
    if source.key is not None:
        return [(Source(source.address, source.key), 1.0)]
    address = (Source(source.address), 1.0)
    return [(source, _PAGES), address] if source.is_page else [address]


def _described(group: Source) -> str:
    if group.is_page:
        return "web pages at one address"
    return "one address" if group.key is None else "one address with this key"
