"""How exactly is a paced token released?

The whole driver (session machine, pacing buffer, loop timer, reader's wake-up) against the ways people pace by hand, on asyncio and
uvloop, on an idle loop and on one where another thread holds the interpreter lock. The error of token n is its release minus ``t_first +
n / rate``.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable

from bench.report import Row, add_arguments, emit
from streamco.client.race.driver import RaceDriver
from streamco.core.race.attempt import AttemptPlan
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.endpoints.base import Request
from streamco.testing.endpoint import ScriptedEndpoint

Releases = Callable[[float, int], AsyncIterator[float]]


async def streamco(rate: float, count: int) -> AsyncIterator[float]:
    endpoint = ScriptedEndpoint("server", [(0.0, f"w{index} ") for index in range(count)])
    plan = RacePlan(attempts=(AttemptPlan("server", 0.0),), pace=rate)
    driver = RaceDriver(RaceMachine(plan), {"server": endpoint}, Request(prompt="p"))
    driver.start()
    is_first = True
    while (batch := await driver.next_batch()) is not None:
        for chunk in batch[1]:
            if chunk.choices[0].delta.content:
                yield batch[2] if is_first else time.monotonic()  # the timeline begins with the arrival of the first token
                is_first = False


async def sleep_between(rate: float, count: int) -> AsyncIterator[float]:
    for _ in range(count):
        yield time.monotonic()
        await asyncio.sleep(1 / rate)


async def sleep_to_deadline(rate: float, count: int) -> AsyncIterator[float]:
    loop = asyncio.get_running_loop()
    first = loop.time()
    for index in range(count):
        await asyncio.sleep(max(0.0, first + index / rate - loop.time()))
        yield time.monotonic()


CONTENDERS: dict[str, Releases] = {"streamco": streamco, "sleep to deadline": sleep_to_deadline, "sleep(1/rate)": sleep_between}


async def errors(releases: Releases, rate: float, count: int) -> list[float]:
    times = [moment async for moment in releases(rate, count)]
    return [(moment - times[0] - index / rate) * 1000 for index, moment in enumerate(times)][1:]


def hold_lock(stop: threading.Event) -> None:
    while not stop.is_set():
        sum(range(20_000))


def run(loop_name: str, releases: Releases, rate: float, count: int) -> list[float]:
    if loop_name == "uvloop":
        import uvloop

        return uvloop.run(errors(releases, rate, count))
    return asyncio.run(errors(releases, rate, count))


def measure(case: str, loop_name: str, rate: float, seconds: float, rounds: int) -> list[Row]:
    samples: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    drifts: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(rounds):
        for name, releases in CONTENDERS.items():
            late = run(loop_name, releases, rate, max(4, int(rate * seconds)))
            samples[name] += late
            drifts[name].append(statistics.median(late[-max(1, len(late) // 5) :]))
    rows = []
    for name, late in samples.items():
        ordered = sorted(late)
        p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        rows.append(Row("pacing", case, name, "error p99", "ms", p99, ordered[0], ordered[-1]))
    for name, late in samples.items():
        rows.append(Row("pacing", case, name, "error median", "ms", statistics.median(late), min(late), max(late)))
    for name, values in drifts.items():
        rows.append(Row("pacing", case, name, "lateness at the end", "ms", statistics.median(values), min(values), max(values)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    args = parser.parse_args()
    rates, seconds, rounds = ([5.0, 100.0], 1.0, 1) if args.quick else ([5.0, 20.0, 100.0], 4.0, 3)
    rows: list[Row] = []
    for loop_name in ("asyncio", "uvloop"):
        for rate in rates:
            rows += measure(f"{loop_name}, idle, {rate:g} tokens/s", loop_name, rate, seconds, rounds)
        stop = threading.Event()
        thread = threading.Thread(target=hold_lock, args=(stop,), daemon=True)
        thread.start()
        try:
            rows += measure(f"{loop_name}, interpreter lock busy, 20 tokens/s", loop_name, 20.0, seconds, rounds)
        finally:
            stop.set()
            thread.join()
    emit(rows, args.json)


if __name__ == "__main__":
    main()
