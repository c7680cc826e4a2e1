"""The number of threads that each engine of this process may use.

Engines that together use more threads than there are cores gain nothing. ggml's workers meet at a barrier after each node. If a process
has more workers than cores, libgomp puts them to sleep there at once (``GOMP_SPINCOUNT``, throttled). Then an engine that generates alone
is slower on two threads than on one, even while the others are idle.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from streamco.errors import ConfigError

__all__ = ["ThreadBudget", "ThreadShare", "available_cores", "budget"]


def available_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return how many cores this process may use, at least 1: its CPU affinity, limited by its cgroup's quota (Linux, cgroup v2)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text(encoding="ascii").split()
        if allowed != "max":
            cores = min(cores, int(allowed) // int(period))
    except (OSError, ValueError):
        pass  # no quota, or a file that isn't a quota
    return max(1, cores)


class ThreadShare:
    """One engine's part of a budget. ``threads`` changes when engines start and close, so read it before each decode."""

    def __init__(self, owner: ThreadBudget, requested: int | None) -> None:
        self._owner = owner
        self.requested = requested
        self.threads = requested or 1

    def release(self) -> None:
        """Give back the share; idempotent."""
        self._owner.release(self)


class ThreadBudget:
    """Divides cores among engines. An engine that requests a number gets it; the others share the remaining cores, at least 1 each.

    Args:
        cores: number of cores; None to look it up at each change.
    """

    def __init__(self, cores: int | None = None) -> None:
        self._cores = cores
        self._lock = threading.Lock()
        self._shares: list[ThreadShare] = []

    def claim(self, requested: int | None) -> ThreadShare:
        """Return a new share for an engine.

        Args:
            requested: number of threads, at least 1; None for a fair share.

        Raises:
            ConfigError: fewer than 1 thread was requested.
        """
        if requested is not None and requested < 1:
            raise ConfigError(f"threads: expected None or at least 1, got {requested}")
        share = ThreadShare(self, requested)
        with self._lock:
            self._shares.append(share)
            self._divide()
        return share

    def release(self, share: ThreadShare) -> None:
        """Remove a share; the others grow."""
        with self._lock:
            if share in self._shares:
                self._shares.remove(share)
                self._divide()

    def _divide(self) -> None:
        cores = self._cores or available_cores()
        left = max(0, cores - sum(share.requested or 0 for share in self._shares))
        sharers = [share for share in self._shares if share.requested is None]
        for index, share in enumerate(sharers):
            share.threads = max(1, left // len(sharers) + (index < left % len(sharers)))


budget = ThreadBudget()
"""The thread budget of this process."""
