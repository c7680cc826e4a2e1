"""The energy that this machine's processors use, read from their own counters (RAPL), which Linux shows under /sys/class/powercap.

Intel and AMD processors have these counters. Each measures the energy of a whole processor package: its cores, its caches and an integrated
GPU, whatever runs on them, even if they are idle. It doesn't tell which work the energy was used for. So while several pieces of work are
in progress, the energy is divided equally among them, and their parts add up to the energy that the packages have used.

Linux lets only root read the counters, because their values can reveal what other programs compute (CVE-2020-8694).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import NamedTuple

__all__ = ["EnergyMeter", "PackageCounter", "WorkEnergy", "find_packages", "machine_meter"]

_ROOT = Path("/sys/class/powercap")
_MAX_WATTS = 500.0  # of one package; a counter that has moved further was reset, or may have wrapped around more than once
_SLACK_UJ = 1e6

logger = logging.getLogger("streamco.engine")


class PackageCounter(NamedTuple):
    """The counter of one processor package, in microjoules; after ``range_uj`` it starts at 0 again."""

    path: Path
    range_uj: int

    def read(self) -> int:
        """Return the counter.

        Raises:
            OSError, ValueError: it can't be read, or doesn't contain a number.
        """
        return int(self.path.read_bytes())

    def used(self, before: int, after: int, seconds: float) -> float | None:
        """Return the joules between two readings, or None if the readings don't determine them."""
        steps = after - before + (self.range_uj if after < before else 0)
        most = _MAX_WATTS * 1e6 * seconds + _SLACK_UJ
        return None if steps > most or most >= self.range_uj else steps / 1e6


def find_packages(root: Path = _ROOT) -> tuple[PackageCounter, ...]:
    """Return the counters of all packages, or () if there are none or one of them can't be read.

    Only packages count: the other domains are parts of them (``intel-rapl:0:0``: cores, memory), or contain them (``psys``).
    """
    found = []
    try:
        for domain in sorted(root.glob("intel-rapl:*")):
            if domain.name.count(":") == 1 and (domain / "name").read_text().startswith("package"):
                counter = PackageCounter(domain / "energy_uj", int((domain / "max_energy_range_uj").read_bytes()))
                counter.read()
                found.append(counter)
    except (OSError, ValueError):
        return ()
    return tuple(found)


@cache
def machine_meter() -> EnergyMeter | None:
    """Return the meter of this machine, which all engines of the process share, or None if its counters can't be read (decided once)."""
    packages = find_packages()
    return EnergyMeter(packages) if packages else None


class _Mark(NamedTuple):
    each: float
    gaps: int


class EnergyMeter:
    """Divides the energy of all packages among the work in progress. Any thread may call it; a call reads every counter once.

    Once a counter can't be read, the meter stops measuring for good.
    """

    def __init__(self, packages: Sequence[PackageCounter]) -> None:
        self._packages = packages
        self._lock = Lock()
        self._running = 0
        self._each = 0.0  # joules of a piece of work that has been in progress since the beginning
        self._gaps = 0  # number of intervals whose energy isn't known
        self._is_off = False
        self._read: list[int] = []
        self._at = 0.0

    def begin(self, *, now: float) -> _Mark:
        """Record that a piece of work begins or continues; return the mark to pass to ``end``. ``now`` is in seconds, monotonic."""
        with self._lock:
            self._divide(now)
            self._running += 1
            return _Mark(self._each, self._gaps)

    def end(self, begun: _Mark, *, now: float) -> float | None:
        """Record that the work has ended or paused; return the joules it has used since ``begun``, or None if they aren't known."""
        with self._lock:
            self._divide(now)
            self._running -= 1
            return None if self._is_off or begun.gaps != self._gaps else self._each - begun.each

    def _divide(self, now: float) -> None:
        """Give each piece of work its part of the energy used since the last call."""
        if self._is_off:
            return
        try:
            read = [package.read() for package in self._packages]
        except (OSError, ValueError) as error:
            self._is_off = True
            logger.info("energy is estimated from now on, because a counter can't be read any more: %s", error)
            return
        if self._running:
            counters = zip(self._packages, self._read, read, strict=True)
            used = [package.used(before, after, now - self._at) for package, before, after in counters]
            known = [joules for joules in used if joules is not None]
            self._each += sum(known) / self._running
            self._gaps += len(known) < len(used)
        self._read, self._at = read, now


class WorkEnergy:
    """The energy of one piece of work, which may pause.

    Args:
        meter: the machine's meter; None to measure nothing.

    Attributes:
        joules: energy used up to the last ``pause``; None before the first one, or if it isn't known.
    """

    def __init__(self, meter: EnergyMeter | None) -> None:
        self._meter = meter
        self._begun: _Mark | None = None
        self._is_known = True
        self.joules: float | None = None

    def resume(self, *, now: float) -> None:
        """Begin measuring, or continue after a pause."""
        if self._meter is not None and self._begun is None:
            self._begun = self._meter.begin(now=now)

    def pause(self, *, now: float) -> None:
        """Stop measuring, at a pause or at the end; idempotent."""
        if self._meter is None or self._begun is None:
            return
        used = self._meter.end(self._begun, now=now)
        self._begun = None
        self._is_known = self._is_known and used is not None
        self.joules = (self.joules or 0.0) + used if self._is_known and used is not None else None
