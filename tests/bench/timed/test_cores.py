"""Threads and processes that start on a core stay there, and this process gets its cores back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from bench.timed.cores import on_core, two_cores

SHOW = "import os; print(sorted(os.sched_getaffinity(0)))"


def test_what_starts_on_a_core_is_bound_to_it() -> None:
    mine = os.sched_getaffinity(0)
    core = min(mine)
    found: list[set[int]] = []
    with on_core(core):
        child = subprocess.run([sys.executable, "-c", SHOW], check=True, capture_output=True, text=True)
        thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
    assert child.stdout.strip() == f"[{core}]"
    assert found == [{core}]
    assert os.sched_getaffinity(0) == mine


def test_threads_that_run_already_are_bound_too() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert thread.native_id is not None
    core = min(os.sched_getaffinity(0))
    with on_core(core):
        assert os.sched_getaffinity(thread.native_id) == {core}
    stop.set()
    thread.join()


def test_two_cores_differ_and_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 1})
    assert two_cores() == (1, 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4})
    with pytest.raises(SystemExit, match="expected two cores"):
        two_cores()


def test_without_a_core_nothing_is_bound() -> None:
    mine = os.sched_getaffinity(0)
    with on_core(None):
        assert os.sched_getaffinity(0) == mine
