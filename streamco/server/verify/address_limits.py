"""What one address may do: connections at a time, and faults within a minute. Without IO or clock."""

from __future__ import annotations

from collections import Counter, deque

__all__ = ["AddressLimits"]

_MINUTE = 60.0
_MOST_ADDRESSES = 4096  # whose faults are remembered


class AddressLimits:
    """Connections and faults by address.

    Args:
        connections: altogether.
        peer_connections: of one address.
        faults_per_minute: of one address; beyond them it waits until they are a minute old.
    """

    def __init__(self, *, connections: int, peer_connections: int, faults_per_minute: int) -> None:
        self._most = connections
        self._most_each = peer_connections
        self._most_faults = faults_per_minute
        self._present: Counter[str] = Counter()
        self._faults: dict[str, deque[float]] = {}

    @property
    def connections(self) -> int:
        """That are there."""
        return self._present.total()

    def objection(self, peer: str, *, now: float) -> tuple[str, float] | None:
        """Why a connection is not taken, and the seconds to wait; None: it may come."""
        faults = self._faults.get(peer)
        if faults is not None and len(faults) >= self._most_faults and faults[0] + _MINUTE > now:
            return f"faults: expected fewer than {self._most_faults} a minute, got {len(faults)}", faults[0] + _MINUTE - now
        if self._present.total() >= self._most:
            return f"connections: expected at most {self._most}, got one more", 1.0
        if self._present[peer] >= self._most_each:
            return f"connections: expected at most {self._most_each} from one address, got one more", 1.0
        return None

    def join(self, peer: str) -> None:
        """A connection is there."""
        self._present[peer] += 1

    def leave(self, peer: str) -> None:
        """It is gone."""
        self._present[peer] -= 1
        if self._present[peer] <= 0:
            del self._present[peer]

    def record_faults(self, peer: str, count: int, *, now: float) -> None:
        """A connection of this address did what no working client does."""
        faults = self._faults.pop(peer, None) or deque(maxlen=self._most_faults)
        faults.extend([now] * min(count, self._most_faults))
        self._faults[peer] = faults  # the latest last
        while len(self._faults) > _MOST_ADDRESSES:
            del self._faults[next(iter(self._faults))]
