"""A core for the device and another one for the server, so that neither makes the other late."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["on_core", "two_cores"]


def two_cores() -> tuple[int, int] | None:
    """Return two cores that this process may use; None, and a word on stderr, if the system can't bind threads to cores.

    Raises:
        SystemExit: there is one core only.
    """
    if not hasattr(os, "sched_setaffinity"):
        print("device and server are not bound to a core each: this system can't", file=sys.stderr)
        return None
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("expected two cores, one for the device and one for the server, got one")
    return cores[0], cores[1]


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Bind all threads of this process to a core, and so those and the processes that they start; None: do nothing."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    _bind({core})
    try:
        yield
    finally:
        _bind(before)


def _bind(cores: set[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)
