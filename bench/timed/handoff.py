"""What does it cost to hand a token from a thread to the event loop?

Every contender runs a real producer thread, its loop written out, and a real asyncio loop with a consumer that looks at every token.

- flat out: the thread pushes as fast as it can, nothing bounds it; wall-clock time a token.
- flat out, bounded: at most 512 tokens lie between the two, and the producer waits for room; those that can.
- bursts: so many tokens at a time, with a pause that gives the loop its turn; CPU time of the process a token, the pauses' own taken off.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

import culsans
import janus

from bench.report import Row, add_arguments, emit, interleave, rows_from
from streamco._native import ACCEPTED, HAS_NATIVE, WAKE, Ring, ring_py

PAUSE = 0.0005  # seconds between bursts
BOUND = 512  # tokens; EngineOptions.ring_tokens
TOKEN = (1, "x")


@dataclass(frozen=True, slots=True)
class Load:
    """So many bursts of so many tokens, with ``pause`` seconds after each; ``bound`` tokens in between at most, None: any number."""

    bursts: int
    burst: int
    pause: float = 0.0
    bound: int | None = None

    @property
    def count(self) -> int:
        """Tokens in all."""
        return self.bursts * self.burst


Contender = Callable[[Load], Coroutine[None, None, None]]


async def through_asyncio_queue(load: Load) -> None:
    queue: asyncio.Queue[object] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def produce() -> None:
        send, put = loop.call_soon_threadsafe, queue.put_nowait
        for _ in range(load.bursts):
            for _ in range(load.burst):
                send(put, TOKEN)
            time.sleep(load.pause)

    thread = start(produce)
    for _ in range(load.count):
        await queue.get()
    thread.join()


async def through_janus(load: Load) -> None:
    queue: janus.Queue[object] = janus.Queue(load.bound or 0)
    thread = start(lambda: put_all(load, queue.sync_q.put))
    get = queue.async_q.get
    for _ in range(load.count):
        await get()
    thread.join()
    await queue.aclose()


async def through_culsans(load: Load) -> None:
    queue: culsans.Queue[object] = culsans.Queue(load.bound or 0)
    thread = start(lambda: put_all(load, queue.sync_put))
    get = queue.async_get
    for _ in range(load.count):
        await get()
    thread.join()


async def through_deque(load: Load) -> None:
    """A deque and one wake-up until it has been emptied: what is usually written by hand."""
    loop, finished = asyncio.get_running_loop(), asyncio.Event()
    tokens: deque[object] = deque()
    asleep, seen = True, 0

    def produce() -> None:
        nonlocal asleep
        append = tokens.append
        for _ in range(load.bursts):
            for _ in range(load.burst):
                append(TOKEN)
                if asleep:
                    asleep = False
                    loop.call_soon_threadsafe(drain)
            time.sleep(load.pause)

    def drain() -> None:
        nonlocal asleep, seen
        asleep = True
        popleft = tokens.popleft
        while tokens:
            popleft()
            seen += 1
        if seen == load.count:
            finished.set()

    thread = start(produce)
    await finished.wait()
    thread.join()


async def through_ring(load: Load, make: Callable[[int], Ring[object]] = Ring) -> None:
    """As the engine uses it: a push that is not simply accepted is the exception."""
    loop, finished, room = asyncio.get_running_loop(), asyncio.Event(), threading.Semaphore(0)
    ring = make(load.bound or load.count)
    seen = 0

    def produce() -> None:
        push = ring.push
        for _ in range(load.bursts):
            for _ in range(load.burst):
                flags = push(TOKEN)
                if flags != ACCEPTED:
                    while not flags & ACCEPTED:
                        room.acquire()
                        flags = push(TOKEN)
                    if flags & WAKE:
                        loop.call_soon_threadsafe(drain)
            time.sleep(load.pause)

    def drain() -> None:
        nonlocal seen
        for _ in ring.drain():
            seen += 1
        if ring.take_unpark():
            room.release()
        if seen == load.count:
            finished.set()

    thread = start(produce)
    await finished.wait()
    thread.join()


async def through_twin(load: Load) -> None:
    await through_ring(load, ring_py.Ring)


async def pauses_alone(load: Load) -> None:
    """A thread that only pauses, beside a loop that only waits: what is taken off."""
    await asyncio.get_running_loop().run_in_executor(None, put_all, load, lambda _: None)


def put_all(load: Load, put: Callable[[object], None]) -> None:
    for _ in range(load.bursts):
        for _ in range(load.burst):
            put(TOKEN)
        time.sleep(load.pause)


def start(produce: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=produce)
    thread.start()
    return thread


BOUNDED: dict[str, Contender] = {
    "janus": through_janus,
    "culsans": through_culsans,
    "streamco": through_ring,
    "streamco, pure twin": through_twin,
}
CONTENDERS: dict[str, Contender] = {
    "asyncio.Queue + call_soon_threadsafe": through_asyncio_queue,
    "deque + one wake-up a burst": through_deque,
    **BOUNDED,
}


def seconds(clock: Callable[[], float], run: Contender, load: Load) -> float:
    async def main() -> float:
        begin = clock()
        await run(load)
        return clock() - begin

    return asyncio.run(main())


def wall(run: Contender, load: Load) -> Callable[[], float]:
    return lambda: seconds(time.perf_counter, run, load) / load.count * 1e6


def cpu(run: Contender, load: Load) -> Callable[[], float]:
    clock = time.process_time
    return lambda: (seconds(clock, run, load) - seconds(clock, pauses_alone, load)) / load.count * 1e6


def measure(rounds: int, count: int, bursts: list[int]) -> list[Row]:
    flat, bounded = Load(1, count), Load(1, count, bound=BOUND)
    samples = interleave({name: wall(run, flat) for name, run in CONTENDERS.items()}, rounds)
    rows = rows_from("handoff", "flat out", "wall time a token", "us", samples)
    samples = interleave({name: wall(run, bounded) for name, run in BOUNDED.items()}, rounds)
    rows += rows_from("handoff", f"flat out, bounded to {BOUND}", "wall time a token", "us", samples)
    for burst in bursts:
        load = Load(300, burst, PAUSE)
        samples = interleave({name: cpu(run, load) for name, run in CONTENDERS.items()}, rounds)
        rows += rows_from("handoff", f"bursts of {burst}", "CPU time a token", "us", samples)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    options = parser.parse_args()
    if not HAS_NATIVE:
        parser.error("expected the compiled leaves, got none: build them with `make native`")
    rounds, count, bursts = (5, 60_000, [1, 16]) if options.quick else (11, 200_000, [1, 4, 16, 64])
    emit(measure(rounds, count, bursts), options.json)


if __name__ == "__main__":
    main()
