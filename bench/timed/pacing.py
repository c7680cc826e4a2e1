"""How exactly is a paced token released, and what does it cost?

Contenders are the whole driver (session machine, ring, reader's wake-up), which waits by the event loop's own timers, and the ways in which
people pace by hand. Several streams run side by side, on asyncio and uvloop, on an idle loop and on one where another
thread holds the interpreter lock. The error of token n is the time when the reader has it minus ``t_first + n / rate``. A negative error is
counted as early. Processor time is that of the loop's thread.

Beside that the pacers are timed alone; the smooth pace follows the text, so it has no timeline whose error could be measured.

Then ten thousand paced streams run on one loop, in a process of their own. The figures are processor time a token, and memory
a stream: the growth of the resident set while the streams hold their tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.report import Row, add_arguments, emit, interleave, per_call, rows_from, summarise
from streamco.client.modes.race.driver import RaceDriver
from streamco.core.pacer import Pacer
from streamco.core.race.attempt import AttemptPlan
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.endpoints.base import Request
from streamco.testing.endpoint import ScriptedEndpoint, text_chunk

Releases = Callable[[float, int], AsyncIterator[float]]
STREAMS = 8  # side by side
LOOPS = ("asyncio", "uvloop")


async def by_loop_timer(rate: float, count: int) -> AsyncIterator[float]:
    endpoint = ScriptedEndpoint("server", [(0.0, "word ")] * count)
    driver = RaceDriver(RaceMachine(RacePlan(attempts=(AttemptPlan("server", 0.0),), pace=rate)), {"server": endpoint}, Request(prompt="p"))
    driver.start()
    is_first = True
    while (batch := await driver.next_batch()) is not None:
        for chunk in batch[1]:
            if chunk.choices[0].delta.content:
                yield batch[2] if is_first else time.monotonic()  # the timeline begins with the arrival of the first token
                is_first = False
    await driver.aclose()


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


DRIVERS: dict[str, Releases] = {"loop timer": by_loop_timer}
BY_HAND: dict[str, Releases] = {"sleep to deadline": sleep_to_deadline, "sleep(1/rate)": sleep_between}


@dataclass
class Figures:
    """What one contender did in one case: errors in ms, their median at each round's end, and processor time in us a token."""

    errors: list[float] = field(default_factory=list)
    drifts: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    early: int = 0

    def add(self, streams: list[list[float]], rate: float, seconds: float) -> None:
        """Add a round: the times of each stream's tokens, and the processor time of all."""
        tails: list[float] = []
        for times in streams:
            late = [(moment - times[0] - index / rate) * 1000 for index, moment in enumerate(times)][1:]
            self.early += sum(error < -1e-6 for error in late)  # a nanosecond: the sum's last bit
            self.errors += late
            tails += late[-max(1, len(late) // 5) :]
        self.drifts.append(statistics.median(tails))
        self.processor.append(seconds / sum(map(len, streams)) * 1e6)

    def rows(self, case: str, name: str) -> list[Row]:
        """Return a row for each metric."""
        ordered = sorted(self.errors)
        p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        return [
            Row("pacing", case, name, "error p99", "ms", p99, ordered[0], ordered[-1]),
            summarise(ordered, bench="pacing", case=case, contender=name, metric="error median", unit="ms"),
            summarise(self.drifts, bench="pacing", case=case, contender=name, metric="lateness at the end", unit="ms"),
            summarise(self.processor, bench="pacing", case=case, contender=name, metric="processor time", unit="us a token"),
            Row("pacing", case, name, "early tokens", "tokens", self.early, self.early, self.early),
        ]


async def read(releases: Releases, rate: float, count: int, delay: float) -> list[float]:
    await asyncio.sleep(delay)
    return [moment async for moment in releases(rate, count)]


async def read_all(releases: Releases, rate: float, count: int, streams: int) -> tuple[list[list[float]], float]:
    """Return each stream's times, and the processor time of all in seconds; they begin at different phases of the period."""
    began = time.thread_time()
    times = await asyncio.gather(*(read(releases, rate, count, number / streams / rate) for number in range(streams)))
    return times, time.thread_time() - began


def run_on(loop_name: str, main: Coroutine[Any, Any, Any]) -> Any:
    if loop_name == "uvloop":
        import uvloop

        return uvloop.run(main)
    return asyncio.run(main)


def hold_lock(stop: threading.Event) -> None:
    while not stop.is_set():
        sum(range(20_000))


@contextmanager
def busy_interpreter(is_busy: bool) -> Iterator[None]:
    """Let another thread hold the interpreter lock whenever it can."""
    stop = threading.Event()
    thread = threading.Thread(target=hold_lock, args=(stop,), daemon=True)
    if is_busy:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if is_busy:
            thread.join()


def measure(loop_name: str, is_busy: bool, rate: float, contenders: dict[str, Releases], *, seconds: float, rounds: int) -> list[Row]:
    figures = {name: Figures() for name in contenders}
    names = list(contenders)
    with busy_interpreter(is_busy):
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                streams, used = run_on(loop_name, read_all(contenders[name], rate, max(4, int(rate * seconds)), STREAMS))
                figures[name].add(streams, rate, used)
    case = f"{loop_name}, {'interpreter lock busy' if is_busy else 'idle'}, {rate:g} tokens/s"
    return [row for name, each in figures.items() for row in each.rows(case, name)]


# Ten thousand streams


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def crowd(name: str, streams: int, starts: float, count: int) -> dict[str, float]:
    """Run many streams of a token a second. Figures are taken from the time when the last has started to the end of the first.

    Args:
        name: the contender.
        streams: their number.
        starts: seconds over which they start, so that starting them is no burst.
        count: tokens of each, more than ``starts`` + 1.
    """
    releases, before, begun = DRIVERS[name], resident(), time.monotonic()
    reads = [asyncio.create_task(read(releases, 1.0, count, 1.0 + starts * number / streams)) for number in range(streams)]
    await asyncio.sleep(begun + 1.2 + starts - time.monotonic())
    grown, used, since = resident() - before, time.thread_time(), time.monotonic()
    await asyncio.sleep(begun + count - time.monotonic())
    used, until = time.thread_time() - used, time.monotonic()
    figures, times = Figures(), await asyncio.gather(*reads)
    figures.add(times, 1.0, used)
    ordered = sorted(figures.errors)
    return {
        "processor time [us a token]": used / sum(since <= moment <= until for each in times for moment in each) * 1e6,
        "memory [KiB a stream]": grown / streams / 1024,
        "error p99 [ms]": ordered[int(0.99 * len(ordered))],
        "early tokens [tokens]": figures.early,
    }


def run_crowd(loop_name: str, name: str, streams: int, starts: float, count: int) -> dict[str, float]:
    figures: dict[str, float] = run_on(loop_name, crowd(name, streams, starts, count))
    return figures


def measure_crowds(streams: int, starts: float, count: int) -> list[Row]:
    rows: list[Row] = []
    for loop_name in LOOPS:
        found: dict[str, dict[str, float]] = {}
        for name in DRIVERS:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                found[name] = pool.submit(run_crowd, loop_name, name, streams, starts, count).result()
        case = f"{loop_name}, {streams:,} streams, 1 token/s each"
        for label in found["loop timer"]:
            metric, unit = label[:-1].split(" [")
            rows += rows_from("pacing", case, metric, unit, {name: [figures[label]] for name, figures in found.items()})
    return rows


# The pacers


def measure_pacers(rounds: int) -> list[Row]:
    """Return a token's way through a pacer: fed, looked at twice, released; evenly, and in bursts of eight."""

    def contender(pacer: Pacer, burst: int) -> Callable[[], float]:
        chunks, now = [text_chunk(" word")] * burst, 0.0

        def pass_one() -> None:
            nonlocal now
            now += 0.02 * burst
            while (due := pacer.next_due()) is not None and due <= now:
                pacer.release(now=due)
            pacer.feed("server", chunks, now=now)
            pacer.release(now=now)

        return per_call(pass_one, 20_000 // burst, scale=1e6 / burst)

    rows: list[Row] = []
    for case, burst in (("a pacer alone, 50 tokens/s", 1), ("a pacer alone, 8 tokens every 160 ms", 8)):
        samples = interleave({"pace 50": contender(Pacer(50.0), burst), "pace smooth": contender(Pacer("smooth"), burst)}, rounds)
        rows += rows_from("pacing", case, "time", "us a token", samples)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    args = parser.parse_args()
    rates, seconds, rounds = ([100.0], 0.5, 1) if args.quick else ([5.0, 20.0, 100.0], 2.5, 2)
    rows = measure_pacers(rounds=5)
    for loop_name in LOOPS:
        for is_busy in (False, True):
            for rate in rates:
                contenders = DRIVERS | BY_HAND if rate == 20.0 else DRIVERS
                rows += measure(loop_name, is_busy, rate, contenders, seconds=seconds, rounds=rounds)
    rows += measure_crowds(1000, 0.5, 3) if args.quick else measure_crowds(10_000, 5.0, 9)
    emit(rows, args.json, against="loop timer")


if __name__ == "__main__":
    main()
