"""A loop that stood still makes no peer silent, and a silent peer is still found out."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, cast

import pytest
import uvloop

from streamco.endpoints.network.peer_timeout import PeerTimeout, PeerTimer, SecondLook
from streamco.testing import run_in_virtual_time
from streamco.testing.virtual_clock import VirtualTimeLoop
from tests.support.leaks import alive, without_collector

LOOPS = pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


def stand_still(seconds: float) -> None:
    """Compute for so long, as some task of an app may."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def silences(main: Callable[[VirtualTimeLoop, Callable[[], None]], Coroutine[Any, Any, None]]) -> list[float]:
    """Run something in virtual time; when it was told of a silence."""
    heard: list[float] = []

    async def run() -> None:
        loop = cast(VirtualTimeLoop, asyncio.get_running_loop())
        await main(loop, lambda: heard.append(loop.time()))

    run_in_virtual_time(run())
    return heard


def test_a_timer_in_time_ends_the_limit_and_a_late_one_looks_again_a_few_times() -> None:
    look = SecondLook()
    assert look.wait(0.0, 10.0) is None
    assert [look.wait(1.5, 10.0) for _ in range(4)] == [1.0, 1.0, 1.0, None]
    assert (look.wait(99.0, 10.0), look.is_pending) == (1.0, True)
    assert (look.wait(0.5, 10.0), look.is_pending) == (None, False)
    look.wait(99.0, 10.0)
    look.reset()
    assert [look.wait(9.0, 10.0) for _ in range(4)] == [1.0, 1.0, 1.0, None]


def test_a_peer_that_is_silent_is_heard_of_once_and_in_time() -> None:
    async def main(loop: VirtualTimeLoop, on_silence: Callable[[], None]) -> None:
        PeerTimer(loop, 10.0, on_silence)
        await asyncio.sleep(100)

    assert silences(main) == [10.0]


def test_after_the_loop_stood_still_the_peer_has_a_part_of_its_limit_once_more() -> None:
    async def main(loop: VirtualTimeLoop, on_silence: Callable[[], None]) -> None:
        PeerTimer(loop, 10.0, on_silence)
        loop.now += 60
        await asyncio.sleep(100)

    assert silences(main) == [61.0]


def test_a_timer_that_is_cancelled_between_two_looks_says_nothing() -> None:
    async def main(loop: VirtualTimeLoop, on_silence: Callable[[], None]) -> None:
        timer = PeerTimer(loop, 10.0, on_silence)
        loop.now += 60
        await asyncio.sleep(0.5)
        timer.cancel()
        timer.cancel()
        await asyncio.sleep(100)

    assert silences(main) == []


def test_an_app_that_stops_its_loop_again_and_again_still_hears_of_a_silent_peer() -> None:
    async def main(loop: VirtualTimeLoop, on_silence: Callable[[], None]) -> None:
        PeerTimer(loop, 10.0, on_silence)
        for _ in range(10):
            loop.now += 60
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    assert silences(main) == [240.0]


@pytest.mark.long("after the first case")
@LOOPS
@pytest.mark.parametrize("tasks", [1, 4])
def test_what_lay_in_the_socket_while_the_loop_stood_still_is_read(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], tasks: int
) -> None:
    async def passed_on(reading: Coroutine[Any, Any, bytes], times: int) -> bytes:
        """Read in a task of a task, as a connection that many share."""
        return await reading if not times else await asyncio.create_task(passed_on(reading, times - 1))

    async def run() -> bytes:
        loop, (ours, theirs), (a, b) = asyncio.get_running_loop(), socket.socketpair(), socket.socketpair()

        def say_and_stand_still() -> None:
            """In the phase in which a loop reads: uvloop's timers run before it reads again."""
            loop.remove_reader(a)
            theirs.sendall(b"x")
            stand_still(0.3)

        with theirs, a, b:
            reader, writer = await asyncio.open_connection(sock=ours)
            loop.add_reader(a, say_and_stand_still)
            b.sendall(b"x")
            try:
                async with PeerTimeout(0.1):
                    await passed_on(reader.readexactly(1), tasks)
                    theirs.sendall(b"y")
                    stand_still(0.3)
                    return await passed_on(reader.readexactly(1), tasks)
            finally:
                writer.close()
                await writer.wait_closed()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(run()) == b"y"


@LOOPS
def test_a_peer_that_says_nothing_is_a_timeout_whether_the_loop_stood_still_or_not(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def wait(still: float) -> None:
        asyncio.get_running_loop().call_soon(stand_still, still)
        async with PeerTimeout(0.02):
            await asyncio.get_running_loop().create_future()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        for still in (0.0, 0.1):
            with pytest.raises(TimeoutError):
                runner.run(wait(still))


def test_without_a_limit_and_within_it_nothing_happens_and_a_cancellation_stays_one() -> None:
    async def run() -> None:
        async with PeerTimeout(None):
            await asyncio.sleep(1e6)
        async with PeerTimeout(5.0):
            await asyncio.sleep(4.0)
        await asyncio.sleep(10.0)
        with pytest.raises(TimeoutError):
            async with PeerTimeout(5.0):
                await asyncio.sleep(6.0)
        with pytest.raises(ZeroDivisionError):
            async with PeerTimeout(5.0):
                raise ZeroDivisionError
        waiting = asyncio.create_task(limited())
        await asyncio.sleep(1.0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async def limited() -> None:
        async with PeerTimeout(5.0):
            await asyncio.sleep(6.0)

    run_in_virtual_time(run())


def test_what_is_over_is_forgotten_without_the_garbage_collector() -> None:
    class Owner:
        def hear(self) -> None:
            pass

    async def run() -> None:
        owners = [Owner(), Owner()]
        timers = [PeerTimer(asyncio.get_running_loop(), 1.0, owner.hear) for owner in owners]
        timers[0].cancel()
        for seconds in (5.0, 1.0):
            with suppress(TimeoutError):
                async with PeerTimeout(seconds):
                    await asyncio.sleep(2.0)

    with without_collector():
        run_in_virtual_time(run())
        assert alive(PeerTimeout, PeerTimer) == []
