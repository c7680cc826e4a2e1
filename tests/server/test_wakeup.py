"""From the engine's thread to a coroutine: bells, coalesced wake-ups, one generation and its reader."""

from __future__ import annotations

import asyncio
import threading
from random import Random

import msgspec
import pytest

from streamco.config import SamplingOptions
from streamco.emulation.latency_replay import LatencyProfile, LatencyReplay
from streamco.engines.base import GenerationRequest
from streamco.errors import EngineError
from streamco.server.wakeup import MAX_HELD_PIECES, GenerationReader, LoopClock, WakeCoalescer, WakeEvent
from streamco.testing.engine import FakeEngine
from tests.server.support import ManualClock, until

PROFILE = LatencyProfile(name="made", source="here", license="MIT", ttft_s=(1.0,), gap_s=(0.5,))


def request(**sampling: object) -> GenerationRequest:
    return GenerationRequest(prompt_ids=[1, 2, 3], sampling=msgspec.convert(sampling, type=SamplingOptions))


def work_of(engine: FakeEngine, clock: ManualClock | None = None, replay: LatencyReplay | None = None) -> GenerationReader:
    return GenerationReader(engine, request(), WakeCoalescer(), clock or LoopClock(), replay)


async def read_all(work: GenerationReader) -> tuple[str, str]:
    text = ""
    while True:
        burst = await work.receive(None)
        assert burst is not None
        text += "".join(piece.text for piece in burst[0])
        if burst[1] is not None:
            return text, burst[1].reason


async def test_a_bell_that_rang_before_the_wait_is_heard() -> None:
    event = WakeEvent()
    event.wake()
    assert await event.wait(None) is True


async def test_a_bell_is_heard_once() -> None:
    event = WakeEvent()
    event.wake()
    event.wake()
    assert await event.wait(None)
    assert await event.wait(asyncio.get_running_loop().time()) is False


async def test_a_wait_ends_at_its_deadline_and_not_before() -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 0.02
    assert await WakeEvent().wait(deadline) is False
    assert loop.time() >= deadline - 0.001


async def test_a_cancelled_wait_loses_no_ring() -> None:
    event = WakeEvent()
    waiting = asyncio.ensure_future(event.wait(None))
    await asyncio.sleep(0)
    event.wake()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await event.wait(None)


async def test_many_wakes_from_a_thread_are_one_loop_wake_up() -> None:
    loop = asyncio.get_running_loop()
    scheduled = 0
    real = loop.call_soon_threadsafe

    def counting(*args: object) -> asyncio.Handle:
        nonlocal scheduled
        scheduled += 1
        return real(*args)  # type: ignore[arg-type]

    loop.call_soon_threadsafe = counting  # type: ignore[method-assign,assignment]
    waker = WakeCoalescer()
    events = [WakeEvent() for _ in range(8)]
    wakes = [waker.bind(event) for event in events]

    def burst() -> None:
        for wake in wakes:
            wake()

    thread = threading.Thread(target=burst)
    thread.start()
    thread.join()
    assert scheduled == 1
    assert all([await event.wait(None) for event in events])
    burst()
    assert scheduled == 2


def test_a_wake_after_the_loop_was_closed_is_no_error_in_the_engines_thread() -> None:
    async def bind() -> WakeCoalescer:
        return WakeCoalescer()

    waker = asyncio.run(bind())
    waker.bind(WakeEvent())()


async def test_a_whole_answer_is_read_in_order_with_its_end() -> None:
    assert await read_all(work_of(FakeEngine("one two three"))) == ("one two three", "stop")


@pytest.mark.parametrize("seed", range(3))
async def test_an_answer_written_by_a_thread_is_read_whole(seed: int) -> None:
    words = " ".join(str(number) for number in range(200))
    engine = FakeEngine(words, mode="thread", token_s=Random(seed).choice([0.0, 0.0001]), ring_tokens=7)
    assert await read_all(work_of(engine)) == (words, "stop")
    engine.close()


async def test_a_burst_is_read_as_one() -> None:
    engine = FakeEngine("one two three four", mode="manual")
    work = work_of(engine)
    engine.step(3)
    burst = await work.receive(None)
    assert burst is not None
    assert [piece.text for piece in burst[0]] == ["one", " two", " three"]


async def test_a_reader_that_does_not_read_parks_its_generation() -> None:
    engine = FakeEngine(" ".join(["word"] * 100), mode="manual", ring_tokens=10)
    work = work_of(engine)
    engine.step(100)
    burst = await work.receive(None)
    assert burst is not None
    assert len(burst[0]) == 10


async def test_nothing_within_the_deadline_is_none_and_the_answer_goes_on() -> None:
    engine, clock = FakeEngine("late", mode="manual"), ManualClock()
    work = work_of(engine, clock)
    waiting = asyncio.ensure_future(work.receive(10.0))
    await clock.asleep()
    clock.advance(10.0)
    assert await waiting is None
    engine.step(2)
    assert await read_all(work) == ("late", "stop")


async def test_a_stopped_work_wakes_its_reader_and_cancels_its_generation() -> None:
    engine = FakeEngine(mode="manual")
    work = work_of(engine)
    waiting = asyncio.ensure_future(work.receive(None))
    await asyncio.sleep(0)
    work.stop("a shutdown")
    work.stop("another reason")
    assert await waiting is None
    assert work.stopped_by == "a shutdown"
    assert engine.generations[0].is_cancelled


async def test_stopping_after_the_end_cancels_nothing() -> None:
    engine = FakeEngine("done")
    work = work_of(engine)
    await read_all(work)
    work.stop("the reader's leaving")
    assert not engine.generations[0].is_cancelled


async def test_a_cancelled_receive_loses_nothing() -> None:
    engine = FakeEngine("one two", mode="manual")
    work = work_of(engine)
    waiting = asyncio.ensure_future(work.receive(None))
    await asyncio.sleep(0)
    engine.step(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    engine.step(5)
    assert await read_all(work) == ("one two", "stop")


async def test_an_engine_that_refuses_says_so_at_once() -> None:
    engine = FakeEngine()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        work_of(engine)


async def test_pieces_are_held_back_until_they_are_due() -> None:
    clock = ManualClock()
    work = work_of(FakeEngine("one two three"), clock, LatencyReplay(PROFILE, Random(1), 0.0))
    left: list[tuple[float, str]] = []

    async def read() -> None:
        while True:
            burst = await work.receive(None)
            assert burst is not None
            left.extend((clock.now(), piece.text) for piece in burst[0])
            if burst[1] is not None:
                return

    reading = asyncio.ensure_future(read())
    for time in (0.5, 1.0, 1.4, 1.5, 2.0):
        await clock.asleep()
        clock.advance(time)
    await reading
    assert left == [(1.0, "one"), (1.5, " two"), (2.0, " three")]


async def test_generation_runs_ahead_while_pieces_are_held_back_but_not_without_bound() -> None:
    clock = ManualClock()
    engine = FakeEngine(" ".join(["word"] * 5000), mode="thread", ring_tokens=50)
    work = work_of(engine, clock, LatencyReplay(PROFILE, Random(1), 0.0))
    waiting = asyncio.ensure_future(work.receive(None))
    await clock.asleep()
    replay = work._hold
    assert replay is not None
    await until(lambda: replay.held >= MAX_HELD_PIECES)
    await asyncio.sleep(0.02)
    assert replay.held <= MAX_HELD_PIECES + 50
    waiting.cancel()
    work.stop("the test's end")
    engine.close()
