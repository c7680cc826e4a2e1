"""The timer that paced answers share: order, never early, one file a loop, closed with the last answer."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import uvloop

from streamco.client.race.driver import RaceDriver
from streamco.client.release_timer import LinuxTimer, ReleaseTimer, share_timer
from streamco.core.race.attempt import AttemptPlan
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.endpoints.base import Request
from streamco.testing.endpoint import ScriptedEndpoint

linux = pytest.mark.skipif(sys.platform != "linux", reason="timerfd is Linux's")
ROOT = Path(__file__).resolve().parents[2]


class Bell:
    """A file that becomes readable when the test rings it. Implements ``WakeFile``."""

    def __init__(self) -> None:
        self.settings: list[float | None] = []
        self.is_closed = False
        self._reads, self._writes = os.pipe()
        os.set_blocking(self._reads, False)

    def fileno(self) -> int:
        return self._reads

    def set(self, deadline: float | None) -> None:
        self.settings.append(deadline)
        with suppress(BlockingIOError):
            os.read(self._reads, 100)

    def ring(self) -> None:
        os.write(self._writes, b".")

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            os.close(self._reads)
            os.close(self._writes)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def run_on(loop_name: str, main: Coroutine[Any, Any, None]) -> None:
    if loop_name == "uvloop":
        uvloop.run(main)
    else:
        asyncio.run(main)


def open_timers() -> int:
    """Return how many timerfds this process has open, without those of loops that are garbage."""
    gc.collect()
    folder = Path("/proc/self/fd")
    return sum("timerfd" in _target(each) for each in folder.iterdir()) if folder.exists() else 0


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except FileNotFoundError:  # the one that listed the folder
        return ""


# The heap, with a file that the test rings


async def test_what_is_due_runs_in_the_order_of_the_deadlines_then_of_the_calls() -> None:
    bell, done = Bell(), list[str]()
    timer = ReleaseTimer(asyncio.get_running_loop(), bell).join()
    now = time.monotonic()
    for name, deadline in [("c", now - 1), ("a", now - 3), ("d", now - 1), ("b", now - 2), ("later", now + 1000)]:
        timer.call_at(deadline, lambda name=name: done.append(name))  # type: ignore[misc]
    bell.ring()
    await turns()
    assert done == ["a", "b", "c", "d"]
    assert bell.settings[-1] == now + 1000
    timer.leave()


async def test_a_file_that_is_readable_too_early_releases_nothing() -> None:
    bell, done = Bell(), list[str]()
    timer = ReleaseTimer(asyncio.get_running_loop(), bell).join()
    deadline = time.monotonic() + 1000
    timer.call_at(deadline, lambda: done.append("early"))
    bell.ring()
    await turns()
    assert done == []
    assert bell.settings == [deadline, deadline]
    timer.leave()


async def test_the_file_is_set_only_for_an_earlier_deadline() -> None:
    bell = Bell()
    timer = ReleaseTimer(asyncio.get_running_loop(), bell).join()
    for deadline in (9e9, 8e9, 8.5e9, 8e9, 7e9):
        timer.call_at(deadline, lambda: None)
    assert bell.settings == [9e9, 8e9, 7e9]
    timer.leave()


async def test_a_cancelled_call_is_not_made() -> None:
    bell, done = Bell(), list[str]()
    timer = ReleaseTimer(asyncio.get_running_loop(), bell).join()
    first = timer.call_at(1.0, lambda: done.append("first"))
    second = timer.call_at(2.0, lambda: done.append("second"))
    timer.call_at(1.5, second.cancel)
    first.cancel()
    first.cancel()
    bell.ring()
    await turns()
    assert done == []
    assert bell.settings[-1] is None
    second.cancel()
    timer.leave()


async def test_cancelled_deadlines_do_not_pile_up() -> None:
    bell, done = Bell(), list[int]()
    timer = ReleaseTimer(asyncio.get_running_loop(), bell).join()
    kept = [timer.call_at(float(number), lambda number=number: done.append(number)) for number in range(10)]  # type: ignore[misc]
    for _ in range(10_000):
        timer.call_at(9e9, lambda: None).cancel()
    assert len(timer._heap) < 200
    kept[3].cancel()
    bell.ring()
    await turns()
    assert done == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    timer.leave()


async def test_a_call_that_is_set_while_others_run_waits_for_the_next_turn() -> None:
    bell, order = Bell(), list[str]()
    timer = ReleaseTimer(asyncio.get_running_loop(), bell).join()

    def again() -> None:
        order.append("call")
        if len(order) < 5:
            timer.call_at(1.0, again)  # overdue from the beginning
            asyncio.get_running_loop().call_soon(order.append, "another task")
            bell.ring()

    timer.call_at(1.0, again)
    bell.ring()
    for _ in range(20):
        await asyncio.sleep(0)
        if bell.settings[-1] == 1.0:
            bell.ring()  # as a timerfd that is set for a time that has passed
    assert order == ["call", "another task", "call", "another task", "call"]
    timer.leave()


async def test_an_error_in_one_call_is_reported_and_stops_no_other() -> None:
    bell, done, reported = Bell(), list[str](), list[dict[str, Any]]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    timer = ReleaseTimer(loop, bell).join()
    timer.call_at(1.0, lambda: 1 // 0)  # type: ignore[arg-type]
    timer.call_at(2.0, lambda: done.append("second"))
    bell.ring()
    await turns()
    assert done == ["second"]
    assert [type(context["exception"]) for context in reported] == [ZeroDivisionError]
    timer.leave()


def test_an_interrupt_ends_the_turn_and_loses_no_deadline() -> None:
    bell, done = Bell(), list[str]()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        timer = ReleaseTimer(loop, bell).join()
        timer.call_at(1.0, interrupt)
        timer.call_at(2.0, lambda: done.append("second"))
        bell.ring()
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(turns())
        bell.ring()
        loop.run_until_complete(turns())
        assert done == ["second"]
        timer.leave()


async def test_a_call_runs_in_the_context_that_set_it() -> None:
    request, seen = ContextVar("request", default="none"), list[str]()
    bell = Bell()

    async def answer(name: str, timer: ReleaseTimer) -> None:
        request.set(name)
        timer.call_at(1.0, lambda: seen.append(request.get()))

    request.set("of the first user")
    timer = ReleaseTimer(asyncio.get_running_loop(), bell).join()
    await asyncio.gather(asyncio.create_task(answer("a", timer)), asyncio.create_task(answer("b", timer)))
    bell.ring()
    await turns()
    assert seen == ["a", "b"]
    timer.leave()


async def test_the_last_call_may_close_the_timer() -> None:
    bell = Bell()
    timer = ReleaseTimer(asyncio.get_running_loop(), bell).join()
    other = timer.call_at(2.0, lambda: None)

    def leave() -> None:
        other.cancel()
        timer.leave()

    timer.call_at(1.0, leave)
    bell.ring()
    await turns()
    assert bell.is_closed


# Who gets one


@linux
async def test_the_answers_of_a_loop_share_one_file_until_the_last_one_ends() -> None:
    loop, bells = asyncio.get_running_loop(), list[Bell]()

    def make() -> Bell:
        bells.append(Bell())
        return bells[-1]

    first, second = share_timer(loop, time.monotonic, make_file=make), share_timer(loop, time.monotonic, make_file=make)
    assert first is not None
    assert second is first
    first.leave()
    assert [bell.is_closed for bell in bells] == [False]
    first.leave()
    assert [bell.is_closed for bell in bells] == [True]
    assert not loop.remove_reader(bells[0]._reads)
    third = share_timer(loop, time.monotonic, make_file=make)
    assert third is not None
    assert third is not first
    third.leave()
    assert [bell.is_closed for bell in bells] == [True, True]


async def test_a_clock_of_its_own_needs_the_loops_timers() -> None:
    loop = asyncio.get_running_loop()
    assert share_timer(loop, loop.time, make_file=Bell) is None


@pytest.fixture
def shifted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A clock in the place of ``time.monotonic`` that goes on, as a test of the caller's may put it there."""
    real = time.monotonic

    def clock() -> float:
        return real() + 1e9

    for module in [time, *(module for name, module in sys.modules.items() if name.startswith("streamco."))]:
        for name in [name for name, value in vars(module).items() if value is real]:
            monkeypatch.setattr(module, name, clock)
    return clock


async def test_a_clock_in_the_place_of_the_systems_needs_the_loops_timers(shifted: Callable[[], float]) -> None:
    assert time.monotonic is shifted
    assert share_timer(asyncio.get_running_loop(), time.monotonic) is None


async def test_a_paced_answer_is_read_while_another_clock_is_in_the_systems_place(shifted: Callable[[], float]) -> None:
    async with asyncio.timeout(20):
        assert len(await read_times(paced(5, 50.0))) == 5


async def test_a_clock_that_is_replaced_during_an_answer_does_not_move_its_deadlines() -> None:
    bell, done = Bell(), list[str]()
    timer = ReleaseTimer(asyncio.get_running_loop(), bell).join()
    timer.call_at(time.monotonic() + 1000, lambda: done.append("early"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: 1e9)
        bell.ring()
        await turns()
    assert done == []
    timer.leave()


def test_an_import_under_another_clock_does_not_take_it_for_the_systems() -> None:
    code = """
import asyncio, time
real = time.monotonic
time.monotonic = lambda: real() + 1e9
from streamco.client.release_timer import share_timer
async def main():
    print(share_timer(asyncio.get_running_loop(), time.monotonic))
asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "None"


async def test_another_system_has_the_loops_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert share_timer(asyncio.get_running_loop(), time.monotonic, make_file=Bell) is None


@linux
async def test_a_loop_that_watches_no_files_has_its_own_timers_and_nothing_stays_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise NotImplementedError

    loop, bell = asyncio.get_running_loop(), Bell()
    with monkeypatch.context() as patch, caplog.at_level(logging.DEBUG, "streamco"):
        patch.setattr(loop, "add_reader", refuse)
        assert share_timer(loop, time.monotonic, make_file=lambda: bell) is None
    assert bell.is_closed
    assert "a paced answer uses the loop's own timers: NotImplementedError" in caplog.text


@linux
async def test_without_a_file_descriptor_the_loops_timers_serve(caplog: pytest.LogCaptureFixture) -> None:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    loop = asyncio.get_running_loop()
    with caplog.at_level(logging.DEBUG, "streamco"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))
        try:
            assert share_timer(loop, time.monotonic) is None
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "Too many open files" in caplog.text


# Linux's timerfd


@linux
@pytest.mark.parametrize("loop_name", ["asyncio", "uvloop"])
def test_no_call_is_early_on_either_loop(loop_name: str) -> None:
    rng = random.Random(5)

    async def main() -> None:
        timer = share_timer(asyncio.get_running_loop(), time.monotonic)
        assert timer is not None
        early, left, done = list[float](), 400, asyncio.Event()

        def check(deadline: float) -> None:
            nonlocal left
            left -= 1
            if (now := time.monotonic()) < deadline:
                early.append(deadline - now)
            if not left:
                done.set()

        start = time.monotonic()
        for _ in range(left):
            deadline = start + rng.uniform(-0.01, 0.2)
            timer.call_at(deadline, lambda deadline=deadline: check(deadline))  # type: ignore[misc]
        await done.wait()
        assert early == []
        timer.leave()

    run_on(loop_name, main())
    assert open_timers() == 0


@linux
def test_a_timerfd_is_readable_from_its_time_on_until_it_is_set_again() -> None:
    import select

    timer, poll = LinuxTimer(), select.poll()
    poll.register(timer.fileno(), select.POLLIN)
    assert poll.poll(0) == []
    deadline = time.monotonic() + 0.02
    timer.set(deadline)
    assert poll.poll(10_000)
    assert time.monotonic() >= deadline
    timer.set(time.monotonic() + 1000)
    assert poll.poll(0) == []
    timer.set(0.0)  # the past
    assert poll.poll(10_000)
    timer.set(None)
    assert poll.poll(0) == []
    assert not os.get_inheritable(timer.fileno())
    timer.close()
    timer.close()
    with pytest.raises(OSError, match="timerfd: Bad file descriptor"):
        timer.set(1.0)


@linux
@pytest.mark.parametrize("loop_name", ["asyncio", "uvloop"])
def test_a_loop_that_is_closed_under_its_answers_leaks_no_file(loop_name: str) -> None:
    async def main() -> None:
        timer = share_timer(asyncio.get_running_loop(), time.monotonic)
        assert timer is not None
        timer.call_at(time.monotonic() + 1000, lambda: None)

    run_on(loop_name, main())
    assert open_timers() == 0


FORK = """
import asyncio, os
from streamco.client.client import Client
from streamco.testing.endpoint import ScriptedEndpoint

script = [(0.0, f"w{number} ") for number in range(30)]

async def read(forks):
    words, child = [], 0
    async with Client(server=ScriptedEndpoint("server", script), pace=300.0) as client:
        async for token in client.stream("hello"):
            words.append(token.text)
            if forks and len(words) == 3 and (child := os.fork()) == 0:
                asyncio._set_running_loop(None)
                os._exit(asyncio.new_event_loop().run_until_complete(read(False)))
    code = 0 if words == [text for _, text in script] else 1
    return code or (os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0)

raise SystemExit(asyncio.run(read(True)))
"""


@linux
def test_parent_and_child_of_a_fork_release_their_own_tokens() -> None:
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert (run.returncode, run.stderr) == (0, "")


# Paced answers


def paced(count: int, pace: float | None, name: str = "server") -> RaceDriver:
    endpoint = ScriptedEndpoint(name, [(0.0, f"w{index} ") for index in range(count)])
    machine = RaceMachine(RacePlan(attempts=(AttemptPlan(name, 0.0),), pace=pace))
    return RaceDriver(machine, {name: endpoint}, Request(prompt="p"))


async def read_times(driver: RaceDriver) -> list[float]:
    driver.start()
    times: list[float] = []
    while (batch := await driver.next_batch()) is not None:
        times += [batch[2]] * sum(bool(chunk.choices[0].delta.content) for chunk in batch[1])
    await driver.aclose()
    return times


@linux
@pytest.mark.parametrize("loop_name", ["asyncio", "uvloop"])
def test_many_answers_of_a_loop_have_one_file_and_no_token_early(loop_name: str) -> None:
    async def main() -> None:
        paces = [50.0 + 7 * number for number in range(40)]
        reads = [asyncio.create_task(read_times(paced(20, pace))) for pace in paces]
        await asyncio.sleep(0.05)
        assert open_timers() == 1
        for pace, times in zip(paces, await asyncio.gather(*reads), strict=True):
            assert len(times) == 20
            assert all(moment >= times[0] + index / pace - 1e-9 for index, moment in enumerate(times))
        assert open_timers() == 0

    run_on(loop_name, main())


@linux
async def test_an_answer_that_is_left_gives_its_place_up_and_one_without_a_pace_takes_none() -> None:
    direct, left, crashed = paced(3, None), paced(1000, 1.0), paced(1000, 1.0)
    direct.start()
    await direct.next_batch()
    assert open_timers() == 0
    await direct.aclose()
    for driver in (left, crashed):
        driver.start()
        await driver.next_batch()
    assert open_timers() == 1
    crashed._crash(ZeroDivisionError())
    await asyncio.gather(left.aclose(), crashed.aclose())
    assert open_timers() == 0


@pytest.mark.parametrize("loop_name", ["asyncio", "uvloop"])
def test_without_a_timerfd_the_loops_timers_release_no_token_early(loop_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "another")

    async def main() -> None:
        times = await read_times(paced(20, 100.0))
        assert open_timers() == 0
        assert all(moment >= times[0] + index / 100 - 1e-9 for index, moment in enumerate(times))

    run_on(loop_name, main())
