"""Runs trials in child processes, to find out whether something works without risking a crash of this process.

The result is kept in the user's cache for the machine and the build.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

from streamco.engines.llamacpp.cache_dir import cache_folder, write_whole

__all__ = ["Outcome", "Run", "outcome"]

CHILD_TIMEOUT = 120.0  # seconds; loading is mostly reading the file

Run = Callable[[Sequence[str]], int | None]
Outcome = Literal["works", "dies", "unknown"]
"""How a child ended: with status 0, killed by a signal, or in another way. It is also "unknown" if no child can be started."""


def outcome(key: str, arguments: Sequence[str], run: Run | None = None) -> Outcome:
    """Return how a child process ended, now or in an earlier trial.

    Args:
        key: identifies everything that the outcome depends on, as ``machine_key`` does.
        arguments: the child's module and its arguments.
        run: runs a command and returns its exit status (negative if a signal killed it; None if it didn't end in time).
    """
    known = _read_answer(key)
    if known is not None:
        return "works" if known else "dies"
    if not sys.executable or getattr(sys, "frozen", False):  # an application bundle's executable wouldn't start Python
        return "unknown"
    status = (run or _run)([sys.executable, "-m", *arguments])
    if status is None or status > 0:
        return "unknown"
    _write_answer(key, works=status == 0)
    return "works" if status == 0 else "dies"


def _run(command: Sequence[str]) -> int | None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder) or "."}
    try:
        done = subprocess.run(  # noqa: S603  # this Python, this module
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=CHILD_TIMEOUT, check=False
        )
    except (subprocess.TimeoutExpired, OSError):
        return None
    return done.returncode


def _read_answer(key: str) -> bool | None:
    try:
        works = json.loads((cache_folder("trials") / f"{key}.json").read_bytes())["works"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # never tried, or unreadable; try again
    return bool(works)


def _write_answer(key: str, *, works: bool) -> None:
    with suppress(OSError):  # no home directory or a full disk; the next process tries again
        write_whole(cache_folder("trials") / f"{key}.json", json.dumps({"works": works}).encode())
