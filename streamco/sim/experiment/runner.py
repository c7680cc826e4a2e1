"""Runs scenarios in this process, on all cores, or on a Dask cluster.

Each outcome goes to the result store as soon as it arrives, and isn't kept in memory. Only a few more scenarios than there are slots are
handed out at a time, so that thousands of them wait here and not in the executor's queues. Metrics don't depend on where or when a scenario
runs.
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

AHEAD = 2  # scenarios handed out for each slot, so that no slot waits for the next one
LOOK_EVERY = 0.2  # seconds between two checks for Ctrl-C
END_WITHIN = 5.0  # maximum seconds to wait for terminated processes


def run_sweep(
    scenarios: Sequence[Scenario], store: ResultStore, *, jobs: int, dask: str | None = None, progress: Callable[[int, int], None]
) -> None:
    """Run the scenarios whose outcomes aren't in the store yet.

    Args:
        scenarios: all scenarios of the sweep.
        store: gets the outcomes.
        jobs: number of processes, or 1 to use only this process.
        dask: address of the scheduler of a Dask cluster that runs them instead, or None to run them here.
        progress: called with the number of finished scenarios and the number of all scenarios.

    Raises:
        StreamcoError: a scenario can't be run, or a process died. Outcomes that were finished before that are in the store.
    """
    named = {name_of(scenario): scenario for scenario in scenarios}  # equal scenarios are run once
    left = {name: scenario for name, scenario in named.items() if name not in store}
    finished = len(named) - len(left)
    progress(finished, len(named))
    with closing(_outcomes(left, jobs=jobs, dask=dask)) as outcomes:
        for name, outcome in outcomes:
            store.add(name, outcome)
            finished += 1
            progress(finished, len(named))


def _outcomes(left: dict[str, Scenario], *, jobs: int, dask: str | None) -> Generator[tuple[str, bytes]]:
    """Yield (key, outcome as JSON) of each scenario as it finishes."""
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
            "simulate: a process was ended by the system, perhaps because it took too much memory: try fewer --jobs; "
            "the same command goes on with what is missing"
        ) from error


def _hand_out(left: dict[str, Scenario], executor: Executor, slots: int, pressed: list[int]) -> Iterator[tuple[str, bytes]]:
    waiting = iter(left.items())
    running: dict[Future[bytes], str] = {}
    done: Queue[Future[bytes]] = Queue()  # a SimpleQueue that gets a signal at its timeout waits forever
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
    """Yield the futures that are done. Wait at most ``LOOK_EVERY`` seconds for the first one."""
    with suppress(Empty):
        yield done.get(timeout=LOOK_EVERY)
        while True:
            yield done.get_nowait()


def _check_processes(executor: Executor) -> None:
    """Raise if a process has died, which the pool doesn't notice while it waits for the rest of that process's message."""
    processes = getattr(executor, "_processes", None) or {}
    for process in list(processes.values()):
        if process.exitcode:
            raise BrokenProcessPool(f"process {process.pid} ended with {process.exitcode}")


def _run(scenario: Scenario) -> bytes:
    """Run a scenario and return its outcome as JSON. Errors name the scenario's point."""
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
            resource_tracker.ensure_running()  # started here, because starting it later would unblock Ctrl-C for the workers
        others = set(active_children())
        executor = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin_worker)
        is_finished = False
        try:
            yield executor, jobs, pressed
            is_finished = True
        finally:
            if not is_finished:
                _end_workers(executor, set(active_children()) - others)
            # The executor's own thread must end before the interpreter does.
            ending = Thread(target=partial(executor.shutdown, wait=True, cancel_futures=True), daemon=True)
            ending.start()
            until = math.inf if is_finished else time.monotonic() + END_WITHIN
            while ending.is_alive() and time.monotonic() < until and not (is_finished and pressed):
                ending.join(LOOK_EVERY)


def _end_workers(executor: ProcessPoolExecutor, workers: Iterable[BaseProcess]) -> None:
    """Terminate the workers, because their results aren't needed.

    If a worker is in the middle of a message, the pool waits for the rest as long as any process could write it. This process also holds
    the writing end of the pipe, so this function closes that end.
    """
    for process in workers:
        process.terminate()
    results = getattr(executor, "_result_queue", None)
    if results is not None:
        results._writer.close()


@contextmanager
def _catching_ctrl_c() -> Iterator[list[int]]:
    """Record Ctrl-C in the yielded list, and raise it only at the end, because a pool breaks if it is raised inside the pool's code."""
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
    """Block Ctrl-C. A process that is started inside the block inherits this, and unblocks Ctrl-C when it has set its handler."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker() -> None:
    """Ignore Ctrl-C in a worker, because the parent ends its workers, and would think that a worker that ended by itself had crashed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if (parent := parent_process()) is not None:
        Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    """End this worker when its parent has died."""
    connection.wait([sentinel])
    os._exit(1)


@contextmanager
def _cluster(address: str) -> Iterator[tuple[Executor, int, list[int]]]:
    try:
        distributed: Any = import_module("distributed")  # has no types
    except ModuleNotFoundError as error:
        raise ConfigError("--dask: needs the package distributed: pip install distributed") from error
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
