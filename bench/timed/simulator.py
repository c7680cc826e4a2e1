"""How fast is the simulator, and does its memory grow with the requests it has finished?

Events are those of SimPy. Most of them are handled by a live machine (speculation, scheduler or race) with its policies. Their time is
counted, because it is most of a simulation's. ``bare events`` is SimPy alone, each event a timeout with a callback, for comparison. Memory
is a process's highest resident size; each size has a process of its own. The sweep of DiSCo's policies is run whole with ``--million``, on
all cores; otherwise a fiftieth of it is run and its time is given for that.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import simpy

from bench.report import Row, add_arguments, emit, interleave, summarise
from streamco.sim.driver import call_at
from streamco.sim.experiment.scenario import KINDS, Scenario, run_scenario

__all__ = ["main"]

BENCH = "simulator"
LARGE: dict[str, Any] = {  # DSD section 5.2
    "devices": 600,
    "servers": 20,
    "device_pools": [{"model": "llama2-7b", "gpu": "a40", "engine": "graphs"}, {"model": "llama2-7b", "gpu": "v100", "engine": "graphs"}],
    "server_pools": [{"model": "llama2-70b", "gpu": "a100", "tensor_parallel": 4, "engine": "graphs"}],
    "link": {"rtt_ms": 10},
}
REQUESTS = 900  # 400 GSM8K, 400 CNN/DailyMail and 100 HumanEval in the paper; GSM8K's here
BUDGETS = tuple(round(0.1 * step, 1) for step in range(1, 10))
POLICIES = ("disco", "stochastic")
SIDES = ("device", "server")
PHONES = ("pixel7-bloom-1.1b", "pixel7-bloom-560m", "xiaomi14-qwen-0.5b")
SERVICES = ("openai-gpt-3.5-turbo-0125", "openai-gpt-4-0125-preview", "together-llama-2-70b-chat", "bedrock-llama-2-70b-chat")
SWEEP = 1_000_000  # requests of all points together
CHAINS, LINKS = 1000, 200  # of bare events


def speculating(requests: int, *, seed: int = 1, **policy: Any) -> Scenario:
    """DSD's large world."""
    workload = {"trace": "gsm8k", "requests": requests, "arrivals": {"poisson_per_s": 25}}
    return Scenario(
        kind="speculate",
        kind_location=KINDS["speculate"],
        seed=seed,
        world=LARGE,
        workload=workload,
        policy={"routing": "jsq", "batching": "length-aware", **policy},
    )


def racing(requests: int, *, budget: float, dispatch: str, constrained: str, device: str, service: str) -> Scenario:
    """One point of DiSCo's sweep."""
    return Scenario(
        kind="race",
        kind_location=KINDS["race"],
        seed=7,
        world={"device": device, "service": service},
        workload={"requests": requests},
        policy={"dispatch": dispatch, "budget": budget, "constrained": constrained},
    )


def bare_events() -> None:
    """SimPy alone."""
    env = simpy.Environment()

    def chain(left: int) -> None:
        if left:
            call_at(env, 1.0, lambda: chain(left - 1))

    for _ in range(CHAINS):
        chain(LINKS)
    env.run()


def count_events(run: Callable[[], object]) -> int:
    """Events of SimPy in a run, which is the same every time."""
    counted, step = 0, simpy.Environment.step

    def counting(env: simpy.Environment) -> None:
        nonlocal counted
        counted += 1
        step(env)

    with mock.patch.object(simpy.Environment, "step", counting):
        run()
    return counted


def speed(rounds: int, requests: int) -> Iterator[Row]:
    """Events a second of a core, and seconds of the large world, contenders in turn."""
    point: dict[str, Any] = {"budget": 0.3, "dispatch": "disco", "constrained": "device", "device": PHONES[0], "service": SERVICES[1]}
    world = f"{LARGE['devices']} devices, {LARGE['servers']} servers, {requests} requests"
    contenders: dict[str, tuple[str, Callable[[], object]]] = {
        "bare events": ("SimPy alone", bare_events),
        "the target alone": (world, partial(run_scenario, speculating(requests, execution="fused"))),
        "drafting, then waiting": (world, partial(run_scenario, speculating(requests, window=4))),
        "drafting on meanwhile": (world, partial(run_scenario, speculating(requests, window="confident", branches=6))),
        "racing": (f"one device, one service, {requests} requests", partial(run_scenario, racing(requests, **point))),
    }
    events = {name: count_events(run) for name, (_, run) in contenders.items()}  # what is loaded once is loaded then
    samples = interleave({name: partial(_seconds, run) for name, (_, run) in contenders.items()}, rounds)
    for name, (case, _) in contenders.items():
        rates = [events[name] / seconds for seconds in samples[name]]
        yield summarise(rates, bench=BENCH, case=case, contender=name, metric="events of SimPy a second", unit="1/s")
        yield summarise(samples[name], bench=BENCH, case=case, contender=name, metric="time", unit="s")


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def memory(sizes: tuple[int, ...]) -> Iterator[Row]:
    """Highest resident size by the number of requests."""
    for kind, size in product(("speculate", "race"), sizes):
        command = [sys.executable, "-m", "bench.timed.simulator", "--memory-of", kind, str(size)]
        peak = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        yield Row(BENCH, f"{kind}, {size:,} requests", "streamco", "highest resident memory", "MB", peak, peak, peak)


def memory_of(kind: str, size: int) -> float:
    """Megabytes at most, after so many requests."""
    point: dict[str, Any] = {"budget": 0.3, "dispatch": "disco", "constrained": "device", "device": PHONES[0], "service": SERVICES[1]}
    run_scenario(speculating(size, execution="fused") if kind == "speculate" else racing(size, **point))
    status = Path("/proc/self/status")  # its peak is this program's; getrusage's may be that of the process it was forked from
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def sweep(requests: int) -> Iterator[Row]:
    """All points of DiSCo's sweep on all cores."""
    points = list(product(BUDGETS, POLICIES, SIDES, PHONES, SERVICES))
    each = max(1, requests // len(points))
    names = ("budget", "dispatch", "constrained", "device", "service")
    settings: list[dict[str, Any]] = [dict(zip(names, point, strict=True)) for point in points]
    scenarios = [racing(each, **setting) for setting in settings]
    began = time.perf_counter()
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        completed = sum(outcome.system["completed"] for outcome in pool.map(run_scenario, scenarios, chunksize=4))
    took = time.perf_counter() - began
    if completed != each * len(points):
        raise AssertionError(f"expected {each * len(points)} answers, got {completed}")
    case = f"DiSCo's policies, {len(points)} points, {each * len(points):,} requests, all cores"
    yield Row(BENCH, case, "streamco", "time", "s", took, took, took)
    yield Row(BENCH, case, "streamco", "requests a second", "1/s", *[completed / took] * 3)


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--million", action="store_true", help="the whole sweep of a million requests")
    parser.add_argument("--memory-of", nargs=2, metavar=("KIND", "REQUESTS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of is not None:
        print(memory_of(options.memory_of[0], int(options.memory_of[1])))
        return 0
    rounds, requests = (1, 100) if options.quick else (3, REQUESTS)
    sizes = (200, 1000) if options.quick else (1000, 10_000, 50_000)
    rows = [*speed(rounds, requests), *memory(sizes), *sweep(SWEEP if options.million else SWEEP // (500 if options.quick else 50))]
    emit(rows, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
