"""Limits of one source: connections at a time, and faults within a minute. Without IO or clock.

A source is an address, with the web page that connects from there and with the fact that the right key came in the header. The service
names it.
"""

from __future__ import annotations

from collections import Counter, deque

__all__ = ["AddressLimits"]

_MINUTE = 60.0
_MAX_ADDRESSES = 4096  # with remembered faults


class AddressLimits:
    """Counts connections and faults by source; the service owns it.

    Args:
        connections: maximum in total.
        peer_connections: maximum of one source.
        faults_per_minute: maximum of one source; beyond it, new connections are refused until the oldest fault is a minute old.
    """

    def __init__(self, *, connections: int, peer_connections: int, faults_per_minute: int) -> None:
        self._max_connections = connections
        self._max_each = peer_connections
        self._max_faults = faults_per_minute
        self._present: Counter[str] = Counter()
        self._faults: dict[str, deque[float]] = {}

    @property
    def connections(self) -> int:
        """Number of present connections."""
        return self._present.total()

    def refusal(self, peer: str, *, now: float) -> tuple[str, float] | None:
        """Return why a new connection is refused and the seconds to wait; None: it may come."""
        faults = self._faults.get(peer)
        if faults is not None and len(faults) >= self._max_faults and faults[0] + _MINUTE > now:
            return f"faults: expected fewer than {self._max_faults} a minute, got {len(faults)}", faults[0] + _MINUTE - now
        if self._present.total() >= self._max_connections:
            return f"connections: expected at most {self._max_connections}, got one more", 1.0
        if self._present[peer] >= self._max_each:
            return f"connections: expected at most {self._max_each} from one address, got one more", 1.0
        return None

    def join(self, peer: str) -> None:
        """Record a new connection."""
        self._present[peer] += 1

    def leave(self, peer: str) -> None:
        """Record the end of a connection."""
        self._present[peer] -= 1
        if self._present[peer] <= 0:
            del self._present[peer]

    def record_faults(self, peer: str, count: int, *, now: float) -> None:
        """Record protocol faults of a connection from this address."""
        faults = self._faults.pop(peer, None) or deque(maxlen=self._max_faults)
        faults.extend([now] * min(count, self._max_faults))
        self._faults[peer] = faults  # in order of the last fault
        while len(self._faults) > _MAX_ADDRESSES:
            del self._faults[next(iter(self._faults))]
