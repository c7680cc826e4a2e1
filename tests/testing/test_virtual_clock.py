"""The loop whose time passes only while nothing else can happen."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from streamco.testing.virtual_clock import VirtualTimeLoop, run_in_virtual_time


def test_hours_pass_in_no_time() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert loop.time() == 0.0
        await asyncio.sleep(3600)
        await asyncio.sleep(0.5)
        return loop.time()

    before = time.monotonic()
    assert run_in_virtual_time(main()) == pytest.approx(3600.5)
    assert time.monotonic() - before < 60


def test_what_is_ready_comes_before_time_passes() -> None:
    order: list[str] = []

    async def worker(name: str, delay: float) -> None:
        for step in range(3):
            order.append(f"{name}{step}")
            await asyncio.sleep(0)
        await asyncio.sleep(delay)
        order.append(f"{name} woke")

    async def main() -> None:
        await asyncio.gather(worker("a", 2.0), worker("b", 1.0))

    run_in_virtual_time(main())
    assert order == ["a0", "b0", "a1", "b1", "a2", "b2", "b woke", "a woke"]


def test_timers_fire_in_their_order_and_at_their_times() -> None:
    fired: list[int] = []
    times: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def fire(number: int) -> None:
            fired.append(number)
            times.append(loop.time())

        for number in (3, 1, 2):
            loop.call_at(float(number), fire, number)
        await asyncio.sleep(5)

    run_in_virtual_time(main())
    assert fired == [1, 2, 3]
    assert times == pytest.approx([1.0, 2.0, 3.0])


def test_the_same_program_always_runs_the_same_way() -> None:
    async def main() -> list[float]:
        times: list[float] = []

        async def tick(period: float) -> None:
            for _ in range(20):
                await asyncio.sleep(period)
                times.append(asyncio.get_running_loop().time())

        await asyncio.gather(*(tick(0.1 * n) for n in range(1, 6)))
        return times

    assert run_in_virtual_time(main()) == run_in_virtual_time(main())


def test_timeouts_are_virtual_too() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await asyncio.get_running_loop().create_future()
        assert asyncio.get_running_loop().time() == pytest.approx(1000)

    run_in_virtual_time(main())


def test_sockets_that_are_ready_are_served() -> None:
    async def main() -> bytes:
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False)
            far.send(b"hi")
            return await asyncio.get_running_loop().sock_recv(near, 10)

    assert run_in_virtual_time(main()) == b"hi"


def test_results_and_errors_come_out() -> None:
    async def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_in_virtual_time(fails())


def test_a_loop_begins_at_zero_and_can_be_closed() -> None:
    loop = VirtualTimeLoop()
    assert loop.time() == 0.0
    loop.close()
    assert loop.is_closed()
