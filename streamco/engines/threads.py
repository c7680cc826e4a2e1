"""How many threads each engine of this process may use.

Engines that together use more threads than there are cores gain nothing: ggml's workers meet at a barrier after each node, and once a
process has more of them than cores libgomp lets them sleep there at once (``GOMP_SPINCOUNT``, throttled). Then even one that generates
while the others rest is slower on two threads than on one.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from streamco.errors import ConfigError

__all__ = ["ThreadBudget", "ThreadShare", "available_cores", "budget"]


def available_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores this process may use: its CPU affinity, cut by its control group's quota (Linux, cgroup v2), at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text(encoding="ascii").split()
        if allowed != "max":
            cores = min(cores, int(allowed) // int(period))
    except (OSError, ValueError):
        pass  # no quota, or a file that isn't a quota
    return max(1, cores)


class ThreadShare:
    """One engine's part of a budget. ``threads`` changes when engines come and go: read it before each decode."""

    def __init__(self, owner: ThreadBudget, requested: int | None) -> None:
        self._owner = owner
        self.requested = requested
        self.threads = requested or 1

    def release(self) -> None:
        """Give the part back; idempotent."""
        self._owner.release(self)


class ThreadBudget:
    """Divides cores among engines: explicit wishes are met as they are, the others share what is left, at least 1 each.

    Args:
        cores: how many there are; None: look when the first engine comes.
    """

    def __init__(self, cores: int | None = None) -> None:
        self._cores = cores
        self._lock = threading.Lock()
        self._shares: list[ThreadShare] = []

    def claim(self, requested: int | None) -> ThreadShare:
        """Join.

        Args:
            wanted: threads, None: a fair share.

        Raises:
            ConfigError: less than 1.
        """
        if requested is not None and requested < 1:
            raise ConfigError(f"threads: expected None or at least 1, got {requested}")
        share = ThreadShare(self, requested)
        with self._lock:
            self._shares.append(share)
            self._divide()
        return share

    def release(self, share: ThreadShare) -> None:
        """Leave; the others' shares grow."""
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
"""The budget of this process."""
