"""Runs scenarios, wherever there is room: in this process, on all cores, or on a Dask cluster.

Each outcome goes to the ledger as soon as it is there, and out of memory. A few scenarios more than there is room for are handed out at a
time, so that thousands of them wait here and not in queues of others. Which one is run where and when changes no figure.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib import import_module
from itertools import islice
from multiprocessing import active_children, connection, get_context, parent_process, resource_tracker
from multiprocessing.process import BaseProcess
from queue import Empty, Queue
from threading import Thread, current_thread, main_thread
from typing import Any

import msgspec

from streamco.errors import ConfigError, StreamcoError
from streamco.sim.experiment.result_store import ResultStore, name_of
from streamco.sim.experiment.scenario import Scenario, run_scenario

__all__ = ["run_sweep"]

AHEAD = 2  # scenarios handed out for each that can run: nobody waits for the next one
LOOK_EVERY = 0.2  # seconds between two looks at whether Ctrl-C was pressed
END_WITHIN = 5.0  # seconds for processes that were ended


def run_sweep(
    scenarios: Sequence[Scenario], store: ResultStore, *, jobs: int, dask: str | None = None, progress: Callable[[int, int], None]
) -> None:
    """Run what the ledger hasn't got.

    Args:
        jobs: processes; 1: this one.
        dask: address of a cluster's scheduler, which runs them instead.
        progress: is told how many are finished, and how many there are.

    Raises:
        StreamcoError: a scenario can't be run, or a process died. What was finished before is in the ledger.
    """
    named = {name_of(scenario): scenario for scenario in scenarios}  # the same content is run once
    left = {name: scenario for name, scenario in named.items() if name not in store}
    finished = len(named) - len(left)
    progress(finished, len(named))
    with closing(_outcomes(left, jobs=jobs, dask=dask)) as outcomes:
        for name, outcome in outcomes:
            store.add(name, outcome)
            finished += 1
            progress(finished, len(named))


def _outcomes(left: dict[str, Scenario], *, jobs: int, dask: str | None) -> Generator[tuple[str, bytes]]:
    """(name, outcome as JSON), as they come."""
    if not left:
        return
    if dask is None and min(jobs, len(left)) == 1:
        for name, scenario in left.items():
            yield name, _run(scenario)
        return
    try:
        with _cluster(dask) if dask is not None else _processes(min(jobs, len(left))) as (executor, slots, pressed):
            yield from _hand_out(left, executor, slots, pressed)
    except BrokenProcessPool as error:
        raise StreamcoError(
            "simulate: expected every process to live, one was ended by the system, perhaps for its memory: try fewer --jobs; "
            "the same command goes on with what is missing"
        ) from error


def _hand_out(left: dict[str, Scenario], executor: Executor, slots: int, pressed: list[int]) -> Iterator[tuple[str, bytes]]:
    waiting = iter(left.items())
    running: dict[Future[bytes], str] = {}
    done: Queue[Future[bytes]] = Queue()  # a SimpleQueue that hears a signal as its time is up waits for ever
    while True:
        for name, scenario in islice(waiting, AHEAD * slots - len(running)):
            with _masking_ctrl_c():
                future = executor.submit(_run, scenario)
            running[future] = name
            future.add_done_callback(done.put)
        if not running:
            return
        for finished in _finished(done):
            yield running.pop(finished), finished.result()
        if pressed:
            raise KeyboardInterrupt
        _check_processes(executor)


def _finished(done: Queue[Future[bytes]]) -> Iterator[Future[bytes]]:
    """Those that are there; a moment is waited for the first."""
    with suppress(Empty):
        yield done.get(timeout=LOOK_EVERY)
        while True:
            yield done.get_nowait()


def _check_processes(executor: Executor) -> None:
    """Raise where one is gone: the pool itself doesn't see it that waits for the rest of what that one said."""
    processes = getattr(executor, "_processes", None) or {}
    for process in list(processes.values()):
        if process.exitcode:
            raise BrokenProcessPool(f"process {process.pid} ended with {process.exitcode}")


def _run(scenario: Scenario) -> bytes:
    """Return the outcome as JSON; errors say which point they are of."""
    where = ", ".join([*(f"{name} {value}" for name, value in scenario.point.items()), f"seed {scenario.seed}"])
    try:
        return msgspec.json.encode(run_scenario(scenario))
    except ConfigError as error:
        raise ConfigError(f"at {where}: {error}") from error
    except Exception as error:
        error.add_note(f"in the scenario at {where}")
        raise


@contextmanager
def _processes(jobs: int) -> Iterator[tuple[Executor, int, list[int]]]:
    with _catching_ctrl_c() as pressed:
        with _masking_ctrl_c():
            resource_tracker.ensure_running()  # it would unblock Ctrl-C where a worker is to begin without
        others = set(active_children())
        executor = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin_worker)
        is_finished = False
        try:
            yield executor, jobs, pressed
            is_finished = True
        finally:
            if not is_finished:
                _end_workers(executor, set(active_children()) - others)
            # Its own thread must be over before the interpreter ends.
            ending = Thread(target=partial(executor.shutdown, wait=True, cancel_futures=True), daemon=True)
            ending.start()
            until = math.inf if is_finished else time.monotonic() + END_WITHIN
            while ending.is_alive() and time.monotonic() < until and not (is_finished and pressed):
                ending.join(LOOK_EVERY)


def _end_workers(executor: ProcessPoolExecutor, workers: Iterable[BaseProcess]) -> None:
    """Nobody wants what they are at.

    Where one is in the middle of a message the pool waits for the rest, as long as anybody could write it: so could this process.
    """
    for process in workers:
        process.terminate()
    results = getattr(executor, "_result_queue", None)
    if results is not None:
        results._writer.close()


@contextmanager
def _catching_ctrl_c() -> Iterator[list[int]]:
    """Notes that it was pressed, for whoever looks there, and raises at the end: pools don't bear an exception just anywhere."""
    pressed: list[int] = []
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) in {signal.SIG_IGN, None}:
        yield pressed
        return
    usual = signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, usual)
        if pressed:
            raise KeyboardInterrupt


@contextmanager
def _masking_ctrl_c() -> Iterator[None]:
    """A process that is started in the block inherits this: Ctrl-C waits until it knows what to do about it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker() -> None:
    """Ctrl-C is the parent's business, which ends its workers; one that died by itself would look like a crash to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if (parent := parent_process()) is not None:
        Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    """A worker whose parent was ended without a word goes, too."""
    connection.wait([sentinel])
    os._exit(1)


@contextmanager
def _cluster(address: str) -> Iterator[tuple[Executor, int, list[int]]]:
    try:
        distributed: Any = import_module("distributed")  # has no types
    except ModuleNotFoundError as error:
        raise ConfigError("--dask: expected the package distributed, got none: pip install distributed") from error
    try:
        client = distributed.Client(address)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--dask: expected the address of a scheduler that answers, got {address!r}: {error}") from error
    with client:
        slots = sum(client.nthreads().values())
        if not slots:
            raise ConfigError(f"--dask: expected a cluster with workers, got none at {address}")
        with _catching_ctrl_c() as pressed:
            yield client.get_executor(pure=False), slots, pressed
