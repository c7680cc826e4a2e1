"""Runs scenarios, wherever there is room: in this process, on all cores, or on a Dask cluster.

Each outcome goes to the ledger as soon as it is there, and out of memory. A few scenarios more than there is room for are handed out at a
time, so that thousands of them wait here and not in queues of others. Which one is run where and when changes no figure.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from multiprocessing import active_children, get_context, resource_tracker
from threading import current_thread, main_thread
from typing import Any

import msgspec

from streamco.errors import ConfigError, StreamcoError
from streamco.sim.ledger import Ledger, name_of
from streamco.sim.scenario import Scenario, run_scenario

__all__ = ["run_sweep"]

AHEAD = 2  # scenarios handed out for each that can run: nobody waits for the next one


def run_sweep(
    scenarios: Sequence[Scenario], ledger: Ledger, *, jobs: int, dask: str | None = None, progress: Callable[[int, int], None]
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
    left = {name: scenario for name, scenario in named.items() if name not in ledger}
    finished = len(named) - len(left)
    progress(finished, len(named))
    for name, outcome in _outcomes(left, jobs=jobs, dask=dask):
        ledger.add(name, outcome)
        finished += 1
        progress(finished, len(named))


def _outcomes(left: dict[str, Scenario], *, jobs: int, dask: str | None) -> Iterator[tuple[str, bytes]]:
    """(name, outcome as JSON), as they come."""
    if not left:
        return
    if dask is None and min(jobs, len(left)) == 1:
        for name, scenario in left.items():
            yield name, _run(scenario)
        return
    with _cluster(dask) if dask is not None else _processes(min(jobs, len(left))) as (executor, room):
        waiting = iter(left.items())
        running: dict[Future[bytes], str] = {}
        while True:
            for name, scenario in islice(waiting, AHEAD * room - len(running)):
                with _holding_ctrl_c():
                    running[executor.submit(_run, scenario)] = name
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


def _run(scenario: Scenario) -> bytes:
    """The outcome as JSON; errors say which point they are of."""
    where = ", ".join([*(f"{name} {value}" for name, value in scenario.point.items()), f"seed {scenario.seed}"])
    try:
        return msgspec.json.encode(run_scenario(scenario))
    except ConfigError as error:
        raise ConfigError(f"at {where}: {error}") from error
    except Exception as error:
        error.add_note(f"in the scenario at {where}")
        raise


@contextmanager
def _processes(jobs: int) -> Iterator[tuple[Executor, int]]:
    resource_tracker.ensure_running()  # would let Ctrl-C through where it is held, if it began there
    others = set(active_children())
    executor = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin_worker)
    is_finished = False
    try:
        yield executor, jobs
        is_finished = True
    except BrokenProcessPool as error:
        raise StreamcoError(
            "simulate: expected every process to live, one was ended by the system, perhaps for its memory: try fewer --jobs; "
            "the same command goes on with what is missing"
        ) from error
    finally:
        with _holding_ctrl_c():  # a second one, by an impatient person: workers hear of none but here
            executor.shutdown(wait=is_finished, cancel_futures=True)
            if not is_finished:
                for process in set(active_children()) - others:  # nobody wants what they are at
                    process.terminate()


@contextmanager
def _holding_ctrl_c() -> Iterator[None]:
    """Ctrl-C waits until the block is over, and is told then even where the block failed; a process that is started in it lets it wait,
    too, until it knows what to do about it.

    The mask is for the process, which inherits it; the handler, for the interpreter would take the signal by another thread.
    """
    if not hasattr(signal, "pthread_sigmask") or current_thread() is not main_thread():
        yield
        return
    held: list[int] = []
    usual = signal.signal(signal.SIGINT, lambda number, _frame: held.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, usual)
        if held:
            signal.raise_signal(signal.SIGINT)


def _begin_worker() -> None:
    """Ctrl-C is the parent's business, which ends its workers; one that died by itself could look like a crash to it first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def _cluster(address: str) -> Iterator[tuple[Executor, int]]:
    try:
        distributed: Any = import_module("distributed")  # has no types
    except ModuleNotFoundError as error:
        raise ConfigError("--dask: expected the package distributed, got none: pip install distributed") from error
    try:
        client = distributed.Client(address)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--dask: expected the address of a scheduler that answers, got {address!r}: {error}") from error
    with client:
        room = sum(client.nthreads().values())
        if not room:
            raise ConfigError(f"--dask: expected a cluster with workers, got none at {address}")
        yield client.get_executor(pure=False), room
