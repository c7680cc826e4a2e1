"""The asyncio driver: reading, leaving, pausing; in virtual time where time matters."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest

from streamco.client.driver import Batch
from streamco.client.modes.race.driver import RaceDriver
from streamco.core.race.attempt import AttemptPlan
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.core.race.migration import MigrationPlan
from streamco.endpoints.base import Capabilities, Kind, Request
from streamco.errors import (
    ConcurrentRead,
    ConfigError,
    EndpointConnectError,
    EndpointError,
    EndpointProtocolError,
    StreamClosed,
    StreamcoError,
    UsageError,
)
from streamco.events import StreamEnded, TokensReceived
from streamco.policies.migration import Terms
from streamco.profiles import RemainingLength
from streamco.testing.endpoint import ScriptedEndpoint, ScriptedStream, text_chunk
from streamco.testing.virtual_clock import run_in_virtual_time
from tests.support.leaks import without_collector


def begin(
    *endpoints: ScriptedEndpoint,
    waits: tuple[float | None, ...] = (),
    pace: float | None = None,
    unread: int = 4096,
    on_over: Callable[[RaceDriver], None] | None = None,
    own_clock: bool = False,
) -> RaceDriver:
    attempts = tuple(AttemptPlan(e.name, w) for e, w in zip(endpoints, waits or (0.0,) * len(endpoints), strict=True))
    driver = RaceDriver(
        RaceMachine(RacePlan(attempts=attempts, pace=pace)),
        {endpoint.name: endpoint for endpoint in endpoints},
        Request(prompt="p"),
        max_unread=unread,
        on_over=on_over,
        clock=None if own_clock else asyncio.get_running_loop().time,
    )
    driver.start()
    return driver


async def read_all(driver: RaceDriver) -> str:
    text = ""
    while (batch := await driver.next_batch()) is not None:
        text += "".join(chunk.choices[0].delta.content or "" for chunk in batch[1])
    return text


async def read_into(batches: list[Batch], driver: RaceDriver) -> None:
    while (batch := await driver.next_batch()) is not None:
        batches.append(batch)


def words(*times: float) -> list[tuple[float, str]]:
    return [(time, f"w{index} ") for index, time in enumerate(times)]


def test_the_faster_endpoint_gives_the_answer_and_the_other_is_released() -> None:
    async def main() -> None:
        server, device = ScriptedEndpoint("server", words(0.5, 0.6)), ScriptedEndpoint("device", words(0.2, 0.4, 0.7), cancel_takes=0.1)
        driver = begin(server, device)
        assert await read_all(driver) == "w0 w1 w2 "
        assert driver.machine.winner == "device"
        await driver.aclose()
        assert driver.is_over
        assert (server.active, device.active) == (0, 0)
        assert server.streams[0].is_cancelled

    run_in_virtual_time(main())


def test_a_race_that_is_over_leaves_no_cycles() -> None:
    async def main() -> None:
        driver = begin(ScriptedEndpoint("server", words(0.5, 0.6)), ScriptedEndpoint("device", words(0.2, 0.4), cancel_takes=0.1))
        assert await read_all(driver) == "w0 w1 "
        await driver.aclose()
        await asyncio.sleep(1)  # callbacks of the last tasks
        is_freed = weakref.ref(driver)
        with without_collector():
            del driver
            assert is_freed() is None

    run_in_virtual_time(main())


def test_the_winner_alone_is_read_in_the_readers_own_task() -> None:
    async def main() -> None:
        driver = begin(ScriptedEndpoint("server", words(0.1, 0.2, 0.3)))
        await driver.next_batch()
        await asyncio.sleep(0)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("streamco read")]
        await asyncio.sleep(10)
        assert driver.machine.attempts["server"].tokens == 1, "nobody reads ahead of the reader"
        assert await read_all(driver) == "w1 w2 "

    run_in_virtual_time(main())


def test_paced_tokens_come_when_they_are_due() -> None:
    async def main() -> None:
        driver = begin(ScriptedEndpoint("server", words(*[0.1] * 5)), pace=10.0)
        times = []
        while (batch := await driver.next_batch()) is not None:
            times.append(batch[2])
        assert times == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])

    run_in_virtual_time(main())


def test_a_cancelled_read_loses_nothing() -> None:
    async def main() -> None:
        driver = begin(ScriptedEndpoint("server", words(0.1, 1.0, 1.1)))
        text = ""
        while True:
            try:
                async with asyncio.timeout(0.15):
                    batch = await driver.next_batch()
            except TimeoutError:
                continue
            if batch is None:
                break
            text += batch[1][0].choices[0].delta.content or ""
        assert text == "w0 w1 w2 "

    run_in_virtual_time(main())


def test_the_error_comes_after_the_text_and_again_on_every_further_read() -> None:
    async def main() -> None:
        error = EndpointProtocolError("truncated", endpoint="server")
        driver = begin(ScriptedEndpoint("server", [(0.1, "a"), (0.2, error)]))
        assert await driver.next_batch() is not None
        for _ in range(2):
            with pytest.raises(EndpointProtocolError) as caught:
                await driver.next_batch()
            assert caught.value.partial == "a"
        assert driver.is_over

    run_in_virtual_time(main())


def test_after_the_end_every_read_gives_none() -> None:
    async def main() -> None:
        driver = begin(ScriptedEndpoint("server", words(0.1)))
        assert await read_all(driver) == "w0 "
        assert await driver.next_batch() is None

    run_in_virtual_time(main())


def test_two_reads_at_once_are_refused() -> None:
    async def main() -> None:
        driver = begin(ScriptedEndpoint("server", words(1.0)))
        first = asyncio.ensure_future(driver.next_batch())
        await asyncio.sleep(0)
        with pytest.raises(ConcurrentRead):
            await driver.next_batch()
        assert await first is not None
        await driver.aclose()

    run_in_virtual_time(main())


@pytest.mark.parametrize("direct", [True, False])
def test_closing_from_another_task_wakes_the_reader(direct: bool) -> None:
    async def main() -> None:
        endpoints = [ScriptedEndpoint("server", [(0.1, "a"), (0.2, None)], cancel_takes=0.3)]
        driver = begin(*endpoints, pace=None if direct else 100.0)
        await driver.next_batch()
        reader = asyncio.ensure_future(driver.next_batch())
        await asyncio.sleep(0.5)
        assert not reader.done()
        await driver.aclose()
        with pytest.raises(StreamClosed):
            await reader
        assert endpoints[0].active == 0
        assert driver.is_over

    run_in_virtual_time(main())


def test_aclose_waits_for_the_cancel_and_may_be_called_twice() -> None:
    async def main() -> None:
        endpoint = ScriptedEndpoint("server", [(0.1, "a"), (9.0, "b")], cancel_takes=0.4)
        driver = begin(endpoint)
        await driver.next_batch()
        before = asyncio.get_running_loop().time()
        await asyncio.gather(driver.aclose(), driver.aclose())
        assert asyncio.get_running_loop().time() - before == pytest.approx(0.4)
        assert endpoint.active == 0

    run_in_virtual_time(main())


def test_a_cancelled_aclose_still_ends_the_work() -> None:
    async def main() -> None:
        endpoint = ScriptedEndpoint("server", [(0.1, "a"), (9.0, "b")], cancel_takes=0.4)
        driver = begin(endpoint)
        await driver.next_batch()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await driver.aclose()
        await asyncio.sleep(0.5)
        assert endpoint.active == 0
        assert driver.is_over

    run_in_virtual_time(main())


@pytest.mark.parametrize("pace", [None, 1000.0])
def test_a_reader_that_pauses_pauses_the_endpoint(pace: float | None) -> None:
    async def main() -> None:
        server = ScriptedEndpoint("server", words(*[0.1] * 500))
        rival = ScriptedEndpoint("rival", [(0.05, None)], cancel_takes=1e6)  # keeps the session from reading directly
        driver = begin(server, rival, pace=pace, unread=50)
        await asyncio.sleep(100)
        assert driver.machine.attempts["server"].tokens <= 103, "at most the limit unread, the limit paced, and one batch each"
        text = ""
        while text.count("w") < 500:
            batch = await driver.next_batch()
            assert batch is not None
            text += "".join(chunk.choices[0].delta.content or "" for chunk in batch[1])
        assert text == "".join(f"w{index} " for index in range(500))
        driver.leave()

    run_in_virtual_time(main())


def test_peek_waits_for_the_first_delivery_and_raises_what_came_instead() -> None:
    async def main() -> None:
        driver = begin(ScriptedEndpoint("server", words(0.1, 0.2)))
        await driver.peek()
        await driver.peek()
        assert await read_all(driver) == "w0 w1 "
        failing = begin(ScriptedEndpoint("server", [(0.1, EndpointConnectError("refused"))]))
        with pytest.raises(EndpointConnectError):
            await failing.peek()

    run_in_virtual_time(main())


class Failing(ScriptedStream):
    """Ends with the endpoint's error of another kind after its script."""

    async def receive(self) -> TokensReceived | StreamEnded:
        event = await super().receive()
        if isinstance(event, StreamEnded):
            raise cast("FailingEndpoint", self._endpoint).error
        return event


class FailingEndpoint(ScriptedEndpoint):
    def __init__(self, name: str, script: list[tuple[float, Any]], error: Exception) -> None:
        super().__init__(name, script, ends_after=0.3)
        self.error = error

    def open(self, request: Request) -> ScriptedStream:
        self.active += 1
        return Failing(self, request)


@pytest.mark.parametrize("error", [KeyError("oops"), ConfigError("session: wrong"), UsageError("session: another loop")], ids=repr)
@pytest.mark.parametrize("said", [[], words(0.1, 0.2)], ids=["at first", "in the middle"])
@pytest.mark.parametrize("has_rival", [False, True])
def test_what_is_no_failure_of_an_endpoint_ends_the_answer_and_no_other_endpoint_takes_over(
    error: Exception, said: list[tuple[float, Any]], has_rival: bool
) -> None:
    async def main() -> None:
        calls: list[RaceDriver] = []
        broken = FailingEndpoint("server", said, error)
        rival = ScriptedEndpoint("device", words(50.0))
        driver = begin(*([broken, rival] if has_rival else [broken]), on_over=calls.append)
        read: list[Batch] = []
        with pytest.raises(StreamcoError) as caught:
            await read_into(read, driver)
        assert "".join(chunk.choices[0].delta.content or "" for batch in read for chunk in batch[1]) == "".join(word for _, word in said)
        if isinstance(error, StreamcoError):
            assert (type(caught.value), str(caught.value)) == (type(error), str(error))
        else:
            assert type(caught.value) is StreamcoError
            assert str(caught.value) == "server: expected an event or an EndpointError, got KeyError('oops')"
        await driver.aclose()
        assert driver.is_over
        assert calls == [driver]
        assert driver.machine.attempts["server"].error is None
        assert (broken.active, rival.active) == (0, 0)

    run_in_virtual_time(main())


def test_on_over_is_called_once_when_even_the_losers_are_released() -> None:
    async def main() -> None:
        calls = []
        server, device = ScriptedEndpoint("server", words(0.5)), ScriptedEndpoint("device", words(0.1), cancel_takes=0.1)
        server.cancel_takes = 5.0
        driver = RaceDriver(
            RaceMachine(RacePlan(attempts=(AttemptPlan("server", 0.0), AttemptPlan("device", 0.0)))),
            {"server": server, "device": device},
            Request(prompt="p"),
            on_over=lambda driver: calls.append(asyncio.get_running_loop().time()),
            clock=asyncio.get_running_loop().time,
        )
        driver.start()
        assert await read_all(driver) == "w0 "
        assert calls == []
        await driver.aclose()
        assert calls == [pytest.approx(5.1)]

    run_in_virtual_time(main())


def test_a_dropped_driver_leaves_no_task_behind() -> None:
    async def main() -> None:
        endpoint = ScriptedEndpoint("server", [(0.1, "a"), (9.0, "b")])
        driver = begin(endpoint)
        await driver.next_batch()
        driver.leave_soon()
        del driver
        gc.collect()
        await asyncio.sleep(0.1)
        assert endpoint.active == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_in_virtual_time(main())


def test_an_endpoint_that_fails_to_open_is_a_leg_that_failed_unless_it_is_a_defect() -> None:
    class Unopenable(ScriptedEndpoint):
        error: Exception = EndpointConnectError("no room")

        def open(self, request: Request) -> ScriptedStream:
            raise self.error

    async def main() -> None:
        driver = begin(Unopenable("server"), ScriptedEndpoint("device", words(0.1)))
        assert await read_all(driver) == "w0 "
        assert isinstance(driver.machine.attempts["server"].error, EndpointConnectError)
        alone = begin(Unopenable("server"))
        with pytest.raises(EndpointConnectError, match="no room"):
            await alone.next_batch()
        await alone.aclose()
        assert alone.is_over
        Unopenable.error = RuntimeError("a defect")
        broken = begin(Unopenable("server"), ScriptedEndpoint("device", words(0.1)))
        with pytest.raises(StreamcoError, match="a defect") as caught:
            await broken.next_batch()
        assert not isinstance(caught.value, EndpointError)
        await broken.aclose()
        assert broken.is_over

    run_in_virtual_time(main())


def test_an_endpoint_that_fails_to_cancel_does_not_keep_the_session_alive() -> None:
    class Clinging(ScriptedStream):
        async def cancel(self) -> None:
            await super().cancel()
            raise OSError("can't let go")

    class ClingingEndpoint(ScriptedEndpoint):
        def open(self, request: Request) -> ScriptedStream:
            self.active += 1
            return Clinging(self, request)

    async def main() -> None:
        calls: list[RaceDriver] = []
        driver = begin(ClingingEndpoint("server", [(0.1, "a"), (9.0, "b")]), on_over=calls.append)
        await driver.next_batch()
        await driver.aclose()
        assert driver.is_over
        assert calls == [driver]
        assert "can't let go" in str(driver.machine.attempts["server"].error)

    run_in_virtual_time(main())


@pytest.mark.parametrize("direct", [True, False])
def test_events_that_no_machine_can_take_end_the_answer_with_an_error_and_all_work(direct: bool) -> None:
    class Confused(ScriptedStream):
        async def receive(self) -> TokensReceived | StreamEnded:
            event = await super().receive()
            return TokensReceived("somebody else", [text_chunk("x")], 1) if self._position > 1 else event

    class ConfusedEndpoint(ScriptedEndpoint):
        def open(self, request: Request) -> ScriptedStream:
            self.active += 1
            return Confused(self, request)

    async def main() -> None:
        calls: list[RaceDriver] = []
        confused, rival = ConfusedEndpoint("server", words(0.1, 0.2, 0.3)), ScriptedEndpoint("device", [(0.1, None)])
        driver = begin(*([confused] if direct else [confused, rival]), pace=None if direct else 100.0, on_over=calls.append)
        with pytest.raises(StreamcoError, match="expected events it can handle") as caught:
            await read_all(driver)
        assert isinstance(caught.value.__cause__, KeyError)
        await driver.aclose()
        assert driver.is_over
        assert calls == [driver]
        assert (confused.active, rival.active) == (0, 0)

    run_in_virtual_time(main())


def test_a_machine_that_breaks_at_a_deadline_ends_the_answer_with_an_error() -> None:
    class Brittle(RaceMachine):
        def handle_deadline(self, *, now: float) -> None:
            raise ZeroDivisionError

    async def main() -> None:
        endpoint = ScriptedEndpoint("server", [(9.0, "a")])
        plan = RacePlan(attempts=(AttemptPlan("server", 0.0), AttemptPlan("late", 1.0)))
        driver = RaceDriver(Brittle(plan), {"server": endpoint, "late": ScriptedEndpoint("late")}, Request(prompt="p"))
        driver.start()
        with pytest.raises(StreamcoError) as caught:
            await driver.next_batch()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        await driver.aclose()
        assert endpoint.active == 0

    run_in_virtual_time(main())


def test_a_machine_that_breaks_at_its_start_ends_the_answer_with_an_error_and_is_over() -> None:
    class Broken(RaceMachine):
        def start(self, *, now: float) -> None:
            raise ZeroDivisionError

    async def main() -> None:
        over: list[RaceDriver] = []
        driver = RaceDriver(Broken(RacePlan(attempts=(AttemptPlan("server", 0.0),))), {}, Request(prompt="p"), on_over=over.append)
        driver.start()
        with pytest.raises(StreamcoError) as caught:
            await driver.next_batch()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert driver.is_over
        assert over == [driver]

    run_in_virtual_time(main())


def test_what_fails_after_the_end_is_told_to_the_loop_and_does_not_spoil_the_answer() -> None:
    def spoil(driver: RaceDriver) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        driver = begin(ScriptedEndpoint("server", words(0.1)), on_over=spoil)
        assert await read_all(driver) == "w0 "
        await driver.aclose()
        assert driver.is_over
        assert [type(context["exception"]) for context in told] == [ZeroDivisionError]

    run_in_virtual_time(main())


def test_peek_and_read_at_once_are_two_readers() -> None:
    async def main() -> None:
        driver = begin(ScriptedEndpoint("server", words(1.0)))
        first = asyncio.ensure_future(driver.peek())
        await asyncio.sleep(0)
        with pytest.raises(ConcurrentRead):
            await driver.next_batch()
        await first
        assert await read_all(driver) == "w0 "

    run_in_virtual_time(main())


def test_peek_hears_of_a_close() -> None:
    async def main() -> None:
        driver = begin(ScriptedEndpoint("server", [(0.0, None)]))
        peek = asyncio.ensure_future(driver.peek())
        await asyncio.sleep(0.1)
        await driver.aclose()
        with pytest.raises(StreamClosed):
            await peek

    run_in_virtual_time(main())


def test_each_leg_is_cancelled_once_whoever_asks_for_it() -> None:
    cancels: list[str] = []

    class Counting(ScriptedStream):
        async def cancel(self) -> None:
            cancels.append(self._endpoint.name)
            await super().cancel()

    class CountingEndpoint(ScriptedEndpoint):
        def open(self, request: Request) -> ScriptedStream:
            self.active += 1
            return Counting(self, request)

    async def main() -> None:
        slow = CountingEndpoint("server", words(5.0), cancel_takes=2.0)
        driver = begin(slow, CountingEndpoint("device", words(0.1, 0.2)))
        assert await read_all(driver) == "w0 w1 "
        await asyncio.gather(driver.aclose(), driver.aclose())
        driver.leave()
        assert cancels == ["server"]

    run_in_virtual_time(main())


def test_closing_after_the_end_drops_what_was_not_read() -> None:
    async def main() -> None:
        driver = begin(ScriptedEndpoint("server", words(0.1, 0.1)), ScriptedEndpoint("device", [(0.1, None)]), pace=100.0)
        await asyncio.sleep(1.0)
        assert driver.is_over
        assert not driver.was_broken_off
        await driver.aclose()
        with pytest.raises(StreamClosed):
            await driver.next_batch()

    run_in_virtual_time(main())


def test_a_log_holds_neither_the_prompt_nor_a_key() -> None:
    async def main() -> None:
        log: list[Any] = []
        request = Request(messages=[{"role": "user", "content": "my secret"}], headers={"Authorization": "Bearer sk-123"})
        failing = ScriptedEndpoint("server", [(0.1, EndpointConnectError("refused", endpoint="server"))])
        device = ScriptedEndpoint("device", words(0.2, 0.3))
        driver = RaceDriver(
            RaceMachine(RacePlan(attempts=(AttemptPlan("server", 0.0), AttemptPlan("device", 0.0)))),
            {"server": failing, "device": device},
            request,
            log=log,
        )
        driver.start()
        assert await read_all(driver) == "w0 w1 "
        assert "my secret" not in repr(log)
        assert "sk-123" not in repr(log)
        assert "w0 " in repr(log), "what was answered is in it"

    run_in_virtual_time(main())


def test_leaving_from_another_thread_after_the_loop_has_closed_is_no_error() -> None:
    async def main() -> RaceDriver:
        driver = begin(ScriptedEndpoint("server", words(0.1)))
        assert await read_all(driver) == "w0 "
        return driver

    driver = run_in_virtual_time(main())
    driver.leave_soon()


def test_the_clock_is_the_systems_unless_the_loop_has_its_own() -> None:
    async def main() -> float:
        driver = begin(ScriptedEndpoint("server", words(0.1)), own_clock=True)
        await read_all(driver)
        return driver.now

    assert run_in_virtual_time(main()) == pytest.approx(0.1)
    before = time.monotonic()
    assert before <= asyncio.run(main()) <= time.monotonic()


@pytest.mark.parametrize(("kind", "most"), [("device", 21), ("server", 500)])
def test_a_device_runs_ahead_of_a_paced_reader_only_so_far(kind: Kind, most: int) -> None:
    async def main() -> None:
        endpoint = ScriptedEndpoint("it", words(*[0.1] * 500), kind=kind)
        driver = RaceDriver(
            RaceMachine(RacePlan(attempts=(AttemptPlan("it", 0.0),), pace=5.0)), {"it": endpoint}, Request(prompt="p"), max_ahead=20
        )
        driver.start()
        await asyncio.sleep(0.15)
        assert driver.machine.attempts["it"].tokens == most
        assert (await read_all(driver)).count("w") == 500

    run_in_virtual_time(main())


def move(source: ScriptedEndpoint, target: ScriptedEndpoint, terms: Terms, *, pace: float | None = None, ahead: int = 64) -> RaceDriver:
    """An answer that may move from one endpoint to the other."""
    dear = Terms(prompt=1e-9, completion=1e-6, setup=0.1)
    plan = RacePlan(
        attempts=(AttemptPlan(source.name, 0.0, continues=True), AttemptPlan(target.name, None, continues=True)),
        pace=pace,
        on_failure="migrate",
        migration=MigrationPlan(
            terms={source.name: dear, target.name: terms},
            lengths=RemainingLength((400,), (0.0,)),
            prompt_tokens=100,
            reader_rate=pace or 5.0,
            capacity=ahead,
        ),
    )
    driver = RaceDriver(RaceMachine(plan), {e.name: e for e in (source, target)}, Request(prompt="p"), max_ahead=ahead, log=[])
    driver.start()
    return driver


@pytest.mark.parametrize("error", [None, EndpointConnectError("cut", endpoint="device")])
@pytest.mark.parametrize("cancel_takes", [0.0, 0.2])
def test_work_that_ends_before_its_cancel_is_carried_out_does_not_have_the_next_work_cancelled(
    error: EndpointError | None, cancel_takes: float
) -> None:
    """Both pumps wake at the same time: the device has read ahead, or failed to, when its cancel was commanded but has not begun."""

    async def main() -> None:
        server = ScriptedEndpoint("server", [(0.5, "w0 "), (1.0, EndpointConnectError("cut", endpoint="server"))])
        device = ScriptedEndpoint(
            "device",
            words(0.5, 1.0, 1.5),
            kind="device",
            capabilities=Capabilities(pre_copy="append"),
            prepare_takes=0.5,
            prepare_error=error,
            cancel_takes=cancel_takes,
        )
        driver = move(server, device, Terms(prompt=1e-9, completion=1e-8, pre_copy="append"))
        assert await read_all(driver) == "w0 w1 w2 "
        assert len(device.streams) == 2
        await driver.aclose()
        assert not device.active

    run_in_virtual_time(main())


def test_a_target_reads_ahead_at_its_own_speed_however_far_the_source_is_ahead_of_the_reader() -> None:
    async def main() -> None:
        source = ScriptedEndpoint("source", words(*(0.5 + 0.01 * index for index in range(40))), kind="device")
        target = ScriptedEndpoint(
            "target", words(*(0.1 + 0.01 * index for index in range(40))), capabilities=Capabilities(pre_copy="warm"), prepare_takes=0.15
        )
        driver = move(source, target, Terms(prompt=1e-9, completion=1e-8, setup=0.2, per_token=0.05, pre_copy="warm"), pace=5.0, ahead=8)
        assert await read_all(driver) == "".join(f"w{index} " for index in range(40))
        assert isinstance(driver._log, list)
        (end,) = [now for now, event, _ in driver._log if isinstance(event, StreamEnded) and event.source == "target"][:1]
        assert end == pytest.approx(0.65)
        assert [hand_over.target for hand_over in driver.machine.hand_overs] == ["target"]

    run_in_virtual_time(main())
