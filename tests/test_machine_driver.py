"""The loop that every asyncio driver shares: events in order, commands, the deadline, tasks and the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from streamco.machine_driver import MachineDriver, TaskDriver, clock_of
from streamco.testing.virtual_clock import run_in_virtual_time


class Echo:
    """A machine that commands what it receives; numbers are times to wait for, "boom" is a defect."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.deadline: float | None = None
        self.calls: list[float] = []

    def start(self, *, now: float) -> None:
        self.commands.append("started")

    def receive(self, event: str, *, now: float) -> None:
        if event == "boom":
            raise ZeroDivisionError
        if event.startswith("at "):
            self.deadline = float(event[3:])
        else:
            self.commands.append(event)

    def take_commands(self) -> list[str]:
        commands, self.commands = self.commands, []
        return commands

    def next_deadline(self) -> float | None:
        return self.deadline

    def handle_deadline(self, *, now: float) -> None:
        self.calls.append(now)
        self.deadline = None
        self.commands.append("due")


class EchoDriver(MachineDriver[str, str]):
    """Collects commands; "again" emits an event while it is carried out."""

    machine: Echo

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.log: list[tuple[float, str | None, list[str]]] = []
        self.done: list[str] = []
        self.errors: list[BaseException] = []
        super().__init__(Echo(), clock=clock, log=self.log)

    def _run_command(self, command: str, now: float) -> None:
        if command == "again":
            self.emit("later")
        self.done.append(command)

    def _crash(self, error: BaseException) -> None:
        self._has_crashed = True
        self.errors.append(error)


async def test_events_before_the_start_wait_for_it() -> None:
    driver = EchoDriver()
    driver.emit("early")
    assert driver.done == []
    driver.start()
    assert driver.done == ["started", "early"]


async def test_an_event_during_a_step_is_taken_after_all_commands_of_the_step() -> None:
    driver = EchoDriver()
    driver.start()
    driver.machine.commands += ["again"]
    driver.emit("next")
    assert driver.done == ["started", "again", "next", "later"]
    assert [(event, commands) for _, event, commands in driver.log] == [
        (None, ["started"]),
        ("next", ["again", "next"]),
        ("later", ["later"]),
    ]


async def test_a_defect_is_reported_once_and_ends_the_steps() -> None:
    driver = EchoDriver()
    driver.start()
    for event in ("boom", "boom", "word"):
        driver.emit(event)
    assert [type(error) for error in driver.errors] == [ZeroDivisionError]
    assert driver.done == ["started"]


def test_a_deadline_is_handled_when_it_has_come_also_if_it_was_moved() -> None:
    async def main() -> None:
        driver = EchoDriver()
        driver.start()
        driver.emit("at 5")
        await asyncio.sleep(1)
        driver.emit("at 9")  # later: the timer of 5 s is kept and sets itself again
        await asyncio.sleep(6)
        assert driver.machine.calls == []
        await asyncio.sleep(2.5)
        assert driver.machine.calls == [pytest.approx(9)]
        driver.emit("at 20")
        driver.emit("at 12")  # earlier
        await asyncio.sleep(3)
        assert driver.machine.calls[1:] == [pytest.approx(12)]
        assert driver.done == ["started", "due", "due"]

    run_in_virtual_time(main())


def test_a_timer_that_fires_early_is_set_again() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        driver = EchoDriver(clock=lambda: loop.time() - 0.001 * (loop.time() < 1.0005))
        driver.start()
        driver.emit("at 1")
        await asyncio.sleep(2)
        assert len(driver.machine.calls) == 1
        assert 1.0 <= driver.machine.calls[0] <= 1.001

    run_in_virtual_time(main())


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_deadlines_shorter_than_the_loops_resolution_come_and_move(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """uvloop's ``call_at`` returns a handle without ``when`` for such delays: the driver remembers the time itself."""

    async def run() -> EchoDriver:
        driver = EchoDriver()
        driver.start()
        for step in range(200):
            now = driver.now
            driver.emit(f"at {now + (step % 7) * 0.0001}")
            driver.emit(f"at {now + (step % 5) * 0.0001}")  # earlier or later than the timer is set for
            while driver.machine.deadline is not None:
                await asyncio.sleep(0)
        return driver

    with asyncio.Runner(loop_factory=factory) as runner:
        driver = runner.run(run())
    assert driver.errors == []
    assert driver.done.count("due") == len(driver.machine.calls) >= 200


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("wait", [0.0004, 0.0014, 0.0026])
def test_a_deadline_between_two_milliseconds_is_not_early_and_is_not_spun_for(
    factory: Callable[[], asyncio.AbstractEventLoop], wait: float
) -> None:
    """uvloop waits for whole milliseconds: it calls back early, at once for the shortest delay, and the driver waits a millisecond more."""

    async def run() -> None:
        driver = EchoDriver()
        wake, wakes = driver._on_timer, list[float]()

        def count() -> None:
            wakes.append(driver.now)
            wake()

        driver._on_timer = count  # type: ignore[method-assign]
        driver.start()
        for _ in range(20):
            wakes.clear()
            deadline = driver.now + wait
            driver.emit(f"at {deadline!r}")
            while driver.machine.deadline is not None:
                await asyncio.sleep(0.0005)
            assert driver.machine.calls[-1] >= deadline
            assert len(wakes) <= 3

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())


class Call:
    """A call that a test makes itself."""

    def __init__(self, delay: float, callback: Callable[[], None]) -> None:
        self.delay, self.callback, self.is_cancelled = delay, callback, False

    def cancel(self) -> None:
        self.is_cancelled = True


class Diary:
    """Stands in for a loop: it keeps the calls that it is to make later."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Call:
        self.calls.append(Call(delay, callback))
        return self.calls[-1]


async def test_the_timer_is_set_only_when_the_deadline_comes_nearer() -> None:
    now, diary = 0.0, Diary()
    driver = EchoDriver(clock=lambda: now)
    driver._loop = diary  # type: ignore[assignment]
    driver.start()
    for event in ("at 9", "word", "at 12", "at 9", "at 7", "word"):
        driver.emit(event)
    assert [(call.delay, call.is_cancelled) for call in diary.calls] == [(9.0, True), (7.0, False)]
    now = 6.5
    diary.calls[-1].callback()  # too early
    assert (driver.machine.calls, diary.calls[-1].delay) == ([], 0.5)
    now = 7.25
    diary.calls[-1].callback()
    assert driver.machine.calls == [7.25]
    assert len(diary.calls) == 3


async def test_a_driver_that_is_over_leaves_no_timer_set() -> None:
    diary, driver = Diary(), WorkingDriver()
    driver._loop = diary  # type: ignore[assignment]
    driver.start()
    driver.emit("at 1e9")
    await driver.aclose()
    await driver.aclose()
    assert [call.is_cancelled for call in diary.calls] == [True]


def test_the_clock_is_the_systems_unless_the_loop_has_its_own() -> None:
    async def main() -> Callable[[], float]:
        return clock_of(asyncio.get_running_loop())

    assert asyncio.run(main()) is time.monotonic
    assert run_in_virtual_time(main()) is not time.monotonic


class WorkingDriver(TaskDriver[str, str]):
    """Is done when it was left; records crashes and its end."""

    def __init__(self, on_over: Callable[[WorkingDriver], None] | None = None) -> None:
        super().__init__(Echo(), on_over=on_over)
        self.errors: list[BaseException] = []
        self.has_left = False

    def leave(self) -> None:
        self.has_left = True
        self._end_if_idle()

    def _run_command(self, command: str, now: float) -> None:
        pass

    def _crash(self, error: BaseException) -> None:
        self.errors.append(error)

    def _is_done(self) -> bool:
        return self.has_left


async def test_a_driver_is_over_once_when_it_is_done_and_its_last_task_has_ended() -> None:
    ends: list[WorkingDriver] = []
    driver, gate = WorkingDriver(ends.append), asyncio.Event()

    async def work() -> None:
        await gate.wait()

    task = driver._spawn(work(), "works")
    assert task.get_name() == "works"
    driver.leave()
    assert (driver.is_over, ends) == (False, [])
    gate.set()
    await driver.aclose()
    await driver.aclose()
    assert driver.is_over
    assert ends == [driver]


async def test_an_error_of_a_task_is_a_crash_and_a_cancelled_task_is_none() -> None:
    driver, failure = WorkingDriver(), ValueError("broken")

    async def fail() -> None:
        raise failure

    async def wait() -> None:
        await asyncio.Event().wait()

    waiting, failing = driver._spawn(wait(), "waits"), driver._spawn(fail(), "fails")
    with pytest.raises(ValueError, match="broken"):
        await failing
    waiting.cancel()
    await driver.aclose()
    assert driver.errors == [failure]


async def test_closing_waits_for_tasks_that_begin_meanwhile() -> None:
    driver, ended = WorkingDriver(), list[str]()

    async def second() -> None:
        await asyncio.sleep(0)
        ended.append("second")

    async def first() -> None:
        driver._spawn(second(), "second")
        ended.append("first")

    driver._spawn(first(), "first")
    await driver.aclose()
    assert ended == ["first", "second"]


async def test_leaving_from_another_thread_happens_on_the_loop() -> None:
    driver = WorkingDriver()
    await asyncio.to_thread(driver.leave_soon)
    await asyncio.sleep(0)
    assert driver.is_over


async def test_an_error_while_the_end_is_recorded_goes_to_the_loop() -> None:
    def spoil(driver: WorkingDriver) -> None:
        raise ZeroDivisionError

    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    driver = WorkingDriver(spoil)
    await driver.aclose()
    assert driver.is_over
    assert [type(context["exception"]) for context in reported] == [ZeroDivisionError]
